// Debug access and poison in unused slots in random runs.
#include <algorithm>
#include <cmath>

#include "tests/model/random_inputs.h"

namespace kvc::test {
namespace {

// Largest shape over the layers of one kind.
struct Extents {
  int64_t layers = 0, heads = 0, k_dim = 0, v_dim = 0;
};

Extents extents_of(const std::vector<NaiveLayer>& layers, kvc_layer_kind kind) {
  Extents extents{static_cast<int64_t>(layers.size())};
  for (const NaiveLayer& layer : layers) {
    if (layer.kind != kind) continue;
    extents.heads = std::max<int64_t>(extents.heads, layer.kv_heads);
    extents.k_dim = std::max<int64_t>(extents.k_dim, layer.k_dim);
    extents.v_dim = std::max<int64_t>(extents.v_dim, layer.v_dim);
  }
  return extents;
}

std::vector<Row> part(const std::vector<Row>& rows, int64_t begin, int64_t end) {
  return {rows.begin() + begin, rows.begin() + end};
}

}  // namespace

void RandomRun::op_get(bool mla) {
  const kvc_layer_kind kind = mla ? KVC_LAYER_MLA : KVC_LAYER_ATTENTION;
  const kvc_seq seq = any_seq();
  const int64_t length = model_.exists(seq) ? model_.at(seq).length : 4;
  const int64_t begin = random_.chance(0.5) ? std::max<int64_t>(0, length - random_.range(0, 4))
                                            : random_.range(random_.chance(0.05) ? -1 : 0, length);
  const int64_t end = random_.chance(0.05) ? random_.range(-1, length + 1)
                                           : random_.range(std::max<int64_t>(0, begin), length);
  trace("debug_get%s %lld [%lld, %lld)", mla ? "_mla" : "", ll(seq), ll(begin), ll(end));
  const Extents extents = extents_of(setup_.layers(), kind);
  Expected expected;
  expected.also(!model_.exists(seq), KVC_E_NOT_FOUND);
  expected.also(begin < 0 || begin > end || end > length, KVC_E_OUT_OF_RANGE);
  expected.also(extents.heads == 0, KVC_E_UNSUPPORTED);
  for (size_t g = 0; g < num_groups() && expected.ok(); ++g) {
    const ModelGroup& group = model_.limits().groups[g];
    if (mla ? !group.has_mla : !group.has_attention) continue;
    expected.also(!model_.keeps(model_.at(seq), g, {begin, end}), KVC_E_OUT_OF_RANGE);
  }
  const int64_t tokens = std::max<int64_t>(0, end - begin);
  const int64_t heads = std::max<int64_t>(1, extents.heads),
                k_dim = std::max<int64_t>(1, extents.k_dim);
  HostTensor k(draw_activation(random_), {extents.layers, tokens, heads, k_dim});
  HostTensor v(draw_activation(random_),
               {extents.layers, tokens, heads, std::max<int64_t>(1, extents.v_dim)});
  HostTensor latent(draw_activation(random_), {extents.layers, tokens, k_dim});
  const int which = mla ? 2 : static_cast<int>(random_.range(0, 2));
  const Call fn = [&](kvc_error* err) {
    if (mla) return kvc_debug_get_mla(setup_.cache(), seq, begin, end, latent.dl(), nullptr, err);
    return kvc_debug_get_kv(setup_.cache(), seq, begin, end, which == 1 ? nullptr : k.dl(),
                            which == 2 ? nullptr : v.dl(), nullptr, err);
  };
  if (!agree(mla ? "kvc_debug_get_mla" : "kvc_debug_get_kv", expected, fn, {&k, &v, &latent}))
    return;
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    const NaiveLayer& spec = setup_.layers()[layer];
    const bool present = spec.kind == kind;
    const auto local = static_cast<int64_t>(layer);
    const NaiveRows& rows = naive_.at(seq).layers[layer];
    const auto k_at = [&](int64_t t, int64_t h, int64_t d) {
      return mla ? latent.get(local, t, d) : k.get(local, t, h, d);
    };
    for (int64_t t = 0; t < tokens; ++t) {
      const Row* k_row = present ? &rows.k[static_cast<size_t>(begin + t)] : nullptr;
      const Row* v_row =
          present && !spec.v_in_k ? &rows.v[static_cast<size_t>(begin + t)] : nullptr;
      // Beyond a smaller layer's own heads and dims, and in layers of other kinds, nothing is
      // written.
      for (int64_t h = 0; h < heads && which != 1; ++h) {
        for (int64_t d = 0; d < k_dim; ++d) {
          const double got = k_at(t, h, d);
          const bool inside = present && h < spec.kv_heads && d < spec.k_dim;
          const double want = inside ? (*k_row)[static_cast<size_t>(h * spec.k_dim + d)] : 0;
          const Elem elem = mla ? latent.elem() : k.elem();
          if (inside ? got != round_to(elem, want) : !std::isnan(got))
            mismatch("debug K of layer %zu, token %lld, head %lld, element %lld is %g", layer,
                     ll(begin + t), ll(h), ll(d), got);
        }
      }
      for (int64_t h = 0; h < heads && which != 2; ++h) {
        for (int64_t d = 0; d < v.size(3); ++d) {
          const double got = v.get(local, t, h, d);
          const bool inside = v_row != nullptr && h < spec.kv_heads && d < spec.v_dim;
          const double want = inside ? (*v_row)[static_cast<size_t>(h * spec.v_dim + d)] : 0;
          if (inside ? got != round_to(v.elem(), want) : !std::isnan(got))
            mismatch("debug V of layer %zu, token %lld, head %lld, element %lld is %g", layer,
                     ll(begin + t), ll(h), ll(d), got);
        }
      }
    }
  }
}

