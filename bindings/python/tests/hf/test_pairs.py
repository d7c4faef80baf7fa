# SPDX-License-Identifier: Apache-2.0
"""PagedEncoderDecoderCache: files, other caches' tokens, and the encoder's output that its K and V come from."""

import pickle

import families
import kvcache
import pytest
import torch
from kvcache.hf import PagedCache, PagedEncoderDecoderCache
from steps import FLOAT32, V5
from test_encoder_decoder import dynamic, fused, inputs


def near(ours, wanted):
    return bool((ours - wanted).abs().max() <= FLOAT32 * (wanted.max() - wanted.min()))


class Run:
    """A model behind its encoder, whose decoder goes on token by token."""

    def __init__(self, model, family, cache, seed=7, output=None):
        self.model, self.cache = model, cache
        self.inputs = inputs(family, torch.float32, seed)
        with torch.inference_mode():
            self.output = model.get_encoder()(**self.inputs) if output is None else output

    @torch.inference_mode()
    def go_on(self, tokens=(3, 5, 8), cache=None):
        mask = {name: one for name, one in self.inputs.items() if name == "attention_mask"}
        return torch.cat([
            self.model(decoder_input_ids=torch.full((2, 1), token), encoder_outputs=self.output, past_key_values=cache or self.cache,
                       use_cache=True, **mask).logits
            for token in tokens
        ], dim=1)


def built(family, mode, **options):
    if mode == "fused":
        model, _ = fused(family)
    else:
        model = families.build(family)
    run = Run(model, family, PagedEncoderDecoderCache(model.config, mode, **options))
    run.go_on((1, 9, 4, 7))
    return run


both = pytest.mark.parametrize("mode", ["gather", "fused"])
each = pytest.mark.parametrize("family", families.ENCODER_DECODER)


@both
@each
def test_what_is_loaded_goes_on_bit_by_bit(family, mode, tmp_path):
    run = built(family, mode)
    run.cache.save(tmp_path / "pair", model_id="one")
    loaded = PagedEncoderDecoderCache.load(tmp_path / "pair", run.model.config, mode=mode, model_id="one")
    assert (loaded.get_seq_length(), loaded.is_updated) == (4, run.cache.is_updated)
    assert torch.equal(run.go_on(cache=loaded), run.go_on())
    for one in (loaded.self_attention_cache, loaded.cross_attention_cache):
        one._commit()
        one.store.cache.check()
    loaded.save(tmp_path / "again")
    again = PagedEncoderDecoderCache.load(tmp_path / "again", run.model.config)
    for one in (again, run.cache):
        one.crop(-2)
        one.batch_select_indices(torch.tensor([1, 1]))
    if mode == "fused" and family == "t5":  # the mask is that of the other rows now
        run.inputs["attention_mask"] = run.inputs["attention_mask"][[1, 1]]
    run.output = type(run.output)(last_hidden_state=run.output[0][[1, 1]])
    assert torch.equal(run.go_on(cache=again), run.go_on())


@pytest.mark.parametrize("dtype", ["int8", "bf16"])
@pytest.mark.parametrize("page_size", [1, 48])
def test_pages_of_other_types_and_sizes(dtype, page_size, tmp_path):
    run = built("whisper", "fused", dtype=dtype, page_size=page_size)
    run.cache.save(tmp_path / "pair")
    loaded = PagedEncoderDecoderCache.load(tmp_path / "pair", run.model.config, dtype=dtype)
    for one in (loaded.self_attention_cache, loaded.cross_attention_cache):
        assert one.store.cache.plan.info.page_size == page_size
    assert torch.equal(run.go_on(cache=loaded), run.go_on())


@both
@each
def test_a_cache_goes_on_from_transformers_own(family, mode):
    theirs = families.build(family)
    run = Run(theirs, family, dynamic(theirs))
    run.go_on((1, 9, 4, 7))
    model = fused(family)[0] if mode == "fused" else theirs
    mask = run.inputs.get("attention_mask") if mode == "fused" else None
    ours = PagedEncoderDecoderCache.from_cache(run.cache, model.config, mode, encoder_attention_mask=mask)
    other = Run(model, family, ours, output=run.output)
    wanted, got = run.go_on(), other.go_on()
    assert torch.equal(got, wanted) if mode == "gather" else near(got, wanted)


@each
def test_a_fused_cache_goes_on_from_a_fused_one(family):
    run = built(family, "fused")
    copy = PagedEncoderDecoderCache.from_cache(run.cache, run.model.config, page_size=1)
    assert near(run.go_on(cache=copy), run.go_on())
    # A gathering cache is filled from the other's pages, where no padding is left out.
    if family == "whisper":
        theirs = families.build(family)
        ours = PagedEncoderDecoderCache.from_cache(run.cache, theirs.config, "gather")
        assert near(Run(theirs, family, ours, output=run.output).go_on((2,)), run.go_on((2,)))


