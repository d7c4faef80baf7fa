# SPDX-License-Identifier: Apache-2.0
"""Every causal language model of transformers: what DynamicCache keeps after eight tokens against what the plan of its configuration says.

    config_oracle.py                all types; status 1 where a served one differs, or where docs/plan.md has another list
    config_oracle.py TYPE...        these, with both sides
    config_oracle.py --write        and writes the list of docs/plan.md
    config_oracle.py --small        every type in a small size on the CPU, with real tensors, and no list

Version 4 of transformers has its own results and no list.

A default configuration is built on torch's meta device, without memory. One that cannot be built or run there is compared in a small
size on the CPU (shrunk.py). Compared are, for each layer: elements of K and V per token, window, and shapes of recurrent states.
"""

import argparse
import concurrent.futures
import inspect
import itertools
import json
import math
import os
import pathlib
import re
import sys
import textwrap
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bindings" / "python" / "tests" / "hf"))

import shrunk  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import written  # noqa: E402
from transformers import AutoConfig, DynamicCache, EncoderDecoderCache  # noqa: E402
from transformers.modeling_outputs import BaseModelOutput  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402

import kvcache  # noqa: E402

DOCS = ROOT / "docs" / "plan.md"
RULES = ROOT / "src" / "model_config" / "families.cc"
TOKENS = 8
DEFAULT, SMALL = "default", "small"
# How a model is built, and whether without its experts.
WAYS = ((DEFAULT, False), (DEFAULT, True), (SMALL, False))
EQUAL, WRONG, REFUSED, UNSEEN, OTHER = "equal", "WRONG", "refused", "without an oracle", "kept otherwise"
LEAST_SERVED, MOST_UNSEEN = 150, 10
# Layers whose states a model keeps outside of the cache; K and V are compared.
STATES_ELSEWHERE = {"recurrent_gemma"}
V5 = int(transformers.__version__.split(".")[0]) >= 5
# What the caches of version 4 keep otherwise than those of version 5, which plans follow.
KEEPS_OTHERWISE = {} if V5 else {
    "deepseek_v2": "K and V of every head instead of latents",
    "longcat_flash": "K and V of every head instead of latents",
    "gemma3n_text": "K and V of layers that read another's",
    "recurrent_gemma": "everything in the model",
}


@dataclass
class Outcome:
    model_type: str
    result: str
    way: str = ""
    reason: str = ""
    read_as: str = ""  # model_type of the part with the cache.
    layers: str = ""


# What transformers keeps --------------------------------------------------------------------------


def model_classes():
    """{model type: class}. Of encoder-decoders the class with the encoder, whose K and V are kept too."""
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    pairs = {**modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, **modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES}
    out = {}
    for model_type, name in causal.items():
        config = AutoConfig.for_model(model_type) if model_type in pairs else None
        chosen = pairs[model_type] if config is not None and config.is_encoder_decoder else name
        out[model_type] = chosen[0] if isinstance(chosen, tuple) else chosen
    return out


def default_configuration(model_type, model_class):
    config = AutoConfig.for_model(model_type)
    wanted = getattr(model_class, "config_class", None)
    if wanted is not None and not isinstance(config, wanted):
        name = next((name for name in config.sub_configs if isinstance(getattr(config, name), wanted)), None)
        config = getattr(config, name) if name is not None else config
    return as_decoder(config)


def as_decoder(config):
    """Encoders keep K and V when their configuration says that they decode."""
    if hasattr(config, "is_decoder") and not config.is_encoder_decoder:
        config.is_decoder = True
    return config


def without_experts(model):
    """Which expert computes a token depends on data, which a meta tensor has not. Experts keep nothing."""
    for module in model.modules():
        name = type(module).__name__
        ends = ("Model", "ForCausalLM", "Layer", "Router", "Gate", "ForConditionalGeneration", "Attention")
        if "Experts" in name or (("moe" in name.lower() or "sparse" in name.lower()) and not name.endswith(ends)):
            module.forward = lambda x, *args, **kwargs: torch.zeros_like(x)


def run(model, text):
    """The cache after TOKENS tokens."""
    config = model.config
    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    own = DynamicCache(config=text)
    names = inspect.signature(model.forward).parameters
    if config.is_encoder_decoder:
        cache = EncoderDecoderCache(own, DynamicCache())
        width = getattr(text, "d_model", None) or text.hidden_size
        given = dict(decoder_input_ids=ids, encoder_outputs=BaseModelOutput(last_hidden_state=torch.zeros(1, TOKENS, width)))
    else:
        cache, given = own, dict(input_ids=ids)
    if "cross_attention_states" in names:
        given["cross_attention_states"] = torch.zeros(1, TOKENS, text.hidden_size)
    # Newer transformers say cache where older ones say past_key_values, or cache_params for states alone.
    given[next((name for name in ("cache", "past_key_values", "cache_params") if name in names), "past_key_values")] = cache
    if "use_cache" in names:
        given["use_cache"] = True
    with torch.inference_mode():
        model(**given)
    return cache


