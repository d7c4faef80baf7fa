"""tests/gpu/run.sh on a machine without a GPU.

    check_run.py
        it names every stage, writes no result, and says so by its status
    check_run.py --rehearse BUILD [--torch]
        every stage runs in small on the emulator that BUILD holds, from a folder like the one that
        is carried to a GPU; what needs torch runs where the interpreter ($PYTHON, else this one)
        has it, and --torch demands it
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import shapes  # noqa: E402
import stages  # noqa: E402

NO_GPU = 77


def run(*arguments, **environment):
    return subprocess.run(
        [HERE / "run.sh", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def check(folder):
    out, results = folder / "out", folder / "results"
    done = run("--out", out, "--results", results)
    printed = done.stdout + done.stderr
    if done.returncode != NO_GPU:
        yield f"status {done.returncode}, not {NO_GPU}: {printed}"
    if not done.stdout.endswith("no GPU: nothing measured\n"):
        yield f"does not end by saying that nothing was measured: {printed}"
    for name in stages.ALL:
        if not re.search(rf"^{name}: skipped: \S", printed, re.MULTILINE):
            yield f"does not say why {name} was skipped"
    if results.exists():
        yield "wrote results of a machine without a GPU"
    wrong = run("--out", out, "--stages", "nonsense")
    if wrong.returncode in (0, NO_GPU) or "no such stage: nonsense" not in wrong.stderr:
        yield f"an unknown stage: {wrong.returncode}, {wrong.stderr}"


# ---- On the emulator


def carried(build, folder):
    """Programs of a build beside the emulated back end, as carry.sh lays out the real one."""
    made = folder / "gpu"
    for name in ("bin", "tests"):
        (made / name).mkdir(parents=True)
    for path, name in (
        (build / "libkvcache.so.0", "libkvcache.so.0"),
        (build / "cudasim" / "libkvcache_cuda.so", "libkvcache_cuda.so"),
        (build / "bin" / "kvcache", "bin/kvcache"),
        (build / "tests" / "conformance_test", "tests/conformance_test"),
        (build / "tests" / "cuda" / "cuda_emulated_test", "tests/cuda_device_test"),
    ):
        shutil.copy2(path, made / name)
    return made


def rehearse(build, folder):
    emulator = build / "tests" / "cudasim" / "libkvc_cudasim.so"
    python = os.environ.get("PYTHON", sys.executable)
    has_torch = subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
    if "--torch" in sys.argv and not has_torch:
        yield f"{python} has no torch"
    given = [
        "--seconds",
        1700,
        "--rehearse",
        emulator,
        "--build",
        carried(build, folder),
        "--out",
        folder / "out",
        "--results",
        folder / "results",
    ]
    environment = {
        "PYTHON": python,
        "LD_LIBRARY_PATH": str(emulator.parent),
        "PYTHONPATH": str(HERE / "standin"),
    }
    # Correctness alone at first, as on a machine that is there for minutes; then all.
    first = run(*given, "--stages", "build,unit,conformance", **environment)
    if first.returncode:
        yield f"correctness: status {first.returncode}: {first.stdout}{first.stderr}"
        return
    second = run(*given, **environment)
    if second.returncode:
        yield f"status {second.returncode}: {second.stdout}{second.stderr}"
    for name in ("unit", "conformance"):
        if f"{name}: passed before" not in second.stdout:
            yield f"{name} was done again"
    record = json.loads((folder / "results" / "emulated-device.json").read_text())
    without = {} if has_torch else {"graphs": "no torch", "peers": "no torch"}
    without["sanitizers"] = "a rehearsal"
    for name in stages.ALL:
        entry = record["stages"].get(name, {"status": "missing"})
        if name in without:
            if entry["status"] != "skipped" or without[name] not in entry["why"]:
                yield f"{name}: {entry}"
        elif entry["status"] != "passed":
            yield f"{name}: {entry}"
        if not entry.get("rehearsal"):
            yield f"{name} does not say that it was a rehearsal"
    for name in ("unit", "conformance"):
        result = record["stages"][name]["result"]
        if not result["tests"] or result["failures"]:
            yield f"{name}: {result}"
    if not record["stages"]["bench"]["result"]:
        yield "bench gave nothing"
    if has_torch:
        yield from check_peers(record["stages"]["peers"]["result"]["shapes"])
        yield from check_peers_on_cpu(
            python, folder / "gpu" / "libkvcache.so.0", folder / "peers-cpu.json"
        )
    if "A rehearsal on the emulator" not in (folder / "results" / "emulated-device.md").read_text():
        yield "the table does not say that it is of a rehearsal"
    print(
        f"check_run: torch {'is here' if has_torch else 'is not here: graphs and peers were skipped'}"
    )


def check_peers_on_cpu(python, library, out):
    """Stand-ins of the peers: what they are given makes right results, before and after timing."""
    done = subprocess.run(
        [python, HERE / "peers.py", library, out, "--device", "cpu", "--tiny"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE / "standin")},
    )
    if done.returncode:
        yield f"peers on the CPU: {done.stdout}{done.stderr}"
        return
    kinds = {shape.id: shape.kind for shape in shapes.TINY if not shape.sinks}
    for name, entry in json.loads(out.read_text())["shapes"].items():
        peers = {
            side: found for side, found in entry["sides"].items() if side.startswith("FlashInfer")
        }
        if kinds.get(name) in ("decode", "tree", "prefill", "cascade", "latent") and not peers:
            yield f"peers on the CPU: {name} has no peer: {entry['skipped']}"
        for side, found in peers.items():
            if not found["error"] < 1e-3:
                yield f"peers on the CPU: {name}, {side}: {found}"


def check_peers(entries):
    """Every shape was timed as it has to be, and its results were looked at afterwards."""
    kinds = {shape.id: shape.kind for shape in shapes.TINY}
    if set(entries) != set(kinds):
        yield f"peers: shapes {sorted(entries)}, not {sorted(kinds)}"
    for name, entry in entries.items():
        side = entry.get("sides", {}).get("kvcache")
        if side is None:
            yield f"peers: {name}: {entry}"
            continue
        eager = kinds[name] in shapes.EAGER
        if (
            side["timed"] != ("eager" if eager else "graph")
            or not eager
            and side["kernels"] < entry["layers"]
        ):
            yield f"peers: {name} was timed wrongly: {side}"
        unseen = [
            peer
            for peer, why in entry["skipped"].items()
            if peer.startswith("FlashInfer") and "holds no kernel" not in why
        ]
        if unseen:
            yield f"peers: {name}: {entry['skipped']}"
        if not side["error"] < 1e-3 or "wrong" in side:
            yield f"peers: {name}: {side}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:2] == ["--rehearse"]:
            findings = list(rehearse(pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(folder)))
        else:
            try:
                stages.machine_facts()
            except stages.Skipped:
                pass
            else:
                print(
                    "check_run: skipped, this machine has a GPU: tests/gpu/run.sh itself says more"
                )
                sys.exit(77)
            findings = list(check(pathlib.Path(folder)))
    for finding in findings:
        print(finding)
    print(f"check_run: {len(findings)} finding(s)" if findings else "check_run: ok")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
