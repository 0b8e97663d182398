"""One module for each parser that is fuzzed."""
