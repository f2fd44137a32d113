# Needs Python 3.11 or later and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
TESTS ?= tests
# As many workers as this machine has cores: WORKERS=8 make test
WORKERS ?= 2
# The build for the CPU: the ordinary one brings several GB of CUDA with it.
TORCH ?= torch==2.13.0+cpu

.DEFAULT_GOAL := help

.PHONY: help
help: ## Say what there is to make.
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "%-10s %s\n", $$1, $$2}'

# --- environments: a stamp is as new as the last install, so a second run installs nothing ---

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[onnx]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev,onnx]'
	@touch $@ $(VENV)/.installed-run

$(VENV)/.installed-torch: pyproject.toml Makefile $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	@touch $@

.PHONY: run
run: $(VENV)/.installed-run ## Show a digit recognised in every protocol, then serve (ARGS=--once: then stop).
	@$(BIN)/gateway demo $(ARGS)

.PHONY: test
test: lint types contracts generated unit ## All checks and tests, but for the slow suites below.

.PHONY: lint
lint: $(VENV)/.installed-dev ## Style: ruff, and its formatter.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(VENV)/.installed-dev ## Types: mypy, strict, of the gateway and of the tests.
	$(BIN)/mypy
	$(BIN)/mypy tests

.PHONY: contracts
contracts: $(VENV)/.installed-dev ## Which module may import which.
	$(BIN)/lint-imports

.PHONY: generated
generated: $(VENV)/.installed-dev ## Generated files are those of their sources (make regenerate writes them).
	$(BIN)/python schemas/generate.py --check
	$(BIN)/python schemas/configuration.py --check

.PHONY: regenerate
regenerate: $(VENV)/.installed-dev
	$(BIN)/python schemas/generate.py
	$(BIN)/python schemas/configuration.py

.PHONY: unit
unit: $(VENV)/.installed-dev
	$(BIN)/pytest $(TESTS) -q -n $(WORKERS) --hypothesis-profile=ci -m "not interop and not hostile and not slow and not gpu"

.PHONY: interop
interop: $(VENV)/.installed-dev ## Real clients, servers and tools, before gateways of each make of the transports.
	INTEROP_TRANSPORT=native $(BIN)/pytest tests/interop -q -rs -m interop --hypothesis-profile=ci --timeout=600
	INTEROP_TRANSPORT=reference $(BIN)/pytest tests/interop -q -rs -m interop --hypothesis-profile=ci --timeout=600 \
		--ignore=tests/interop/test_servers.py

.PHONY: hostile
hostile: $(VENV)/.installed-dev ## Hostile inputs against a running gateway, on each make of the transports.
	HOSTILE_TRANSPORT=native $(BIN)/pytest tests/hostile -q -n $(WORKERS) -m hostile --timeout=300
	HOSTILE_TRANSPORT=reference $(BIN)/pytest tests/hostile -q -n $(WORKERS) -m hostile --timeout=300

.PHONY: slow
slow: $(VENV)/.installed-dev ## Tests that take longer than a few seconds.
	$(BIN)/pytest tests -q -m "slow and not interop and not hostile and not gpu" --hypothesis-profile=ci --timeout=300

.PHONY: torch
torch: $(VENV)/.installed-torch ## The PyTorch backend on the CPU; make test leaves it out where PyTorch is not.
	$(BIN)/pytest tests/unit/backends tests/integration/test_torch.py -q -m torch

.PHONY: gpu
gpu: $(VENV)/.installed-dev ## Models on a GPU, with the PyTorch and ONNX Runtime of this environment.
	$(BIN)/pytest tests/gpu -q -rs -m gpu

.PHONY: wheel
wheel: $(VENV)/.installed-dev ## Build the wheel and show the demo with it, in an environment that has nothing else.
	rm -rf build dist/venv dist/*.whl
	$(BIN)/python -m build --wheel --outdir dist . > /dev/null
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/pip install --quiet "$$(ls dist/*.whl)[onnx]"
	cd dist && venv/bin/gateway demo --once --http 127.0.0.1:0 --grpc 127.0.0.1:0
	cd dist && venv/bin/gateway schema > /dev/null

.PHONY: bench
bench: $(VENV)/.installed-dev ## Speed, beside direct calls and real peers; without ARGS all of it, kept in benchmarks/.
	$(BIN)/python -m benchmarks $(or $(ARGS),all --record)

.PHONY: image
image: ## The container image tensor-gateway:dev.
	docker build --tag tensor-gateway:dev .

.PHONY: clean
clean: ## Remove what was built, .venv included.
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