@both
@each
def test_the_output_of_another_encoder_run_is_refused(family, mode):
    run = built(family, mode)
    other = Run(run.model, family, run.cache, seed=8)
    length = run.cache.get_seq_length()
    with pytest.raises(ValueError, match="encoder_outputs: .* was given another input than the one whose K and V the cache holds"):
        other.go_on()
    assert run.cache.get_seq_length() == length
    # Equal elements elsewhere in memory are the same input.
    same = Run(run.model, family, run.cache)
    assert same.output[0].data_ptr() != run.output[0].data_ptr()
    same.go_on()
    run.cache.reset()
    assert bool(other.go_on().isfinite().all())


@pytest.mark.skipif(not V5, reason="version 4 has another long form")
@both
def test_whispers_long_form_with_a_cache_of_ones_own_is_refused(mode):
    model = fused("whisper")[0] if mode == "fused" else families.build("whisper")
    model.generation_config.no_timestamps_token_id = 90
    frames = model.config.max_source_positions * model.model.encoder.conv1.stride[0] * model.model.encoder.conv2.stride[0]
    sound = torch.randn(1, model.config.num_mel_bins, 2 * frames, generator=torch.Generator().manual_seed(3))
    options = dict(return_timestamps=True, max_new_tokens=6, attention_mask=torch.ones(1, 2 * frames))
    with pytest.raises(ValueError, match="Whisper's long form: for each part"):
        model.generate(sound, past_key_values=PagedEncoderDecoderCache(model.config, mode), **options)


# Refused ----------------------------------------------------------------------------------------------


def test_files_of_the_other_kind_are_refused_and_cut_or_changed_ones(tmp_path):
    run = built("t5", "gather" if not V5 else "fused")
    config, path = run.model.config, tmp_path / "pair"
    run.cache.save(path, model_id="one")
    with pytest.raises(kvcache.InvalidArgument, match="is no file that PagedCache.save has written"):
        PagedCache.load(path, config)
    run.cache.self_attention_cache.save(tmp_path / "own")
    with pytest.raises(kvcache.InvalidArgument, match="is no file that PagedEncoderDecoderCache.save has written"):
        PagedEncoderDecoderCache.load(tmp_path / "own", config)
    with pytest.raises(kvcache.InvalidArgument, match="model_id"):
        PagedEncoderDecoderCache.load(path, config, model_id="two")
    with pytest.raises(ValueError, match="mode: got '.*', the file was saved with"):
        PagedEncoderDecoderCache.load(path, config, mode="fused" if not V5 else "gather")
    with pytest.raises(ValueError, match="dtype: got 'int8', the file holds 'fp32'"):
        PagedEncoderDecoderCache.load(path, config, dtype="int8")
    with pytest.raises(ValueError, match="config: num_heads = 2, the file was saved for a model with 4"):
        PagedEncoderDecoderCache.load(path, families.build("t5", num_heads=2).config)
    whole = path.read_bytes()
    for size in {0, 15, 20, 39, 40, 60, *range(100, len(whole), len(whole) // 40), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises((kvcache.Corrupt, kvcache.InvalidArgument)):
            PagedEncoderDecoderCache.load(path, config)
    for place in {0, 17, 21, 25, 33, 41, *range(50, len(whole), len(whole) // 60)}:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1:])
        with pytest.raises((kvcache.Corrupt, kvcache.InvalidArgument, kvcache.VersionError, kvcache.Unsupported)):
            PagedEncoderDecoderCache.load(path, config)
    path.write_bytes(whole + b"more")
    with pytest.raises(kvcache.Corrupt):
        PagedEncoderDecoderCache.load(path, config)


def test_an_empty_pair_has_nothing_to_save(tmp_path):
    cache = PagedEncoderDecoderCache(families.build("t5").config)
    with pytest.raises(ValueError, match="save: the cache holds no tokens"):
        cache.save(tmp_path / "pair")
    assert not list(tmp_path.iterdir())


def test_what_is_no_pair_or_has_other_shapes_is_refused():
    run = built("whisper", "gather")
    config, pair = run.model.config, PagedEncoderDecoderCache
    with pytest.raises(TypeError, match="other: expected an EncoderDecoderCache, got PagedCache"):
        pair.from_cache(run.cache.self_attention_cache, config)
    with pytest.raises(ValueError, match=r"encoder_attention_mask: shape \(2, 3\), the tokens of other make \(2, 30\)"):
        pair.from_cache(run.cache, config, encoder_attention_mask=torch.ones(2, 3))
    with pytest.raises(ValueError, match="encoder_attention_mask: every token is padding"):
        pair.from_cache(run.cache, config, encoder_attention_mask=torch.zeros(2, 30))
    with pytest.raises(ValueError, match="encoder_attention_mask: mode='gather' keeps padding"):
        pair.from_cache(run.cache, config, "gather", encoder_attention_mask=torch.ones(2, 30))
    with pytest.raises(ValueError, match="layer 0 holds no tokens"):
        pair.from_cache(pair(config), config)


def test_pickle_names_save_and_load():
    with pytest.raises(TypeError, match=r"PagedEncoderDecoderCache.load\(path, config\)"):
        pickle.dumps(PagedEncoderDecoderCache(families.build("t5").config))
