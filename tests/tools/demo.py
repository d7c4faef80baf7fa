"""`kvcache demo` as a visitor calls it: what is shown, and what only --verbose shows. Argument: the command."""

import pathlib
import re
import subprocess
import sys
import tempfile
import xml.dom.minidom

command = sys.argv[1]


def demo(*arguments):
    result = subprocess.run([command, "demo", "--quick", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, ""), f"{arguments}: {result.returncode}: {result.stderr}"
    return result.stdout


with tempfile.TemporaryDirectory() as folder:
    figure = pathlib.Path(folder) / "demo.svg"
    text = demo("--svg", figure)
    assert "Exact: all three rows agree" in text and "Some answers" not in text, text
    restarted = re.search(r"A new process loaded it in \d+ ms, computed (\d+) prompt tokens", text)
    assert restarted and int(restarted[1]) < 200, text
    drawn = xml.dom.minidom.parse(str(figure))
    assert "prefers-color-scheme: dark" in drawn.getElementsByTagName("style")[0].toxml()
    pages = drawn.getElementsByTagName("g")
    colours = set(re.findall(r'fill="(#[0-9a-f]{6})"', pages[-1].toxml()))
    assert len(colours) == 18, f"16 conversations, the prompt and free pages have {len(colours)} colours: {colours}"
assert "Some answers (row 3; noise" in demo("--verbose")

# The picture of docs/demo.md is one that the command drew.
shown = xml.dom.minidom.parse(str(pathlib.Path(__file__).resolve().parents[2] / "docs/demo.svg"))
titles = [text.firstChild.data for text in shown.getElementsByTagName("text")]
assert shown.documentElement.tagName == "svg" and "KV memory at the peak" in titles, titles
assert any(title.startswith("Exact: all three rows agree") for title in titles), titles
print("demo: ok")