def shape(tensor):
    return list(tensor.shape)


def kept_by(layer):
    """Entries of one layer, in the plan's order: K and V, then states."""
    out = []
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is not None and keys.numel():
        per_token = keys.shape[1] * keys.shape[3] + values.shape[1] * values.shape[3]
        out.append(("kv", per_token, layer.sliding_window if getattr(layer, "is_sliding", False) else 0))
    if getattr(layer, "indexer_keys", None) is not None:
        out.append(("index keys", layer.indexer_keys.shape[-1]))
    conv = [shape(one)[1:] for one in getattr(layer, "conv_states", {}).values() if one is not None]
    rest = [shape(one)[1:] for one in getattr(layer, "recurrent_states", {}).values() if one is not None]
    if conv or rest:
        # One convolution over q, k and v is the same as three. Models keep all taps or all but the current one.
        widths = {one[-1] for one in conv}
        out.append(("states", sum(math.prod(one[:-1]) for one in conv), min(widths, default=0), sorted(math.prod(one) for one in rest)))
    return out or [("nothing",)]


def kept(cache, encodes):
    if not encodes:
        return [entry for layer in cache.layers for entry in kept_by(layer)]
    pairs = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers)
    return [entry for pair in pairs for layer in pair for entry in kept_by(layer)]


# What the plan says -------------------------------------------------------------------------------


def planned(layers):
    out = []
    for layer in layers:
        if layer.kind in ("attention", "cross"):
            out.append(("kv", layer.num_kv_heads * (layer.k_dim + layer.v_dim), layer.window or layer.chunk or 0))
        elif layer.kind == "mla":
            out.append(("kv", layer.latent_rank + layer.latent_rope_dim, layer.window or 0))
        elif layer.kind == "state":
            out.append(("states", [list(state.shape) for state in layer.states]))
        else:
            out.append(("nothing",))
    return out


def states_agree(theirs, ours):
    _, channels, width, rest = theirs
    rest, found = list(rest), 0
    for one in ours[1]:
        if math.prod(one) in rest:
            rest.remove(math.prod(one))
        elif len(one) == 2 and one[1] in (width, width - 1):
            found += one[0]
        else:
            return False
    return not rest and found == channels


def agree(theirs, ours, model_type):
    if theirs[0] == ours[0] == "states":
        return states_agree(theirs, ours)
    return theirs == ours or (model_type in STATES_ELSEWHERE and theirs == ("nothing",) and ours[0] == "states")


def told(entries):
    """Runs of equal entries: "3 x kv 4096 window 1024"."""
    runs = []
    for entry in entries:
        text = " ".join(str(part) for part in entry)
        if entry[0] == "kv":
            text = f"kv {entry[1]}" + (f" window {entry[2]}" if entry[2] else "")
        if runs and runs[-1][1] == text:
            runs[-1][0] += 1
        else:
            runs.append([1, text])
    return ", ".join(f"{count} x {text}" for count, text in runs)


# The comparison -----------------------------------------------------------------------------------


def built(model_type, class_name, way):
    """A model and the configuration it was made of."""
    model_class = getattr(transformers, class_name)
    if way == SMALL:
        model = shrunk.build(model_type, class_name, "causal")
        return model, model.config
    config = default_configuration(model_type, model_class)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        return model_class(config).eval(), config


def observed(model_type, class_name, ways):
    """(way, configurations as JSON, layers), from the first way that runs; the error of the last one otherwise."""
    error = None
    for way, trim in ways:
        try:
            model, config = built(model_type, class_name, way)
            text = config.get_text_config(decoder=True)
            with torch.device("meta" if way == DEFAULT else "cpu"):
                if trim:
                    without_experts(model)
                found = kept(run(model, text), config.is_encoder_decoder)
            # As written with every key, and without those that have the value of a default.
            return way, [json.loads(config.to_json_string(use_diff=diff)) for diff in (False, True)], found
        except Exception as caught:  # noqa: BLE001
            error = caught
    raise error


def readable(model_type, class_name):
    """The default configuration as JSON; None where transformers cannot make one."""
    try:
        return json.loads(default_configuration(model_type, getattr(transformers, class_name)).to_json_string(use_diff=False))
    except Exception:  # noqa: BLE001
        return None


def exception_text(read_as):
    """The line of the table of exceptions."""
    source = RULES.read_text()
    line = re.search(rf'\{{"{re.escape(read_as)}", [^"]*?(?:"([^"]*)"|(k\w+))\}},', source)
    if line is None:
        return ""
    if line[1]:
        return line[1]
    return re.search(rf'const char\* {line[2]} =\s*"([^"]*)"', source)[1]


