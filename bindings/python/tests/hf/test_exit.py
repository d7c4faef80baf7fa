# SPDX-License-Identifier: Apache-2.0
"""Programs end: caches that live until the interpreter's exit must not take part in it."""

import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent

# A cache in a variable of the module, padded rows, and a forward that nothing has ended.
PROGRAM = """
import sys
sys.path.insert(0, {here!r})
import families
import torch
from kvcache.hf import PagedCache, PagedEncoderDecoderCache
model = families.build({family!r}, attention={attention!r})
kind = PagedEncoderDecoderCache if model.config.is_encoder_decoder else PagedCache
cache = kind(model.config, mode={mode!r})
ids, mask = families.prompt(3, 8, padding=(0, 3, 2))
given = dict(input_ids=ids, attention_mask=mask, past_key_values=cache)
print(model.generate(**given, max_new_tokens=3, do_sample=False).shape)
if {branches}:
    kept = [cache.branch(), cache.branch()]
"""


@pytest.mark.parametrize(
    "family, attention, mode, branches",
    [
        ("llama", "kvcache", "fused", False),
        ("llama", "kvcache", "fused", True),
        ("llama", "eager", "gather", True),
        ("t5", "kvcache", "fused", False),
    ],
)
def test_a_program_whose_caches_live_until_the_end_ends_well(family, attention, mode, branches):
    from steps import V5

    if family == "t5" and not V5:
        pytest.skip("T5 has no attention interface in version 4")
    program = PROGRAM.format(
        here=str(HERE), family=family, attention=attention, mode=mode, branches=branches
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stderr[-2000:] if ended.returncode else "") == (0, "")
    assert "torch.Size([3, " in ended.stdout
