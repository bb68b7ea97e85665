# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PROTOS := $(wildcard protos/minefleet/v1/*.proto)
MINESTUDIO := .venv-minestudio
MINESTUDIO_INSTALLED := $(MINESTUDIO)/.installed
# Tests wait for processes about a third of the time.
WORKERS := $(shell expr $$(nproc) \* 3 / 2)
SERVICES := $(wildcard protos/minefleet/v1/*_service.proto)

# Where this is set, each of the thousand processes that the tests start compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

# Tests that drive MineStudio or MineRL are skipped, and counted, where these name no interpreter.
export MINESTUDIO_PYTHON ?= $(if $(wildcard $(MINESTUDIO_INSTALLED)),$(CURDIR)/$(MINESTUDIO)/bin/python)

.PHONY: help install minestudio demo test test-fleet check site compose soak bench protos page pictures clean

help: ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED) ## Make .venv and install minefleet with everything it needs.

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "minefleet needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -c 'import platform, sys; sys.exit(platform.system() != "Linux")' || { echo "minefleet runs on Linux only."; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

minestudio: $(MINESTUDIO_INSTALLED) ## Make .venv-minestudio, with which the tests drive the real MineStudio.

$(MINESTUDIO_INSTALLED): deploy/minestudio/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || { echo "MineStudio needs NumPy 1.26, which needs Python 3.11 or 3.12; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make minestudio PYTHON=python3.11"; exit 2; }
	@test -x $(MINESTUDIO)/bin/python || $(PYTHON) -m venv $(MINESTUDIO)
	$(MINESTUDIO)/bin/python -m pip install --quiet --requirement $<
	$(MINESTUDIO)/bin/python -m pip install --quiet --no-deps minestudio==1.1.6
	@touch $@

demo: $(INSTALLED) ## Train Crafter for about three minutes and show what was learned.
	$(BIN)/minefleet demo

test: $(INSTALLED) ## Run the tests: every unit and contract, and one whole run.
	$(BIN)/python -m pytest -m 'not fleet and not soak' --numprocesses $(WORKERS) --dist loadfile

test-fleet: $(INSTALLED) ## Run the tests of whole fleets.
	$(BIN)/python -m pytest -m 'fleet and not soak' --numprocesses $(WORKERS)

check: $(INSTALLED) ## Run the gates: format, lint, types, arrows, protos, generated code and docs.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/vermin --quiet --no-tips --violations --target=3.8- clients/minefleet_env
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/python protos/generate.py --check
	$(BIN)/python docs/generate_config.py --check
	$(BIN)/python docs/check_style.py
	$(BIN)/python docs/check_page.py
	@if command -v kubectl >/dev/null; then echo "$(BIN)/python deploy/kubernetes/validate.py"; $(BIN)/python deploy/kubernetes/validate.py; else echo "deploy/kubernetes is not validated: there is no kubectl"; fi
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

site: $(INSTALLED) ## Show the documentation at http://127.0.0.1:8000, as it is written.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

compose: $(INSTALLED) ## Bring the composition up with a real engine, hurt it, and leave nothing.
	deploy/test/compose.sh

soak: $(INSTALLED) compose ## Run the long learning and chaos runs.
	$(BIN)/python -m pytest -m soak --timeout 14400

bench: $(INSTALLED) ## Run all benchmarks.
	@set -e; for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark; done

protos: $(INSTALLED) ## Generate clients/minefleet/v1 from protos/.
	$(BIN)/python protos/generate.py

page: ## Build the page of `minefleet watch` from clients/watch; needs Node.js and npm.
	cd clients/watch && npm ci --no-audit --no-fund && npm run build

pictures: $(INSTALLED) ## Make the pictures of the documentation anew, from real runs; needs Chromium.
	$(BIN)/python docs/pictures.py

clean: ## Remove the virtual environments and caches.
	rm -rf $(VENV) $(MINESTUDIO) clients/watch/node_modules site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
