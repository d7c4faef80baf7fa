"""tests/gpu/run.sh on a machine without a GPU: gets to its end, names every stage, writes no result, and says so by its status."""

import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import stages  # noqa: E402

NO_GPU = 77


def check(folder):
    out, results = folder / "out", folder / "results"
    run = subprocess.run([HERE / "run.sh", "--out", out, "--results", results], capture_output=True, text=True)
    printed = run.stdout + run.stderr
    if run.returncode != NO_GPU:
        yield f"status {run.returncode}, not {NO_GPU}: {printed}"
    if not run.stdout.endswith("no GPU: nothing measured\n"):
        yield f"does not end by saying that nothing was measured: {printed}"
    for name in stages.ALL:
        if not re.search(rf"^{name}: skipped: \S", printed, re.MULTILINE):
            yield f"does not say why {name} was skipped"
    if results.exists():
        yield "wrote results of a machine without a GPU"
    wrong = subprocess.run([HERE / "run.sh", "--out", out, "--stages", "nonsense"], capture_output=True, text=True)
    if wrong.returncode in (0, NO_GPU) or "no such stage: nonsense" not in wrong.stderr:
        yield f"an unknown stage: {wrong.returncode}, {wrong.stderr}"


def main():
    try:
        stages.device(None)
    except stages.Skipped:
        pass
    else:
        print("check_run: skipped, this machine has a GPU: tests/gpu/run.sh itself says more")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        findings = list(check(pathlib.Path(folder)))
    for finding in findings:
        print(finding)
    print(f"check_run: {len(findings)} finding(s)" if findings else "check_run: ok")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
