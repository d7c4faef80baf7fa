"""The stages of tests/gpu/run.sh: each leaves OUT/<stage>.json, a failing or missing one stops no other."""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import time

import report
import stages

NO_GPU = 77
ROOT = stages.ROOT


class Run:
    """What the stages share."""

    def __init__(self, args):
        self.out, self.results, self.build = (
            args.out.resolve(),
            args.results.resolve(),
            args.build.resolve(),
        )
        self.rehearsal = args.rehearse.resolve() if args.rehearse else None
        self.end = time.monotonic() + args.seconds
        self.gpu = None

    def left(self, most):
        """Seconds that a stage may take."""
        if self.rehearsal:
            most *= 10  # how busy the machine is must not decide
        return max(5.0, min(most, self.end - time.monotonic()))

    def key(self):
        """Names the library and test program that a result belongs to."""
        digest = hashlib.sha256()
        for path in (
            self.library,
            self.build / "libkvcache_cuda.so",
            self.build / "tests" / "cuda_device_test",
        ):
            if path.exists():
                digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    @property
    def library(self):
        return self.build / "libkvcache.so.0"


def run_stage(run, name, function, fresh):
    marker = run.out / f"{name}.json"
    key = run.key() if name not in ("device", "build") else ""
    if marker.exists() and not fresh and key:
        done = json.loads(marker.read_text())
        if done["status"] == "passed" and done["key"] == key:
            print(f"{name}: passed before")
            return done
    begin = time.monotonic()
    entry = {"status": "passed", "why": "", "key": key, "result": None}
    try:
        if name not in ("device", "build") and time.monotonic() > run.end:
            raise stages.Skipped("no time left")
        entry["result"] = function(run)
    except stages.Skipped as reason:
        entry.update(status="skipped", why=str(reason))
    except stages.Failed as reason:
        entry.update(status="FAILED", why=str(reason), result=reason.result)
    # A build that was just made is another library.
    entry["key"] = run.key() if key or name == "build" else ""
    if run.rehearsal:
        entry["rehearsal"] = True
    entry["seconds"] = round(time.monotonic() - begin, 1)
    marker.write_text(json.dumps(entry, indent=1) + "\n")
    print(
        f"{name}: {entry['status']}{': ' + entry['why'] if entry['why'] else ''} ({entry['seconds']} s)"
    )
    return entry


def known_before(run):
    """What other calls have left of the same libraries: stages may be run one by one."""
    entries = {}
    for name in stages.ALL:
        marker = run.out / f"{name}.json"
        if marker.exists():
            entry = json.loads(marker.read_text())
            if entry["key"] in ("", run.key()):
                entries[name] = entry
    return entries


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=pathlib.Path, default=ROOT / "build" / "gpu", help="markers and logs"
    )
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=ROOT / "bench" / "results",
        help="for <device>.json and <device>.md",
    )
    parser.add_argument(
        "--build",
        type=pathlib.Path,
        default=None,
        help="default: build/gpu-carry where it is there, else build-cuda",
    )
    parser.add_argument(
        "--stages", default=",".join(stages.ALL), help="in this order: " + ",".join(stages.ALL)
    )
    parser.add_argument("--seconds", type=float, default=570, help="for everything")
    parser.add_argument(
        "--rehearse",
        type=pathlib.Path,
        metavar="LIBRARY",
        help="no GPU: every stage in small, on the emulator of this library; figures mean nothing",
    )
    parser.add_argument("--fresh", action="store_true", help="do again what was done")
    args = parser.parse_args()
    if args.build is None:
        carried = ROOT / "build" / "gpu-carry"
        args.build = carried if carried.exists() else ROOT / "build-cuda"
    args.out.mkdir(parents=True, exist_ok=True)

    unknown = [name for name in args.stages.split(",") if name not in stages.ALL]
    if unknown:
        parser.error(f"no such stage: {', '.join(unknown)}")
    run = Run(args)
    entries = {"device": run_stage(run, "device", stages.ALL["device"], True)}
    run.gpu = entries["device"]["result"]
    for name, function in stages.ALL.items():
        if name == "device" or name not in args.stages.split(","):
            continue
        if run.gpu:
            entries[name] = run_stage(run, name, function, args.fresh)
        else:
            entries[name] = {"status": "skipped", "why": "no GPU", "seconds": 0}
            print(f"{name}: skipped: no GPU")
    if not run.gpu:
        print("no GPU: nothing measured")
        sys.exit(NO_GPU)
    everything = {**known_before(run), **entries}
    print(report.write(run, {name: everything[name] for name in stages.ALL if name in everything}))
    sys.exit(1 if any(entry["status"] == "FAILED" for entry in entries.values()) else 0)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
