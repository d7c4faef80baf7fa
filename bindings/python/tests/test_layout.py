"""Structs and constants as this module was compiled, against the stored layout of the C interface."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

import kvcache
from kvcache import _capi, names

STORED = json.loads(
    (pathlib.Path(__file__).resolve().parents[3] / "tests" / "abi" / "layout.json").read_text()
)
LAYOUT = _capi.layout()


@pytest.mark.parametrize("name", [name for name in STORED["structs"] if name != "kvc_api"])
def test_struct(name):
    stored = STORED["structs"][name]
    assert LAYOUT[name]["size"] == stored["size"]
    assert LAYOUT[name]["fields"] == stored["fields"]


def test_constants():
    here = {name: getattr(_capi, name) for name in dir(_capi) if name.startswith("KVC_")}
    macros = {"KVC_ABI_VERSION", "KVC_ABI_VERSION_MAJOR", "KVC_ABI_VERSION_MINOR"}
    stored = {name: value for name, value in STORED["constants"].items() if name not in macros}
    assert {name: value for name, value in here.items() if name not in macros} == stored


def test_every_exported_function_is_wrapped_or_left_out_on_purpose():
    symbols = pathlib.Path(__file__).resolve().parents[3] / "tests" / "abi" / "symbols.txt"
    left_out = {
        "kvc_get_api",
        "kvc_config_init",
        "kvc_plan_destroy",
        "kvc_cache_destroy",
        "kvc_fence_destroy",
        "kvc_transport_destroy",
        "kvc_transfer_destroy",
        "kvc_set_logger",
        "kvc_config_from_hf",
        "kvc_config_from_hf_json",
    }  # the last three by functions of their own
    missing = {
        name for name in symbols.read_text().split() if name.startswith("kvc_") and not hasattr(_capi, name)
    }
    assert missing == left_out


def test_words_stand_for_the_constants_of_the_header():
    prefixes = {
        "KVC_LAYER": names.LAYER_KINDS,
        "KVC_QUANT": names.QUANTS,
        "KVC_STORAGE": names.STORAGES,
        "KVC_POOL": names.POOL_LAYOUTS,
        "KVC_CPU_ISA": names.ISAS,
        "KVC_ROPE": names.ROPE_MODES | names.ROPE_STYLES,
        "KVC_ROPE_SCALING": names.ROPE_SCALINGS,
        "KVC_ROPE_SECTIONS": names.SECTION_LAYOUTS,
        "KVC_TABLE": names.TABLE_KINDS,
        "KVC_SEQ": names.SEQ_OPS,
        "KVC_DECAY": names.DECAYS,
        "KVC_ACTIVATION": names.ACTIVATIONS,
        "KVC_OP": names.OP_LAYOUTS,
        "KVC_EVENT": names.EVENT_TYPES,
        "KVC_TIER": names.TIERS,
        "KVC_SWAP": names.DIRECTIONS,
    }
    for prefix, words in [*prefixes.items(), ("KVC_POOL", names.POOL_KINDS)]:
        for word, number in words.items():
            assert STORED["constants"][f"{prefix}_{word.upper()}"] == number, word


def test_answers_have_the_fields_of_the_structs():
    for kind, name in (
        (kvcache.PlanInfo, "kvc_plan_info"),
        (kvcache.GroupInfo, "kvc_group_info"),
        (kvcache.LayerInfo, "kvc_layer_info"),
        (kvcache.SeqInfo, "kvc_seq_info"),
        (kvcache.Stats, "kvc_stats"),
        (kvcache.DeviceCaps, "kvc_device_caps"),
    ):
        here = {field.name for field in dataclasses.fields(kind)}
        assert here == set(STORED["structs"][name]["fields"]) - {"struct_size", "reserved"}


def test_statuses_have_the_names_of_the_header():
    for name, number in STORED["constants"].items():
        if name.startswith("KVC_E_"):
            assert kvcache.errors.status_error(number, "").name == name == _capi.kvc_status_name(number)
            assert type(kvcache.errors.status_error(number, "")) is not kvcache.Error
