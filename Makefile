# Each target does its own set-up, in $(VENV) of this checkout; Python 3.11 or later, pip and make must be there.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.NOTPARALLEL:
.PHONY: help demo test test-all bench check fmt clean

help:
	@echo 'make demo      compile the PaLM block for 8 virtual devices, run it, compare it, draw it'
	@echo 'make test      lint, types, direction of imports, tests'
	@echo 'make test-all  the same with the slow tests'
	@echo 'make bench     every measurement in bench/'
	@echo 'make check     lint, types, direction of imports'
	@echo 'make fmt       format the code and mend what ruff can mend'
	@echo 'make clean     remove $(VENV) and everything that was built'

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: check
	$(BIN)/python -m pytest -n auto -m 'not slow'

test-all: check
	$(BIN)/python -m pytest -n auto

bench: $(STAMP)
	@set -e; for script in bench/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --project pyproject.toml --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

fmt: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info demo-out .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A name on PATH need not run (version managers leave such names) nor be recent enough, so each is tried. Where the
# system's Python comes without ensurepip, the pip it has installs one into the environment.
$(STAMP): pyproject.toml constraints.txt
	@set -e; \
	if ! $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  found=; \
	  for name in python3.13 python3.12 python3.11 python3 python python3.14; do \
	    if $$name -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$name; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then echo 'Python 3.11 or later is needed on PATH; none was found.' >&2; exit 1; fi; \
	  echo "Setting up $(VENV) with $$($$found --version), once"; \
	  rm -rf $(VENV); \
	  if $$found -c 'import ensurepip' >/dev/null 2>&1; then $$found -m venv $(VENV); \
	  else $$found -m venv --without-pip $(VENV); $$found -m pip --python $(BIN)/python install -q pip; fi; \
	fi
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -e '.[all,dev]' -c constraints.txt
	@touch $@
