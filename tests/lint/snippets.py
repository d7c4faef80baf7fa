"""Every fenced block of README.md, docs/ and the READMEs of the bindings is run by a test, or is here with the reason why it is none.
tests/install/pages.py runs those tests in a fresh clone, and the blocks for a shell as they are printed.

Usage: snippets.py
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

README = "tests/install/readme.py"
LANGUAGES = "tests/clients/languages/run.py"
TOOL = "tests/tools/docs.py"
CLONE = "tests/install/pages.py"
OUTPUT = "-output of a command that a test runs"
# Page: for each language the file that runs its blocks (it names the page), or "-" and a reason. An empty word is a block of no language.
PAGES = {
    "README.md": {"c": README, "sh": CLONE, "python": README, "rust": README, "go": README},
    "docs/chat.md": {"sh": "-tests/tools/chat.py gives the command these arguments, and files of its own"},
    "docs/cuda.md": {"": "-targets of the part \"cuda\" of the checks", "c": "-needs a GPU: tests/gpu replays captured forwards in this order"},
    "docs/demo.md": {"sh": "-`make demo` and tests/tools/demo.py give the command these arguments", "": OUTPUT},
    "docs/events.md": {"python": "bindings/python/tests/extras/test_events_page.py"},
    "docs/guide.md": {"c": README, "sh": "tests/install/run.py", "cmake": "tests/install/run.py"},
    "docs/huggingface.md": {"python": "bindings/python/tests/hf/test_page.py", "": "-an example that a test runs, and the second tier's commands"},
    "docs/other_languages.md": dict.fromkeys(["", "sh", "lua", "php", "ruby", "perl", "js", "ts", "java", "zig", "rust", "swig"], LANGUAGES),
    "docs/plan.md": {"": TOOL},
    "docs/python.md": {"": CLONE},
    "docs/recipes.md": {"c": README},
    "docs/replay.md": {"": TOOL},
    "docs/state_files.md": {"c": README, "": OUTPUT},
    "docs/tiers.md": {"c": README},
    "docs/transfer.md": {"c": README, "": "-example.c.transfer_two_hosts is the program of this target"},
    "bindings/go/README.md": {"go": README, "": "-packaging/go runs the commands; the rest is output of an example"},
    "bindings/java/README.md": {"java": "-bindings/java/src/Smoke.java has these lines, which bindings/java/test runs"},
    "bindings/python/README.md": {"python": "bindings/python/tests/test_installed.py", "": "-the two ways that bindings/python/test and packaging/python install it"},
    "bindings/rust/README.md": {"rust": README, "": OUTPUT},
}


def languages(page):
    return set(re.findall(r"^```(\w*)[^\n]*\n.*?^```", page.read_text(), re.S | re.M))


def findings():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "bindings").glob("*/README.md"))]
    for page in pages:
        name = page.relative_to(ROOT).as_posix()
        found, known = languages(page), PAGES.get(name, {})
        for language in sorted(found - known.keys()):
            yield f"{name}: no test is named here for its blocks of {language or 'no language'}"
        for language in sorted(known.keys() - found):
            yield f"{name}: has no block of {language or 'no language'} any more"
        for runner in sorted({runner for runner in known.values() if not runner.startswith("-")}):
            file = ROOT / runner
            if not file.is_file():
                yield f"{name}: {runner} does not exist"
            elif page.name not in file.read_text():
                yield f"{name}: {runner} does not name it"
    for name in sorted(PAGES.keys() - {page.relative_to(ROOT).as_posix() for page in pages}):
        yield f"{name}: does not exist"


def main():
    found = list(findings())
    print("\n".join(found + [f"snippets: {len(found)} finding(s)" if found else "snippets: ok"]))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
