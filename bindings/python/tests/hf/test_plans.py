# SPDX-License-Identifier: Apache-2.0
"""The cache of a model keeps what the plan of its configuration says: both read the same rules."""

import math

import families
import pytest
import torch
from steps import V5

import kvcache
from kvcache.hf import PagedCache
from kvcache.hf.layers import StateLayer

# Entries of the plan for one layer of a cache.
KINDS = dict(KVLayer=["attention"], StateLayer=["state"], HybridLayer=["attention", "state"], EmptyLayer=["none"])


def rows(layers):
    """(elements per token, window) of layers that keep K and V, in order."""
    out = []
    for layer in layers:
        if layer.kind == "mla":
            out.append((layer.latent_rank + layer.latent_rope_dim, layer.window or 0))
        elif layer.kind == "attention":
            out.append((layer.num_kv_heads * (layer.k_dim + layer.v_dim), layer.window or layer.chunk or 0))
    return out


# The tests' common keys say two KV heads, which CodeGen has not.
CHANGES = {"codegen": dict(num_key_value_heads=4)}


@pytest.mark.skipif(not V5, reason="transformers 4 keeps expanded latents, and states outside of the cache")
@pytest.mark.parametrize("name", families.FAMILIES)
@torch.inference_mode()
def test_a_cache_keeps_what_its_configuration_plans(name):
    model = families.build(name, **CHANGES.get(name, {}))
    if model.config.is_encoder_decoder:
        pytest.skip("PagedEncoderDecoderCache keeps the encoder's K and V apart")
    try:
        plan = kvcache.plan_for(model.config, memory="64MiB")
    except kvcache.Unsupported as error:
        pytest.skip(f"refused by name: {error}")
    wanted = rows(plan.layer(index) for index in range(plan.info.num_layers))
    cache = PagedCache(model.config)
    ids, _ = families.prompt(1, 8)
    model(input_ids=ids, past_key_values=cache, use_cache=True)
    if not wanted:
        assert cache.store is None or not rows(cache.store.cache.plan.config.layers)
        return
    assert rows(cache.store.cache.plan.config.layers) == wanted


def states_of(layer):
    """(channels of all convolutions, sorted elements of each recurrence) of a cache's layer after its first tokens."""
    conv = [one.shape[1:] for one in layer.conv_states.values() if one is not None]
    recurrent = [one.shape[1:] for one in layer.recurrent_states.values() if one is not None]
    return sum(math.prod(shape[:-1]) for shape in conv), sorted(math.prod(shape) for shape in recurrent)


def planned_states(layer, elements):
    """The same of a planned layer; `elements`: of each recurrence, by which its states are told from convolutions."""
    left, channels = list(elements), 0
    for state in layer.states:
        if math.prod(state.shape) in left:
            left.remove(math.prod(state.shape))
        else:
            channels += state.shape[0]
    return channels, sorted(set(elements) - set(left))


@pytest.mark.skipif(not V5, reason="transformers 4 keeps states outside of the cache")
@pytest.mark.parametrize("name", families.HYBRID)
@torch.inference_mode()
def test_layers_of_a_cache_are_of_the_kinds_that_its_configuration_plans(name):
    model = families.build(name)
    layers = kvcache.Config.from_hf(model.config.to_dict()).layers
    cache = PagedCache(model.config)
    ids, _ = families.prompt(1, 8)
    model(input_ids=ids, past_key_values=cache, use_cache=True)
    kinds = [kind for layer in cache.layers for kind in KINDS[type(layer).__name__]]
    assert kinds == [layer.kind for layer in layers]
    stateful = [layer for layer in cache.layers if isinstance(layer, StateLayer)]
    planned = [layer for layer in layers if layer.kind == "state"]
    assert len(stateful) == len(planned) > 0
    for theirs, ours in zip(stateful, planned):
        channels, elements = states_of(theirs)
        assert planned_states(ours, elements) == (channels, sorted(set(elements)))


def test_a_configuration_object_and_its_dictionary_plan_alike():
    config = families.build("qwen3").config
    assert kvcache.plan_for(config, "1GiB").to_dict() == kvcache.plan_for(config.to_dict(), "1GiB").to_dict()
