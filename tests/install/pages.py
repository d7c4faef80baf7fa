"""Every block of README.md, docs/ and the READMEs of the bindings, as a newcomer runs them: in a fresh clone, after README.md's plain CMake build and
nothing else.

Shell blocks run as they are printed. Blocks in other languages run by the tests that tests/lint/snippets.py names, pointed at that build. A table
tells of every block what ran it, or why nothing did, and how long that took.

Usage: pages.py [--keep FOLDER]   the clone is made there, and stays
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/lint"))
import snippets  # noqa: E402

SECONDS = 3600
GPU, NETWORK, LONG = "needs a GPU", "fetches a model", "measures for minutes"
TORCH = "needs PyTorch, which make clients installs"
OUTPUT = "output of a command"
# Blocks for a shell, by page and by what they begin with: None: run as printed, in the clone; else what runs them, or "-" and why nothing does.
SHELL = {
    "README.md": {"cmake -B build": None},
    "docs/chat.md": {"kvcache chat": f"-{NETWORK}"},
    "docs/cuda.md": {"make deps-cuda": f"-{GPU}"},
    "docs/demo.md": {"python3 tools/demo/fetch_model.py": f"-{NETWORK}", "build/bin/kvcache demo --svg": f"-{NETWORK}, {LONG}", "visitor": f"-{OUTPUT}"},
    "docs/guide.md": {"cc program.c": "tests/install/run.py"},
    "docs/huggingface.md": {"$ python examples": f"-{NETWORK}", "make build": f"-{TORCH}"},
    "docs/other_languages.md": {"0.1.0": f"-{OUTPUT}", "python3 bindings/python/cdef": None, "zig": snippets.LANGUAGES, "bindgen": snippets.LANGUAGES,
                                "swig": snippets.LANGUAGES},
    "docs/plan.md": {"kvcache plan": snippets.TOOL},
    "docs/python.md": {"python3 examples": None, "tokens 0..99": f"-{OUTPUT}"},
    "docs/replay.md": {"kvcache replay": snippets.TOOL},
    "docs/state_files.md": {'"prompt.kvc"': "-a message of the library"},
    "docs/transfer.md": {"$ make example-transfer": "-needs make deps; the test example.c.transfer_two_hosts runs it"},
    "bindings/go/README.md": {"go mod edit": "bindings/go/test", "$ go run": f"-{LONG}, over a trace that is fetched"},
    "bindings/python/README.md": {"<kvcache.Cache": f"-{OUTPUT}", "pip install": "bindings/python/test"},
    "bindings/rust/README.md": {"$ cargo run": "bindings/rust/test"},
}
# In the place of files that snippets.py names: what runs those of a language.
RUNNERS = {"bindings/python/tests/extras/test_events_page.py": "bindings/python/test", "bindings/python/tests/test_installed.py": "bindings/python/test",
           "bindings/python/tests/hf/test_page.py": f"-{TORCH}"}
# README.md and the READMEs of the bindings have these lines in common; readme.py compares them, and the bindings' tests run them.
OF_BINDINGS = {"python": "bindings/python/test", "rust": "bindings/rust/test", "go": "bindings/go/test", "java": "bindings/java/test"}
TOOLS = {"bindings/rust/test": "cargo", "bindings/go/test": "go", "bindings/java/test": "javac"}


class Failed(Exception):
    pass


class Clone:
    """The clone and its build. What runs for several blocks runs once."""

    def __init__(self, folder):
        self.root = folder
        self.build = folder / "build"
        self.stage = folder / "build/stage"
        self.done = {}
        self.left_out = []  # Headings of docs/other_languages.md, and why.
        # The last line of README.md's build installs into the system: DESTDIR puts that below a folder of the build.
        self.environment = {**os.environ, "DESTDIR": str(self.stage), "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))}
        self.environment.pop("PYTHONPATH", None)

    def sh(self, text, log, **environment):
        begin = time.monotonic()
        with open(log, "w", encoding="utf-8") as out:
            status = subprocess.run(["sh", "-e", "-c", text], cwd=self.root, stdout=out, stderr=subprocess.STDOUT, timeout=SECONDS,
                                    env={**self.environment, **environment}).returncode
        if status:
            tail = "\n".join(pathlib.Path(log).read_text(encoding="utf-8", errors="replace").splitlines()[-40:])
            raise Failed(f"status {status}:\n{text}\n{tail}")
        return time.monotonic() - begin

    def command_of(self, runner):
        python, build = sys.executable, self.build
        commands = {
            snippets.README: f"{python} {runner} {build} cc {self.stage}/usr/local/include",
            "tests/install/run.py": f"env -u DESTDIR {python} {runner} {build} cc",
            snippets.TOOL: f"{python} {runner} {build}/bin/kvcache",
            snippets.LANGUAGES: f"{python} {runner}",
        }
        return commands.get(runner, f"env -u DESTDIR ./{runner}")

    def skipped(self, page, line):
        """Why the programs of the languages left out the section of this block, or None."""
        headings = [heading for at, heading in headings_of(page) if at < line]
        for heading, why in self.left_out:
            if headings and headings[-1] == heading:
                return why
        return None

    def run(self, runner, log):
        """Seconds, or why it did not run; a failure is told to every block that needs it."""
        if runner in TOOLS and shutil.which(TOOLS[runner]) is None:
            return f"no {TOOLS[runner]} here"
        if runner not in self.done:
            try:
                self.done[runner] = self.sh(self.command_of(runner), log, KVCACHE_BUILD_DIR=str(self.build))
                if runner == snippets.LANGUAGES:
                    self.left_out = re.findall(r"^languages: (.+?): (.+): skipped$", pathlib.Path(log).read_text(), re.M)
            except (Failed, subprocess.TimeoutExpired) as failed:
                self.done[runner] = failed
        if isinstance(self.done[runner], Exception):
            raise Failed(str(self.done[runner]))
        return self.done[runner]


def headings_of(page):
    text = (ROOT / page).read_text()
    return [(text[: found.start()].count("\n") + 1, found.group(1)) for found in re.finditer(r"^## (.+)$", text, re.M)]


def blocks(page):
    text = (ROOT / page).read_text()
    for found in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.S | re.M):
        yield text[: found.start()].count("\n") + 1, found.group(1), found.group(2)


def runner_of(page, language, text):
    """What runs a block: None for the shell, a file, or "-" and why nothing does."""
    if language in ("", "sh"):
        for begin, runner in SHELL.get(page, {}).items():
            if text.startswith(begin):
                return runner
        sys.exit(f"pages: {page} has a block that no line of SHELL in {pathlib.Path(__file__).name} begins: {text.splitlines()[0]}")
    runner = snippets.PAGES[page][language]
    if language in OF_BINDINGS and (page == "README.md" or page.startswith("bindings/")):
        return OF_BINDINGS[language]
    return RUNNERS.get(runner, runner)


def all_blocks():
    pages = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
             *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "bindings").glob("*/README.md"))]
    return [(page, line, language, text, runner_of(page, language, text)) for page in pages for line, language, text in blocks(page)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", metavar="FOLDER", type=pathlib.Path)
    keep = parser.parse_args().keep
    todo = all_blocks()
    with tempfile.TemporaryDirectory(prefix="kvcache-pages-") as scratch:
        folder = (keep or pathlib.Path(scratch) / "libkvcache").resolve()
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder)], check=True)
        clone, logs = Clone(folder), pathlib.Path(scratch)
        # The programs of docs/python.md need NumPy and cffi, which a user installs.
        python = subprocess.run([sys.executable, str(ROOT / "tests/checks/cache.py"), "venv", str(logs / "venv"), "numpy==2.4.6", "cffi==2.1.1"],
                                capture_output=True, text=True)
        if python.returncode:
            sys.exit(f"pages: no environment with NumPy and cffi\n{python.stdout}{python.stderr}")
        with_packages = f"{logs}/venv/bin:{os.environ['PATH']}"
        failures, rows = [], []
        # README.md is the first page, and its build the first block for a shell.
        for number, (page, line, language, text, runner) in enumerate(sorted(todo, key=lambda one: one[2] != "sh" or one[0] != "README.md")):
            name = f"{page}:{line}" + (f" ({language})" if language else "")
            log = logs / f"{number}.log"
            begin = time.monotonic()
            try:
                if runner is None:
                    seconds, what = clone.sh(text, log, PATH=with_packages), "as printed"
                elif runner.startswith("-"):
                    seconds, what = None, f"not run: {runner[1:]}"
                else:
                    seconds, what = clone.run(runner, log), runner
                    if runner == snippets.LANGUAGES and clone.skipped(page, line):
                        seconds = clone.skipped(page, line)
                    if isinstance(seconds, str):
                        seconds, what = None, f"not run: {seconds}"
            except (Failed, subprocess.TimeoutExpired) as failed:
                failures.append(f"{name}: {failed}")
                seconds, what = time.monotonic() - begin, f"FAILED: {runner or 'as printed'}"
            rows.append((name, what, "" if seconds is None else f"{seconds:.1f}"))
            print(f"{name:44} {what:52} {rows[-1][2]:>8}", flush=True)
            if failures and runner is None and page == "README.md":
                break  # Without the build there is nothing to run.
    print(f"pages: {len(rows)} blocks, {sum(what.startswith('not run') for _, what, _ in rows)} not run, {len(failures)} failed")
    for failure in dict.fromkeys(failures):
        print(f"\n{failure}", file=sys.stderr)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
