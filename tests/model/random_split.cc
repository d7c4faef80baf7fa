// Attention in parts in random runs: the new tokens, the cached ones, the encoder's, and merges.
#include <algorithm>
#include <cmath>

#include "tests/model/random_inputs.h"

namespace kvc::test {

// What the new keys of an MLA layer's ragged form are rounded to.
static Elem self_type(const NaiveLayer& spec) {
  return spec.is_quantised() ? Elem::kBF16 : spec.k_type;
}

// Over the new tokens, over the cached ones, and both merged: equal to attention over all.
void RandomRun::op_split_attention(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  if (spec.kind == KVC_LAYER_MLA) return op_split_mla(layer);
  const int32_t id = setup_.global_layer(layer);
  const std::unique_ptr<Options> options = draw_options(spec, spec.q_heads, false);
  trace("attn_self, attn_cached, merge of layer %zu, %lld rows%s", layer, ll(model_.num_rows()),
        options->describe().c_str());
  Inputs in(random_, spec, model_.num_rows());
  append(layer, in);
  const Call self = [&](kvc_error* err) {
    return kvc_attn_self(forward_, id, options->pointer, in.q.dl(), in.k.dl(), in.v_dl(),
                         in.out.dl(), in.lse.dl(), err);
  };
  const auto expected = [&](Scope scope) {
    return [&, scope](const ModelEntry& entry, int64_t i, int head) {
      return expected_row(layer, scope, in.q, entry, i, head, spec.q_heads, options->naive);
    };
  };
  Expected answer;
  for (const ModelEntry& entry : model_.entries())
    answer.also(entry.is_tree && entry.old_slots > entry.old_length, KVC_E_UNSUPPORTED);
  if (!agree("kvc_attn_self", answer, self, {&in.out, &in.lse})) return;
  compare_attention({"kvc_attn_self", layer, 1, 0}, in.out, &in.lse, expected(Scope::kNew));
  HostTensor other(draw_activation(random_), {model_.num_rows(), spec.q_heads, spec.v_dim},
                   random_placement(random_, Elem::kF32));
  HostTensor other_lse(Elem::kF32, {model_.num_rows(), spec.q_heads},
                       random_placement(random_, Elem::kF32));
  expect_ok("kvc_attn_cached",
            [&](kvc_error* err) {
              return kvc_attn_cached(forward_, id, options->pointer, in.q.dl(), other.dl(),
                                     other_lse.dl(), err);
            },
            {&other, &other_lse});
  compare_attention({"kvc_attn_cached", layer, 1, 0}, other, &other_lse, expected(Scope::kCached));
  const double rounding = storing_error(other.elem()) + storing_error(in.out.elem());
  const double slack = 3 + rounding / (setup_.tolerance(spec) + storing_error(in.out.elem()));
  if (kvc_attn_merge(forward_, in.out.dl(), in.lse.dl(), other.dl(), other_lse.dl(), nullptr) !=
      KVC_OK)
    mismatch("kvc_attn_merge failed");
  compare_attention({"kvc_attn_merge", layer, slack, 0}, in.out, &in.lse, expected(Scope::kAll));
}

NaiveResult RandomRun::expected_self_row(size_t layer, Inputs& in, const ModelEntry& entry,
                                         int64_t i, int head, const NaiveOptions& options) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const NaiveRope& rope = spec.self_rope;
  const int64_t row = entry.row_begin + i;
  const Row query_row = row_of(in.q, row, head, 1, spec.self_k_dim);
  NaiveQuery query{query_row.data(), head, row_position_[static_cast<size_t>(row)], row, {}, {}};
  query.rope = query.sink_rope = query_rope(rope, entry, row);
  const ModelSequence& sequence = model_.at(entry.seq);
  if (sequence.window != 0 && rope.mode == KVC_ROPE_ON_READ) {
    const double clipped = static_cast<double>(std::min(query.position, sequence.window - 1));
    query.sink_rope = RopePosition::all(clipped, query.rope.is_long);
  }
  const std::vector<int64_t> tokens = seen_tokens(spec, Scope::kNew, entry, i, options);
  std::vector<Row> k_rows, v_rows;
  for (const int64_t token : tokens) {
    const int64_t key_row = entry.row_begin + token - entry.old_slots;
    Row k = row_of(in.k, key_row, 0, spec.q_heads, spec.self_k_dim);
    if (rope.mode == KVC_ROPE_ON_APPEND)
      k = rotated(rope, spec.self_k_dim, k, query_rope(rope, entry, key_row));
    k_rows.push_back(rounded(self_type(spec), std::move(k)));
    v_rows.push_back(
        rounded(self_type(spec), row_of(in.v, key_row, 0, spec.q_heads, spec.self_v_dim)));
  }
  std::vector<NaiveKey> keys;
  for (size_t j = 0; j < tokens.size(); ++j) {
    NaiveKey key{&k_rows[j], &v_rows[j], token_position(entry, tokens[j]), false, {}, tokens[j]};
    key.is_sink = sequence.window != 0 && key.position < sequence.sink;
    key.rope = RopePosition::all(static_cast<double>(key.position), query.rope.is_long);
    keys.push_back(key);
  }
  const NaiveHeads heads{spec.q_heads, spec.q_heads, spec.self_k_dim, spec.self_v_dim,
                         spec.self_v_dim};
  return attend(heads, rope, keys, query, options);
}

