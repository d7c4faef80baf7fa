#!/usr/bin/env python3
"""Plants known defects in a copy of the library and looks whether the tests notice each of them.

A defect is an entry of a file in tests/mutants/defects: the file, one sentence, the text that is there and the text that takes its place.
In the replacement MUTANT stands for "this defect is chosen". All defects are compiled into one copy of the tree, below build/mutants; the
environment variable KVC_MUTANT chooses one at run time, and 0 chooses none. The shipped sources hold nothing of this.

    run.py check              every entry still fits the sources: each text occurs exactly once
    run.py build              the copy with all defects, and its test programs
    run.py run [ID...]        runs the tests per defect until one fails; writes build/mutants/report.json
    run.py run --tier 1       the programs as tier 1 of the checks runs them
    run.py check-each         plants defects in this tree itself, one at a time, and runs `make check` after each
    run.py table              the report as docs/testing.md has it

With --count N and --seed S, `run` and `check-each` take N defects, drawn by the seed.

An entry:

    @ src/pages/allocator.cc | a page that was dropped by one of two sequences is free
    tests: unit capi
    - if (--refs_[index] == 0) set_free(page);
    + if (--refs_[index] == 0 || MUTANT) set_free(page);

`tests:` names the programs to try first. `equivalent:` says why no test can notice, and takes the entry out of the count.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "checks"))
import programs  # noqa: E402
from programs import PROGRAMS  # noqa: E402

WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
BUILD = WORK / "build"
REPORT = WORK / "report.json"

CHOICE = 'extern "C" int kvc_mutant_chosen;\n'
# libkvcache.so links a getenv that finds nothing, so the variable is looked for by hand. "none" lets a program prove that it asks.
DEFINITION = """#include <cstdlib>
#include <cstring>
#include <unistd.h>
extern "C" {
extern int kvc_mutant_chosen;
__attribute__((weak)) int kvc_mutant_chosen = 0;
}
__attribute__((constructor(101))) static void choose() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "KVC_MUTANT=", 11) != 0) continue;
    if (std::strcmp(*entry + 11, "none") == 0) _exit(77);
    kvc_mutant_chosen = std::atoi(*entry + 11);
  }
}
"""


class Defect:
    def __init__(self, number, source, file, sentence):
        self.number, self.source, self.file, self.sentence = number, source, file, sentence
        self.tests, self.equivalent = [], ""
        self.was, self.becomes = [], []

    @property
    def name(self):
        return f"{self.source}:{self.number}"


def key_of(defect):
    return f"{defect.file} | {defect.sentence}"


def read_defects():
    """All entries, numbered from 1 in the order of files and lines."""
    defects = []
    for path in sorted((ROOT / "tests/mutants/defects").glob("*.txt")):
        for line_number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.name}:{line_number}"
            if not line.strip() or line.startswith("#"):
                continue
            if line.startswith("@ "):
                file, _, sentence = line[2:].partition(" | ")
                if not sentence:
                    sys.exit(f"{where}: expected '@ file | sentence'")
                defects.append(Defect(len(defects) + 1, path.stem, file.strip(), sentence.strip()))
            elif not defects:
                sys.exit(f"{where}: an entry begins with '@'")
            elif line.startswith("tests:"):
                defects[-1].tests = line.partition(":")[2].split()
                unknown = set(defects[-1].tests) - set(PROGRAMS)
                if unknown:
                    sys.exit(f"{where}: unknown program {', '.join(sorted(unknown))}")
            elif line.startswith("equivalent:"):
                defects[-1].equivalent = line.partition(":")[2].strip()
            elif line.startswith("- "):
                defects[-1].was.append(line[2:])
            elif line.startswith("+ "):
                defects[-1].becomes.append(line[2:])
            else:
                sys.exit(f"{where}: expected '@', 'tests:', 'equivalent:', '- ' or '+ '")
    return defects


def pattern_of(defect):
    """The text of an entry as a pattern in which any white space matches any."""
    words = " ".join(defect.was).split()
    return re.compile(r"\s+".join(re.escape(word) for word in words))


def apply(defect, text):
    """The source with the defect planted, or what is wrong with the entry."""
    if not defect.was or not defect.becomes:
        return None, "needs '-' and '+' lines"
    if "MUTANT" not in " ".join(defect.becomes):
        return None, "the replacement does not say MUTANT"
    found = list(pattern_of(defect).finditer(text))
    if len(found) != 1:
        return None, f"the text occurs {len(found)} times in {defect.file}"
    chosen = f"(::kvc_mutant_chosen == {defect.number})"
    replacement = re.sub(r"\bMUTANT\b", chosen, "\n".join(defect.becomes))
    return text[: found[0].start()] + replacement + text[found[0].end():], None


def plant(defects):
    """{file: text with every defect}, and the entries that do not fit."""
    texts, wrong = {}, []
    for defect in defects:
        if defect.file not in texts:
            path = ROOT / defect.file
            if not path.is_file():
                wrong.append(f"{defect.name}: {defect.file} is not a file")
                continue
            texts[defect.file] = path.read_text()
        text, problem = apply(defect, texts[defect.file])
        if problem:
            wrong.append(f"{defect.name} ({defect.sentence}): {problem}")
        else:
            texts[defect.file] = text
    return texts, wrong


def write_if_changed(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_bytes() != data:
        path.write_bytes(data)


def copy_tree(texts):
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True).stdout.decode().split("\0")
    wanted = {"src/base/chosen_defect.cc", "kernels/cuda/runtime/chosen_defect.cc"}
    for name in filter(None, files):
        if name.split("/")[0] in ("bindings", "docs") or not (ROOT / name).is_file():
            continue
        wanted.add(name)
        text = texts.get(name)
        data = (CHOICE + text).encode() if text is not None else (ROOT / name).read_bytes()
        write_if_changed(TREE / name, data)
    for name in ("src/base/chosen_defect.cc", "kernels/cuda/runtime/chosen_defect.cc"):
        write_if_changed(TREE / name, DEFINITION.encode())
    for path in TREE.rglob("*"):
        if path.is_file() and str(path.relative_to(TREE)) not in wanted:
            path.unlink()


def dlpack_folder():
    cache = ROOT / "build" / "CMakeCache.txt"
    if cache.is_file():
        found = re.search(r"KVCACHE_DLPACK_INCLUDE_DIR:PATH=(.*)", cache.read_text())
        if found:
            return found.group(1)
    return str(ROOT / ".deps" / "include")


def build(jobs):
    texts, wrong = plant(read_defects())
    if wrong:
        sys.exit("\n".join(wrong))
    copy_tree(texts)
    # -O1 keeps the build short; the tests are most of it.
    subprocess.run(["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "--log-level=WARNING", "-DCMAKE_BUILD_TYPE=Release",
                    "-DKVCACHE_BUILD_TESTS=ON", "-DKVCACHE_BUILD_EXAMPLES=OFF", "-DCMAKE_CXX_FLAGS=-Wno-missing-declarations",
                    f"-DKVCACHE_DLPACK_INCLUDE_DIR={dlpack_folder()}"], check=True)
    targets = {pathlib.Path(program.path).name for program in PROGRAMS.values()}
    subprocess.run(["cmake", "--build", BUILD, "-j", str(jobs), "--target", *targets], check=True)


def run_program(name, number, who, test=None):
    """None when all tests pass, or that one, else the first line that says what failed."""
    words, extra = programs.command(name, who, BUILD / "tests", test)
    environment = dict(os.environ, KVC_MUTANT=str(number), **extra)
    try:
        done = subprocess.run(words, env=environment, cwd=BUILD, capture_output=True, text=True, errors="replace",
                              timeout=PROGRAMS[name].seconds)
    except subprocess.TimeoutExpired:
        return "no end within the time limit"
    if done.returncode == 0:
        return None
    failed = re.search(r"\[  FAILED  \] (\S+)", done.stdout)
    if failed:
        return failed.group(1).rstrip(",")
    running = re.findall(r"\[ RUN      \] (\S+)", done.stdout)
    return f"ended by {done.returncode}" + (f" in {running[-1]}" if running else "")


def judge(defect, before, who):
    """What notices the defect. The test that did so when it was run `before` is asked first: most of the time goes into the others."""
    first = sorted(defect.tests, key=list(PROGRAMS).index)
    order = first + [name for name in PROGRAMS if name not in first]
    attempts = [(name, None) for name in order]
    if before.get("killed_by") in PROGRAMS and re.fullmatch(r"\S+", before["test"]):
        attempts.insert(0, (before["killed_by"], before["test"]))
    begin = time.monotonic()
    for name, test in attempts:
        what = run_program(name, defect.number, who, test)
        if what is not None:
            return {"killed_by": name, "test": what, "seconds": round(time.monotonic() - begin, 1)}
    return {"killed_by": "", "test": "", "seconds": round(time.monotonic() - begin, 1)}


def drawn(defects, count, seed):
    """So many of them, the same for one seed."""
    if not count:
        return defects
    print(f"{count} of {len(defects)} defects, drawn by the seed {seed}", flush=True)
    return sorted(random.Random(seed).sample(defects, min(count, len(defects))), key=lambda defect: defect.number)


def run(chosen, jobs, who, count, seed):
    defects = read_defects()
    for name in PROGRAMS:
        if run_program(name, "none", who) != "ended by 77":
            sys.exit(f"{name} does not look which defect is chosen")
        what = run_program(name, 0, who)
        if what is not None:
            sys.exit(f"without a defect {name} fails: {what}")
    known = json.loads(REPORT.read_text()) if REPORT.is_file() else {}
    report = known if chosen or count else {}
    todo = [defect for defect in defects if not defect.equivalent and (not chosen or str(defect.number) in chosen or defect.source in chosen)]
    todo = drawn(todo, count, seed)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for defect, result in zip(todo, pool.map(judge, todo, [known.get(key_of(defect), {}) for defect in todo], [who] * len(todo))):
            report[key_of(defect)] = result
            fate = f"killed by {result['killed_by']}: {result['test']}" if result["killed_by"] else "SURVIVED"
            print(f"{defect.number:4} {fate} ({result['seconds']} s)  {key_of(defect)}", flush=True)
            REPORT.write_text(json.dumps(report, indent=1, sort_keys=True))
    survived = sum(not report[key_of(defect)]["killed_by"] for defect in todo)
    share = 100.0 * (len(todo) - survived) / max(1, len(todo))
    print(f"{len(todo)} defects, {len(todo) - survived} killed ({share:.1f} %), {survived} survived, "
          f"{sum(bool(d.equivalent) for d in defects)} equivalent")
    return 0 if share >= 97.0 else 1


def check_each(count, seed):
    """Plants defects that unit_test or capi_test is to notice in this tree, one at a time, and lets `make check` look for them. The tree has to
    be clean: its files are changed and put back."""
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True).stdout:
        sys.exit("the work tree has changes")
    missed = 0
    todo = drawn([defect for defect in read_defects() if not defect.equivalent and set(defect.tests) & {"unit", "capi"}], count, seed)
    for defect in todo:
        path = ROOT / defect.file
        text = path.read_text()
        begin = time.monotonic()
        try:
            path.write_text(apply(defect, text)[0].replace(f"(::kvc_mutant_chosen == {defect.number})", "true"))
            done = subprocess.run([sys.executable, "-B", "tests/checks/changed.py"], cwd=ROOT, capture_output=True, text=True, errors="replace")
        finally:
            path.write_text(text)
        failed = re.findall(r"\[  FAILED  \] (\S+)", done.stdout)
        noticed = done.returncode != 0 and "seconds of tests" in done.stdout
        missed += not noticed
        print(f"{defect.number:4} {'noticed by ' + failed[0] if noticed and failed else 'noticed' if noticed else 'MISSED'}"
              f" ({time.monotonic() - begin:.0f} s)  {key_of(defect)}", flush=True)
    print(f"{len(todo)} defects, {len(todo) - missed} noticed by make check")
    return 1 if missed else 0


def table():
    """Per folder of the sources, what was planted and what noticed it; then each defect that nothing notices, and why where that is known."""
    report = json.loads(REPORT.read_text())
    counted, unnoticed, equivalent = {}, [], []
    for defect in read_defects():
        folder = "/".join(defect.file.split("/")[:2 if defect.file.startswith("src") else -1])
        row = counted.setdefault(folder, dict.fromkeys(["planted", "equivalent", "nothing", *PROGRAMS], 0))
        row["planted"] += 1
        line = f"- `{defect.file}`: {defect.sentence}"
        if defect.equivalent:
            row["equivalent"] += 1
            equivalent.append(f"{line}: {defect.equivalent}")
            continue
        result = report.get(key_of(defect))
        if result is None:
            sys.exit(f"{defect.name} ({defect.sentence}) was not run")
        row[result["killed_by"] or "nothing"] += 1
        if not result["killed_by"]:
            unnoticed.append(line)
    columns = ["planted", *PROGRAMS, "nothing", "equivalent"]
    rows = [["folder", *columns]] + [[f"`{folder}`", *(counted[folder][name] for name in columns)] for folder in sorted(counted)]
    rows.append(["all", *(sum(row[name] for row in counted.values()) for name in columns)])
    for index, row in enumerate(rows):
        print("| " + " | ".join(str(cell or "") for cell in row) + " |")
        if index == 0:
            print("|---|" + "--:|" * len(columns))
    print("\nNoticed by nothing:\n", *(unnoticed or ["(none)"]), "\nEquivalent:\n", *equivalent, sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["check", "build", "run", "check-each", "table"])
    parser.add_argument("ids", nargs="*", help="numbers of defects, or names of files in defects/")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tier", type=int, choices=[1], help="run the programs as this tier of the checks does")
    parser.add_argument("--count", type=int, default=0, help="so many defects, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.action == "check":
        defects = read_defects()
        _, wrong = plant(defects)
        print("\n".join(wrong) if wrong else f"{len(defects)} defects fit")
        return 1 if wrong else 0
    if arguments.action == "build":
        return build(arguments.jobs)
    if arguments.action == "run":
        who = "tier 1" if arguments.tier else "make mutants"
        return run(set(arguments.ids), arguments.jobs, who, arguments.count, arguments.seed)
    if arguments.action == "check-each":
        return check_each(arguments.count, arguments.seed)
    return table()


if __name__ == "__main__":
    sys.exit(main())
