"""Runs the parts of the whole check (parts.py).

    run.py tier1                what has to pass on every landing
    run.py tier2 [PART...]      what has to pass before a release; parts that have passed with these inputs are left out
    run.py tier2 --again ...    runs them all the same
    run.py status               which parts of tier 2 have not passed since their inputs changed
    run.py parts                both tiers as a table, with what tier 1 leaves out and why

Ends with a table of seconds; status 1: something failed. What passed is noted in the cache folder of cache.py.
"""

import argparse
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

import cache
import parts as listed

ROOT = cache.ROOT
# What CMake is asked for in all of them.
CMAKE_FLAGS = "-DKVCACHE_WERROR=ON"


def matches(path, pattern):
    """`**` is any number of folders, `*` stays in one."""
    text = "".join({"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}.get(piece, re.escape(piece)) for piece in re.split(r"(\*\*/|\*\*|\*)", pattern))
    return re.fullmatch(text, path) is not None


def files_of_tree():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    return sorted({name for name in names if name and (ROOT / name).is_file()})


def compilers():
    """What a result depends on beside the tree."""
    versions = [platform.machine(), platform.python_version()]
    for program in ("c++", "clang++", "cargo", "go", "javac"):
        found = shutil.which(program)
        done = subprocess.run([found, "version" if program == "go" else "--version"], capture_output=True, text=True) if found else None
        versions.append(done.stdout + done.stderr if done else f"no {program}")
    return versions


class Stamps:
    """Which part has passed with which inputs, in a file for each."""

    def __init__(self):
        self.folder = cache.root() / "passed"
        self.folder.mkdir(exist_ok=True)
        for old in self.folder.iterdir():
            if old.stat().st_mtime < time.time() - cache.KEPT_DAYS * 86400:
                old.unlink(missing_ok=True)
        self.contents = {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in files_of_tree()}
        self.machine = compilers()

    def file(self, part, tier):
        used = [f"{name} {sum_}" for name, sum_ in self.contents.items() if any(matches(name, pattern) for pattern in part.inputs)]
        return self.folder / f"{part.name}-tier{tier}-{cache.digest(*self.machine, part.tier_1, part.tier_2, *used)}"

    def passed(self, part, tiers=(2,)):
        """When and in how many seconds, or None. A file that cannot be read counts as none."""
        for tier in tiers:
            try:
                return json.loads(self.file(part, tier).read_text())
            except (OSError, ValueError):
                pass
        return None

    def note(self, part, tier, seconds):
        path = self.file(part, tier)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({"at": time.time(), "seconds": round(seconds)}))
        new.replace(path)

    def ever(self, part):
        return any(self.folder.glob(f"{part.name}-tier2-*"))


def run_part(part, command):
    print(f"==== {part.name}: {command}", flush=True)
    begin = time.monotonic()
    environment = dict(os.environ)
    environment["CMAKE_FLAGS"] = environment.get("CMAKE_FLAGS", CMAKE_FLAGS)
    status = subprocess.run(["sh", "-c", command], cwd=ROOT, env=environment).returncode
    return status == 0, time.monotonic() - begin


def run(tier, names, again):
    stamps = None
    rows, failed = [], 0
    begin = time.monotonic()
    for part in listed.all_parts():
        command = part.tier_1 if tier == 1 else part.tier_2
        if not command or (names and part.name not in names):
            continue
        # The first part installs what the others need, git and compilers among it.
        if part.name != "dependencies" and stamps is None:
            stamps = Stamps()
        before = None
        if stamps and not again and (tier == 2 or part.only_when_changed):
            before = stamps.passed(part, (1, 2) if part.tier_1 == part.tier_2 else (2,))
        if before:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(before["at"]))
            rows.append(f"{part.name:<14} unchanged       0 s   passed {when} in {before['seconds']} s")
            continue
        passed, seconds = run_part(part, command)
        if passed and stamps:
            stamps.note(part, tier, seconds)
        failed += not passed
        rows.append(f"{part.name:<14} {'passed' if passed else 'FAILED':<9} {seconds:>7.0f} s")
    rows.append(f"{'all':<14} {'':<9} {time.monotonic() - begin:>7.0f} s")
    print(f"\n==== tier {tier}\n" + "\n".join(rows))
    print(f"parts: {sum('FAILED' not in row for row in rows) - 1} passed, {failed} failed")
    return 1 if failed else 0


def status():
    stamps = Stamps()
    open_parts = 0
    for part in listed.all_parts():
        if not part.tier_2 or part.name == "dependencies":
            continue
        before = stamps.passed(part, (1, 2) if part.tier_1 == part.tier_2 else (2,))
        if before:
            said = time.strftime("passed %Y-%m-%d %H:%M", time.localtime(before["at"])) + f" in {before['seconds']} s"
        else:
            open_parts += 1
            said = "not passed since its files changed" if stamps.ever(part) else "unknown: no run on this machine"
        print(f"{part.name:<14} {said}")
    print(f"{open_parts} of tier 2 to run: make check-all" if open_parts else "tier 2 has passed")


def table():
    print("| part | tier 1 | tier 2 | left to tier 2, and why |\n|---|---|---|---|")
    for part in listed.all_parts():
        tier_1 = re.sub(r"SEED=\d+", "SEED=<number of the commit>", part.tier_1)
        print(f"| {part.name} | {f'`{tier_1}`' if tier_1 else ''} | {f'`{part.tier_2}`' if part.tier_2 else ''} | {part.left} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tier1", "tier2", "status", "parts"])
    parser.add_argument("names", nargs="*", metavar="PART")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    known = {part.name for part in listed.all_parts()}
    for name in options.names:
        if name not in known:
            sys.exit(f"no part {name}; there are {', '.join(sorted(known))}")
    if options.what == "status":
        return status()
    if options.what == "parts":
        return table()
    return run(int(options.what[-1]), options.names, options.again)


if __name__ == "__main__":
    sys.exit(main())
