"""Runs the demo and writes its figures into README.md and docs/demo.md, and the picture docs/demo.svg.

    python3 docs/demo_figures.py build/bin/kvcache "two threads of an Intel Xeon with AVX-512"

Arguments: the command; the machine, in words. Needs the model that `make demo` fetches, and a machine that does nothing else.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

DOCS = pathlib.Path(__file__).resolve().parent


def mebibytes(count):
    return f"{count / 2**20:.1f} MiB"


def table(run, machine):
    rows = run["rows"]
    room = rows[0]["reserved_bytes"]

    def line(label, cell):
        return "| " + " | ".join([label, *map(cell, rows)]).replace("|  |", "| |") + " |"

    def agrees(row):
        return "" if row is rows[0] else "yes" if row["against_contiguous"]["tokens_identical"] else "**no**"

    return "\n".join([
        "| | contiguous buffers | pages | pages, shared prompt |", "|---|--:|--:|--:|",
        line("prompt tokens computed", lambda row: f"{row['prompt_tokens_computed']:,}"),
        line("KV memory reserved at the peak", lambda row: mebibytes(row["reserved_bytes"])),
        line("reserved memory that holds no token", lambda row: f"{100 * row['waste']:.1f} %"),
        line("time to first token, median", lambda row: f"{row['first_token_seconds']['p50']:.3f} s"),
        line("seconds for all conversations", lambda row: f"{row['seconds']:.1f}"),
        line("generated tokens per second", lambda row: f"{row['tokens_per_second']:,.0f}"),
        line(f"conversations that fit in {room / 2**20:.0f} MiB", lambda row: f"{row['sequences_that_fit']:,}"),
        line("same tokens as contiguous buffers", agrees), "",
        f"{machine[0].upper()}{machine[1:]}; float32 storage; pages of {run['options']['page_size']} tokens.",
        f"{run['right']} of {run['questions']} answers have the right word."])


def put(path, name, text):
    """Between the marks of `name` in a page."""
    page = path.read_text()
    pattern = re.compile(rf"(<!-- {name}, by docs/demo_figures.py -->\n).*?(<!-- end -->\n)", re.S)
    if not pattern.search(page):
        raise SystemExit(f"demo_figures: {path.name} has no marks of {name}")
    path.write_text(pattern.sub(lambda match: match[1] + text + "\n" + match[2], page))


def main():
    command, machine = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "run.json"
        shown = subprocess.run([command, "demo", "--verify", "--json", report, "--svg", DOCS / "demo.svg"], check=True, capture_output=True,
                               text=True).stdout
        run = json.loads(report.read_text())
    shown = re.sub(r"\n  wrote .*", "", shown).strip("\n")
    shown = "\n".join(line.removeprefix("  ").rstrip() for line in shown.splitlines())
    put(DOCS.parent / "README.md", "table", table(run, machine))
    put(DOCS / "demo.md", "output", f"{machine[0].upper()}{machine[1:]}:\n\n```\n{shown}\n```")


if __name__ == "__main__":
    main()
