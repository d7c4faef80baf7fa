"""`kvcache demo` as a visitor calls it: what is shown, and what only --verbose shows. Argument: the command."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.dom.minidom

import tiny_gguf

command = sys.argv[1]
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


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

# A model of a file: turns of a chat that follow each other, with each kind of cache and after a restart.
with tempfile.TemporaryDirectory() as folder:
    model = tiny_gguf.write(pathlib.Path(folder) / "model.gguf")
    report = pathlib.Path(folder) / "report.json"

    def asked(*arguments, status=0):
        result = subprocess.run([command, "demo", *map(str, arguments)], capture_output=True, text=True, errors="strict", timeout=300)
        assert result.returncode == status, f"{arguments}: {result.returncode}: {result.stderr}"
        return result.stdout if status == 0 else result.stderr

    (pathlib.Path(folder) / "system").write_text("The harbour is deep. " * 20)
    questions = pathlib.Path(folder) / "questions"
    questions.write_text("Is it deep? | no such word\nWho swims?\n")
    json_of = ("--conversations", 2, "--max-new", 3, "--json", report)
    asked("--model", model, "--users", questions, *json_of)
    run = json.loads(report.read_text())
    turns = [turn for conversation in run["conversations"] for turn in conversation["turns"]]
    assert [turn["text"] for turn in turns] == ["Is it deep?", "Who swims?", "Is it deep?", "Who swims?", "Is it deep?"], turns
    assert [turn.get("expected") for turn in turns[:2]] == ["no such word", None] and (run["right"], run["questions"]) == (0, 3), turns
    questions.write_text(" | because\n")
    assert "has a turn without a text: '| because'" in asked("--model", model, "--users", questions, *json_of, status=2)
    own = ("--model", model, "--system", pathlib.Path(folder) / "system", "--conversations", 5, "--max-new", 12)
    text = asked(*own, "--verify", "--json", report)
    assert "tiny llama: 2 layers" in text and "random" not in text and text.count("visitor ") == 7 == text.count("clerk "), text
    assert "Exact: all three rows agree" in text and re.search(r"Right: \d+ of 12 answers", text), text
    run = json.loads(report.read_text())
    turns = [turn for conversation in run["conversations"] for turn in conversation["turns"]]
    assert [len(conversation["turns"]) for conversation in run["conversations"]] == [2, 3, 2, 3, 2] and run["questions"] == 12
    assert all(turn["answer_hex"] for turn in turns) and run["restart"]["same_tokens"] == 24, run["restart"]
    assert run["rows"][2]["prompt_tokens_computed"] == sum(turn["prompt_tokens"] for turn in turns) - 4 * run["system_prompt_tokens"]
    # A pool that is too small makes conversations wait, and changes no answer.
    small = json.loads((asked(*own, "--memory", 2, "--verify", "--json", report), report.read_text())[1])
    assert [c["turns"] for c in small["conversations"]] == [c["turns"] for c in run["conversations"]]
    assert "tiny qwen3" in asked("--model", tiny_gguf.write(pathlib.Path(folder) / "qwen3.gguf", "qwen3"), *own[2:], "--dtype", "bf16", "--verify")
    text = asked(*own, "--kv-dtype", "int8", "--verify", "--json", report)
    narrow = json.loads(report.read_text())
    assert "rows 2 and 3 agree" in text and re.search(r"Row 3 gave \d+ of 12 answers that row 1 gave", text), text
    assert narrow["model"]["kv_bytes_per_token_paged"] * 3 < narrow["model"]["kv_bytes_per_token_contiguous"], narrow["model"]
    assert (narrow["restart"]["same_tokens"], narrow["options"]["storage"]) == (24, "int8")
    assert "--kv-dtype int4: attention on the CPU" in asked(*own, "--kv-dtype", "int4", status=2)
    # Windows beside full attention.
    gemma = tiny_gguf.write(pathlib.Path(folder) / "gemma3.gguf", "gemma3", layers=7)
    text = asked("--model", gemma, *own[2:], "--verify")
    assert "6 of 7 layers have windows" in text and "Exact: all three rows agree" in text, text
    assert "No such file" in asked("--model", pathlib.Path(folder) / "missing.gguf", status=1)

# The picture of docs/demo.md is one that the command drew.
shown = xml.dom.minidom.parse(str(DOCS / "demo.svg"))
titles = [text.firstChild.data for text in shown.getElementsByTagName("text")]
assert shown.documentElement.tagName == "svg" and "KV memory at the peak" in titles, titles
assert any(title.startswith("Exact: all three rows agree") for title in titles), titles
# The output there and the README's table are of one run.
page, readme = (shown_page.read_text() for shown_page in (DOCS / "demo.md", DOCS.parent / "README.md"))
output, table = (re.search(rf"<!-- {name}, by docs/demo_figures.py -->\n(.*?)<!-- end -->", text, re.S)[1]
                 for name, text in (("output", page), ("table", readme)))
assert "Exact: all three rows agree" in output and "random" not in output, output
for row in re.findall(r"^\| (?:prompt tokens computed|generated tokens per second) (.*)", table, re.M):
    for number in re.findall(r"[\d,]+", row):
        assert re.search(rf"\b{number.replace(',', ',?')}\b", output), f"{number} of the README is not in docs/demo.md"
print("demo: ok")
