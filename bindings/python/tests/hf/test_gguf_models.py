# SPDX-License-Identifier: Apache-2.0
"""Models that transformers reads from GGUF files: tiny ones with random weights, and a real one, over transformers' cache and pages."""

import functools
import pathlib
import re
import subprocess
import sys

import pytest
import steps
import torch
from kvcache.hf import PagedCache, Server
from steps import dynamic, same, same_greedy, same_greedy_rows

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT / "bindings" / "python" / "bench"), str(ROOT / "tests" / "tools")]
import real_model  # noqa: E402
import tiny_gguf  # noqa: E402

TINY = {"llama": 2, "qwen2": 2, "qwen3": 2, "gemma3": 7}  # Layers; the sixth of gemma3 is the first without a window.
REAL = "SmolLM2"
MODELS = [*TINY, REAL]
# Of tiny files transformers' reader takes head_dim from nowhere, and the scale of gemma3 from its largest model.
TINY_FIELDS = dict(head_dim=tiny_gguf.DIM, query_pre_attn_scalar=tiny_gguf.DIM)


class Model:
    """A file, its model for each attention, and a text's tokens."""

    def __init__(self, name, path):
        self.is_real = name == REAL
        self.path = path
        self.load = functools.cache(self._load)
        text = real_model.TEXT.read_text()
        # Version 4 reads no tokeniser of the tiny kind from a file of gemma3; its vocabulary begins with the 256 bytes.
        cut = text if self.is_real else text[:2000]
        self.ids = list(cut.encode()) if name == "gemma3" else real_model.tokens_of(path, cut)
        self.prompt, self.new = (3000, 256) if self.is_real else (300, 40)
        self.short = 200 if self.is_real else 60  # Tokens of what is computed many times.

    def _load(self, attention, dtype=torch.float32):
        return real_model.load(self.path, attention, dtype, **({} if self.is_real else TINY_FIELDS))

    def cache(self, mode):
        """The model and an empty cache for it."""
        attention = "kvcache" if mode == "fused" else "sdpa"
        model = self.load(attention)
        return model, dynamic(model) if mode == "dynamic" else PagedCache(model.config, mode)

    @functools.cached_property
    def alone(self):
        """Tokens and logits behind the prompt, by transformers' cache."""
        return real_model.greedy(*self.cache("dynamic"), self.ids[:self.prompt], self.new)[:2]

    @functools.cached_property
    def perplexity(self):
        """Of a text, by transformers' cache."""
        return self.perplexity_of(*self.cache("dynamic"))

    def perplexity_of(self, model, cache):
        return real_model.perplexity(model, cache, self.ids[:real_model.JUDGED], real_model.PART if self.is_real else 32)

    @functools.cached_property
    def beams(self):
        """Where a text begins whose search rounding does not turn over, and the search by transformers' cache."""
        return steps.decided_search(lambda begin, processors: self.search("dynamic", begin, processors))

    def search(self, mode, begin, processors=None):
        return self.generate(mode, self.ids[begin:begin + self.short], num_beams=4, logits_processor=processors)

    def generate(self, mode, ids, new=24, **options):
        model, cache = self.cache(mode)
        ids = torch.tensor([ids])
        return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=new,
                              do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True, **options)


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    name = request.param
    if name == REAL:
        try:
            return Model(name, real_model.fetch())
        except real_model.NoModel as error:
            pytest.skip(f"the real model is not compared: {error}")
    path = tmp_path_factory.mktemp(name) / "tiny.gguf"
    return Model(name, tiny_gguf.write(path, name, layers=TINY[name]))


def test_gather_gives_the_logits_of_dynamic_cache_bit_by_bit(model):
    tokens, logits = model.alone
    ours = real_model.greedy(*model.cache("gather"), model.ids[:model.prompt], model.new)
    assert ours[0] == tokens
    assert torch.equal(ours[1], logits)


def test_fused_gives_the_tokens_of_dynamic_cache(model):
    tokens, logits = model.alone
    ours = real_model.greedy(*model.cache("fused"), model.ids[:model.prompt], model.new)
    assert same_greedy(ours[0], tokens, logits)
    # Up to the first choice that rounding decided, if there is one.
    alike = next((index for index, pair in enumerate(zip(ours[0], tokens)) if len(set(pair)) > 1), model.new - 1) + 1
    room = steps.FLOAT32 * (logits.max() - logits.min())
    assert (ours[1][:alike] - logits[:alike]).abs().max() <= room


