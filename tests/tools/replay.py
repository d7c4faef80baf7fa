"""`kvcache replay` as a user calls it: what it prints and writes, and how it ends. Argument: the command."""

import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.dom.minidom

TRACES = pathlib.Path(__file__).resolve().parents[1] / "traces"
BLOCK_IDS = TRACES / "block_ids.jsonl"
command = sys.argv[1]


def replay(*arguments, status=0, given=None):
    result = subprocess.run([command, "replay", *map(str, arguments)], input=given, capture_output=True, timeout=300)
    output, errors = result.stdout.decode(), result.stderr.decode()
    assert result.returncode == status, f"{arguments}: exit status {result.returncode}, not {status}: {errors}"
    assert bool(errors) == (status != 0), f"{arguments}: on stderr: {errors!r}"
    return errors if status else output


def figures(*arguments, **options):
    return json.loads(replay(*arguments, "--json", **options))


def numbers_are_those_of_the_trace():
    run = figures(BLOCK_IDS, "--pages", 0)
    assert (run["hit_blocks"], run["hit_tokens"]) == (15, 15 * 512), run
    assert (run["requests"], run["prompt_tokens"], run["refused"], run["evictions"]) == (7, 13196, 0, 0), run
    assert abs(run["token_hit_rate"] - 15 * 512 / 13196) < 1e-12, run
    assert 0 < run["us_per_request_p50"] <= run["us_per_request_p99"] <= run["us_per_request_max"], run
    assert figures(BLOCK_IDS, "--pages", 0, "--policy", "none")["hit_tokens"] == 0
    assert figures(BLOCK_IDS, "--pages", 0, "--limit", 3)["hit_blocks"] == 5
    assert figures(BLOCK_IDS, "--pages", 0, "--block", 256)["hit_tokens"] >= 15 * 512
    assert figures(BLOCK_IDS, "--pages", 5)["refused"] == 2
    assert figures(BLOCK_IDS, "--pages", 0, "--repeat", 3)["hit_blocks"] == 15
    assert figures(BLOCK_IDS, "--pages", 0, "--concurrency", 3)["hit_blocks"] == 15
    assert figures(TRACES / "lengths.csv", "--pages", 0, "--block", 16)["hit_tokens"] == 0
    tokens = [TRACES / "token_ids.jsonl", "--pages", 0, "--block", 2]
    assert figures(*tokens)["hit_tokens"] == 6 + 10
    assert figures(*tokens, "--outputs")["hit_tokens"] == 8 + 12


def a_sweep_has_a_run_per_pool():
    for pages in (["--pages", "7,9,unlimited"], ["--pages", "7", "--pages", "9", "--pages", "0"]):
        runs = figures(BLOCK_IDS, *pages)["runs"]
        assert [run["unlimited"] for run in runs] == [False, False, True], runs
        assert [run["pages"] for run in runs[:2]] == [7, 9], runs
    table = replay(BLOCK_IDS, "--pages", "7,unlimited")
    assert "58.20 %" in table and " unlimited " in table, table
    assert "unlimited" in replay(BLOCK_IDS)


def files_are_what_they_say(folder):
    for pages in ("7", "7,9,0"):
        svg, html, prom = folder / "a.svg", folder / "a.html", folder / "a.prom"
        table = replay(BLOCK_IDS, "--pages", pages, "--svg", svg, "--html", html, "--metrics", prom)
        assert f"wrote {svg}" in table, table
        assert xml.dom.minidom.parse(str(svg)).documentElement.tagName == "svg"
        head, _, page = html.read_text().partition("\n")
        assert head == "<!DOCTYPE html>"
        assert xml.dom.minidom.parseString(page).getElementsByTagName("svg")
        metrics = prom.read_text()
        assert "# TYPE kvcache_prefix_hit_tokens_total counter\nkvcache_prefix_hit_tokens_total" in metrics, metrics
    single = folder / "one.prom"
    replay(BLOCK_IDS, "--pages", "0", "--metrics", single)
    assert "\nkvcache_prefix_hit_tokens_total 7680\n" in single.read_text()


def traces_come_as_they_are(folder):
    text = BLOCK_IDS.read_bytes()
    packed = folder / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(text))
    assert figures(packed, "--pages", 0)["hit_blocks"] == 15
    assert figures("-", "--pages", 0, given=text)["hit_blocks"] == 15
    packed.write_bytes(gzip.compress(text)[:-5])
    assert "ends in the middle of its gzip data" in replay(packed, status=2)


def what_cannot_be_replayed_is_named(folder):
    broken = folder / "broken.jsonl"
    broken.write_text(BLOCK_IDS.read_text().replace('"input_length": 1500', '"input_length": -1500'))
    assert f"{broken}:2: input_length is -1500; it must lie in 1.." in replay(broken, status=2)
    # Nobody's prompt, and a table of gigabytes: refused before any memory is asked for.
    huge = folder / "huge.csv"
    huge.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n1,100,3\n2,1000000000,3\n")
    assert f"{huge}:3: ContextTokens is '1000000000'; it must lie in 1..16777216" in replay(huge, "--block", 1, status=2)
    huge.write_text('{"input_length": 1000000000, "hash_ids": []}\n')
    assert f"{huge}:1: input_length is 1000000000; it must lie in 1..16777216" in replay(huge, status=2)
    run = figures(broken, "--pages", 0, "--skip-bad-lines")
    assert (run["skipped_lines"], run["requests"], run["hit_blocks"]) == (1, 6, 13), run
    assert "cannot be opened" in replay(folder / "nothing", status=2)
    for bad in (["--pages", "many"], ["--pages", "-1"], ["--block", "1000"], ["--block", "0"], ["--policy", "best"],
                ["--svg", folder / "no" / "where.svg"]):
        assert bad[0] in replay(BLOCK_IDS, *bad, status=2), bad


with tempfile.TemporaryDirectory() as name:
    numbers_are_those_of_the_trace()
    a_sweep_has_a_run_per_pool()
    files_are_what_they_say(pathlib.Path(name))
    traces_come_as_they_are(pathlib.Path(name))
    what_cannot_be_replayed_is_named(pathlib.Path(name))
print("replay: ok")
