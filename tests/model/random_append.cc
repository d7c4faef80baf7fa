// Rows into the pool and out of it in random runs.
#include <algorithm>
#include <cmath>

#include "tests/model/random_inputs.h"

namespace kvc::test {

// All rows of a sequence, read back from the library.
void RandomRun::compare_rows(const char* what, const std::vector<Row>& rows, HostTensor& got,
                             int64_t heads, int64_t dim, int64_t layer) {
  for (size_t t = 0; t < rows.size(); ++t) {
    if (rows[t].empty()) continue;  // not written yet
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < dim; ++d) {
        const auto token = static_cast<int64_t>(t);
        const double value = layer < 0 ? got.get(token, h, d) : got.get(layer, token, h, d);
        const double want = round_to(got.elem(), rows[t][static_cast<size_t>(h * dim + d)]);
        if (value != want)
          mismatch("%s: token %zu head %lld element %lld is %g, expected %g", what, t, ll(h), ll(d),
                   value, want);
      }
    }
  }
}

bool RandomRun::dropped_any(size_t layer, const ModelSequence& sequence) const {
  const auto group = static_cast<size_t>(setup_.layers()[layer].group);
  const bool is_cross = model_.limits().groups[group].is_cross;
  return !is_cross && sequence.tables[group].gone_end > 0;
}

Row RandomRun::read_slot(size_t layer, kvc_pool_kind kind, int64_t slot, int heads, int dim) {
  DLManagedTensorVersioned* exported = nullptr;
  if (kvc_export_pool(setup_.cache(), setup_.global_layer(layer), kind, &exported, nullptr) !=
      KVC_OK)
    mismatch("kvc_export_pool of layer %zu failed", layer);
  const DLTensor& pool = exported->dl_tensor;
  const NaiveLayer& spec = setup_.layers()[layer];
  const NaiveStorage storage = kind == KVC_POOL_K ? spec.k_storage() : spec.v_storage();
  const int64_t page = slot / pool.shape[2], offset = slot % pool.shape[2];
  const int64_t bytes = pool.dtype.bits / 8;
  Row row;
  for (int64_t h = 0; h < heads; ++h) {
    const auto* base =
        static_cast<const std::byte*>(pool.data) + pool.byte_offset +
        (page * pool.strides[0] + h * pool.strides[1] + offset * pool.strides[2]) * bytes;
    float scale = storage.shared;
    if (storage.has_scales())
      std::memcpy(&scale, setup_.scale_at(layer, kind, page, h, offset), sizeof scale);
    for (int64_t d = 0; d < dim; ++d) {
      const std::byte* at = base + d * bytes;
      row.push_back(storage.code == Code::kNone
                        ? load_element(storage.elem, at)
                        : static_cast<float>(load_code(storage.code, at) * scale));
    }
  }
  exported->deleter(exported);
  return row;
}

// In place of both elements of a rotated pair, the largest that either has at any position.
Row RandomRun::pair_norms(const NaiveLayer& spec, const Row& row) {
  Row norms = row;
  const int half = spec.rope.rotary_dim / 2;
  for (size_t head = 0; head < norms.size(); head += static_cast<size_t>(spec.k_dim)) {
    for (int i = 0; i < half; ++i) {
      const auto first =
          head + static_cast<size_t>(spec.rope.begin + (spec.rope.interleaved ? 2 * i : i));
      const size_t second = first + static_cast<size_t>(spec.rope.interleaved ? 1 : half);
      norms[first] = norms[second] = std::hypot(row[first], row[second]);
    }
  }
  return norms;
}

// By how much a row of K may differ that is stored as if rotated for another position: both
// elements of a pair are rounded there, and by another scale a step of fp8 may be twice as large.
// What a fixed scale clips there may be what it would not clip here.
double RandomRun::moved_step(const NaiveLayer& spec, int64_t token, const Row& want,
                             size_t element) {
  const NaiveStorage storage = spec.k_storage(token);
  const Row norms = pair_norms(spec, want);
  const Row stored = stored_row(storage, norms, spec.kv_heads);
  const double step = storing_step(storage, stored, element, spec.kv_heads);
  const double clipped = norms[element] - stored[element] - step;
  return (storage.has_scales() ? 2.5 : 1.25) * step + 1.5 * std::max(0.0, clipped);
}

void RandomRun::count_saturated_key(const NaiveLayer& spec, const Row& given, KeyTurn turn) {
  if (turn.by == 0) {
    const uint64_t count = num_saturated(spec.k_storage(), given);
    least_saturated_ += count;
    most_saturated_ += count;
    return;
  }
  const double slack = turn.by * 4e-7;
  const Row most = turn.is_moved ? pair_norms(spec, given) : given;
  if (!turn.is_moved) least_saturated_ += num_saturated(spec.k_storage(), given, slack);
  most_saturated_ += num_saturated(spec.k_storage(), most, -slack);
}

