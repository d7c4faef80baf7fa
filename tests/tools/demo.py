"""`kvcache demo` as a visitor calls it: what is shown, and what only --verbose shows. Argument: the command."""

import pathlib
import re
import subprocess
import sys
import tempfile
import xml.dom.minidom

command = sys.argv[1]


def demo(*arguments):
    result = subprocess.run([command, "demo", "--quick", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, ""), f"{arguments}: {result.returncode}: {result.stderr}"
    return result.stdout


with tempfile.TemporaryDirectory() as folder:
    figure = pathlib.Path(folder) / "demo.svg"
    text = demo("--svg", figure)
    assert "Exact: all three rows agree" in text and "Some answers" not in text, text
    pages = xml.dom.minidom.parse(str(figure)).getElementsByTagName("g")
    colours = set(re.findall(r'fill="(#[0-9a-f]{6})"', pages[-1].toxml()))
    assert len(colours) == 18, f"16 conversations, the prompt and free pages have {len(colours)} colours: {colours}"
assert "Some answers (row 3; noise" in demo("--verbose")
print("demo: ok")
