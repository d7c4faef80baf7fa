# SPDX-License-Identifier: Apache-2.0
"""PagedCache.save and PagedCache.load: a prompt that was computed once, in another process."""

import copy
import pickle

import families
import kvcache
import pytest
import torch
from kvcache.hf import PagedCache
from steps import V5

FAMILIES = ["llama", "mistral", "gemma3n", "deepseek_v3", "llama4", "qwen3_next", "falcon_h1"]


def filled(family, mode, padding=(0, 5, 2), length=20, **options):
    model = families.build(family, attention="kvcache" if mode == "fused" else "eager")
    cache = PagedCache(model.config, mode, **options)
    ids, mask = families.prompt(len(padding), length, padding=padding)
    with torch.inference_mode():
        model(input_ids=ids, attention_mask=mask, past_key_values=cache)
    return model, cache, mask


@torch.inference_mode()
def continued(model, cache, mask, count=24):
    out = []
    for index in range(count):
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
        token = torch.full((len(mask), 1), 3 + 7 * index % 200)
        out.append(model(input_ids=token, attention_mask=mask, position_ids=mask.sum(-1, keepdim=True) - 1, past_key_values=cache).logits)
    return torch.cat(out, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["gather", "fused"])
def test_what_is_loaded_goes_on_bit_by_bit(family, mode, tmp_path):
    model, cache, mask = filled(family, mode)
    cache.save(tmp_path / "rows")
    loaded = PagedCache.load(tmp_path / "rows", model.config)
    assert repr(loaded) == repr(cache)
    assert loaded.get_seq_length() == 20
    assert torch.equal(continued(model, loaded, mask), continued(model, cache, mask))
    loaded.store.cache.check()
    # A loaded cache is saved again and branches like any other.
    loaded.save(tmp_path / "again")
    again = PagedCache.load(tmp_path / "again", model.config, mode=mode)
    mask = torch.cat((mask, torch.ones(3, 24, dtype=torch.long)), dim=1)
    assert torch.equal(continued(model, again, mask, 4), continued(model, copy.deepcopy(loaded), mask, 4))


@pytest.mark.parametrize("dtype", ["int8", "fp8", "bf16"])
@pytest.mark.parametrize("page_size", [1, 48])
def test_pages_of_other_types_and_sizes(dtype, page_size, tmp_path):
    model, cache, mask = filled("llama", "fused", dtype=dtype, page_size=page_size)
    cache.save(tmp_path / "rows")
    loaded = PagedCache.load(tmp_path / "rows", model.config, dtype=dtype)
    assert loaded.store.cache.plan.info.page_size == page_size
    assert torch.equal(continued(model, loaded, mask), continued(model, cache, mask))


def test_a_pool_that_grows_holds_a_file_larger_than_its_first_pages(tmp_path):
    model, cache, mask = filled("llama", "fused", padding=(0, 0), length=700, page_size=1)
    cache.save(tmp_path / "rows")
    loaded = PagedCache.load(tmp_path / "rows", model.config)
    assert torch.equal(continued(model, loaded, mask, 2), continued(model, cache, mask, 2))


def test_rows_that_share_pages_share_them_again(tmp_path):
    model, cache, mask = filled("llama", "fused", padding=(0,))
    cache.batch_repeat_interleave(4)
    cache.save(tmp_path / "rows")
    loaded = PagedCache.load(tmp_path / "rows", model.config)
    assert loaded.store.cache.stats().pages_used == cache.store.cache.stats().pages_used
    mask = mask.repeat_interleave(4, 0)
    assert torch.equal(continued(model, loaded, mask, 2), continued(model, cache, mask, 2))


def test_recorded_windows_come_back(tmp_path):
    model = families.build("mistral", attention="kvcache")
    cache = PagedCache(model.config, "fused")
    cache.activate_past_recording()
    with torch.inference_mode():
        model(input_ids=families.prompt(1, 30)[0], past_key_values=cache)
    cache.save(tmp_path / "rows")
    loaded = PagedCache.load(tmp_path / "rows", model.config)
    for one in (cache, loaded):
        one.crop(-15)
    mask = torch.ones(1, 15, dtype=torch.long)
    assert torch.equal(continued(model, loaded, mask, 2), continued(model, cache, mask, 2))


