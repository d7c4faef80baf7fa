# SPDX-License-Identifier: Apache-2.0
"""Running a model token by token, so that two caches can be compared at every one.

No comparison here may depend on the machine: instruction sets round differently. Where two
computations differ by rounding, a choice of a token that rounding could turn over is not compared.
"""

import math
import statistics

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


def generate(model, cache, rows=3, length=20, padding=PADDING, new=64, seed=7, **options):
    """generate() with a cache of ours or theirs: sequences and the logits of every step."""
    ids, mask = families.prompt(rows, length, seed=seed, padding=padding[:rows])
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


# Two computations in float32 may differ by this part of the range of logits. Measured: below 2e-5.
FLOAT32 = 1e-4


def close(ours, wanted):
    """Logits differ by rounding, and choose the same tokens where rounding cannot decide."""
    room = FLOAT32 * (wanted.max() - wanted.min())
    best = wanted.topk(2).values
    decided = best[..., 0] - best[..., 1] > 2 * room
    assert decided.float().mean() > 0.9
    return bool((ours - wanted).abs().max() <= room) and torch.equal(
        ours.argmax(-1)[decided], wanted.argmax(-1)[decided]
    )


def same_greedy(ours, wanted, logits):
    """Tokens are those that `logits` [tokens, vocabulary] chose, up to a choice of rounding."""
    room = FLOAT32 * (logits.max() - logits.min())
    assert len(ours) == len(wanted) == len(logits)
    for one, other, row in zip(ours, wanted, logits):
        if one != other:
            return bool(row[other] - row[one] <= 2 * room)
    return True


def same_greedy_rows(ours, wanted):
    """`same_greedy` for every row of two generate() results."""
    new = len(wanted.logits)
    rows = zip(
        ours.sequences[:, -new:].tolist(),
        wanted.sequences[:, -new:].tolist(),
        torch.stack(wanted.logits, dim=1).float(),
    )
    return ours.sequences.shape == wanted.sequences.shape and all(same_greedy(*row) for row in rows)


class Noise(transformers.LogitsProcessor):
    """Disturbs the scores of a search as much as rounding may."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids, scores):
        finite = scores[scores.isfinite()]  # Suppressed tokens are not.
        room = FLOAT32 * (finite.max() - finite.min())
        return scores + room * (2 * torch.rand(scores.shape, generator=self.generator) - 1)


def decided_search(search):
    """A prompt seed and its `search(seed, processors)`, which noise does not turn over."""
    for seed in range(7, 40):
        result = search(seed, None)
        noisy = (search(seed, transformers.LogitsProcessorList([Noise(one)])) for one in range(2))
        # The model's own logits: every step of the search went the same way.
        if all(same(one, result) for one in noisy):
            return seed, result
    raise AssertionError("no prompt has a search that noise leaves alone")


# In 16 bits an error is compared with another one, and both are noise. A draw is the logarithm of
# their ratio for one model and prompt.
FARTHER = math.log(1.15)  # The mean of draws that must be found.
SPREAD = 0.05  # Standard deviation of a draw, at least. Measured: 0.00 to 0.06.
FEWEST, MOST = 4, 24


def not_farther(draw):
    """Is the mean of draw(0), draw(1), ... rather 0 than FARTHER?

    Draws until the mean is two standard errors away from the middle of the two. A wrong verdict
    needs a mean that is off by FARTHER / 2 and two standard errors. At 0 and at FARTHER its
    probability is 1e-6 for draws of spread SPREAD and 3e-5 for a spread of 0.06, by simulation of
    normal draws.
    """
    draws = []
    while True:
        draws.append(draw(len(draws)))
        if len(draws) < FEWEST:
            continue
        distance = statistics.fmean(draws) - FARTHER / 2
        standard_error = max(statistics.stdev(draws), SPREAD) / math.sqrt(len(draws))
        if abs(distance) > 2 * standard_error or len(draws) == MOST:
            print("mean", statistics.fmean(draws), "of", draws)
            return distance < 0


@torch.inference_mode()
def taught(model, cache, seed, prompt=20, new=12):
    """Logits of every real token, float32, of random tokens: a padded prompt, then one by one."""
    ids, mask = families.prompt(len(PADDING), prompt + new, seed=seed, padding=PADDING)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    parts = []
    for begin, end in [(0, prompt), *((index, index + 1) for index in range(prompt, prompt + new))]:
        parts.append(
            model(
                input_ids=ids[:, begin:end],
                attention_mask=mask[:, :end],
                position_ids=positions[:, begin:end],
                past_key_values=cache,
                use_cache=True,
            ).logits.float()
        )
    return torch.cat(parts, dim=1)[mask.bool()]


def error(logits, truth):
    """Root mean square error of each token's logits."""
    return (logits - truth).pow(2).mean(-1).sqrt()
