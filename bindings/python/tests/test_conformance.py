"""Every scenario of tests/conformance, played through the public Python API; and the keys of prefix blocks against the vectors."""

from __future__ import annotations

import json
import pathlib

import pytest
from conformance.formulas import KEY, QUERY, VALUE, values
from conformance.scenario import load
from conformance.session import Session

import kvcache

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "tests" / "conformance"
SCENARIOS = sorted((FOLDER / "scenarios").glob("*.json"))
VECTORS = json.loads((FOLDER / "vectors" / "prefix_hash.json").read_text())["cases"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path):
    Session(load(path)).run()


def test_all_scenarios_are_there():
    assert len(SCENARIOS) > 150


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"].replace(" ", "-"))
def test_keys_of_prefix_blocks_are_the_same_in_every_language(case):
    keys = [kvcache.PrefixKey(key["type"], key["offset"], bytes.fromhex(key["data"])) for key in case["keys"]]
    found = kvcache.prefix_hash(case["tokens"], case["block_tokens"], bytes.fromhex(case["salt"]), keys)
    assert [key.hex() for key in found] == case["hashes"]


def test_the_formula_gives_the_numbers_that_the_readme_states():
    assert [
        float(values(*arguments))
        for arguments in ((KEY, 0, 0, 0, 0), (VALUE, 1, 5, 2, 3), (QUERY, 0, 1000, 1, 7))
    ] == [-0.109375, -0.4375, -0.78125]
