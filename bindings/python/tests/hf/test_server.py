# SPDX-License-Identifier: Apache-2.0
"""Server: every request gets the tokens that it would get alone."""

import random

import families
import kvcache
import pytest
import torch
from kvcache.hf import Server
from steps import dynamic, same_greedy

SERVED = [name for name in families.ATTENTION if name not in ("llama4",)]
LIMITS = {
    "plenty of pages": dict(),
    "few pages": dict(num_pages=24),
    "short steps, small pages": dict(max_step_tokens=7, page_size=4),
    "three at a time, nothing shared": dict(max_batch=3, share_prefixes=False),
}


def prompts(count=12, seed=3):
    """Prompts that share beginnings of several lengths."""
    print("seed", seed)
    choose = random.Random(seed)
    base = families.prompt(1, 40)[0][0].tolist()
    return [base[: choose.choice([0, 20, 33, 40])] + [choose.randrange(3, families.VOCAB) for _ in range(choose.randint(1, 25))]
            for _ in range(count)]


def alone(family, prompt, new):
    model = families.build(family)
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        past_key_values=dynamic(model),
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits).float()


def get_the_same(requests, wanted):
    """Every request has the tokens of its (tokens, logits), up to a choice of rounding."""
    pairs = zip(requests, wanted, strict=True)
    return all(same_greedy(request.tokens, *one) for request, one in pairs)


@pytest.fixture(scope="module")
def wanted():
    known = {}

    def get(family, new=20):
        if family not in known:
            known[family] = [alone(family, prompt, new) for prompt in prompts()]
        return known[family]

    return get


def serve(family, new=20, **limits):
    server = Server(families.build(family, attention="kvcache"), **limits)
    requests = [server.submit(prompt, new) for prompt in prompts()]
    server.run()
    server.store.cache.check()
    return server, requests


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("family", SERVED)
def test_many_requests_get_the_tokens_that_they_get_alone(family, limits, wanted):
    server, requests = serve(family, **LIMITS[limits])
    assert get_the_same(requests, wanted(family))
    assert all(request.finish == "length" for request in requests)
    assert server.store.cache.stats().num_seqs == 0


@pytest.mark.parametrize("when", ["from the beginning", "later"])
def test_a_model_that_keeps_its_past_elsewhere_is_not_served(when):
    model = families.build("llama", attention="kvcache")
    forward = model.model.forward

    def forget():
        # transformers calls it cache from 5.24 on.
        named = ("past_key_values", "cache")
        model.model.forward = lambda *args, **kwargs: forward(
            *args, **{name: None if name in named else value for name, value in kwargs.items()}
        )

    if when == "from the beginning":
        forget()
    with pytest.raises(NotImplementedError, match="LlamaForCausalLM has put nothing into it"):
        server = Server(model)
        server.submit([3, 4, 5], 2)
        forget()
        server.run()


def test_prompts_that_begin_alike_share_pages():
    _, requests = serve("llama")
    assert sum(request.cached for request in requests) > 150
    _, requests = serve("llama", share_prefixes=False)
    assert sum(request.cached for request in requests) == 0


def test_with_few_pages_requests_are_preempted_and_finish_all_the_same(wanted):
    _, requests = serve("llama", num_pages=14, share_prefixes=False)
    assert sum(request.preemptions for request in requests) > 0
    assert get_the_same(requests, wanted("llama"))


def test_tokens_stream_in_the_order_they_are_made():
    server = Server(families.build("llama", attention="kvcache"))
    heard = []
    first = server.submit([5, 6, 7], 5, on_token=lambda request, token: heard.append((request.number, token)))
    second = server.submit([8, 9], 3, on_token=lambda request, token: heard.append((request.number, token)))
    assert [(request.number, token) for request, token in server.stream()] == heard
    for request in (first, second):
        assert [token for number, token in heard if number == request.number] == request.tokens


def test_a_request_that_comes_later_joins_the_batch():
    family = "gemma2"
    server = Server(families.build(family, attention="kvcache"))
    requests = []
    for prompt in prompts(5):
        requests.append(server.submit(prompt, 12))
        server.step()
        server.step()
    server.run()
    assert get_the_same(requests, [alone(family, prompt, 12) for prompt in prompts(5)])


def test_sampling_depends_on_the_seed_alone():
    def sample(seed, others):
        server = Server(families.build("llama", attention="kvcache"))
        for prompt in prompts(others):
            server.submit(prompt, 9)
        request = server.submit([5, 6, 7], 12, temperature=0.9, top_k=40, top_p=0.9, seed=seed)
        server.run()
        return request.tokens

    assert sample(1, 0) == sample(1, 4)
    assert sample(1, 0) != sample(2, 0)


def test_stop_tokens_end_a_request():
    server = Server(families.build("llama", attention="kvcache"))
    whole = server.submit([5, 6, 7], 12)
    server.run()
    answer = whole.tokens
    request = server.submit([5, 6, 7], 12, stop_tokens=[answer[4]])
    server.run()
    assert request.finish == "stop"
    assert request.tokens == answer[: answer.index(answer[4]) + 1]


def test_a_cancelled_request_gives_its_pages_back():
    server = Server(families.build("llama", attention="kvcache"), share_prefixes=False)
    request, waiting = server.submit([5] * 30, 50), server.submit([6] * 30, 50)
    server.step()
    server.cancel(request)
    server.cancel(waiting)
    assert request.finish == waiting.finish == "cancelled"
    assert not server.has_work
    assert server.store.cache.is_empty


def test_a_request_that_no_pool_could_hold_is_refused_and_the_others_go_on():
    server = Server(families.build("llama", attention="kvcache"), num_pages=4)
    small = server.submit([5, 6, 7], 4)
    with pytest.raises(kvcache.NeverFits, match="prompt and max_new_tokens: 203 tokens need 13 pages, the pool has 4"):
        server.submit([5] * 200, 4)
    server.run()
    assert get_the_same([small], [alone("llama", [5, 6, 7], 4)])


@pytest.mark.parametrize("family, message", [
    ("llama4", "attn_temperature_tuning reads one length for the whole row"),
    ("qwen3_next", "has a recurrent state, which packed rows would mix"),
    ("t5", "encoder-decoder models are not served in packed rows"),
])
def test_models_that_packed_rows_would_mix_are_refused_by_name(family, message):
    with pytest.raises(NotImplementedError, match=message):
        Server(families.build(family, attention="kvcache"))


@pytest.mark.parametrize("values, message", [
    (dict(prompt=[]), "prompt: expected at least one token"),
    (dict(max_new_tokens=0), "max_new_tokens: expected at least 1, got 0"),
    (dict(temperature=-1), "temperature: expected at least 0, got -1"),
    (dict(top_k=-1), "top_k: expected at least 0, got -1"),
    (dict(top_p=0), r"top_p: expected a number in \(0, 1\], got 0"),
])
def test_bad_requests_are_refused_by_name(values, message):
    server = Server(families.build("llama", attention="kvcache"))
    with pytest.raises(ValueError, match=message):
        server.submit(**{"prompt": [1, 2], **values})
