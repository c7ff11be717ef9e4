# Everything starts from a bare clone and a Python of 3.11 or newer; each target makes .venv itself.

PACKAGES := egraft graphs runtime cost_model rules search optimizer server
PRESENT  := $(patsubst %/__init__.py,%,$(wildcard $(addsuffix /__init__.py,$(PACKAGES))))
BIN      := .venv/bin
WORKERS  ?= 2
# A bare GPU machine without a network has its own CuPy and PyTorch: make test-gpu PYTHON_GPU=python3
PYTHON_GPU ?= $(BIN)/python
GPU_SETUP := $(if $(filter $(BIN)/%,$(PYTHON_GPU)),.venv/installed)
COUNT    ?= 1000
SEED     ?= 0
MINUTES  ?= 10
KIND     ?= all
JOBS     ?= 1
LOG      ?=
# Tests measure times and run several processes: one thread each.
SINGLE   := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 RAYON_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: bench-scale bench-training help demo test fuzz serve bench ablation bench-kernels lint test-gpu bench-gpu conformance test-bench slowest clean distclean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv: .venv/installed ## set up the environment in .venv

.venv/installed: requirements.lock pyproject.toml
	@set -e; python=; \
	for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3 python; do \
	    if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	    then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "egraft needs Python 3.11 or newer with venv; name one with: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	echo "setting up .venv with $$($$python --version)"; \
	[ -x $(BIN)/python ] || $$python -m venv .venv; \
	echo "installing $$(grep -cE '^[A-Za-z0-9]' requirements.lock) packages with pip into .venv: this may take some minutes, and pip says nothing meanwhile"
	$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --no-deps -r requirements.lock
	$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: .venv/installed ## start the service, optimize real models through it, print the reports
	$(BIN)/python -m scripts.demo

test: .venv/installed ## run all tests
	$(SINGLE) $(BIN)/python -m pytest -q -n $(WORKERS) -m "not bench" tests

fuzz: .venv/installed ## many random graphs, original against optimized (COUNT=1000 SEED=0 MINUTES=10 KIND=all JOBS=1 LOG=)
	$(SINGLE) nice $(BIN)/python -W ignore -m tests.fuzz --count $(COUNT) --seed $(SEED) --minutes $(MINUTES) --kind $(KIND) --jobs $(JOBS) $(if $(LOG),--log $(LOG))

serve: .venv/installed ## run the REST service (PORT=8000 HOST=127.0.0.1)
	$(BIN)/egraft serve $(if $(PORT),--port $(PORT)) $(if $(HOST),--host $(HOST))

bench: .venv/installed ## measure the zoo, beside other optimizers
	$(BIN)/python -m scripts.bench

ablation: .venv/installed ## what each part of the search is worth, on the trained models (ONLY=, about 25 minutes)
	$(SINGLE) $(BIN)/python -m scripts.ablation $(if $(ONLY),--only $(ONLY)) $(if $(ONLY),,--write)

bench-kernels: .venv/installed ## measure fused kernels of the CPU beside NumPy, ONNX Runtime and what else is installed
	$(SINGLE) $(BIN)/python -m scripts.bench_kernels

bench-scale: .venv/installed ## measure large graphs: 96 layers, 10,000 irregular nodes, an unrolled LSTM
	$(BIN)/python -m scripts.bench_scale

bench-training: .venv/installed ## measure training steps: as they are, optimized, within memory limits, beside PyTorch (extra `bench`)
	$(SINGLE) $(BIN)/python -m scripts.bench_training --write

test-gpu: $(GPU_SETUP) ## run the executor's tests on this machine's NVIDIA GPU
	@$(PYTHON_GPU) -c "import sys; from runtime.cuda import cupy_device as d; r = d.unavailable(); sys.exit(r and 'egraft:cuda: ' + r)"
	$(SINGLE) EGRAFT_TEST_DEVICE=cuda $(PYTHON_GPU) -m pytest -q -m "not bench" tests/runtime/cuda tests/gpu

bench-gpu: $(GPU_SETUP) ## measure the zoo on this machine's NVIDIA GPU, beside PyTorch and ONNX Runtime
	$(PYTHON_GPU) -m scripts.bench_gpu

conformance: .venv/installed ## run ONNX's own backend tests, print the pass rate
	$(SINGLE) $(BIN)/python -W ignore -m scripts.conformance

test-bench: .venv/installed ## run the tests that need the other optimizers (extra `bench`), installing them
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[bench]'
	$(SINGLE) $(BIN)/python -m pytest -q -m bench tests

slowest: .venv/installed ## run the tests one by one and list the slowest
	$(SINGLE) $(BIN)/python -m pytest -q -n 0 --durations=25 -m "not bench" tests

lint: .venv/installed ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy $(PRESENT)

clean: ## remove caches and build results (distclean: .venv too)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv as well
	rm -rf .venv