// The ragged form over the prompt with heads of their own, the absorbed form over the cached
// latents, projected and merged.
void RandomRun::op_split_mla(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  if (spec.self_k_dim == 0) return op_attention(layer);
  const int32_t id = setup_.global_layer(layer);
  const int64_t rows = model_.num_rows();
  const std::unique_ptr<Options> options = draw_options(spec, spec.q_heads, false);
  trace("ragged attn_self, absorbed attn_cached, merge of layer %zu, %lld rows%s", layer, ll(rows),
        options->describe().c_str());
  if (random_.chance(0.3)) {  // here the heads have a size
    options->opt.scale = 0;
    options->naive.scale = 1.0 / std::sqrt(spec.self_k_dim);
  }
  const NaiveHeads heads{spec.q_heads, spec.q_heads, spec.self_k_dim, spec.self_v_dim,
                         spec.self_v_dim};
  Inputs in(random_, heads, false, rows, rows);
  Expected answer;
  for (const ModelEntry& entry : model_.entries())
    answer.also(entry.is_tree && entry.old_slots > entry.old_length, KVC_E_UNSUPPORTED);
  const Call self = [&](kvc_error* err) {
    return kvc_attn_self(forward_, id, options->pointer, in.q.dl(), in.k.dl(), in.v.dl(),
                         in.out.dl(), in.lse.dl(), err);
  };
  if (!agree("kvc_attn_self", answer, self, {&in.out, &in.lse})) return;
  // K that is rotated and then rounded may round the other way; there is no stored row to look it
  // up in.
  const Elem type = self_type(spec);
  const bool tips = spec.rope.mode == KVC_ROPE_ON_APPEND && type != Elem::kF32;
  const double score_error = tips ? 2 * storing_error(type) : 0;
  compare_attention({"kvc_attn_self (MLA)", layer, 1, score_error}, in.out, &in.lse,
                    [&](const ModelEntry& entry, int64_t i, int head) {
                      return expected_self_row(layer, in, entry, i, head, options->naive);
                    });

  const float self_scale = options->opt.scale;
  options->opt.scale = static_cast<float>(options->naive.scale);
  Inputs absorbed(random_, spec, rows);
  expect_ok("kvc_attn_cached",
            [&](kvc_error* err) {
              return kvc_attn_cached(forward_, id, &options->opt, absorbed.q.dl(),
                                     absorbed.out.dl(), absorbed.lse.dl(), err);
            },
            {&absorbed.out, &absorbed.lse});
  const auto cached = [&](const ModelEntry& entry, int64_t i, int head) {
    return expected_row(layer, Scope::kCached, absorbed.q, entry, i, head, spec.q_heads,
                        options->naive);
  };
  compare_attention({"kvc_attn_cached (MLA)", layer, 1, 0}, absorbed.out, &absorbed.lse, cached);
  options->opt.scale = self_scale;

  std::vector<double> weight;  // [heads][v_dim][rank]
  for (int64_t e = 0; e < static_cast<int64_t>(spec.q_heads) * spec.self_v_dim * spec.v_dim; ++e)
    weight.push_back(random_.symmetric() / spec.v_dim);
  const auto project = [&](int head, int64_t d, const auto& latent) {
    double sum = 0;
    for (int r = 0; r < spec.v_dim; ++r)
      sum += weight[static_cast<size_t>((head * spec.self_v_dim + d) * spec.v_dim + r)] * latent(r);
    return sum;
  };
  HostTensor other(Elem::kF32, {rows, spec.q_heads, spec.self_v_dim},
                   random_placement(random_, Elem::kF32));
  other.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
    other.set(project(static_cast<int>(h), d, [&](int r) { return absorbed.out.get(t, h, r); }), t,
              h, d);
  });
  const double rounding = storing_error(absorbed.out.elem()) + storing_error(in.out.elem());
  const double slack = 4 + 2 * rounding / (setup_.tolerance(spec) + storing_error(in.out.elem()));
  if (kvc_attn_merge(forward_, in.out.dl(), in.lse.dl(), other.dl(), absorbed.lse.dl(), nullptr) !=
      KVC_OK)
    mismatch("kvc_attn_merge failed");
  compare_attention(
      {"kvc_attn_merge (MLA)", layer, slack, score_error}, in.out, &in.lse,
      [&](const ModelEntry& entry, int64_t i, int head) {
        NaiveResult part = cached(entry, i, head);
        const NaiveResult latent = part;
        part.out.assign(static_cast<size_t>(spec.self_v_dim), 0);
        part.size = part.out;
        for (int d = 0; d < spec.self_v_dim; ++d) {
          const auto at = static_cast<size_t>(d);
          part.out[at] =
              project(head, d, [&](int r) { return latent.out[static_cast<size_t>(r)]; });
          for (int r = 0; r < spec.v_dim; ++r) {
            const auto w = static_cast<size_t>((head * spec.self_v_dim + d) * spec.v_dim + r);
            part.size[at] += std::fabs(weight[w]) * latent.size[static_cast<size_t>(r)];
          }
        }
        return merged(expected_self_row(layer, in, entry, i, head, options->naive), part);
      });
}

