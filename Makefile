# `make test`, `make bench`, `make soak`: each first installs its requirements in .venv. `make demo` needs fewer.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait for processes much of the time.
JOBS ?= $(shell echo $$((2 * $$(nproc))))
COMPILE := pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11

# Without byte code each worker takes three times as long to collect the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: all quick check architecture test search test-vm test-gpu test-cluster demo bench bench-runs bench-halls site soak golden features monitoring protos lock release clean
all: test

$(VENV)/.ready: pyproject.toml hack/lab/pyproject.toml hack/requirements.txt hack/venv.py
	$(PYTHON) hack/venv.py $(VENV) hack/requirements.txt
	@touch $@

test: $(VENV)/.ready  ## install and run all tests, with linters and type checks
	$(BIN)/python hack/run_tests.py -n $(JOBS) --dist worksteal $(ARGS)

quick: $(VENV)/.ready  ## format, lint, import contracts, quick tests of what changed since the trunk (SINCE=commit)
	$(BIN)/python hack/quick.py $(SINCE)

architecture: $(VENV)/.ready  ## what a reader has to hold: size of rooms, repeated names, circles, questions on kinds
	$(BIN)/python hack/ledger.py
	$(BIN)/python hack/house.py

search: $(VENV)/.ready  ## new examples for the property tests, for MINUTES=20; .hypothesis keeps those that fail
	$(BIN)/python hack/search.py -n $(JOBS) --dist worksteal --minutes $(or $(MINUTES),20) $(ARGS)

test-vm: $(VENV)/.ready  ## boot a machine with real VFs and test the installed agent in it (hack/vm/README.md)
	$(BIN)/python -m pytest -m vm tests/vm $(ARGS)

test-gpu: $(VENV)/.ready  ## on a machine with an idle NVIDIA GPU, as root: the agent, programs on the GPU, MPS
	$(BIN)/python -m pytest -m gpu tests/real_gpu $(ARGS)

test-cluster: $(VENV)/.ready  ## check an installation on the cluster of KUBECONFIG (ARGS=--help; docs/install.md)
	$(BIN)/python -m tests.cluster_suite $(if $(KUBECONFIG),--kubeconfig "$(KUBECONFIG)") $(ARGS)

check: $(VENV)/.ready  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

DEMO := $(if $(wildcard $(VENV)/.ready),$(VENV),.cache/demo-venv)

demo: $(DEMO)/.ready  ## a simulated DGX H100, a stand-in kubelet and the real agent
	$(DEMO)/bin/nodeagent demo $(ARGS)

.cache/demo-venv/.ready: pyproject.toml hack/lab/pyproject.toml hack/requirements-demo.txt hack/venv.py
	$(PYTHON) hack/venv.py .cache/demo-venv hack/requirements-demo.txt
	@touch $@

bench: $(VENV)/.ready  ## what agent and controller cost: the table of the agent and bench.json, the fabric
	$(BIN)/python hack/bench.py $(ARGS)
	$(BIN)/python hack/bench_fabric.py $(if $(filter --quick,$(ARGS)),1000 10000)
	$(BIN)/python hack/bench_controller.py $(if $(filter --quick,$(ARGS)),1000)
	$(BIN)/python hack/bench_rails.py $(filter --quick,$(ARGS))
	$(BIN)/python hack/bench_stalls.py $(filter --quick,$(ARGS))

bench-runs: $(VENV)/.ready  ## RUNS=5 whole runs of the agent's bench on a quiet machine, and the table of their medians
	$(BIN)/python hack/bench_summary.py --runs $(or $(RUNS),5) $(ARGS)

bench-halls: $(VENV)/.ready  ## what a hall of 1,000 to 100,000 nodes costs the controller, with the slope of each cost
	$(BIN)/python hack/bench_halls.py $(ARGS)

site: .cache/site-venv  ## the documentation as a site in dist/site, offline after the first time
	.cache/site-venv/bin/python hack/site/build.py $(ARGS)

.cache/site-venv: hack/requirements-site.txt
	rm -rf $@
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement $<

soak: $(VENV)/.ready  ## churn a simulated node for five minutes: do the daemons grow? (ARGS="--minutes 30")
	$(BIN)/python hack/soak.py $(ARGS)

golden: $(VENV)/.ready  ## rewrite the golden files of a ROOM (tests/health, nodeagent/health, a page), or all, for review
	$(BIN)/python hack/golden.py $(ROOM)

features: $(VENV)/.ready  ## which features combine: the matrix of the pairs of daemonset/components
	$(BIN)/python hack/features.py

monitoring: $(VENV)/.ready  ## generate the PrometheusRule and the dashboards
	$(BIN)/python hack/monitoring.py

protos: $(VENV)/.ready  ## regenerate nodeagent/kube/*_pb2.py
	PYTHON=$(BIN)/python hack/protos.sh

lock: $(VENV)/.ready  ## update the pinned requirements for development and for the image
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv $(COMPILE) --upgrade --extra dev pyproject.toml --output-file hack/requirements.txt
	$(BIN)/uv $(COMPILE) --extra gpu --extra snmp --constraints hack/requirements.txt pyproject.toml \
		--output-file hack/requirements-run.txt
	echo hatchling | $(BIN)/uv $(COMPILE) --extra gpu --extra snmp --constraints hack/requirements.txt pyproject.toml - \
		--output-file hack/requirements-demo.txt
	echo mkdocs-material | $(BIN)/uv $(COMPILE) --upgrade - --output-file hack/requirements-site.txt
	echo cyclonedx-bom | $(BIN)/uv $(COMPILE) --upgrade --constraints hack/requirements.txt - \
		--output-file hack/requirements-release.txt

release: $(VENV)/.release  ## check, build and push a release (ARGS="VERB …", docs/project.md)
	@$(BIN)/python -m hack.release $(or $(ARGS),--help)

$(VENV)/.release: $(VENV)/.ready hack/requirements-release.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--requirement hack/requirements-release.txt
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
