# SPDX-License-Identifier: Apache-2.0
"""Running a model token by token, so that two caches can be compared at every one."""

import families
import torch
import transformers
from transformers import DynamicCache

V5 = int(transformers.__version__.split(".")[0]) >= 5
PADDING = (0, 5, 2)


@torch.inference_mode()
def decode(model, cache, count=40, forced=None, padding=PADDING, length=20, chunk=None):
    """Logits [count, rows, vocabulary] in float32 and the tokens [rows, count] that were fed: greedy, or `forced`."""
    ids, mask = families.prompt(len(padding), length, padding=padding)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for begin in range(0, length, chunk or length):
        part = slice(begin, begin + (chunk or length))
        logits = model(input_ids=ids[:, part], attention_mask=mask[:, : part.stop], position_ids=positions[:, part],
                       past_key_values=cache, use_cache=True).logits[:, -1]
    seen, fed = [], []
    for index in range(count):
        seen.append(logits.float())
        token = logits.argmax(-1) if forced is None else forced[:, index]
        fed.append(token)
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
        logits = model(input_ids=token[:, None], attention_mask=mask, position_ids=mask.sum(-1, keepdim=True) - 1,
                       past_key_values=cache, use_cache=True).logits[:, -1]
    return torch.stack(seen), torch.stack(fed, dim=1)


def generate(model, cache, rows=3, length=20, padding=PADDING, new=64, **options):
    """generate() with a cache of ours or theirs: sequences and the logits of every step."""
    ids, mask = families.prompt(rows, length, padding=padding[:rows])
    options = {"do_sample": False, **options}
    return model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new, past_key_values=cache, output_logits=True,
                          return_dict_in_generate=True, **options)


def dynamic(model):
    return DynamicCache(config=model.config)


def same(one, other):
    """Bit by bit: tokens and logits of two generate() results."""
    return torch.equal(one.sequences, other.sequences) and len(one.logits) == len(other.logits) and all(
        torch.equal(left, right) for left, right in zip(one.logits, other.logits)
    )


def error(logits, truth):
    """Root mean square error of each token's logits."""
    return (logits - truth).pow(2).mean(-1).sqrt()
