# make demo: the paper's comparison on the embedded drawings, in minutes, without data or GPU
# make test: linter, type checker and the fast tests; the inner loop
# make test-slow: the other tests (kills, hostile files, real processes, whole commands)
# make fuzz: inputs for every parser, a minute each; FUZZ_SECONDS=3600 for longer
# make docs: the pages in docs/ as a site in site/, to be read without a server or a network
# make install: the command, .venv/bin/kedge, and the weights of its pretrained network
# make dist: wheel and source in dist/, and the README followed with the wheel in an empty environment
# make lock: look up the hashes of what pyproject.toml and constraints.txt ask for, into locks/;
#   UPGRADE=1 takes newer versions of what constraints.txt does not pin, such as the tools
# make audit: known vulnerabilities of everything in locks/; asks a service on the network
# make sbom: what is installed in .venv with versions and licences, as CycloneDX, in dist/
# All set up what they need in .venv; only Python 3.11, 3.12 or 3.13 with pip and venv must be there.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p) 2>/dev/null)))
BIN := .venv/bin
TOOLS := .venv/tools/bin
PIP := -m pip --quiet --disable-pip-version-check
# Only files whose hash is in the lock, and nothing that runs code of its own when it is installed.
LOCKED := install --no-deps --only-binary :all: --require-hashes

FUZZ_SECONDS ?= 60

.PHONY: demo test test-slow fuzz docs install dist lock audit sbom clean

demo: .venv/installed
	$(BIN)/kedge bench

test: .venv/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -n auto -m "not slow"

test-slow: .venv/installed-test
	$(BIN)/pytest -n auto -m slow

fuzz: .venv/installed-test .venv/installed-fuzz
	$(BIN)/python -m tools.fuzz --seconds $(FUZZ_SECONDS)

docs: .venv/installed-docs
	$(BIN)/python tools/write_reference.py
	$(BIN)/python tools/draw_alignment.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo site/index.html

install: .venv/installed

# A stamp for each set of packages: made again only when what is asked for has changed.
.venv/installed: .venv/installed-torch pyproject.toml
	$(BIN)/python $(PIP) install --no-deps --no-build-isolation -e .
	touch $@

# Of the same version each index has another build of torch. `make install ANY_TORCH=1` takes one
# whose hash is not in locks/torch.txt. What a build for CUDA needs besides has versions, which
# torch asks for exactly, but no hashes.
.venv/installed-torch: .venv/installed-lock locks/torch.txt
	rm -rf .venv/torch
	$(BIN)/python $(PIP) download --no-deps --only-binary :all: -c constraints.txt -d .venv/torch torch
	$(if $(ANY_TORCH),,@$(BIN)/python -m pip hash .venv/torch/* | grep -o 'sha256:.*' | \
	  grep -qFf - locks/torch.txt || { echo "$$(ls .venv/torch): the hash of this build is not in\
	  locks/torch.txt; 'make install ANY_TORCH=1' takes it all the same."; exit 1; })
	$(BIN)/python $(PIP) install --no-deps --no-index -f .venv/torch -c constraints.txt torch
	$(BIN)/python $(PIP) install --only-binary :all: -c constraints.txt torch
	rm -r .venv/torch
	touch $@

.venv/installed-lock: locks/install.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) $(LOCKED) -r locks/install.txt
	touch $@

.venv/installed-%: locks/%.txt .venv/installed
	$(BIN)/python $(PIP) $(LOCKED) -r $<
	touch $@

.venv/tools/installed: locks/tools.txt
	$(PYTHON) -m venv .venv/tools
	$(TOOLS)/python $(PIP) $(LOCKED) -r $<
	touch $@

COMPILE = $(TOOLS)/uv pip compile --quiet --config-file locks/uv.toml --universal \
  --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
lock: .venv/tools/installed
	$(COMPILE) -c constraints.txt --no-emit-package torch pyproject.toml --extra pretrained --extra serve -o locks/install.txt
	$(COMPILE) -c constraints.txt --no-emit-package torch pyproject.toml --extra docs -o locks/docs.txt
	$(COMPILE) -c constraints.txt --no-emit-package torch pyproject.toml --extra test -o locks/test.txt
	$(COMPILE) -c constraints.txt --no-emit-package torch pyproject.toml --extra fuzz -o locks/fuzz.txt
	$(COMPILE) --group tools -o locks/tools.txt

dist: .venv/tools/installed
	rm -rf dist/*.whl dist/*.tar.gz
	$(TOOLS)/python -m build --no-isolation
	$(TOOLS)/python tools/try_wheel.py dist/*.whl

# Strict, since a package that the service does not know, or an index without such a service, would
# otherwise count as safe.
audit: .venv/tools/installed
	$(TOOLS)/pip-audit --strict --disable-pip $(foreach f,install test fuzz torch tools,-r locks/$(f).txt)

SBOM = dist/kedge-$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/kedge/__init__.py).cdx.json
sbom: .venv/tools/installed .venv/installed
	mkdir -p dist
	$(TOOLS)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o $(SBOM).part .venv
# Without the path of this folder, from which kedge is installed.
	sed 's|file://$(CURDIR)|.|' $(SBOM).part > $(SBOM)
	rm $(SBOM).part
	@echo $(SBOM)

clean:
	rm -rf .venv site
