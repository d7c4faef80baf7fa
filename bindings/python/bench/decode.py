# SPDX-License-Identifier: Apache-2.0
"""One sequence on the CPU: processor time of a long prompt and of each token behind it, with transformers' cache and with pages.

    python bindings/python/bench/decode.py            # 4,000 tokens, a small random Llama, float32 and bfloat16

Processor time, the least of --repeats runs, because machines are shared. Attention is a part of it: the linear layers are the same in
every row.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from fifty import build, make_prompts
from transformers import DynamicCache

from kvcache.hf import PagedCache

ROWS = {  # name: (attention, cache of a configuration)
    "DynamicCache, eager": ("eager", lambda config: DynamicCache(config=config)),
    "DynamicCache, sdpa": ("sdpa", lambda config: DynamicCache(config=config)),
    "PagedCache, gather, sdpa": ("sdpa", lambda config: PagedCache(config)),
    "PagedCache, fused": ("kvcache", lambda config: PagedCache(config, "fused")),
}


@torch.inference_mode()
def measure(model, cache, prompt: list[int], new: int) -> tuple[float, float]:
    """Seconds for the prompt, and per token behind it."""
    begin = time.process_time()
    logits = model(input_ids=torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1).logits
    middle = time.process_time()
    for _ in range(new):
        logits = model(input_ids=logits[:, -1:].argmax(-1), past_key_values=cache).logits
    return middle - begin, (time.process_time() - middle) / new


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--new", type=int, default=24, help="tokens behind the prompt")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.requests, options.tail = 1, 16
    torch.set_num_threads(options.threads)
    prompt, _ = make_prompts(options)
    print(f"{options.prompt} tokens, {options.layers} layers of {options.hidden}, {options.threads} thread(s), processor time")
    print(f"{'':12}{'':26}{'prompt':>10}{'each token':>14}")
    for dtype in (torch.float32, torch.bfloat16):
        for name, (attention, make) in ROWS.items():
            model = build(options, attention).to(dtype)
            runs = [measure(model, make(model.config), prompt, options.new) for _ in range(options.repeats)]
            first, each = (min(times) for times in zip(*runs))
            print(f"{str(dtype).removeprefix('torch.'):12}{name:26}{first:8.2f} s{each * 1e3:11.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
