# make demo | make up | make test | make check: everything else is for those who work on Muster.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

FRAMEWORKS := pytorch tensorflow jax mindspore
FRAMEWORK_VENVS := .venv-frameworks

.PHONY: help demo up test test-slow test-frameworks test-gpu check bench simulation clean

help:
	@echo "make demo             a gang of real processes, from submission to audit, on a cluster of simulated GPUs"
	@echo "make up               the same cluster, left running for you"
	@echo "make test             the tests"
	@echo "make test-slow        long rounds of fault injection"
	@echo "make test-frameworks  PyTorch, TensorFlow, JAX and MindSpore, each in an environment of its own (6 GB in all)"
	@echo "make test-gpu         a short check on a machine that has GPUs, against nvidia-smi"
	@echo "make check            formatting, lint, types, architecture"
	@echo "make bench            measurements, as docs/performance.md shows them"
	@echo "make simulation       the experiments on traces, as docs/simulation.md shows them: some fifteen minutes"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Muster needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || { echo "setting up $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing Muster and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

up: $(STAMP)
	@$(BIN)/muster up --simulate 2x8xA100-80GB

# These only compute, and share the cores; the others run real brokers, agents and jobs, and have the machine to themselves.
COMPUTING := tests/core tests/projections tests/simulation tests/golden

test: $(STAMP)
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal $(COMPUTING)
	@$(BIN)/python -m pytest $(COMPUTING:%=--ignore=%)

test-slow: $(STAMP)
	@$(BIN)/python -m pytest -m slow

$(FRAMEWORK_VENVS)/%/.installed: tests/frameworks/requirements/%.txt
	@for folder in $(FRAMEWORK_VENVS) $(@D); do test ! -L $$folder \
		|| { echo "$$folder is a link: what it leads to would be deleted and made anew; remove it first"; exit 1; }; done
	@echo "installing $$(tr '\n' ' ' < $<)into $(@D)"
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r $< \
		|| { echo "$* cannot be installed on this machine: see $<"; exit 1; }
	@touch $@

test-frameworks: $(STAMP) $(FRAMEWORKS:%=$(FRAMEWORK_VENVS)/%/.installed)
	@$(BIN)/python -m pytest -m frameworks -v tests/frameworks

test-gpu: $(STAMP)
	@$(BIN)/python -m pytest -m gpu -v -rs tests/gpu

check: $(STAMP)
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(STAMP)
	@$(BIN)/python -m bench

simulation: $(STAMP)
	@$(BIN)/python -m bench.experiments

clean:
	rm -rf $(VENV) $(FRAMEWORK_VENVS) build dist *.egg-info
