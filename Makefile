# Quire. `make help` lists the targets; each is idempotent and does only what is not done yet.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Never let the folder `operator` near sys.path as the current directory (it must not become importable).
export PYTHONSAFEPATH := 1
E2E := PYTHONPATH=e2e $(PY) -m
# Files of tests at a time: one more than the CPUs that CI has, for many of them wait. What is long begins first (tests/conftest.py).
SIDE_BY_SIDE := --numprocesses=3 --dist=loadfile --no-loadscope-reorder
MODEL ?= smollm2
ARGS ?=

INSTALL_INPUTS := pyproject.toml $(wildcard */pyproject.toml) kernels/CMakeLists.txt $(shell find kernels/csrc -type f)

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET, where TARGET is one of"} \
	  /^## / {printf "\n%s\n", substr($$0, 4)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## Run it
.PHONY: demo stack-demo serve
demo: python ## a local cluster, the chart, a model in pods, and its answer through the router
	@$(MAKE) -s -j2 tools stack-demo
serve: setup ## no cluster: the embedded model on http://127.0.0.1:8000 (MODEL=…, ARGS="--flag value")
	@$(PY) -m quire.entrypoints.cli serve $(MODEL) --host=127.0.0.1 $(ARGS)

## Work on it
.PHONY: setup lint lint-chart format check test test-unit test-clients test-timing soak scale fuzz test-asan test-avx512-emulated cross-kernels e2e bench bench-peers bench-check manifests
setup: $(STAMP) ## the virtual environment .venv with all three packages and the tools
$(STAMP): $(INSTALL_INPUTS) | python
	@echo "==> virtual environment and packages (about a minute; the PyPI build of torch takes 5 GB)"
	@e2e/setup/make-venv $(PYTHON) $(VENV)
	@touch $@
.PHONY: python
python: # a Python that is too old is refused before anything long starts
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: error: $(PYTHON) is $$($(PYTHON) --version 2>&1); Quire needs Python 3.11 or newer (make PYTHON=python3.12)" >&2; exit 1; }
format: setup ## format and sort imports
	@$(VENV)/bin/ruff format && $(VENV)/bin/ruff check --fix
lint: setup ## ruff, mypy --strict, import-linter, and nothing generated is stale
	@echo "==> ruff"; $(VENV)/bin/ruff format --check && $(VENV)/bin/ruff check
	@echo "==> mypy --strict (a minute the first time)"; $(VENV)/bin/mypy
	@echo "==> import-linter"; PYTHONPATH=operator:runtime:kernels $(VENV)/bin/lint-imports
	@echo "==> generated files"; PYTHONPATH=operator $(PY) -m quire_operator.crd --check && $(E2E) dashboards --check
	@PYTHONPATH=runtime $(PY) -m quire.server.reference --check docs/fields.md
lint-chart: setup ## the chart by helm lint, helm-unittest, helm-docs, checkov and trivy; pods and Dockerfiles too (ARGS=--write: its README anew)
	@PYTHONPATH=e2e:tests/support $(PY) -m lint_chart $(ARGS)
test-unit: setup model ## unit and contract tests
	@$(PY) -m pytest tests --ignore=tests/clients $(SIDE_BY_SIDE) $(ARGS)
test-clients: setup model ## LangChain, LlamaIndex, LiteLLM, lm-eval, openai for JavaScript, schemathesis against the real server
	@echo "==> other people's clients, installed into the cache (minutes the first time)"; $(PY) tests/support/client_environments.py
	@$(PY) -m pytest tests/clients $(SIDE_BY_SIDE) $(ARGS)
test-timing: setup model ## tests that measure time, one after the other, with nothing beside them (minutes)
	@$(PY) -m pytest tests -m timing $(ARGS)
soak: setup model ## half an hour of mixed load on the real server; does anything grow? (ARGS="--minutes=30 --workers=48")
	@PYTHONPATH=tests/support $(PY) -m soak $(ARGS)
scale: setup ## 500 LLMDeployments on a real API server from cold: seconds, CPU and memory of the operator (ARGS="--count=500")
	@PYTHONPATH=tests/support:e2e $(PY) -m operator_scale $(ARGS)
fuzz: setup model ## the property tests with new random examples (minutes); what they find becomes a test of its own
	@HYPOTHESIS_PROFILE=search $(PY) -m pytest tests -m hypothesis $(SIDE_BY_SIDE) $(ARGS)
test-asan: setup ## the kernels' tests and random calls under AddressSanitizer and UBSan (built apart; a quarter of an hour, the first time more)
	@e2e/setup/test-kernels asan $(PY) $(ARGS)
test-avx512-emulated: setup ## the kernels' tests on AVX-512, VNNI and BF16 without such a CPU (needs libsimde-dev)
	@e2e/setup/test-kernels avx512 $(PY) $(ARGS)
cross-kernels: setup ## compile the kernels for aarch64 (needs g++-aarch64-linux-gnu); runs nothing
	@e2e/setup/cross-kernels $(PY)
e2e: setup model ## whole-system tests on a real cluster (brought up if there is none)
	@$(E2E) stack test $(ARGS)
check: lint test-unit ## what to run before a commit
test: ## everything: lint, unit and contract tests, other people's clients, end-to-end tests
	@$(MAKE) lint
	@$(MAKE) test-unit
	@$(MAKE) test-clients
	@$(MAKE) e2e
bench: setup model ## micro benchmarks of the kernels on this machine
	@$(PY) benchmarks/kernels.py
bench-peers: setup model ## Quire beside llama.cpp and vLLM on the same work, in turn (ARGS="--work=w2 --lane=quire"; an hour the first time)
	@PYTHONPATH=benchmarks $(PY) -m peers $(ARGS)
bench-check: setup model ## did a change make it slower? ratios to yardsticks, measured in pairs
	@$(PY) benchmarks/check.py $(ARGS)
manifests: setup ## generate the CRD, its copy in the chart, all references and the dashboard
	@PYTHONPATH=operator $(PY) -m quire_operator.crd
	@PYTHONPATH=runtime $(PY) -m quire.entrypoints.flags > docs/configuration.md
	@PYTHONPATH=runtime $(PY) -m quire.server.reference > docs/fields.md
	@$(E2E) dashboards

.PHONY: model
model: setup # the models of tests, once, in the model cache
	@$(PY) -m quire.entrypoints.cli pull smollm2
	@$(PY) -m quire.entrypoints.cli pull minilm

## Cluster and images
.PHONY: images tools cluster-up cluster-down cluster-status cluster-load
images: setup ## build the runtime and operator images (docker, podman or buildah)
	@$(E2E) images build runtime operator
stack-demo: setup # waits for what `tools` is still compiling
	@$(E2E) stack demo
tools: # the cluster's programs; they need no package, so they compile while pip waits for the network, then beside the images
	@PYTHONPATH=e2e $(PYTHON) -m cluster.programs
cluster-up: setup ## a local Kubernetes from real components (or KUBECONFIG, or kind)
	@$(E2E) cluster up $(ARGS)
cluster-down: setup ## end it; nothing stays behind
	@$(E2E) cluster down
cluster-status: setup ## what runs
	@$(E2E) cluster status
cluster-load: setup ## make an image archive known to all nodes: IMAGE=FILE
	@$(E2E) cluster load $(IMAGE)

.PHONY: clean
clean: ## remove what the targets made in this folder (caches in the home folder stay)
	@rm -rf $(VENV) build dist kernels/build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} + ; find kernels/quire_kernels -name '*.so' -delete