# Refused ----------------------------------------------------------------------------------------------


def test_another_model_mode_dtype_or_name_is_refused_by_both_values(tmp_path):
    model, cache, _ = filled("llama", "fused")
    path = tmp_path / "rows"
    cache.save(path, model_id="one")
    other = families.build("llama", attention="kvcache", num_key_value_heads=1).config
    with pytest.raises(ValueError, match="config: num_key_value_heads = 1, the file was saved for a model with 2"):
        PagedCache.load(path, other)
    with pytest.raises(ValueError, match="config: .* = .*, the file was saved for a model with"):
        PagedCache.load(path, families.build("mistral").config)
    with pytest.raises(ValueError, match="mode: got 'gather', the file was saved with 'fused'"):
        PagedCache.load(path, model.config, mode="gather")
    for dtype in ("bf16", torch.bfloat16, "int8"):
        with pytest.raises(ValueError, match="dtype: got '(bf16|int8)', the file holds 'fp32'"):
            PagedCache.load(path, model.config, dtype=dtype)
    with pytest.raises(kvcache.InvalidArgument, match="model_id"):
        PagedCache.load(path, model.config, model_id="other")
    with pytest.raises(kvcache.Unsupported, match="page_size"):
        PagedCache.load(path, model.config, page_size=32)
    with pytest.raises((kvcache.NoPages, kvcache.NeverFits)):
        PagedCache.load(path, model.config, num_pages=1)
    assert PagedCache.load(path, model.config, mode="fused", dtype="fp32", model_id="one").get_seq_length() == 20


def test_a_file_that_was_cut_or_changed_anywhere_is_refused(tmp_path):
    model, cache, _ = filled("qwen3_next" if V5 else "llama", "fused")
    path = tmp_path / "rows"
    cache.save(path)
    whole = path.read_bytes()
    for size in {0, 5, 15, 16, 20, 39, 40, 100, *range(200, len(whole), len(whole) // 40), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises((kvcache.Corrupt, kvcache.InvalidArgument)):
            PagedCache.load(path, model.config)
    for place in {0, 17, 21, 25, 33, *range(40, len(whole), len(whole) // 60)}:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1:])
        with pytest.raises((kvcache.Corrupt, kvcache.InvalidArgument, kvcache.VersionError, kvcache.Unsupported)):
            PagedCache.load(path, model.config)
    path.write_bytes(whole)
    assert PagedCache.load(path, model.config).get_seq_length() == 20


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    model, cache, _ = filled("llama", "fused")
    (tmp_path / "rows").write_bytes(b"old")
    monkeypatch.setattr("os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cache.save(tmp_path / "rows")
    assert [one.name for one in tmp_path.iterdir()] == ["rows"]
    assert (tmp_path / "rows").read_bytes() == b"old"
    with pytest.raises(FileNotFoundError):
        cache.save(tmp_path / "none" / "rows")
    with pytest.raises(FileNotFoundError):
        PagedCache.load(tmp_path / "none", model.config)


def test_a_link_stays_a_link_and_an_old_file_keeps_its_mode(tmp_path):
    model, cache, mask = filled("llama", "fused")
    (tmp_path / "file").touch(mode=0o640)
    (tmp_path / "link").symlink_to("file")
    cache.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    cache.save(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0, "rows of users are for their owner"
    loaded = PagedCache.load(tmp_path / "file", model.config)
    assert torch.equal(continued(model, loaded, mask, 2), continued(model, cache, mask, 2))
    with pytest.raises(ValueError, match="no regular file"):
        cache.save(tmp_path)


def test_an_empty_cache_has_nothing_to_save(tmp_path):
    cache = PagedCache(families.build("llama").config)
    with pytest.raises(ValueError, match="save: the cache holds no tokens"):
        cache.save(tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_pickle_names_save_and_load():
    _, cache, _ = filled("llama", "fused")
    for one in (cache, PagedCache(cache.config)):
        with pytest.raises(TypeError, match=r"cache.save\(path\) writes its rows to a file, and PagedCache.load\(path, config\)"):
            pickle.dumps(one)
