# Needs python3 (3.11 or later), make and the network, no more: every target sets up what it uses.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Runs a command where a Docker engine answers: one that is here, or one that ends with the command.
ENGINE := $(BIN)/python -m tools.docker_engine
# What `make conform` tries: smoke, remote, ci or nightly.
PROFILE ?= remote
DISTS  := core helper conformance providers/bashkit providers/docker providers/host
READY  := $(VENV)/.ready
# The peers that the benchmarks measure are many packages: they have a venv of their own.
PEERS  := .venv-bench

# What is type checked; folders that are still to come are left out.
SOURCES := $(DISTS:%=%/src)
EXTRAS  := $(wildcard conftest.py tests bench examples tools/*.py)

.DEFAULT_GOAL := help
.PHONY: help venv system demo test check conform bench docs nightly lock format clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

venv: $(READY)  ## .venv, with every dist in it, editable

# pyproject.toml belongs to what is installed: entry points and scripts come from it.
$(READY): requirements.txt $(DISTS:%=%/pyproject.toml) $(wildcard helper/src/pinfold_helper/source/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pinfold needs Python 3.11 or later")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation $(DISTS:%=-e %)
	@touch $@

system:  ## what tests need from the system: installs it (root on Debian) or says what is missing
	@tools/setup-system

demo: venv  ## a real job, from nothing to its outcome
	$(BIN)/python examples/demo.py

# One engine serves all docker tests, so those run in one process; the rest share the processors.
# Run as `$(call all-tests,PYTEST OPTIONS)`: the second part runs whatever the first part says.
define all-tests
$(ENGINE) sh -c '$(BIN)/python -m pytest $(1) tests/providers/docker; code=$$?; \
	$(BIN)/python -m pytest $(1) --numprocesses 3 --dist worksteal --ignore tests/providers/docker \
	&& exit $$code'
endef

test: venv system  ## all tests but the long ones
	$(call all-tests)

check: venv  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES) $(EXTRAS)
	$(BIN)/lint-imports

format: venv  ## rewrites the sources in the one format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

conform: venv system  ## the suite on every lane found; certificates and a page in build/conformance
	$(ENGINE) $(BIN)/pinfold conform --all --profile $(PROFILE) --out build/conformance \
		--known tests/conformance/known-failures.toml || [ $$? -eq 4 ]

$(PEERS)/.ready: bench/requirements.txt $(READY)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r bench/requirements.txt
	$(PEERS)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation $(DISTS:%=-e %)
	@touch $@

bench: $(PEERS)/.ready  ## ratios against the raw floor and peers, as JSON
	@tools/setup-system bench
	$(ENGINE) $(PEERS)/bin/python -m bench

docs: venv system  ## makes the docs' table of what survives what, and runs every code block
	$(ENGINE) $(BIN)/python -m tests.docs.survival
	$(ENGINE) $(BIN)/python -m pytest tests/docs

nightly: venv system  ## all tests, the long ones too, with far more examples
	$(BIN)/python -m tools.docker_newer fetch
	$(BIN)/python -m tools.docker_newer $(BIN)/python -m pytest -m "" -k "not large_profiles" \
		tests/providers/docker; code=$$?; \
	HYPOTHESIS_PROFILE=nightly $(call all-tests,-m "") && exit $$code

lock: venv  ## compiles requirements.in; UPGRADE=--upgrade takes the newest of everything
	$(BIN)/uv pip compile requirements.in --output-file requirements.txt --quiet $(UPGRADE) \
		--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
		--custom-compile-command "make lock"
	$(BIN)/uv pip compile requirements.in bench/requirements.in --output-file bench/requirements.txt \
		--constraint requirements.txt --quiet $(UPGRADE) --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock"

clean:  ## removes the venv, caches and build outputs
	rm -rf $(VENV) $(PEERS) .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