void RandomRun::op_set(bool mla) {
  const kvc_layer_kind kind = mla ? KVC_LAYER_MLA : KVC_LAYER_ATTENTION;
  const kvc_seq seq = any_seq();
  const int64_t length = model_.exists(seq) ? model_.at(seq).length : 4;
  const int64_t begin = random_.chance(0.5) ? std::max<int64_t>(0, length - random_.range(0, 4))
                                            : random_.range(random_.chance(0.05) ? -1 : 0, length);
  const int64_t tokens =
      random_.range(0, random_.chance(0.05) ? length + 1 : std::max<int64_t>(0, length - begin));
  trace("debug_set%s %lld [%lld, +%lld)", mla ? "_mla" : "", ll(seq), ll(begin), ll(tokens));
  const Extents extents = extents_of(setup_.layers(), kind);
  const int64_t heads = std::max<int64_t>(1, extents.heads),
                k_dim = std::max<int64_t>(1, extents.k_dim);
  HostTensor k(draw_activation(random_), {extents.layers, tokens, heads, k_dim});
  HostTensor v(draw_activation(random_),
               {extents.layers, tokens, heads, std::max<int64_t>(1, extents.v_dim)});
  HostTensor latent(draw_activation(random_), {extents.layers, tokens, k_dim});
  k.fill_random(random_);
  v.fill_random(random_);
  latent.fill_random(random_);
  const int which = mla ? 2 : static_cast<int>(random_.range(0, 2));
  const Call fn = [&](kvc_error* err) {
    if (mla) return kvc_debug_set_mla(setup_.cache(), seq, begin, latent.dl(), nullptr, err);
    return kvc_debug_set_kv(setup_.cache(), seq, begin, which == 1 ? nullptr : k.dl(),
                            which == 2 ? nullptr : v.dl(), nullptr, err);
  };
  std::vector<int> groups;
  for (size_t g = 0; g < num_groups(); ++g) {
    const ModelGroup& group = model_.limits().groups[g];
    if (mla ? group.has_mla : group.has_attention) groups.push_back(static_cast<int>(g));
  }
  Expected expected;
  if (groups.empty()) {
    expected.errors = {KVC_E_UNSUPPORTED, KVC_E_NOT_FOUND, KVC_E_BUSY, KVC_E_OUT_OF_RANGE};
  } else {
    expected = model_.overwrite(seq, groups, begin, tokens);
  }
  if (!agree(mla ? "kvc_debug_set_mla" : "kvc_debug_set_kv", expected, fn)) return;
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    const NaiveLayer& spec = setup_.layers()[layer];
    if (spec.kind != kind) continue;
    NaiveRows& rows = naive_.at(seq).layers[layer];
    const auto local = static_cast<int64_t>(layer);
    for (int64_t t = 0; t < tokens; ++t) {
      Row k_row, v_row;
      for (int64_t h = 0; h < spec.kv_heads; ++h) {
        for (int64_t d = 0; d < spec.k_dim; ++d)
          k_row.push_back(mla ? latent.get(local, t, d) : k.get(local, t, h, d));
        for (int64_t d = 0; d < spec.v_dim && !mla; ++d) v_row.push_back(v.get(local, t, h, d));
      }
      const auto token = static_cast<size_t>(begin + t);
      if (which != 1) set_key(layer, seq, begin + t, std::move(k_row));
      if (which == 2 || spec.v_in_k) continue;
      count_saturated_value(spec, v_row);
      rows.v[token] = stored_row(spec.v_storage(begin + t), std::move(v_row), spec.kv_heads);
    }
  }
}

