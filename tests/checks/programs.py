"""The test programs of a release build, in the order of their cost, and how much of them each check runs."""

import dataclasses

# The part of unit_test that takes longest.
KERNELS = "TileKernel.*:Isa/*:Cascade.*:Latent*:ItemRunner.*"


@dataclasses.dataclass
class Program:
    path: str  # below the tests folder of a build
    filter: str
    seconds: int  # after which it hangs, many times what it takes
    is_long: bool = False


PROGRAMS = {
    "conformance": Program("conformance_test", "*", 60),
    "capi": Program("capi_test", "*", 120),
    "stress": Program("stress_test", "*", 120),
    "unit": Program("unit_test", f"-{KERNELS}", 120),
    "model": Program("model_test", "*", 300),
    "kernels": Program("unit_test", KERNELS, 500),
    "tools": Program("tools_test", "*", 120),
    "cuda": Program("cuda/cuda_emulated_test", "-Emulat*", 900, is_long=True),
}

# Part of the operations of random tests (KVC_TEST_SCALE), by who runs them; all where nothing stands. A seed needs enough of
# them to come to something, so that fewer seeds (SEEDS, KVC_TEST_SEEDS) are the other way to be quick.
SCALES = {
    "make check": {"model": 0.2, "kernels": 0.1},
    "make mutants": {"model": 0.2, "kernels": 0.3},
    "tier 1": dict.fromkeys(PROGRAMS, 0.5),
}

SEEDS = {"make check": {"model": 30}}


def command(name, who, folder, filter_=None):
    """The words of a command, and the variables of its environment."""
    program = PROGRAMS[name]
    words = [str(folder / program.path), f"--gtest_filter={filter_ or program.filter}", "--gtest_brief=1", "--gtest_fail_fast"]
    given = {"KVC_TEST_SCALE": SCALES[who].get(name), "KVC_TEST_SEEDS": SEEDS.get(who, {}).get(name)}
    return words, {variable: str(value) for variable, value in given.items() if value is not None}
