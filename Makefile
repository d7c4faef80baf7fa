# The commands of this project. `make` builds the library and the command, `make build` everything, `make test`
# is what has to pass before a change goes in; CONTRIBUTING.md explains.
# A variable on the command line reaches CMake: make CMAKE_FLAGS=-DKVCACHE_WERROR=ON

JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=
# The sanitizer builds run the random tests with fewer steps; see CONTRIBUTING.md.
SANITIZER_SCALE ?= 0.2
ASAN_SCALE ?= 0.1
ASAN_SEEDS ?= 60
THREAD_SANITIZER_SCALE ?= 0.1

# Random operations of one thread: nothing to look at, and most of the time.
ONE_THREAD = -RandomSwaps.*:RandomPrefixes.*

# Compilers run behind ccache where it is installed; CCACHE_DISABLE=1 goes without. A build folder keeps what it was configured with.
ifneq ($(shell command -v ccache 2>/dev/null),)
export CMAKE_C_COMPILER_LAUNCHER ?= $(CURDIR)/.ci/ccache
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(CURDIR)/.ci/ccache
export CMAKE_CUDA_COMPILER_LAUNCHER ?= $(CURDIR)/.ci/ccache
endif

.PHONY: all library build deps deps-build deps-cuda cuda test-cuda demo example-transfer test test-release test-debug test-asan test-tsan test-bindings \
        clients clients-smoke languages packages gpu-rehearsal check check-all check-status bench random reliability fuzz abi mutants lint format clean

all: library

# Packages of the system and the DLPack header: for `make` and `make demo`, and for the rest.
deps-build:
	@.ci/deps build

deps:
	@.ci/deps

# The CUDA compiler, where this machine has no toolkit. Only the CUDA back end needs it.
deps-cuda: deps
	@.ci/deps-cuda

# A folder that was configured before keeps its other options.
configure = @cmake $$([ -f build/CMakeCache.txt ] && echo build || echo --preset library) $(CMAKE_FLAGS) --log-level=WARNING

# The library and the command.
library: deps-build
	$(configure)
	@cmake --build build -j $(JOBS) --target kvcache kvcache_static kvcache_tool

build: deps
	@cmake --preset release $(CMAKE_FLAGS) --log-level=WARNING
	@cmake --build --preset release -j $(JOBS)

# Prefill in one process, decode in another: docs/transfer.md.
example-transfer: deps
	@cmake --preset release $(CMAKE_FLAGS) --log-level=WARNING
	@cmake --build build -j $(JOBS) --target example_c_transfer
	@examples/c/transfer_two_hosts build/examples/example_c_transfer

# The demo alone, which compiles in two thirds of the time. Where the model cannot be had, random weights take its place.
demo: deps-build
	$(configure)
	@cmake --build build -j $(JOBS) --target kvcache_demo
	@python3 tools/demo/fetch_model.py >/dev/null || true
	@build/bin/kvcache_demo demo

bench: library
	@build/bin/kvcache bench

test: test-release test-debug test-tsan test-bindings

test-release: build
	@ctest --preset release -j $(JOBS)

# The library with the CUDA back end, in build-cuda: as deep as build, whose objects a compiler cache has. Needs no GPU.
cuda: deps-cuda
	@cmake --preset cuda $(CMAKE_FLAGS) --log-level=WARNING
	@cmake --build --preset cuda -j $(JOBS)

# Machine code against its budgets, behaviour without a driver: needs no GPU either, and builds only what it looks at.
test-cuda: deps-cuda
	@cmake --preset cuda $(CMAKE_FLAGS) --log-level=WARNING
	@cmake --build --preset cuda -j $(JOBS) --target cuda_checks
	@ctest --preset cuda

test-debug: deps
	@cmake --preset debug $(CMAKE_FLAGS) --log-level=WARNING
	@cmake --build --preset debug -j $(JOBS)
	@KVC_TEST_SCALE=$(SANITIZER_SCALE) ctest --preset debug -j $(JOBS)

# What finds most per second of it: the fixed seeds, and one more for SEED.
SEED ?= 1
test-asan: deps
	@cmake --preset debug $(CMAKE_FLAGS) --log-level=WARNING
	@cmake --build --preset debug -j $(JOBS) --target asan_programs
	@KVC_TEST_SCALE=$(ASAN_SCALE) KVC_TEST_SEEDS=$(ASAN_SEEDS) ctest --preset asan -j $(JOBS)
	@KVC_TEST_OFFSET=$(SEED) KVC_TEST_SEEDS=1 build/debug/tests/model_test --gtest_filter='Random*' --gtest_brief=1