void RandomRun::op_get_layer(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const kvc_seq seq = any_seq();
  const bool is_cross = spec.kind == KVC_LAYER_CROSS, exists = model_.exists(seq);
  const int64_t length = !exists    ? 4
                         : is_cross ? model_.at(seq).cross_length
                                    : model_.at(seq).length;
  const int64_t begin = random_.range(0, length);
  const int64_t end =
      random_.chance(0.05) ? random_.range(-1, length + 1) : random_.range(begin, length);
  trace("debug_get_layer %zu of %lld [%lld, %lld)", layer, ll(seq), ll(begin), ll(end));
  Expected expected;
  expected.also(!exists, KVC_E_NOT_FOUND);
  expected.also(begin > end || end > length, KVC_E_OUT_OF_RANGE);
  expected.also(!spec.has_pages() && spec.source < 0, KVC_E_UNSUPPORTED);
  if (expected.ok())
    expected.also(!model_.keeps(model_.at(seq), static_cast<size_t>(spec.group), {begin, end}),
                  KVC_E_OUT_OF_RANGE);
  const int64_t tokens = std::max<int64_t>(0, end - begin);
  HostTensor k(draw_activation(random_), {tokens, spec.kv_heads, spec.k_dim},
               random_placement(random_, Elem::kF32));
  HostTensor v(draw_activation(random_), {tokens, spec.kv_heads, spec.v_dim},
               random_placement(random_, Elem::kF32));
  const int which = spec.v_in_k ? 2 : static_cast<int>(random_.range(0, 2));
  const Call fn = [&](kvc_error* err) {
    return kvc_debug_get_layer(setup_.cache(), seq, setup_.global_layer(layer), begin, end,
                               which == 1 ? nullptr : k.dl(), which == 2 ? nullptr : v.dl(),
                               nullptr, err);
  };
  if (!agree("kvc_debug_get_layer", expected, fn, {&k, &v})) return;
  const NaiveRows& rows =
      naive_.at(seq).layers[spec.source >= 0 ? static_cast<size_t>(spec.source) : layer];
  if (which != 1)
    compare_rows("K of a layer", part(rows.k, begin, end), k, spec.kv_heads, spec.k_dim, -1);
  if (which != 2)
    compare_rows("V of a layer", part(rows.v, begin, end), v, spec.kv_heads, spec.v_dim, -1);
  if (!k.padding_untouched() || !v.padding_untouched())
    mismatch("kvc_debug_get_layer wrote padding");
}

void RandomRun::op_set_layer(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const kvc_seq seq = any_seq();
  const bool is_cross = spec.kind == KVC_LAYER_CROSS, exists = model_.exists(seq);
  const int64_t length = !exists    ? 4
                         : is_cross ? model_.at(seq).cross_length
                                    : model_.at(seq).length;
  const int64_t begin = random_.range(0, length);
  const int64_t tokens = random_.range(0, random_.chance(0.05) ? length + 1 : length - begin);
  trace("debug_set_layer %zu of %lld [%lld, +%lld)", layer, ll(seq), ll(begin), ll(tokens));
  Placement placement = random_placement(random_, Elem::kF32);
  placement.extra_rows = 0;  // dimension 0 says how many tokens are set
  HostTensor k(draw_activation(random_), {tokens, spec.kv_heads, spec.k_dim}, placement);
  HostTensor v(draw_activation(random_), {tokens, spec.kv_heads, spec.v_dim}, placement);
  k.fill_random(random_);
  v.fill_random(random_);
  const int which = spec.v_in_k ? 2 : static_cast<int>(random_.range(0, 2));
  const Call fn = [&](kvc_error* err) {
    return kvc_debug_set_layer(setup_.cache(), seq, setup_.global_layer(layer), begin,
                               which == 1 ? nullptr : k.dl(), which == 2 ? nullptr : v.dl(),
                               nullptr, err);
  };
  Expected expected;
  if (!spec.has_pages() && spec.source < 0) {
    expected.errors = {KVC_E_UNSUPPORTED, KVC_E_NOT_FOUND, KVC_E_BUSY, KVC_E_OUT_OF_RANGE};
  } else {
    expected = model_.overwrite(seq, setup_.groups_of(layer), begin, tokens);
  }
  if (!agree("kvc_debug_set_layer", expected, fn)) return;
  const size_t stored_by = spec.source >= 0 ? static_cast<size_t>(spec.source) : layer;
  NaiveRows& rows = naive_.at(seq).layers[stored_by];
  for (int64_t t = 0; t < tokens; ++t) {
    const auto token = static_cast<size_t>(begin + t);
    if (which != 1) set_key(stored_by, seq, begin + t, row_of(k, t, 0, spec.kv_heads, spec.k_dim));
    if (which == 2) continue;
    Row v_row = row_of(v, t, 0, spec.kv_heads, spec.v_dim);
    count_saturated_value(setup_.layers()[stored_by], v_row);
    rows.v[token] = stored_row(spec.v_storage(begin + t), std::move(v_row), spec.kv_heads);
  }
}