void RandomRun::count_saturated_value(const NaiveLayer& spec, const Row& given) {
  const uint64_t count = num_saturated(spec.v_storage(), given);
  least_saturated_ += count;
  most_saturated_ += count;
}

void RandomRun::adopt_row(size_t layer, const char* what, const Row& k_want, const Row& v_want,
                          KeyTurn turn, NaiveRows* rows, size_t token, const Row& k_got,
                          const Row& v_got) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const NaiveStorage storage = spec.k_storage(static_cast<int64_t>(token));
  const Row k_stored = stored_row(storage, k_want, spec.kv_heads);
  for (size_t e = 0; e < k_want.size(); ++e) {
    const auto element = static_cast<int>(e) % spec.k_dim;
    const double want = k_stored[e];
    // The scale of a row follows from all of its elements.
    const bool turned =
        turn.by > 0 &&
        ((element >= spec.rope.begin && element < spec.rope.begin + spec.rope.rotary_dim) ||
         storage.has_scales());
    // A float32 rotation is off by a few roundings of its inputs (at most 1 here), which may tip
    // the rounding to storage.
    const double tipped = turn.is_moved ? moved_step(spec, static_cast<int64_t>(token), k_want, e)
                                        : storing_step(storage, k_stored, e, spec.kv_heads);
    if (!(std::fabs(k_got[e] - want) <= (turned ? turn.by * 4e-7 + tipped : 0))) {
      mismatch("%s: K of layer %zu, token %zu, element %zu is stored as %.9g, expected %.9g", what,
               layer, token, e, k_got[e], want);
    }
  }
  for (size_t e = 0; e < v_got.size(); ++e) {
    if (v_got[e] != v_want[e])
      mismatch("%s: V of layer %zu, token %zu, element %zu is stored as %.9g, expected %.9g", what,
               layer, token, e, v_got[e], v_want[e]);
  }
  rows->k[token] = k_got;
  rows->v[token] = v_want;
}

void RandomRun::adopt_rows(size_t layer, HostTensor& k, HostTensor* v, int64_t k_head,
                           int64_t v_head) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const bool turns = spec.rope.mode == KVC_ROPE_ON_APPEND;
  std::vector<int64_t> slots;
  for (const ModelEntry& entry : model_.entries()) {
    const int64_t length = entry.old_slots + entry.append;
    const bool dropped = dropped_any(layer, model_.at(entry.seq));
    HostTensor k_out(Elem::kF32, {dropped ? 0 : length, spec.kv_heads, spec.k_dim});
    HostTensor v_out(Elem::kF32, {dropped ? 0 : length, spec.kv_heads, spec.v_dim});
    if (dropped && slots.empty()) {
      std::vector<int64_t> shape;
      slots = table(static_cast<size_t>(spec.group), KVC_TABLE_SLOT_MAPPING, &shape);
    } else if (!dropped &&
               kvc_kv_gather(forward_, setup_.global_layer(layer), entry.seq, k_out.dl(),
                             spec.v_in_k ? nullptr : v_out.dl(), nullptr) != KVC_OK) {
      mismatch("gather of layer %zu failed after an append", layer);
    }
    NaiveRows& rows = naive_.at(entry.seq).layers[layer];
    for (int64_t i = 0; i < entry.append; ++i) {
      const int64_t row = entry.row_begin + i;
      const int64_t token = entry.old_slots + i;
      Row k_want = row_of(k, row, k_head, spec.kv_heads, spec.k_dim);
      Row v_want, k_got, v_got;
      if (turns) k_want = rotated(spec.rope, spec.k_dim, k_want, query_rope(spec.rope, entry, row));
      if (!spec.v_in_k) {
        const Row v_given = row_of(*v, row, v_head, spec.kv_heads, spec.v_dim);
        count_saturated_value(spec, v_given);
        v_want = stored_row(spec.v_storage(token), v_given, spec.kv_heads);
      }
      if (dropped && spec.keep > 0) {
        // The pool of such a layer is not exported, and K of those that drop tokens does not turn.
        k_got = stored_row(spec.k_storage(token), k_want, spec.kv_heads);
        v_got = v_want;
      } else if (dropped) {
        const int64_t slot = slots[static_cast<size_t>(row)];
        k_got = read_slot(layer, KVC_POOL_K, slot, spec.kv_heads, spec.k_dim);
        if (!spec.v_in_k) v_got = read_slot(layer, KVC_POOL_V, slot, spec.kv_heads, spec.v_dim);
      } else {
        k_got = row_of(k_out, token, 0, spec.kv_heads, spec.k_dim);
        if (!spec.v_in_k) v_got = row_of(v_out, token, 0, spec.kv_heads, spec.v_dim);
      }
      const KeyTurn turn{turns ? spec.rope.attention_factor : 0,
                         keeps_pool() && model_.at(entry.seq).is_moved};
      count_saturated_key(spec, k_want, turn);
      adopt_row(layer, "after an append", k_want, v_want, turn, &rows, static_cast<size_t>(token),
                k_got, v_got);
    }
    if (dropped) continue;
    compare_rows("K after an append", rows.k, k_out, spec.kv_heads, spec.k_dim, -1);
    if (!spec.v_in_k)
      compare_rows("V after an append", rows.v, v_out, spec.kv_heads, spec.v_dim, -1);
  }
  written_[layer] = true;
}

