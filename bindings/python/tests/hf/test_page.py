# SPDX-License-Identifier: Apache-2.0
"""The snippets of docs/huggingface.md, as they stand there, one after the other."""

import pathlib
import re

import families
import torch
from transformers import BartConfig, BartForConditionalGeneration, DynamicCache

PAGE = pathlib.Path(__file__).parents[4] / "docs" / "huggingface.md"
# What a snippet shortens: [(keys, values), ...] stands for every layer.
SHORTENED = {"[(keys, values), ...]": "[(keys, values)] * model.config.num_hidden_layers"}


def snippets():
    found = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    for text in found:
        for shown, meant in SHORTENED.items():
            text = text.replace(shown, meant)
        yield text


def generated(model, **inputs):
    return model.generate(**inputs, max_new_tokens=6, do_sample=False)


def test_every_snippet_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    eager = families.build("llama")
    eager.save_pretrained(tmp_path / "model")
    ids, mask = families.prompt(1, 12)
    # Every generate() of the page is short and greedy, so that its tokens can be compared.
    eager.generation_config.max_new_tokens, eager.generation_config.do_sample = 6, False
    eager.generation_config.save_pretrained(tmp_path / "model")
    wanted = generated(eager, input_ids=ids, attention_mask=mask)
    other = DynamicCache(config=eager.config)
    with torch.inference_mode():
        eager(input_ids=ids, past_key_values=other)
    heads, dim = eager.config.num_key_value_heads, eager.config.hidden_size // eager.config.num_attention_heads
    names = dict(
        torch=torch, path=str(tmp_path / "model"), inputs=dict(input_ids=ids, attention_mask=mask), system_prompt=ids,
        questions=[ids[:, :3], ids[:, 2:7]], other=other, mask=mask, keys=torch.rand(1, heads, 4, dim), values=torch.rand(1, heads, 4, dim),
        prompt_ids=ids[0].tolist(), other_ids=ids[0, :5].tolist(), eos=2,
    )
    texts = list(snippets())
    assert len(texts) == 7, "put what a new snippet needs into `names`"
    for text in texts[:-1]:
        exec(compile(text, str(PAGE), "exec"), names)
        model = names["model"]
        assert torch.equal(generated(model, input_ids=ids, attention_mask=mask), wanted), text
    assert names["prompt"].get_seq_length() == 12
    assert names["prefix"].get_seq_length() == 4
    assert not names["server"].step()
    assert capsys.readouterr().out, "on_token=print"

    # The last one is for models with an encoder.
    config = BartConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
    )
    model = BartForConditionalGeneration._from_config(config, attn_implementation="kvcache").eval()
    model.generation_config.max_new_tokens = 6
    exec(compile(texts[-1], str(PAGE), "exec"), dict(model=model, inputs=dict(input_ids=torch.arange(3, 12)[None])))
