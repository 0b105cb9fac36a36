# Each target does its own set-up, in $(VENV) of this checkout; Python 3.11 or later, pip and make must be there.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TARGETS_VENV ?= .venv-targets
TARGETS_STAMP := $(TARGETS_VENV)/.installed

QUIET := -q

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Where this is set every process of the tests compiles each of its modules anew.
export PYTHONDONTWRITEBYTECODE :=

.NOTPARALLEL:
.PHONY: help demo docs test test-all test-browser test-targets bench check fmt clean

help:
	@echo 'make demo      find the layouts of Llama-3-70B on 8 H100s; run a block on 8 virtual devices and compare it'
	@echo 'make test      lint, types, direction of imports, tests'
	@echo 'make test-all  the same with the slow tests'
	@echo 'make test-browser tests of the explorer in Chromium'
	@echo 'make test-targets tests on the compilers of TPUs and GPUs, in $(TARGETS_VENV)'
	@echo 'make docs      the site, in docs/_build'
	@echo 'make bench     every measurement in bench/'
	@echo 'make check     lint, types, direction of imports'
	@echo 'make fmt       format the code and mend what ruff can mend'
	@echo 'make clean     remove $(VENV), $(TARGETS_VENV) and everything that was built'

# Says what it downloads, since it is the first thing that one runs.
demo: QUIET :=
demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: check
	$(BIN)/python -m pytest -n auto --dist loadfile -m 'not slow'

test-all: check
	$(BIN)/python -m pytest -n auto --dist loadfile

# Chromium comes with the system, or is installed where this may be done.
test-browser: $(STAMP)
	@command -v chromium chromium-browser google-chrome >/dev/null || apt-get install -y chromium >/dev/null 2>&1 \
	  || sudo -n apt-get install -y chromium >/dev/null 2>&1 \
	  || { echo 'The tests of the explorer need Chromium: apt-get install chromium, or its like.' >&2; exit 1; }
	SHARDWRIGHT_BROWSER_TESTS=1 $(BIN)/python -m pytest -n auto tests/browser

test-targets: $(TARGETS_STAMP)
	$(TARGETS_VENV)/bin/python -m pytest -n auto tests/targets

docs: $(STAMP)
	$(BIN)/sphinx-build -q -W -b html docs docs/_build
	@echo 'docs/_build/index.html'

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
	rm -rf $(VENV) $(TARGETS_VENV) build dist docs/_build *.egg-info demo-out .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment in $(1) with this package and what $(2) names. A name on PATH need not run (version managers leave such
# names) nor be recent enough, so each is tried. Where the system's Python comes without ensurepip, the pip it has
# installs one into the environment. Modules are compiled when they are first imported, which most of them never are.
define install
	@set -e; \
	if ! $(1)/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  found=; \
	  for name in python3.13 python3.12 python3.11 python3 python python3.14; do \
	    if $$name -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$name; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then echo 'Python 3.11 or later is needed on PATH; none was found.' >&2; exit 1; fi; \
	  echo "Setting up $(1) with $$($$found --version), once: $(2) and what they need, for some minutes"; \
	  rm -rf $(1); \
	  if $$found -c 'import ensurepip' >/dev/null 2>&1; then $$found -m venv $(1); \
	  else $$found -m venv --without-pip $(1); $$found -m pip --python $(1)/bin/python install -q pip; fi; \
	fi
	@PYTHONWARNINGS=ignore $(1)/bin/python -m pip install --no-compile $(QUIET) $(2) -c constraints.txt
	@touch $@
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,$(VENV),-e '.[all$(comma)dev]')

# Apart: with libtpu installed, every program that imports JAX writes to standard error.
$(TARGETS_STAMP): pyproject.toml constraints.txt
	$(call install,$(TARGETS_VENV),-e '.[tpu$(comma)cuda]' pytest pytest-xdist hypothesis)

comma := ,
