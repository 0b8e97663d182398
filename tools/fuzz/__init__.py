"""Coverage-guided fuzzing of everything that reads files of others; see __main__.py."""
