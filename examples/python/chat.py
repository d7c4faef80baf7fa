"""A chat with a model of transformers, read from a GGUF file, whose K and V lie in pages.

    python3 chat.py MODEL.gguf

A line is a turn. An empty one takes the last turn back, of which the pages keep nothing.
"""

import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

from kvcache.hf import PagedCache

path = pathlib.Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                             attn_implementation="kvcache")
streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
cache = PagedCache(model.config, mode="fused")
turns, cached = [], []  # What was said, and the tokens whose K and V are kept.
for line in sys.stdin:
    if not line.strip():
        del turns[-2:]
        continue
    turns.append({"role": "user", "content": line.strip()})
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    kept = 0
    while kept < min(len(cached), ids.shape[1] - 1) and cached[kept] == ids[0, kept]:
        kept += 1
    cache.crop(kept - len(cached))
    answer = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache,
                            max_new_tokens=200, do_sample=False, streamer=streamer)
    cached = answer[0, :cache.get_seq_length()].tolist()
    turns.append({"role": "assistant", "content": tokenizer.decode(answer[0, ids.shape[1]:], skip_special_tokens=True)})
    print(f"  [{kept} of {ids.shape[1]} tokens were kept]")
