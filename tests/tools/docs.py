"""The commands of docs/plan.md and docs/replay.md, as they stand there, in a folder that holds the files that they name.

Usage: docs.py TOOL
"""

import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
         "head_dim": 128, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rope_theta": 500000.0}


def commands(page, first):
    blocks = re.findall(r"^```\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    found = [line for block in blocks for line in block.splitlines() if line.startswith(first)]
    if not found:
        sys.exit(f"docs: {page} has no command that starts with {first!r}")
    return found


def main():
    tool = pathlib.Path(sys.argv[1]).resolve()
    if tool.name != "kvcache":
        sys.exit(f"docs: {tool} is not called kvcache")
    environment = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    lines = commands("docs/plan.md", "kvcache plan") + commands("docs/replay.md", "kvcache replay")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        (scratch / "config.json").write_text(json.dumps(LLAMA))
        trace = (ROOT / "tests/traces/block_ids.jsonl").read_bytes()
        (scratch / "conversation_trace.jsonl.gz").write_bytes(gzip.compress(trace))
        for line in lines:
            done = subprocess.run(["sh", "-c", line], cwd=scratch, capture_output=True, text=True, env=environment, timeout=300)
            if done.returncode or not done.stdout:
                sys.exit(f"docs: {line}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
        named = set(re.findall(r"\w+\.html", " ".join(lines)))
        if missing := [name for name in sorted(named) if not (scratch / name).exists()]:
            sys.exit(f"docs: not written: {missing}")
    print(f"docs: ok, {len(lines)} commands")


if __name__ == "__main__":
    main()