def text_type(values):
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(values.get(name), dict):
            return values[name].get("model_type", values["model_type"])
    return values["model_type"]


def compare(model_type, class_name, ways):
    written.quiet()
    values = readable(model_type, class_name)
    refusal = None
    try:
        ours = planned(kvcache.Config.from_hf(values or {"model_type": model_type}).layers)
    except kvcache.Error as error:
        refusal = str(error).strip()
    read_as = text_type(values) if values is not None else model_type
    try:
        way, seen, theirs = observed(model_type, class_name, ways)
    except Exception as error:  # noqa: BLE001
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        if refusal is not None:
            return Outcome(model_type, REFUSED, "", refusal, read_as)
        return Outcome(model_type, UNSEEN, "", exception_text(read_as) or reason, read_as, told(ours))
    if refusal is not None:
        return Outcome(model_type, REFUSED, way, refusal, read_as, told(theirs))
    for values in seen:
        try:
            ours = planned(kvcache.Config.from_hf(values).layers)
        except kvcache.Error as error:
            return Outcome(model_type, WRONG, way, f"refused: {error}", read_as, told(theirs))
        if len(theirs) != len(ours) or not all(agree(*pair, read_as) for pair in zip(theirs, ours)):
            if read_as in KEEPS_OTHERWISE:
                return Outcome(model_type, OTHER, way, f"{KEEPS_OTHERWISE[read_as]}: {told(theirs)}", read_as, told(ours))
            return Outcome(model_type, WRONG, way, f"{told(theirs)}; planned {told(ours)}", read_as, told(ours))
    return Outcome(model_type, EQUAL, way, "", read_as, told(ours))


# The list of the documentation --------------------------------------------------------------------

BLOCK = written.Block("tests/clients/hf/config_oracle.py", "config_oracle.py")


def wrapped(text):
    return textwrap.fill(text, 100, subsequent_indent="  " if text.startswith("* ") else "", break_long_words=False, break_on_hyphens=False)


def names(outcomes):
    return ", ".join(f"`{one.model_type}`" for one in sorted(outcomes, key=lambda one: one.model_type))


def why(one):
    """The reason without the name in front of it."""
    text = re.sub(r"^\S+ = '[^']*' is not supported: ", "", one.reason)
    return re.sub(r"^(\S+) is not supported: ", r"`\1`: ", text)


def report(outcomes):
    groups = {result: [one for one in outcomes if one.result == result] for result in (EQUAL, UNSEEN, REFUSED)}
    default = [one for one in groups[EQUAL] if one.way == DEFAULT]
    small = [one for one in groups[EQUAL] if one.way == SMALL]
    lines = [f"Of the {len(outcomes)} causal language models of transformers {transformers.__version__}, "
             f"{len(groups[EQUAL])} are read and keep what `DynamicCache` keeps, {len(groups[UNSEEN])} are read without a "
             f"comparison, {len(groups[REFUSED])} are refused by name."]
    blocks = [wrapped(lines[0]), f"**Equal, default configuration** ({len(default)})\n\n" + wrapped(names(default)),
              f"**Equal, in a small size** ({len(small)}), because the default cannot be built or run without data\n\n" + wrapped(names(small))]
    for result, title in ((UNSEEN, "Read, not compared"), (REFUSED, "Refused")):
        reasons = {}
        for one in groups[result]:
            reasons.setdefault(why(one), []).append(one)
        listed = "\n".join(wrapped(f"* {names(ones)}: {reason}") for reason, ones in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])))
        blocks.append(f"**{title}** ({len(groups[result])})\n\n{listed}")
    return "\n\n".join(blocks) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    written.quiet()
    tasks = [task for task in model_classes().items() if not options.types or task[0] in options.types]
    outcomes = []
    with concurrent.futures.ProcessPoolExecutor(options.jobs, initializer=written.quiet) as pool:
        for one in pool.map(compare, *zip(*tasks), itertools.repeat(WAYS[2:] if options.small else WAYS)):
            outcomes.append(one)
            shown = one.layers if options.types and not one.reason else one.reason or one.layers[:60]
            print(f"{one.model_type:26} {one.result:18} {one.way:8} {shown}", flush=True)
    counts = {result: sum(one.result == result for one in outcomes) for result in (EQUAL, UNSEEN, REFUSED, OTHER, WRONG)}
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    if counts[WRONG]:
        return 1
    if V5 and not options.types and not options.small:
        if counts[EQUAL] < LEAST_SERVED or counts[UNSEEN] > MOST_UNSEEN:
            print(f"at least {LEAST_SERVED} equal and at most {MOST_UNSEEN} without an oracle are wanted", file=sys.stderr)
            return 1
        text = DOCS.read_text()
        changed = BLOCK.replaced(text, report(outcomes))
        if options.write:
            DOCS.write_text(changed)
        elif changed != text:
            print("docs/plan.md has another list: run config_oracle.py --write", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
