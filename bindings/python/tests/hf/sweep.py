# SPDX-License-Identifier: Apache-2.0
"""Every causal and vision-language model of transformers with kvcache.hf: equal to transformers' own cache, or refused with a reason.

    sweep.py                 all types; status 1 where one is neither, or where docs/huggingface.md has other lists
    sweep.py TYPE...         these, with tracebacks
    sweep.py --write         and writes the lists of docs/huggingface.md

Models are small and random (shrunk.py). Inputs are text in two rows, one of them padded on the left: a prompt, a burst, single tokens;
without padding, or without a burst, where transformers' own cache does not take them.
"""

import argparse
import concurrent.futures
import inspect
import os
import pathlib
import re
import sys
import textwrap
import traceback
from dataclasses import dataclass

import families
import shrunk
import torch
import transformers
import written
from steps import FLOAT32
from transformers import DynamicCache, EncoderDecoderCache

import kvcache.hf
from kvcache.hf import PagedCache, PagedEncoderDecoderCache

PACKAGE = os.path.dirname(os.path.abspath(kvcache.hf.__file__))
DOCS = pathlib.Path(__file__).parents[4] / "docs" / "huggingface.md"
PADS = (0, 3)
PROMPT, LENGTH = 14, 24
ONE_BY_ONE = [(0, PROMPT), *((index, index + 1) for index in range(PROMPT, LENGTH))]
BURST = [(0, PROMPT), (PROMPT, PROMPT + 3), *((index, index + 1) for index in range(PROMPT + 3, LENGTH))]
WAYS = [(PADS, BURST), (PADS, ONE_BY_ONE), ((0, 0), ONE_BY_ONE)]
MODES = ("gather", "fused")
EQUAL, REFUSED, WRONG = "equal", "refused", "WRONG"
NO_PEER = "not compared"  # The model cannot be built here, or does not run with transformers' own cache.


@dataclass
class Outcome:
    model_type: str
    kind: str
    mode: str
    result: str
    reason: str = ""


class Unused(Exception):
    """A model takes transformers' cache and puts nothing into it."""


class Inputs:
    """What the forwards of a model are given."""

    def __init__(self, model, pads):
        self.model, self.pads = model, pads
        self.ids, self.mask = families.prompt(len(pads), LENGTH, padding=pads)
        self.encodes = model.config.is_encoder_decoder
        names = inspect.signature(model.forward).parameters
        # Newer transformers say cache where older ones say past_key_values, or cache_params for states alone.
        self.cache_name = next((name for name in ("cache", "past_key_values", "cache_params") if name in names), "past_key_values")
        if self.encodes:
            ids, mask = families.prompt(len(pads), 9, seed=8)
            with torch.inference_mode():
                self.given = dict(encoder_outputs=model.get_encoder()(input_ids=ids, attention_mask=mask), attention_mask=mask)

    def theirs(self):
        own = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        return EncoderDecoderCache(own, DynamicCache()) if self.encodes else own

    def ours(self, mode):
        return (PagedEncoderDecoderCache if self.encodes else PagedCache)(self.model.config, mode)

    @torch.inference_mode()
    def logits(self, cache, parts):
        """Of real tokens."""
        out = []
        for begin, end in parts:
            if self.encodes:
                inputs = dict(decoder_input_ids=self.ids[:, begin:end], **self.given)
            else:
                inputs = dict(input_ids=self.ids[:, begin:end])
                if any(self.pads):
                    inputs["attention_mask"] = self.mask[:, :end]
            inputs[self.cache_name] = cache
            out.append(self.model(**inputs, use_cache=True).logits)
        return torch.cat(out, dim=1)[self.mask.bool()].float()


def is_used(layer):
    return bool(getattr(layer, "keys", None) is not None) or any(
        any(getattr(layer, name, {}).values()) for name in ("is_conv_states_initialized", "is_recurrent_states_initialized"))


