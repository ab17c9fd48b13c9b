# Everything a person or CI does with this checkout. Tools come from .venv, which `make setup`
# creates; no target needs an activated environment. Paths are relative, so any folder name works.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# The first of these that really runs, and is 3.11 or newer, makes the environment.
PYTHON ?= python3.13 python3.12 python3.11 python3
PIP := .venv/bin/python -m pip --disable-pip-version-check --no-input
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 \
       -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20

# Passed on to the command: make test PYTEST_ARGS="-k digest", make demo DEMO_ARGS="-o json",
# make simulate SEEDS=10000, make fuzz-compiler TRIPLES=1000.
PYTEST_ARGS ?=
DEMO_ARGS ?=
SEEDS ?= 1000
TRIPLES ?= 20000
PROGRAMS ?= 100000
LAYERS ?= 300

# The caller's Python settings must not reach into .venv.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

# A copied or moved checkout carries an environment that still points at the old folder.
ifeq ($(shell [ -f .venv/root ] && [ "$$(cat .venv/root)" != "$$(pwd -P)" ] && echo moved),moved)
.PHONY: .venv/stamp
endif

.PHONY: help setup demo test check fmt format-check lint type layers stubs proto-lint proto simulate fuzz-ea fuzz-ea-layers fault fuzz-compiler bench clean

help:  ## Print this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | \
	while IFS='|' read -r name text; do printf '  make %-16s%s\n' "$$name" "$$text"; done

setup: .venv/stamp .venv/qemu-tried  ## Create .venv with everything needed, and qemu-user if it can be had
	@command -v qemu-aarch64 >/dev/null || \
	echo "setup: qemu-user is missing, so aarch64 kernels cannot run here; apt-get install qemu-user"

.venv/stamp: pyproject.toml
	@if [ -f .venv/root ] && [ "$$(cat .venv/root)" != "$$(pwd -P)" ]; then \
	    echo "setup: this checkout was moved; creating .venv again"; rm -rf .venv; fi
	@if ! .venv/bin/python -c 'import pip' 2>/dev/null; then \
	    for python in $(PYTHON); do \
	        if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	            2>/dev/null; then found="$$python"; break; fi; \
	    done; \
	    if [ -z "$${found:-}" ]; then \
	        echo "setup: no Python 3.11 or newer with venv found (tried: $(PYTHON));" \
	            "install one, or name it: make setup PYTHON=/path/to/python" >&2; exit 1; fi; \
	    echo "setup: creating .venv with $$("$$found" --version)"; \
	    "$$found" -m venv --clear .venv; fi
	@echo "setup: installing kernel-farm and its tools into .venv (minutes on a new machine)"
	@# The build backend comes first and builds unisolated, so that a complete .venv needs no network.
	@$(PIP) install --quiet 'hatchling>=1.27'
	@$(PIP) install --quiet --no-build-isolation --editable '.[dev]'
	@pwd -P >.venv/root
	@touch $@

# Tried once: being unable to install it is no failure, and no reason to try at every run.
.venv/qemu-tried: | .venv/stamp
	@if ! command -v qemu-aarch64 >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
	then \
	    echo "setup: installing qemu-user through apt"; \
	    { $(APT) update || true; $(APT) install -y --no-install-recommends qemu-user; } \
	        </dev/null >.venv/apt.log 2>&1 || echo "setup: apt failed; see .venv/apt.log"; \
	fi
	@touch $@

demo: setup  ## Build a network for three devices over an embedded farm, run it, check it
	.venv/bin/farm demo $(DEMO_ARGS)

test: setup  ## Run every test, in groups at the same time; with PYTEST_ARGS, one pytest with those arguments
	@if [ -n "$(PYTEST_ARGS)" ]; then .venv/bin/pytest --durations=10 $(PYTEST_ARGS); \
	else .venv/bin/python tests/parallel.py; fi

check: format-check lint type layers stubs proto-lint  ## Run every check that is not a test

fmt: setup  ## Format the code and sort its imports
	.venv/bin/ruff check --select I --fix .
	.venv/bin/ruff format .

format-check: setup  ## Check the format
	.venv/bin/ruff format --check .

lint: setup  ## Check the style rules
	.venv/bin/ruff check .

type: setup  ## Check the types (mypy, strict)
	.venv/bin/mypy

layers: setup  ## Check which package imports which
	.venv/bin/lint-imports --no-logo

stubs: setup  ## Check that farm/api/v1 is what protos/ generates
	.venv/bin/python protos/generate.py --check

proto-lint: setup  ## Check the style of protos/
	.venv/bin/buf lint protos

proto: setup  ## Generate farm/api/v1 from protos/
	.venv/bin/python protos/generate.py

simulate: setup  ## Live through SEEDS simulated farms with faults (SEED=1 TRACE=1: the story of one)
	@cd tests && PYTHONHASHSEED=0 ../.venv/bin/python -m simulation \
	    $(if $(SEED),--seed $(SEED) $(if $(TRACE),--trace),--seeds $(SEEDS))

fuzz-ea: setup  ## Hold the compiled accelerator against the plain one on PROGRAMS random programs, and as many damaged ones
	@cd tests && ../.venv/bin/python -m fuzz.ea_programs --programs $(PROGRAMS)

fuzz-ea-layers: setup  ## Hold the accelerator's code for LAYERS random layers of each kind against plain arithmetic
	@EA_LAYERS=$(LAYERS) .venv/bin/pytest -q --timeout=0 tests/unit/codegen/ea/test_windows.py

fault: setup  ## Break whole farms of real processes at length, under Ray too (half an hour)
	.venv/bin/pytest -m "campaign or not campaign" --durations=20 $(PYTEST_ARGS) tests/fault

fuzz-compiler: setup  ## Run TRIPLES random functions under random schedules, interpreted, compiled, under qemu, in wasmtime and on OpenCL
	@cd tests && ../.venv/bin/python -m fuzz --triples $(TRIPLES)

bench: setup  ## Run each benchmark in turn, one JSON line a figure
	@status=0; found=; \
	for bench in tests/bench/*.py; do \
	    case "$$bench" in */conftest.py | */_*.py) continue ;; esac; \
	    [ -f "$$bench" ] || continue; found=1; \
	    .venv/bin/python "$$bench" || { echo "bench: $$bench failed" >&2; status=1; }; \
	done; \
	[ -n "$$found" ] || echo "bench: there are no benchmarks yet" >&2; \
	exit $$status

clean:  ## Remove .venv, caches and built packages
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find farm tracker agents tests protos -name __pycache__ -type d -prune -exec rm -rf {} +
