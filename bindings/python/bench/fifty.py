# SPDX-License-Identifier: Apache-2.0
"""Many continuations of one long prompt on the CPU: time to first token and memory, with and without shared pages.

    python bindings/python/bench/fifty.py            # 50 continuations of 4,000 tokens, a small random Llama in float32

Every request is the prompt and a tail of its own; all answer greedily and have to answer the same tokens in every row:

    DynamicCache, one by one    transformers' cache, sdpa attention: each request computes the whole prompt
    DynamicCache, copied        the prompt is computed once and its cache deep-copied for every request
    Server, one by one          kvcache.hf.Server; each request comes when the one before has its first token
    DynamicCache, at once       the first row's requests waiting in one queue, first tokens only
    Server, at once             the same, all requests come together

Time to first token: from the moment when a request comes until its first token, summed over the requests. Exit status 1 unless the
tokens agree, the sum is at least 8 times smaller than with DynamicCache, and the pages of all requests together take at most 10 % more
than one prompt and the tails.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from kvcache.hf import Server


def build(options, attention: str):
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 32,
        num_key_value_heads=max(options.hidden // 64, 1),
        max_position_embeddings=2 * options.prompt,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    config._attn_implementation = attention
    torch.manual_seed(options.seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 1.6 / parameter.shape[-1] ** 0.5)
    return model.eval()


def make_prompts(options) -> tuple[list[int], list[list[int]]]:
    generator = torch.Generator().manual_seed(options.seed)
    prompt = torch.randint(3, 1000, (options.prompt,), generator=generator).tolist()
    tails = []
    for _ in range(options.requests):
        length = int(
            torch.randint(
                options.tail - options.tail // 4,
                options.tail + options.tail // 4 + 1,
                (1,),
                generator=generator,
            )
        )
        tails.append(torch.randint(3, 1000, (length,), generator=generator).tolist())
    return prompt, tails


@torch.inference_mode()
def generate(model, cache, tokens: list[int], count: int) -> tuple[float, list[int]]:
    """Seconds to the first token, and `count` greedy tokens."""
    begin = time.perf_counter()
    logits = model(input_ids=torch.tensor([tokens]), past_key_values=cache, logits_to_keep=1).logits[0, -1]
    answer = [int(logits.argmax())]
    first = time.perf_counter() - begin
    while len(answer) < count:
        logits = model(input_ids=torch.tensor([answer[-1:]]), past_key_values=cache, logits_to_keep=1).logits[
            0, -1
        ]
        answer.append(int(logits.argmax()))
    return first, answer


def run_dynamic(options, prompt, tails) -> dict:
    model = build(options, "sdpa")
    results = [
        generate(model, DynamicCache(config=model.config), prompt + tail, options.new) for tail in tails
    ]
    per_token = kv_bytes_per_token(model.config)
    return dict(
        first=[first for first, _ in results],
        answers=[answer for _, answer in results],
        bytes=per_token * sum(len(prompt) + len(tail) + options.new - 1 for tail in tails),
    )


def run_copied(options, prompt, tails) -> dict:
    model = build(options, "sdpa")
    cache = DynamicCache(config=model.config)
    begin = time.perf_counter()
    with torch.inference_mode():
        model(input_ids=torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1)
    shared = time.perf_counter() - begin
    results = []
    for tail in tails:
        begin = time.perf_counter()
        mine = copy.deepcopy(cache)
        copied = time.perf_counter() - begin
        first, answer = generate(model, mine, tail, options.new)
        results.append((copied + first, answer))
    first = [first for first, _ in results]
    first[0] += shared
    per_token = kv_bytes_per_token(model.config)
    return dict(
        first=first,
        answers=[answer for _, answer in results],
        bytes=per_token * sum(len(prompt) + len(tail) + options.new - 1 for tail in tails),
    )


def run_server(options, prompt, tails, at_once: bool) -> dict:
    model = build(options, "kvcache")
    server = Server(
        model, max_batch=options.requests, num_threads=options.threads, max_step_tokens=options.step_tokens
    )
    requests = []
    for tail in tails:
        requests.append(server.submit(prompt + tail, options.new))
        while not at_once and not requests[-1].tokens:
            server.step()
    server.run()
    stats = server.store.cache.stats()
    server.store.cache.check()
    return dict(
        first=[request.first_token - request.submitted for request in requests],
        answers=[request.tokens for request in requests],
        bytes=stats.pages_peak * stats.page_bytes,
    )


def kv_bytes_per_token(config) -> int:
    return config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2 * 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--prompt", type=int, default=4000, help="tokens that all requests begin with")
    parser.add_argument(
        "--tail", type=int, default=16, help="tokens of a request's own, give or take a quarter"
    )
    parser.add_argument("--new", type=int, default=48, help="tokens to generate")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--step-tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prompt, tails = make_prompts(options)
    wanted = run_dynamic(options, prompt, tails)
    queued = dict(wanted, first=torch.tensor(wanted["first"]).cumsum(0).tolist())
    rows = {  # name: (figures, what its time is compared with)
        "DynamicCache, one by one": (wanted, wanted),
        "DynamicCache, copied": (run_copied(options, prompt, tails), wanted),
        "Server, one by one": (run_server(options, prompt, tails, at_once=False), wanted),
        "DynamicCache, at once": (queued, queued),
        "Server, at once": (run_server(options, prompt, tails, at_once=True), queued),
    }
    needed = kv_bytes_per_token(build(options, "sdpa").config) * (
        len(prompt) + sum(len(tail) + options.new - 1 for tail in tails)
    )
    report = {}
    print(
        f"{options.requests} requests, {options.prompt} shared tokens, {options.new} new tokens each, {options.threads} thread(s)"
    )
    print(f"{'':26}{'first tokens, sum':>20}{'gain':>8}{'K and V':>14}{'of needed':>12}{'same tokens':>14}")
    for name, (row, slow) in rows.items():
        total = sum(row["first"])
        same = sum(one == other for one, other in zip(row["answers"], wanted["answers"]))
        report[name] = dict(
            first_token_sum=total,
            gain=sum(slow["first"]) / total,
            bytes=row["bytes"],
            of_needed=row["bytes"] / needed,
            same=same,
        )
        print(
            f"{name:26}{total:18.2f} s{report[name]['gain']:8.1f}{row['bytes'] / 2**20:10.1f} MiB{row['bytes'] / needed:12.3f}"
            f"{same:8} of {options.requests}"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)
    one, once = report["Server, one by one"], report["Server, at once"]
    good = one["gain"] >= 8 and once["of_needed"] <= 1.10 and one["same"] == once["same"] == options.requests
    print(
        "target met"
        if good
        else "target missed: gain at least 8, memory at most 1.10 of needed, the same tokens"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
