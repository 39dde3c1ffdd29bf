# one door for developers: `make help` says what there is

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# processes that share the tests, each with a Spark session of its own: one more than there are cores
# here, because they often wait for brokers, buckets and each other
TEST_PROCESSES ?= 3
PYTEST = $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder
# tests start hundreds of interpreters: without compiled files, each would compile all modules again
unexport PYTHONDONTWRITEBYTECODE
BENCH_ARGS ?=
FAULTS_ARGS ?=
TAKEOVER_ARGS ?=
SOAK_ARGS ?=
DEMO_ARGS ?=
# --upgrade takes the newest versions, --upgrade-package NAME one of them
LOCK_ARGS ?=

BIN := $(VENV)/bin
# what a run needs is installed, and what developers need beside it
RUN_STAMP := $(VENV)/.installed-for-runs
STAMP := $(VENV)/.installed
# what an image needs, what builds the source packages of it, what builds this project, and what
# developers need beside it
LOCK := src/distributary/deploy/requirements.lock
BUILD_LOCK := src/distributary/deploy/build.lock
EDITABLE_LOCK := tools/editable.lock
DEV_LOCK := requirements-dev.lock
INSTALLER_LOCK := tools/installer.lock
SPARK_LOCKS := tests/spark/locks
DEFAULT_SPARK := tools/default-spark.txt
COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' $(LOCK_ARGS)

.DEFAULT_GOAL := help
.PHONY: help install java connectors services demo dev-up dev-down test test-slow test-cluster test-properties test-fast faults takeover lint format typecheck docs reference figures pictures lock sbom dist image bench bench-check soak clean

##@ Start

help: ## Show this page
	@awk 'BEGIN {FS = ":.*##"} \
		/^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
		/^[a-z-]+:.*##/ {printf "  \033[36mmake %-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nKnobs: PYTHON=%s VENV=%s PYTEST_ARGS= DEMO_ARGS= BENCH_ARGS= SOAK_ARGS= FAULTS_ARGS= TAKEOVER_ARGS= LOCK_ARGS=\n' '$(PYTHON)' '$(VENV)'

install: $(STAMP) ## Create .venv with everything in it (again only when a version changes)

$(RUN_STAMP): pyproject.toml $(BUILD_LOCK) $(EDITABLE_LOCK) $(LOCK) $(INSTALLER_LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5))' || \
		{ echo 'Python 3.11.5 or newer is needed: make PYTHON=python3.11 ...' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	tools/install.sh $(VENV) $(BUILD_LOCK) $(EDITABLE_LOCK) $(LOCK)
	@touch $@
	@$(BIN)/python -m distributary.spark.java >/dev/null || true

$(STAMP): $(RUN_STAMP) $(DEV_LOCK)
	tools/install.sh $(VENV) $(DEV_LOCK)
	@# on all cores, which no installer does; without it every start compiles what it imports
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src benchmarks >/dev/null || true
	@touch $@

java: $(RUN_STAMP)
	@$(BIN)/python -m distributary.spark.java >/dev/null

connectors: java ## Fetch the JVM connectors into the user's cache (once)
	@$(BIN)/python -m distributary.spark.jars

services: $(STAMP) java ## Fetch Kafka, the registry, Debezium and Iceberg's catalog into the user's cache (once)
	@$(BIN)/python -m distributary_lab.services.servers
	@$(BIN)/python -m tests.services.debezium
	@$(BIN)/python -m tests.services.iceberg

demo: connectors ## Simulate, ingest and show the result, without Kafka
	@$(BIN)/distributary demo games $(DEMO_ARGS)

dev-up: connectors ## Start Kafka and the registry on this machine
	@$(BIN)/distributary dev up

dev-down: $(RUN_STAMP) ## Stop them; their data stays
	@$(BIN)/distributary dev down

##@ Check

test: connectors services ## Run the tests; PYTEST_ARGS="tests/engine -x" narrows them
	$(PYTEST) -m 'not slow' $(PYTEST_ARGS)

test-slow: connectors services ## Run the tests that take about ten seconds or more each, more seeds and kinds of others, and the fuzzers (FUZZ_SEED=7 FUZZ_ROUNDS=20 CUT_KILLS=200)
	$(PYTEST) -m 'slow and not cluster' $(PYTEST_ARGS)

test-cluster: connectors services ## Run the tests that start workers, pods or machines of their own, minutes each
	$(PYTEST) -m cluster $(PYTEST_ARGS)

test-properties: connectors services ## Run the properties with new random examples, ten times as many
	$(PYTEST) -m hypothesis --hypothesis-profile new $(PYTEST_ARGS)

test-fast: $(STAMP) ## Run the tests that need no JVM
	$(BIN)/python -m pytest -m 'not spark and not cluster and not services' $(PYTEST_ARGS)

faults: connectors services ## Kill, stop, fill, damage and put back for half an hour; FAULTS_ARGS="--seed 7 --only kill,back:lake"
	$(BIN)/python -m tests.faults $(FAULTS_ARGS)

