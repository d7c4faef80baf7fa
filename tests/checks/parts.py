"""The parts of the whole check. `.ci/run` runs those of tier 1, on every landing; `make check-all` those of tier 2, before a
release or a large change is called done."""

import dataclasses
import platform
import re
import subprocess

import programs

# Random tests of the release build take this much of their operations in tier 1. Planted defects are looked for at the same scale
# (tests/mutants/run.py --tier 1).
TIER_1_SCALE = max(programs.SCALES["tier 1"].values())

CODE = ["CMakeLists.txt", "CMakePresets.json", "Makefile", "include/**", "src/**", "kernels/**"]
CORE = [path for path in CODE if path != "kernels/**"] + ["kernels/*.h", "kernels/cpu/**", "kernels/reference/**"]
TESTS = ["tests/*/*.cc", "tests/*/*.h", "tests/CMakeLists.txt", "tests/fuzz/found/**", "tests/capi/hf_configs/**", "tests/traces/**",
         "tests/conformance/**", "tests/cudasim/**", "examples/**"]


@dataclasses.dataclass
class Part:
    """`tier_1` and `tier_2` are lines for a shell. `inputs` are what its result depends on, as patterns of git."""
    name: str
    tier_1: str = ""
    tier_2: str = ""
    inputs: list = dataclasses.field(default_factory=lambda: ["**"])
    # Tier 1 leaves it out as well while nothing of its inputs has changed since it passed.
    only_when_changed: bool = False
    # What tier 1 leaves to tier 2, and why.
    left: str = ""


def commit_number():
    """Another one for every commit, so that in the long run other seeds are tried."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    return int(done.stdout[:6], 16) if re.fullmatch(r"[0-9a-f]{40,}\s*", done.stdout) else 0


def all_parts():
    """In the order in which they run. x86-64 alone has packages of nvcc."""
    has_nvcc = platform.machine() == "x86_64"
    parts = [
        Part("dependencies", tier_1="make deps", tier_2="make deps"),
        Part("release", tier_1=f"KVC_TEST_SCALE={TIER_1_SCALE} make test-release", tier_2="make test-release",
             left="half of the operations of random tests: each seed does the same for longer"),
        Part("demo", tier_1="make demo", inputs=CORE + ["tools/**", "bench/**"]),
        Part("bindings", tier_1="make test-bindings", tier_2="make test-bindings",
             inputs=CODE + ["bindings/**", "tests/conformance/cases/**", "tests/install/**"]),
        Part("asan", tier_1=f"make test-asan SEED={commit_number()}", tier_2="make test-debug", inputs=CODE + TESTS,
             left="the emulated device, stress, examples and the command under sanitizers; all but 60 seeds of a random test, and half of their"
                  " operations: the emulator's kernels take half of the time"),
        Part("tsan", tier_2="make test-tsan", inputs=CORE + TESTS,
             left="all: a build of its own for the few changes that touch threads; the stress tests run in the release build"),
        Part("fuzz", tier_1="make fuzz FUZZ_SECONDS=5", tier_2="make fuzz FUZZ_SECONDS=60", inputs=CORE + ["tests/fuzz/**"],
             left="55 of 60 seconds for each target: what was found is replayed in both"),
        Part("clients", tier_1="make clients-smoke", tier_2="make clients",
             inputs=CODE + ["bindings/**", "tests/clients/**", "tests/tools/**", "tools/**", "docs/guide.md"],
             left="all but the three families of transformers that differ most, and all but candle's shortest test: they take six minutes"),
        Part("languages", tier_2="make languages",
             inputs=["include/**", "docs/other_languages.md", "bindings/swig/**", "bindings/python/cdef/**", "tests/clients/languages/**",
                     "CMakeLists.txt", ".ci/deps"],
             left="all: interpreters and compilers of eleven kinds, which few changes touch"),
        Part("pages", tier_2="python3 tests/install/pages.py",
             inputs=CODE + ["README.md", "docs/**", "bindings/**", "tools/**", "examples/**", "tests/install/**", "tests/tools/docs.py",
                            "tests/clients/languages/**", "tests/lint/snippets.py"],
             left="all: a build of its own in a fresh clone; the tests that it runs there run in other parts"),
        Part("sweep", tier_2="make build && tests/clients/hf/run --sweep && tests/clients/hf/run --configs && tests/clients/hf/run --configs --small && TRANSFORMERS=4.57 tests/clients/hf/run --configs",
             inputs=CODE + ["bindings/python/**", "tests/clients/hf/**", "docs/huggingface.md", "docs/plan.md"],
             left="all: every type of transformers, most of which no change touches; the families of the tests stand for them"),
        Part("packages", tier_1="make packages", tier_2="make packages", only_when_changed=True,
             inputs=["CMakeLists.txt", "src/*.cmake", "src/*.in", "src/*/CMakeLists.txt", "tools/CMakeLists.txt",
                     "kernels/**/CMakeLists.txt", "include/**", "packaging/**", "bindings/python/pyproject.toml",
                     "bindings/python/CMakeLists.txt", "bindings/python/kvcache.i", "bindings/rust/**/Cargo.*", "bindings/rust/**/build.rs",
                     ".github/**", "README.md"],
             left="nothing, but sources alone do not make it run: they are compiled in the release build"),
        Part("random", tier_2="make random", inputs=CORE + ["tests/model/**", "tests/support/**"],
             left="two million operations in another locale: the same kinds run in each tier, fewer of them"),
        Part("reliability", tier_2="make reliability",
             inputs=CORE + ["tests/reliability/**", "tests/model/transfers_test.cc"],
             left="1,000 kills instead of 20, 50 instead of 6 of transfers; 1,000,000 seeds of transfers instead of 10,000"),
    ]
    if has_nvcc:
        parts.insert(6, Part("cuda", tier_1="make test-cuda", tier_2="make test-cuda", inputs=CODE + ["tests/cuda/**", ".ci/**"]))
        parts += [
            Part("oldest-nvcc", tier_1="python3 tests/cuda/oldest_nvcc.py", tier_2="python3 tests/cuda/oldest_nvcc.py",
                 inputs=["kernels/**", "tests/cuda/oldest_nvcc.py", ".ci/**"]),
            Part("rehearsal", tier_2="make gpu-rehearsal", inputs=CODE + ["tests/gpu/**", "tests/cuda/**", "tests/cudasim/**"],
                 left="all: what needs no torch is rehearsed by cuda.emulated.gpu_run"),
        ]
    return parts
