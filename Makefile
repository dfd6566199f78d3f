# make book and make test each do all the set-up they need: an environment of their own in .venv, pinned by
# constraints.txt, reused as long as pyproject.toml and constraints.txt are unchanged.
#
#   PYTHON     the interpreter to build the environment from (3.11 to 3.13)
#   PIP_FLAGS  more options for pip, such as an index that has the small CPU build of PyTorch
#   PARAMS     parameters for `make book`, such as PARAMS="-p replicates 2000"

.DEFAULT_GOAL := help
.PHONY: help setup book serve twice test lint clean
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.companion-installed
SUPPORTED := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	"$$p" -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
PORT ?= 8000
JOBS ?= 2

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Set up the environment in .venv

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found: make PYTHON=/path/to/python"; exit 1; }
	@"$(BIN)/python" -c '$(SUPPORTED)' >/dev/null 2>&1 || { rm -rf "$(VENV)" && "$(PYTHON)" -m venv "$(VENV)"; }
	@echo "Setting up $(VENV); the first time takes some minutes."
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) \
		--constraint constraints.txt --editable '.[dev]'
	@touch "$@"

book: $(STAMP)  ## Run the chapters and build the site into _build/html
	@"$(BIN)/companion" book --jobs $(JOBS) $(PARAMS)

serve: book  ## Build the book and show it at http://localhost:8000
	@echo "http://localhost:$(PORT)  (Ctrl+C stops)"
	@"$(BIN)/python" -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

twice: $(STAMP)  ## Build the book twice from scratch and compare: only dates may differ
	@"$(BIN)/python" tests/compare_builds.py

test: $(STAMP)  ## Run all tests, in two processes
	@"$(BIN)/python" -m pytest -n $(JOBS) --dist worksteal

lint: $(STAMP)  ## Check style and types
	@"$(BIN)/ruff" check .
	@"$(BIN)/ruff" format --check .
	@"$(BIN)/mypy"

clean:  ## Remove everything that was built; keep the environment
	@rm -rf _build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
