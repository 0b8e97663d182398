# make demo: the paper's comparison on the embedded drawings, in minutes, without data or GPU
# make test: linter, type checker and all tests
# Both set up what they need in .venv; only Python 3.11 or 3.12 with pip and venv must be there.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(shell command -v $(p) 2>/dev/null)))
BIN := .venv/bin
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test clean

demo: .venv/installed
	$(BIN)/kedge bench

test: .venv/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -n auto

# A stamp for each set of packages: made again only when what is asked for has changed.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/installed-test: .venv/installed
	$(INSTALL) -e '.[test]'
	touch $@

clean:
	rm -rf .venv