void RandomRun::append(size_t layer, Inputs& in) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const int32_t id = setup_.global_layer(layer);
  if (spec.kind == KVC_LAYER_MLA) {
    HostTensor flat(in.k.elem(), {in.k.size(0), spec.k_dim},
                    random_placement(random_, in.k.elem()));
    flat.for_each(
        [&](int64_t t, int64_t d, int64_t, int64_t) { flat.set(in.k.get(t, 0, d), t, d); });
    DLTensor* latent = random_.chance(0.5) ? flat.dl() : in.k.dl();
    expect_ok("kvc_mla_append",
              [&](kvc_error* err) { return kvc_mla_append(forward_, id, latent, err); });
  } else {
    expect_ok("kvc_kv_append", [&](kvc_error* err) {
      return kvc_kv_append(forward_, id, in.k.dl(), in.v_dl(), err);
    });
  }
  adopt_rows(layer, in.k, &in.v);
}

void RandomRun::op_append(size_t layer) {
  trace("append layer %zu", layer);
  Inputs in(random_, setup_.layers()[layer], model_.num_rows());
  append(layer, in);
}

void RandomRun::append_missing_layers() {
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    if (written_[layer]) continue;
    if (setup_.layers()[layer].has_tokens()) op_append(layer);
    if (setup_.layers()[layer].kind == KVC_LAYER_CROSS && model_.num_cross_rows() > 0)
      op_cross(layer, true);
  }
}

void RandomRun::op_gather(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const kvc_seq seq = any_seq();
  trace("gather layer %zu of %lld", layer, ll(seq));
  const int32_t id = setup_.global_layer(layer);
  if (!model_.exists(seq)) {
    HostTensor any(Elem::kF32, {1, 1, 1});
    return refuse("kvc_kv_gather", KVC_E_NOT_FOUND, [&](kvc_error* err) {
      return kvc_kv_gather(forward_, id, seq, any.dl(), nullptr, err);
    });
  }
  const NaiveRows& rows = naive_.at(seq).layers[layer];
  const auto length = static_cast<int64_t>(rows.k.size());
  HostTensor k(draw_activation(random_), {length, spec.kv_heads, spec.k_dim},
               random_placement(random_, Elem::kF32));
  HostTensor v(draw_activation(random_), {length, spec.kv_heads, spec.v_dim},
               random_placement(random_, Elem::kF32));
  const int which = spec.v_in_k ? 2 : static_cast<int>(random_.range(0, 2));
  const ModelEntry* entry = model_.entry_of(seq);
  const bool grows = entry != nullptr && (spec.kind != KVC_LAYER_CROSS || entry->cross > 0);
  Expected expected;
  if (grows && !written_[layer]) {  // its new slots hold whatever another sequence left there
    if (setup_.is_borrowed() || pool_exported_) return;
    expected.errors.insert(KVC_E_INVALID_STATE);
  }
  if (dropped_any(layer, model_.at(seq))) {
    expected.errors.insert(KVC_E_OUT_OF_RANGE);
    if (model_.at(seq).sink == 0)
      expected.detail = model_.at(seq).tables[static_cast<size_t>(spec.group)].gone_end;
  }
  const Call gather = [&](kvc_error* err) {
    return kvc_kv_gather(forward_, id, seq, which == 1 ? nullptr : k.dl(),
                         which == 2 ? nullptr : v.dl(), err);
  };
  if (!agree("kvc_kv_gather", expected, gather, {&k, &v})) return;
  if (which != 1) compare_rows("gathered K", rows.k, k, spec.kv_heads, spec.k_dim, -1);
  if (which != 2) compare_rows("gathered V", rows.v, v, spec.kv_heads, spec.v_dim, -1);
  if (!k.padding_untouched() || !v.padding_untouched()) mismatch("kvc_kv_gather wrote padding");
  if ((which == 1 && !k.is_untouched()) || (which == 2 && !v.is_untouched()))
    mismatch("kvc_kv_gather wrote what it was not given");
}

}  // namespace kvc::test
