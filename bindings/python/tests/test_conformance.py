"""Every case of tests/conformance, played through the public Python API; and the prefix vectors."""

from __future__ import annotations

import json
import pathlib

import pytest
from conformance.case import load, value
from conformance.player import Player

import kvcache

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "tests" / "conformance"
CASES = sorted((FOLDER / "cases").glob("*.json"))
VECTORS = json.loads((FOLDER / "vectors" / "prefix_hash.json").read_text())["cases"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_scenario(path):
    case = load(path)
    assert case["name"] == path.stem and case["about"]
    Player(case).run()


def test_all_scenarios_are_there():
    assert len(CASES) >= 160


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"].replace(" ", "-"))
def test_keys_of_prefix_blocks_are_the_same_in_every_language(case):
    keys = [
        kvcache.PrefixKey(key["type"], key["offset"], bytes.fromhex(key["data"]))
        for key in case["keys"]
    ]
    found = kvcache.prefix_hash(
        case["tokens"], case["block_tokens"], bytes.fromhex(case["salt"]), keys
    )
    assert [key.hex() for key in found] == case["hashes"]


def test_the_generator_gives_the_numbers_that_the_readme_states():
    found = [value(2, 0, 0, 0, 0), value(3, 1, 5, 2, 3), value(1, 0, 1000, 1, 7)]
    assert [float(x) for x in found] == [-0.109375, -0.4375, -0.78125]


def test_a_key_that_nobody_reads_is_refused():
    case = load(CASES[0])
    assert case["name"] and case["about"]
    case["steps"][0]["unheard_of"] = 1
    with pytest.raises(AssertionError, match="unheard_of"):
        Player(case).run()


def test_a_wrong_result_is_noticed():
    case = load(FOLDER / "cases" / "all_kinds_of_layers_in_one_cache.json")
    wants = [step["out"] for step in case["steps"] if "values" in step.get("out", {})]
    wants[-1]["values"][-1] += 1e-3
    with pytest.raises(AssertionError, match="out has"):
        Player(case).run()