void RandomRun::set_key(size_t layer, kvc_seq seq, int64_t token, Row row) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const bool is_moved =
      spec.rope.mode == KVC_ROPE_ON_APPEND && keeps_pool() && model_.at(seq).is_moved;
  count_saturated_key(spec, row, {is_moved ? 1.0 : 0.0, is_moved});
  if (is_moved) return adopt_moved_key("setting it", layer, seq, token, row, 4e-7);
  naive_.at(seq).layers[layer].k[static_cast<size_t>(token)] =
      stored_row(spec.k_storage(token), std::move(row), spec.kv_heads);
}

// NaN into every slot that no sequence uses: freed pages hold old values, which a kernel that reads
// too far would not show.
void RandomRun::op_poison() {
  if (model_.is_open()) return;  // what the open forward holds for an abort is not visible
  trace("poison unused slots");
  std::map<int32_t, std::pair<size_t, int64_t>> used;  // group and leading tokens in use, by page
  for (const auto& [seq, sequence] : model_.sequences()) {
    for (size_t group = 0; group < num_groups(); ++group) {
      const int64_t page_size = model_.page_size(group);
      const int64_t tokens = model_.limits().groups[group].is_cross
                                 ? sequence.cross_length
                                 : model_.tokens_of(group, sequence.slots());
      const std::vector<int32_t> ids = sequence_pages(seq, group);
      size_t i = 0;
      for (const auto& [index, handle] : sequence.tables[group].pages) {
        auto& entry = used.emplace(ids.at(i++), std::make_pair(group, int64_t{0})).first->second;
        entry.second = std::max(entry.second, std::min(page_size, tokens - index * page_size));
      }
    }
  }
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    const NaiveLayer& spec = setup_.layers()[layer];
    if (spec.has_pages() && spec.keep == 0) poison_layer(layer, used);
  }
}

void RandomRun::poison_layer(size_t layer,
                             const std::map<int32_t, std::pair<size_t, int64_t>>& used) {
  const NaiveLayer& spec = setup_.layers()[layer];
  for (const kvc_pool_kind kind : {KVC_POOL_K, KVC_POOL_V}) {
    if (kind == KVC_POOL_V && spec.v_in_k) continue;
    const NaiveStorage storage = kind == KVC_POOL_K ? spec.k_storage() : spec.v_storage();
    DLManagedTensorVersioned* exported = nullptr;
    if (kvc_export_pool(setup_.cache(), setup_.global_layer(layer), kind, &exported, nullptr) !=
        KVC_OK)
      mismatch("kvc_export_pool failed");
    const DLTensor& pool = exported->dl_tensor;
    const int64_t bytes = pool.dtype.bits / 8;
    auto* base = static_cast<std::byte*>(pool.data) + pool.byte_offset;
    for (int64_t page = 0; page < pool.shape[0]; ++page) {
      const auto user = used.find(static_cast<int32_t>(page));
      // Layers of another group have their rows in the same bytes.
      if (user != used.end() && user->second.first != static_cast<size_t>(spec.group)) continue;
      for (int64_t head = 0; head < pool.shape[1]; ++head) {
        for (int64_t token = user == used.end() ? 0 : user->second.second; token < pool.shape[2];
             ++token) {
          std::byte* row =
              base +
              (page * pool.strides[0] + head * pool.strides[1] + token * pool.strides[2]) * bytes;
          std::fill(row, row + pool.shape[3] * bytes, std::byte{0xFF});
          if (!storage.has_scales()) continue;
          std::byte* scale = setup_.scale_at(layer, kind, page, head, token);
          std::fill(scale, scale + sizeof(float), std::byte{0xFF});
        }
      }
    }
    exported->deleter(exported);
  }
}

}  // namespace kvc::test