def peer_runs(model):
    """Inputs, parts and logits of the first of WAYS that the model takes with transformers' cache."""
    errors = []
    for pads, parts in WAYS:
        try:
            inputs = Inputs(model, pads)
            cache = inputs.theirs()
            logits = inputs.logits(cache, parts)
            if not (inputs.encodes or any(is_used(layer) for layer in cache.layers)):
                raise Unused
            if not logits.isfinite().all():
                raise ArithmeticError("logits are not finite")
            if not torch.equal(logits, inputs.logits(inputs.theirs(), parts)):
                raise ArithmeticError("two runs with transformers' cache differ")
            return inputs, parts, logits
        except Unused:
            raise
        except Exception as error:  # noqa: BLE001
            errors.append(error)
    raise errors[-1]


def is_refusal(error):
    """Raised on purpose, by this package."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, (NotImplementedError, ValueError, RuntimeError)) and frames[-1].filename.startswith(PACKAGE)


def compare(mode, ours, wanted):
    span = float(wanted.max() - wanted.min())
    difference = float((ours - wanted).abs().max())
    if torch.equal(ours, wanted) if mode == "gather" else difference <= FLOAT32 * span:
        return EQUAL, ""
    return WRONG, f"logits differ by {difference:.3g} of a range of {span:.3g}"


def run(mode, model_type, class_name, kind, inputs, parts, wanted):
    if mode == "fused":
        inputs = Inputs(shrunk.build(model_type, class_name, kind, attention="kvcache"), inputs.pads)
    ours = inputs.logits(inputs.ours(mode), parts)
    return compare(mode, ours, wanted) if wanted is not None else (WRONG, "silently ignored, as transformers' cache is")


def sweep(model_type, kind, class_name, verbose=False):
    def outcome(mode, result, error=None, reason=""):
        if error is not None:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            if verbose:
                traceback.print_exception(error, limit=-3)
        return Outcome(model_type, kind, mode, result, reason)

    try:
        model = shrunk.build(model_type, class_name, kind)
        found = peer_runs(model)
    except Unused:
        found = Inputs(model, (0, 0)), ONE_BY_ONE, None
    except Exception as error:  # noqa: BLE001
        return [outcome("", NO_PEER, error)]
    outcomes = []
    for mode in MODES:
        try:
            result, reason = run(mode, model_type, class_name, kind, *found)
            outcomes.append(outcome(mode, result, reason=reason))
        except Exception as error:  # noqa: BLE001
            outcomes.append(outcome(mode, REFUSED if is_refusal(error) else WRONG, error))
    return outcomes


# The lists of the documentation -----------------------------------------------------------------------

# What a message says in the lists; others are quoted.
PHRASES = [
    (r"config: layer \d+ is of type '(\w+)'", r"layers of type `\1`"),
    (r"has put nothing into it", "takes the cache and keeps its past elsewhere (with `DynamicCache` it loses it)"),
    (r"the model computes \w+ of its mask", "computes with the mask"),
    (r"no attention interface", "picks attention from a table of its own"),
    (r"the model changed [KV] between", "changes K or V between cache and attention"),
    (r"mask_function: ", "masks other than causal, sliding, chunked"),
    (r"is_causal is False", "attends in both directions"),
    (r"its mask has window", "the mask has another window than the configuration"),
    (r"never attended|was not attended", "attends its K and V in code of its own"),
    (r"would read padding|read padding", "recurrent layers read padding"),
    (r"sinks: |bias: ", "arguments of attention of its own"),
    (r"pixel_values|flattened_patches|image_embeds", "needs an image in the first forward"),
    (r"\b(timm|scipy)\b", r"needs \1"),
    (r"has no attribute 'num_hidden_layers'|list index out of range", "no `DynamicCache` of its configuration can be made, or holds its layers"),
    (r"cache of its own|'rnn_state'", "takes a cache class of its own alone"),
]
# Of types that are not compared, where the message is no help.
BY_HAND = {
    "cpmant": "fails with transformers' own cache: it puts a prompt before every forward's tokens",
    "diffusion_gemma": "no causal decoding: it denoises a canvas of tokens",
    "gemma4_assistant": "drafts from the cache of another model",
    "gemma4_unified_assistant": "drafts from the cache of another model",
    "musicgen": "needs codes of several codebooks",
    "musicgen_melody": "needs codes of several codebooks",
    "rwkv": "refused: takes the cache and keeps its past elsewhere",
    "udop": "needs the boxes of a page",
    "dots3_note": "no small configuration; its text part, dots3_note_text, is refused",
    "vision-encoder-decoder": "needs an image in the first forward",
}


def phrase(one):
    if not one.reason:
        return ""
    if one.result == NO_PEER and one.model_type in BY_HAND:
        return BY_HAND[one.model_type]
    for pattern, text in PHRASES:
        match = re.search(pattern, one.reason)
        if match:
            return match.expand(text)
    return f"transformers' cache: `{one.reason.split(': ', 1)[-1][:90]}`"


def wrapped(text, indent=""):
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def listed(outcomes, title):
    """A paragraph of equal types, or a list by reason."""
    by_reason = {}
    for one in outcomes:
        by_reason.setdefault(phrase(one), set()).add(one.model_type)
    lines = [f"**{title}** ({len({one.model_type for one in outcomes})})"]
    for reason, types in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        names = ", ".join(sorted(types))
        lines.append("\n" + wrapped(names) if not reason else ("\n" if len(lines) == 1 else "") + wrapped(f"* {reason}: {names}", "  "))
    return "\n".join(lines)


def report(outcomes):
    """The generated part of docs/huggingface.md."""
    blocks = []
    results = {}
    for one in outcomes:
        results.setdefault((one.model_type, one.kind), {})[one.mode] = one
    rows = {EQUAL: "equal", REFUSED: "refused"}
    for kind, title in (("causal", "causal"), ("vision", "vision-language")):
        mine = {key: modes for key, modes in results.items() if key[1] == kind}
        for mode in MODES:
            rows[mode, kind] = [sum(1 for modes in mine.values() if mode in modes and modes[mode].result == result)
                                for result in (EQUAL, REFUSED)]
        rows[kind] = len(mine), sum(1 for modes in mine.values() if "" in modes), title
    release = transformers.__version__
    lines = [f"| transformers {release} | gather: equal | refused | fused: equal | refused | not compared | types |",
             "| --- | --: | --: | --: | --: | --: | --: |"]
    for kind in ("causal", "vision"):
        count, absent, title = rows[kind]
        gather, fused = rows["gather", kind], rows["fused", kind]
        lines.append(f"| {title} | {gather[0]} | {gather[1]} | {fused[0]} | {fused[1]} | {absent} | {count} |")
    blocks.append("\n".join(lines))
    by_mode = {mode: [one for one in outcomes if one.mode == mode] for mode in (*MODES, "")}
    equal = {(one.model_type, one.kind) for one in by_mode["fused"] if one.result == EQUAL}
    refused = {(one.model_type, one.kind) for one in by_mode["gather"] if one.result == REFUSED}
    both = [one for one in by_mode["gather"] if one.result == EQUAL and (one.model_type, one.kind) in equal]
    blocks.append(listed([Outcome(one.model_type, one.kind, one.mode, EQUAL) for one in both], "Equal in both modes"))
    blocks.append(listed([one for one in by_mode["fused"] if one.result == REFUSED and (one.model_type, one.kind) not in refused],
                         "Equal with gather, fused refused"))
    blocks.append(listed([one for one in by_mode["gather"] if one.result == REFUSED], "Refused"))
    blocks.append(listed(by_mode[""], "Not compared"))
    return "\n\n".join(blocks) + "\n"


BLOCK = written.Block("bindings/python/tests/hf/sweep.py", "sweep.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    written.quiet()
    tasks = [(model_type, kind, name, bool(options.types)) for (model_type, kind), name in shrunk.types().items()
             if not options.types or model_type in options.types]
    outcomes = []
    with concurrent.futures.ProcessPoolExecutor(options.jobs, initializer=written.quiet) as pool:
        for found in pool.map(sweep, *zip(*tasks)):
            outcomes += found
            for one in found:
                print(f"{one.model_type:28} {one.kind:7} {one.mode:7} {one.result:12} {one.reason[:160]}", flush=True)
    wrong = [one for one in outcomes if one.result == WRONG]
    print(f"{len(tasks)} types, {len(wrong)} neither equal nor refused")
    if not options.types:
        text = DOCS.read_text()
        changed = BLOCK.replaced(text, report(outcomes))
        if options.write:
            DOCS.write_text(changed)
        elif changed != text:
            print("docs/huggingface.md has other lists: run sweep.py --write", file=sys.stderr)
            return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
