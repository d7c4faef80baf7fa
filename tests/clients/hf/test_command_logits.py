"""Models as the command loads them against transformers, which loads the same files: logits of every position, weights in float32.

KVC_TOOLS_TEST is the program build/tests/tools_test, which computes ours.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import random_gguf
import torch
from transformers import AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bindings" / "python" / "bench"))
import real_model  # noqa: E402

PROGRAM = os.environ.get("KVC_TOOLS_TEST")
TOLERANCE = 1e-3  # Of a logit, absolute.
POSITIONS = 512
REAL = {  # what fetches a model: a text, and what it goes on with
    "tools/demo/fetch_model.py": ("The capital of France is", "Paris"),
    "tests/clients/hf/fetch_gemma.py": ("Paris is the capital of", "France"),
}
# What transformers' reader of GGUF leaves at the values of other models.
RANDOM_FIELDS = dict(head_dim=random_gguf.DIM, query_pre_attn_scalar=random_gguf.DIM)

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="KVC_TOOLS_TEST is not set: there is no build folder")


def ours(path, tokens, folder):
    """Logits [tokens, vocabulary] by the command's parts."""
    given, answer = folder / "tokens", folder / "logits"
    np.array(tokens, np.int32).tofile(given)
    done = subprocess.run([PROGRAM, "--gtest_also_run_disabled_tests", "--gtest_filter=ToolLlmOracle.*"], capture_output=True, text=True,
                          env={**os.environ, "KVC_LLM_FILES": f"{path}\n{given}\n{answer}"})
    assert done.returncode == 0, done.stdout + done.stderr
    logits = np.fromfile(answer, np.float32).reshape(len(tokens), -1)
    answer.unlink()
    return torch.from_numpy(logits)


@torch.inference_mode()
def theirs(path, tokens, **fields):
    model = real_model.load(path, "eager", torch.float32, **fields)
    return model(input_ids=torch.tensor([tokens])).logits[0]


def compare(path, tokens, folder, **fields):
    mine, wanted = ours(path, tokens, folder), theirs(path, tokens, **fields)
    assert mine.shape == wanted.shape
    difference = float((mine - wanted).abs().max())
    spread = float(wanted.std())
    print(f"{path.name}: max |dlogit| {difference:.2e}, deviation of logits {spread:.2f}")
    assert 0.5 < spread < 20  # Logits that say something.
    assert difference <= TOLERANCE
    return wanted


@pytest.mark.parametrize("kind", random_gguf.TYPES)
def test_random_models_of_every_architecture_have_the_logits_of_transformers(kind, tmp_path):
    tokens = np.random.default_rng(5).integers(0, random_gguf.VOCABULARY, 200).tolist()
    for seed, architecture in enumerate(random_gguf.LAYERS):
        path = random_gguf.write(tmp_path / f"{architecture}-{kind}.gguf", architecture, kind, seed)
        compare(path, tokens, tmp_path, **RANDOM_FIELDS)


def fetched(script):
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == 3:
        pytest.skip(f"a real model is not compared: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.removesuffix("\n"))


@pytest.mark.parametrize("script", REAL)
def test_a_real_model_has_the_logits_of_transformers(script, tmp_path):
    path = fetched(ROOT / script)
    tokens = real_model.tokens_of(path, real_model.TEXT.read_text())[:POSITIONS]
    assert len(tokens) == POSITIONS
    logits = compare(path, tokens, tmp_path)
    # It knows the text's language.
    guessed = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]))
    assert guessed < 4.5


@pytest.mark.parametrize("script", REAL)
def test_a_real_model_goes_on_with_what_is_right(script, tmp_path):
    path = fetched(ROOT / script)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text, right = REAL[script]
    ids = tokenizer(text)["input_ids"]
    assert right in tokenizer.decode([int(ours(path, ids, tmp_path)[-1].argmax())])