takeover: connectors services ## Have servers take over from each other, and compare every row; TAKEOVER_ARGS="--kinds mariadb --changes 50000"
	$(BIN)/python -m tests.servers $(TAKEOVER_ARGS)

lint: $(STAMP) ## Style, types, layers, words, changelog
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.words
	@version=$$($(BIN)/python -c 'import distributary; print(distributary.__version__)'); \
		grep -q "^## \[$$version\]" CHANGELOG.md || \
		{ echo "CHANGELOG.md has no section [$$version]" >&2; exit 1; }

format: $(STAMP) ## Put imports and layout in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(STAMP) ## Types only
	$(BIN)/mypy

docs: $(STAMP) ## Build the documentation site into build/site; any warning fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'Open build/site/index.html in a browser: no server is needed'

reference: $(STAMP) ## Write docs/reference again, from the code
	@$(BIN)/python -m tools.docs.reference

figures: $(STAMP) ## Draw the figures of README, docs and ARCHITECTURE.md again; the layers come from the code
	$(BIN)/python -m tools.figures

pictures: connectors ## Draw the README's pictures again, from a run of the demo
	$(BIN)/python -m tools.pictures

##@ Supply

lock: $(STAMP) ## Write the locks again; LOCK_ARGS=--upgrade takes the newest versions
	$(COMPILE) --python-version 3.11 --constraint $(DEFAULT_SPARK) --output-file $(LOCK) pyproject.toml
	echo setuptools | $(COMPILE) --python-version 3.11 --constraint $(LOCK) --output-file $(BUILD_LOCK) -
	$(COMPILE) --python-version 3.11.5 --all-extras --constraint $(LOCK) \
		--output-file $(DEV_LOCK) pyproject.toml
	printf 'hatchling\neditables\n' | \
		$(COMPILE) --python-version 3.11 --constraint $(DEV_LOCK) --output-file $(EDITABLE_LOCK) -
	echo uv | $(COMPILE) --python-version 3.11 --constraint $(DEV_LOCK) --output-file $(INSTALLER_LOCK) -
	@# the newest patch of each version of Spark, for `make test-cluster`; all else as developers have it
	@set -e; others=$$(mktemp); trap 'rm -f "$$others"' EXIT; \
	sed -n 's/ \\$$//; /^[a-z0-9]/p' $(DEV_LOCK) | grep -v -e '^pyspark==' -e '^py4j==' > "$$others"; \
	for lock in $(SPARK_LOCKS)/*.lock; do \
		printf '%s\n' "pyspark==$$(basename "$$lock" .lock).*" grpcio grpcio-status pyyaml zstandard | \
			$(COMPILE) --python-version 3.11.5 --constraint "$$others" --output-file "$$lock" -; \
	done

sbom: $(STAMP) ## List what is shipped, with its checksums, in build/sbom.cdx.json (CycloneDX)
	@$(BIN)/python -m tools.sbom build/sbom.cdx.json

dist: $(STAMP) ## Build wheel and sdist into dist, and try both in an environment of their own
	rm -rf dist
	@$(BIN)/python -m hatchling build -d dist
	@# outside of the tree: nothing of it must be needed; what they depend on is taken from the lock, as an image does
	@set -e; tried=$$(mktemp -d); trap 'rm -rf "$$tried"' EXIT; $(PYTHON) -m venv "$$tried/env"; \
	pip() { "$$tried/env/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$$@"; }; \
	pip --require-hashes --requirement $(BUILD_LOCK); \
	pip --require-hashes --no-build-isolation --requirement $(LOCK); \
	cp examples/declarative/games.yaml "$$tried"; \
	for built in "$$PWD"/dist/*.whl "$$PWD"/dist/*.tar.gz; do \
		pip --no-deps --force-reinstall "$$built"; \
		(cd "$$tried" && env/bin/distributary --version && env/bin/distributary validate games.yaml); \
		echo "$$(basename "$$built") works"; \
	done

image: $(STAMP) ## Write what an image is built of into build/image, and build it where docker or podman is there
	@$(BIN)/python -m tools.image build/image
	@engine=$$(command -v docker || command -v podman || true); \
	if [ -n "$$engine" ] && "$$engine" info >/dev/null 2>&1; then "$$engine" build --tag distributary build/image; \
	else echo 'no container engine answers: build/image is ready for one that does'; fi

##@ Measure and tidy

bench: connectors services ## Run the benchmarks; BENCH_ARGS are passed on
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-check: connectors services ## Measure a few ratios and fail when one fell below its floor
	$(BIN)/python -m benchmarks.check

soak: connectors services ## Feed a pipeline for two hours and say whether anything grows; SOAK_ARGS="--minutes 5"
	$(BIN)/python -m benchmarks.soak $(SOAK_ARGS)

clean: ## Remove .venv and what the tools left; the user's cache of connectors stays
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