void RandomRun::adopt_cross_rows(size_t layer, HostTensor& k, HostTensor& v) {
  const NaiveLayer& spec = setup_.layers()[layer];
  int64_t row = 0;
  for (const ModelEntry& entry : model_.entries()) {
    NaiveRows& rows = naive_.at(entry.seq).layers[layer];
    for (int64_t t = 0; t < entry.cross; ++t, ++row) {
      const Row k_row = row_of(k, row, 0, spec.kv_heads, spec.k_dim),
                v_row = row_of(v, row, 0, spec.kv_heads, spec.v_dim);
      count_saturated_key(spec, k_row, {});
      count_saturated_value(spec, v_row);
      rows.k[static_cast<size_t>(t)] = stored_row(spec.k_storage(), k_row, spec.kv_heads);
      rows.v[static_cast<size_t>(t)] = stored_row(spec.v_storage(), v_row, spec.kv_heads);
    }
  }
  written_[layer] = true;
}

void RandomRun::op_cross(size_t layer, bool must_give) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const int64_t encoder_rows = model_.num_cross_rows();
  const bool announced = encoder_rows > 0;
  bool give = announced && (!written_[layer] || random_.chance(0.3));
  if (!must_give && random_.chance(0.05)) give = !give;
  const std::unique_ptr<Options> options = draw_options(spec, spec.q_heads, true);
  trace("attn_cross of layer %zu, %lld encoder rows%s", layer, ll(encoder_rows),
        give ? " given" : "");
  Inputs in(random_, spec.heads(), false, model_.num_rows(), std::max<int64_t>(1, encoder_rows));
  const bool unwritten = announced && !give && !written_[layer];
  if (unwritten && (setup_.is_borrowed() || pool_exported_)) return;
  Expected expected;
  expected.also(unwritten || (!announced && give), KVC_E_INVALID_STATE);
  const Call fn = [&](kvc_error* err) {
    return kvc_attn_cross(forward_, setup_.global_layer(layer), options->pointer, in.q.dl(),
                          give ? in.k.dl() : nullptr, give ? in.v.dl() : nullptr, in.out.dl(),
                          in.lse.dl(), err);
  };
  if (!agree("kvc_attn_cross", expected, fn, {&in.out, &in.lse})) return;
  if (give) adopt_cross_rows(layer, in.k, in.v);
  compare_attention({"kvc_attn_cross", layer, 1, 0}, in.out, &in.lse,
                    [&](const ModelEntry& entry, int64_t i, int head) {
                      const NaiveRows& rows = naive_.at(entry.seq).layers[layer];
                      std::vector<NaiveKey> keys;
                      for (size_t t = 0; t < rows.k.size(); ++t)
                        keys.push_back({&rows.k[t], &rows.v[t], 0, false, {}, 0});
                      const int64_t row = entry.row_begin + i;
                      const Row query_row = row_of(in.q, row, head, 1, spec.k_dim);
                      const NaiveQuery query{query_row.data(), head, 0, row, {}, {}};
                      return attend(spec.heads(), NaiveRope{}, keys, query, options->naive);
                    });
}

}  // namespace kvc::test