def test_the_perplexity_of_a_text_is_the_same_to_five_digits(model):
    gather, fused = (model.perplexity_of(*model.cache(mode)) for mode in ("gather", "fused"))
    print(model.perplexity, gather, fused)
    assert gather == model.perplexity
    assert abs(fused / model.perplexity - 1) < 1e-6
    if model.is_real:  # It knows the language: a guess among all tokens would have their number.
        assert model.perplexity < 30


@pytest.mark.parametrize("mode", ["gather", "fused"])
def test_pages_of_8_bits_leave_the_perplexity_of_a_text_as_it_is(model, mode):
    """int8 within 0.5 % of the model's own; fp8 with its three bits of fraction within 1.5 %."""
    attention = "kvcache" if mode == "fused" else "sdpa"
    one = model.load(attention)
    found = {word: model.perplexity_of(one, PagedCache(one.config, mode, dtype=word)) for word in ("int8", "fp8")}
    print(model.perplexity, found)
    assert all(value != model.perplexity for value in found.values())
    assert abs(found["int8"] / model.perplexity - 1) < 0.005
    assert abs(found["fp8"] / model.perplexity - 1) < 0.015


@pytest.mark.parametrize("mode", ["gather", "fused"])
def test_beams_are_those_of_dynamic_cache(model, mode):
    begin, wanted = model.beams
    ours = model.search(mode, begin)
    assert torch.equal(ours.sequences, wanted.sequences)
    assert mode == "fused" or same(ours, wanted)


@pytest.mark.parametrize("mode", ["gather", "fused"])
def test_branches_of_a_prompt_continue_as_the_whole_text_does(model, mode):
    mine, prompt = model.cache(mode)
    shared = model.ids[:model.short]
    with torch.inference_mode():
        mine(input_ids=torch.tensor([shared]), past_key_values=prompt)
    for begin in (0, 5, 11):
        whole = shared + model.ids[model.short + begin:model.short + begin + 12]
        ids = torch.tensor([whole])
        ours = mine.generate(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=prompt.branch(), max_new_tokens=24,
                             do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True)
        assert same_greedy_rows(ours, model.generate("dynamic", whole))
    assert prompt.get_seq_length() == len(shared)


def test_each_of_16_requests_of_a_server_gets_the_tokens_that_it_gets_alone(model):
    shared = model.ids[:model.short]
    prompts = [shared[:len(shared) - 7 * (n % 3)] + model.ids[len(shared) + 11 * n:len(shared) + 13 * n + 9] for n in range(16)]
    server = Server(model.load("kvcache"))
    requests = [server.submit(prompt, 24) for prompt in prompts]
    server.run()
    server.store.cache.check()
    assert sum(request.cached for request in requests) > 12 * (len(shared) - 32)
    for request, prompt in zip(requests, prompts, strict=True):
        wanted = model.generate("dynamic", prompt)
        assert same_greedy(request.tokens, wanted.sequences[0, len(prompt):].tolist(), torch.cat(wanted.logits).float())


@pytest.mark.parametrize("model", [REAL], indirect=True)
def test_in_bfloat16_perplexity_stays_within_a_percent(model):
    for attention, make in real_model.ROWS.values():
        rounded = model.load(attention, torch.bfloat16)
        assert 1e-6 < abs(model.perplexity_of(rounded, make(rounded.config)) / model.perplexity - 1) < 0.01


@pytest.mark.parametrize("model", [REAL], indirect=True)
def test_the_example_of_a_chat_answers_and_takes_turns_back(model):
    lines = "What is the capital of France?\nAnd of Italy?\n\nAnd of Italy?\n\nAnd of Spain?\n"
    done = subprocess.run([sys.executable, ROOT / "examples" / "python" / "chat.py", model.path], input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    turns = re.findall(r"(.*?)\n  \[(\d+) of (\d+) tokens were kept\]\n", done.stdout, re.DOTALL)
    assert [re.search("Paris|Rome|Madrid", answer).group() for answer, _, _ in turns] == ["Paris", "Rome", "Rome", "Madrid"]
    kept, asked = ([int(turn[index]) for turn in turns] for index in (1, 2))
    assert kept[0] == 0
    assert asked[0] <= kept[1] < asked[1]
    assert kept[2] == asked[2] - 1
    assert asked[0] <= kept[3] < asked[3] - 1
