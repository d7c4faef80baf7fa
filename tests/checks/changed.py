"""Builds and runs the tests of what the work tree changes against a commit: the edit, build, test of one place.

    changed.py [COMMIT]     by default HEAD
    changed.py --table      checks that every folder of the tree is in TABLE

TABLE is the only place that says which tests a folder has. Everything is built in build/, as `make build` does.
"""

import os
import pathlib
import re
import subprocess
import sys
import time

import cache
import programs

ROOT = cache.ROOT
BUILD = ROOT / "build"

# Paths in the order in which they are looked for: the first that fits counts. An entry is a program of programs.py; `target` with names
# of CMake, built and not run; `ctest` with a label; `script` with a command.
CORE = ["capi", "unit", "conformance", "model"]
TABLE = [
    ("kernels/cuda/", ["cuda"]),
    ("kernels/cpu/", ["unit", "kernels", "capi", "conformance"]),
    ("kernels/reference/", ["unit", "kernels", "conformance"]),
    ("kernels/", [*CORE, "kernels", "cuda"]),
    ("src/exec/cuda/", ["unit", "cuda"]),
    ("src/exec/", [*CORE, "kernels"]),
    ("src/step/", [*CORE, "cuda"]),
    ("src/device/", ["capi", "unit", "cuda"]),
    ("src/shared/", ["capi", "ctest abi"]),
    ("src/", CORE),
    ("include/", [*CORE, "ctest abi", "ctest lint"]),
    ("tools/abi/", ["ctest abi"]),
    ("tools/", ["tools", "target kvcache_tool", "ctest tools"]),
    ("tests/CMakeLists.txt", ["all", *CORE]),
    ("tests/conformance/", ["conformance", "ctest conformance"]),
    ("tests/cudasim/", ["cuda", "target cuda_emulated_test", "ctest cuda_emulated"]),
    ("tests/reliability/", ["target reliability_test", "ctest reliability"]),
    ("tests/support/", [*CORE, "stress"]),
    ("tests/model/", ["model", "unit"]),
    ("tests/capi/", ["capi"]),
    ("tests/unit/", ["unit", "kernels"]),
    ("tests/stress/", ["stress"]),
    ("tests/fuzz/", ["target fuzz_programs", "ctest fuzz"]),
    ("tests/cuda/", ["cuda"]),
    ("tests/tools/", ["tools", "target kvcache_tool", "ctest tools"]),
    ("tests/traces/", ["tools", "target kvcache_tool", "ctest tools"]),
    ("tests/abi/", ["target kvcache", "ctest abi"]),
    ("tests/install/", ["target kvcache kvcache_static kvcache_tool", "ctest install"]),
    ("tests/gpu/", ["ctest lint"]),
    ("tests/clients/languages/", ["target kvcache", "script tests/clients/languages/run.py"]),
    ("tests/clients/", ["ctest lint"]),
    ("tests/checks/", ["script tests/checks/test_checks.py", "ctest lint"]),
    ("tests/mutants/", ["script tests/mutants/run.py check"]),
    ("tests/lint/", ["ctest lint"]),
    ("bench/", ["tools", "target kvcache_tool", "ctest tools"]),
    ("examples/", ["all", "ctest examples"]),
    ("bindings/python/", ["target kvcache", "script bindings/python/test"]),
    ("bindings/rust/", ["target kvcache", "script bindings/rust/test"]),
    ("bindings/go/", ["target kvcache", "script bindings/go/test"]),
    ("bindings/java/", ["target kvcache", "script bindings/java/test"]),
    ("bindings/swig/", ["target kvcache", "script bindings/java/test", "script tests/clients/languages/run.py", "ctest abi"]),
    ("bindings/", ["target kvcache", "script bindings/test", "ctest abi"]),
    ("packaging/", ["ctest lint"]),
    ("docs/other_languages.md", ["target kvcache", "script tests/clients/languages/run.py", "ctest lint"]),
    ("docs/", ["ctest lint"]),
    (".ci/", ["script tests/install/deps.py"]),
    (".github/", ["ctest lint"]),
]
# A test file's own suites, where its program is run for the file alone.
SUITE = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),", re.M)


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
    if done.returncode:
        sys.exit(f"check: git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return [name for name in done.stdout.decode().split("\0") if name]


def changed_files(base):
    return sorted({*git("diff", "--name-only", "-z", base, "--"), *git("ls-files", "-z", "--others", "--exclude-standard")})


def runs_of(path):
    """What to run for a file: entries of TABLE; a file at the root of the tree can change everything."""
    for prefix, runs in TABLE:
        if path.startswith(prefix):
            return runs
    if path.endswith((".md", ".cff")) or path in (".clang-format", ".editorconfig", "LICENSE", ".gitignore", ".dockerignore"):
        return ["ctest lint"]
    return ["all", *CORE]


def suites_of(path):
    """A filter for the tests that stand in this file, or None: others use what it holds."""
    if not re.fullmatch(r"tests/.*_test\.cc", path) or not (ROOT / path).is_file():
        return None
    text = (ROOT / path).read_text()
    suites = set(SUITE.findall(text))
    return {f"{suite}.*" for suite in suites} | {f"*/{suite}.*" for suite in suites} | {f"{suite}/*" for suite in suites}


def chosen_runs(files):
    """{run: filter or None}, and the other entries, in the order of the table."""
    runs, rest = {}, {}
    for path in files:
        suites = suites_of(path)
        for entry in runs_of(path):
            if entry not in programs.PROGRAMS:
                rest[entry] = None
            elif suites is None:
                runs[entry] = None
            elif runs.get(entry, set()) is not None:
                runs[entry] = runs.get(entry, set()) | suites
    return runs, list(rest)


def call(words, **environment):
    return subprocess.run([str(word) for word in words], cwd=ROOT, env={**os.environ, **environment}).returncode


def configure():
    """The folder keeps what it was configured with, but tests have to be there."""
    cached = BUILD / "CMakeCache.txt"
    if cached.exists() and "KVCACHE_BUILD_TESTS:BOOL=ON" in cached.read_text():
        return 0
    return call(["cmake", "--preset", "release", *os.environ.get("CMAKE_FLAGS", "").split(), "--log-level=WARNING"])


def check(base):
    begin = time.monotonic()
    files = changed_files(base)
    if not files:
        print(f"check: nothing differs from {base}")
        return 0
    runs, rest = chosen_runs(files)
    if any(name.startswith("ctest") and name.split()[1] in ("lint", "abi") for name in rest):
        rest.insert(0, "target kvcache")
    targets = {pathlib.Path(programs.PROGRAMS[name].path).name for name in runs}
    for entry in rest:
        words = entry.split()
        targets |= {"all"} if words[0] == "all" else set(words[1:]) if words[0] == "target" else set()
    print(f"check: {len(files)} files differ from {base}: {', '.join([*runs, *rest])}", flush=True)
    if configure() or (targets and call(["cmake", "--build", BUILD, "-j", os.cpu_count() or 2, "--target", *sorted(targets)])):
        return 1
    built = time.monotonic()
    failed = run_all(runs, rest)
    print(f"check: {', '.join(failed) + ' failed' if failed else 'passed'}: {built - begin:.0f} s to build,"
          f" {time.monotonic() - built:.0f} seconds of tests")
    return 1 if failed else 0


def run_all(runs, rest):
    """Programs beside each other, one that takes long in shards, the rest after them."""
    failed, running = [], []
    cores = os.cpu_count() or 2
    pending = []
    for name in (name for name in programs.PROGRAMS if name in runs):
        shards = cores if programs.PROGRAMS[name].is_long else 1
        pending += [(name, shard, shards) for shard in range(shards)]
    while pending or running:
        while pending and len(running) < cores:
            name, shard, shards = pending.pop(0)
            filter_ = ":".join(sorted(runs[name])) if runs[name] else None
            words, environment = programs.command(name, "make check", BUILD / "tests", filter_)
            environment |= {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)}
            process = subprocess.Popen(words, cwd=BUILD, env={**os.environ, **environment},
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            running.append((name, process, time.monotonic()))
        name, process, begin = running.pop(0)
        limit = 3 * programs.PROGRAMS[name].seconds  # Others run beside it, and the machine may be slow.
        try:
            output, _ = process.communicate(timeout=max(1, begin + limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            output += f"\ncheck: {name} had not ended after {limit} seconds\n".encode()
        print(f"check: {name:<12} {'passed' if not process.returncode else 'FAILED'} {time.monotonic() - begin:.1f} s", flush=True)
        if process.returncode:
            sys.stdout.write(output.decode(errors="replace"))
            failed.append(name)
    for entry in rest:
        words = entry.split()
        if words[0] == "ctest":
            status = call(["ctest", "--test-dir", BUILD, "-L", f"^{words[1]}$", "--output-on-failure", "-j", os.cpu_count() or 2])
        elif words[0] == "script":
            status = call([sys.executable, "-B", *words[1:]] if words[1].endswith(".py") else words[1:])
        else:
            continue
        if status:
            failed.append(entry)
    return failed


def main():
    sys.exit(check(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))


if __name__ == "__main__":
    main()