test-tsan: deps
	@cmake --preset tsan $(CMAKE_FLAGS) --log-level=WARNING
	@cmake --build --preset tsan -j $(JOBS)
	@KVC_TEST_SCALE=$(THREAD_SANITIZER_SCALE) GTEST_FILTER='$(ONE_THREAD)' ctest --preset tsan -j $(JOBS)

test-bindings: build
	@bindings/test

# Programs that others wrote, on this library: installs torch, transformers and candle (pinned).
clients: build
	@tests/clients/hf/run
	@tests/clients/candle/run

# Three families of transformers that differ most, and candle's shortest test.
clients-smoke: build
	@tests/clients/hf/run -k 'llama or gemma3 or jamba'
	@tests/clients/candle/run smoke

# Programs in other languages, on the C interface as it is. Interpreters that are not installed are named and left out.
languages: build
	@.ci/deps languages || echo "languages: left out is what needs packages that are missing"
	@python3 tests/clients/languages/run.py

# What would be published, from its own contents. The wheel takes the library of build/; the crate compiles its own.
packages: build
	@KVCACHE_PREBUILT=$(CURDIR)/build packaging/check version workflows crates python deb

# tests/gpu/run.sh on the emulator, with torch, which `make clients` has installed.
gpu-rehearsal: build
	@PYTHON=$(CURDIR)/build/clients-hf/venv-newest/bin/python OMP_NUM_THREADS=1 python3 tests/gpu/check_run.py --rehearse build --torch

# What the work tree changes against BASE, built and tested.
BASE ?= HEAD
check: deps
	@python3 -B tests/checks/changed.py $(BASE)

# The second tier of the whole check (.ci/run is the first), or the parts of it that ONLY names; parts that have passed are left out.
ONLY ?=
check-all:
	@python3 -B tests/checks/run.py tier2 $(ONLY)

check-status:
	@python3 -B tests/checks/run.py status

# More random operations of sequences than `make test` runs, in a locale that writes 0.5 as 0,5; KVC_TEST_OFFSET gives other seeds.
random: build
	@mkdir -p build/locale && { localedef -i de_DE -f UTF-8 build/locale/de_DE.UTF-8 || [ $$? = 1 ]; }
	@LOCPATH=$(CURDIR)/build/locale KVC_TEST_LOCALE=de_DE.UTF-8 KVC_TEST_SCALE=10 build/tests/model_test \
	    --gtest_filter='RandomSwaps.*' --gtest_brief=1

# Processes that are killed at their work, as often as before a release.
reliability: build
	@KVC_RELIABILITY=1 build/tests/reliability_test
	@KVC_RELIABILITY=1 build/tests/model_test --gtest_filter='RandomTransfers.*'

# Coverage-guided fuzzing, so many seconds for each target of tests/fuzz; FUZZ_SECONDS=0 runs until stopped, FUZZ_ONLY names targets.
FUZZ_SECONDS ?= 60
FUZZ_ONLY ?=
fuzz: deps
	@cmake --preset fuzz $(CMAKE_FLAGS) --log-level=WARNING
	@cmake --build --preset fuzz -j $(JOBS) --target fuzz_programs
	@python3 tests/fuzz/run.py build/fuzz/tests $(FUZZ_SECONDS) $(if $(FUZZ_ONLY),--only $(FUZZ_ONLY))

# After a change of include/kvcache.h: writes every file that is generated from it, then stores its binary interface, once CHANGELOG.md
# names what changed.
abi: deps
	@python3 tools/abi/generate.py --write
	@python3 tests/abi/interface.py cc .deps/include --write

# Plants the defects of tests/mutants in a copy of the library and looks whether the tests notice each (an hour or more on two cores).
mutants: deps
	@python3 tests/mutants/run.py build -j $(JOBS)
	@python3 tests/mutants/run.py run -j $(JOBS)

lint:
	@python3 tests/lint/run.py

format:
	@python3 tests/lint/format.py --fix

clean:
	@rm -rf build build-cuda
