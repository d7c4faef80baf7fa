// Attention over stored rows in random runs, in all its forms.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/model/random_inputs.h"

namespace kvc::test {

RopePosition RandomRun::query_rope(const NaiveRope& rope, const ModelEntry& entry,
                                   int64_t row) const {
  const auto r = static_cast<size_t>(row);
  RopePosition position = RopePosition::all(static_cast<double>(row_position_[r]), false);
  if (rope.mode == KVC_ROPE_ON_APPEND && !given_positions_.empty())
    position.rows = given_positions_[r];
  position.is_long = rope.original_context != 0 && longest_path(entry) > rope.original_context;
  return position;
}

std::vector<int64_t> RandomRun::seen_tokens(const NaiveLayer& spec, Scope scope,
                                            const ModelEntry& entry, int64_t i,
                                            const NaiveOptions& options) const {
  const ModelSequence& sequence = model_.at(entry.seq);
  const int64_t token = entry.old_slots + i;
  const int64_t position = row_position_[static_cast<size_t>(entry.row_begin + i)];
  const auto index = static_cast<int64_t>(&entry - model_.entries().data());
  int64_t end = token + 1;
  for (const NaiveOptions::Span& span : options.spans) {
    if (span.entry == index && span.begin <= position && position < span.end)
      end = std::max(end, std::min(span.end, entry.old_slots + entry.append));
  }
  const KeyRule rule{spec.window, spec.chunk, sequence.window, sequence.sink, options.window};
  std::vector<int64_t> tokens;
  for (int64_t key = 0; key < end; ++key) {
    if (scope == Scope::kCached && key >= entry.old_length) break;
    if (scope == Scope::kNew && key < entry.old_slots) continue;
    if (key >= entry.old_length && entry.is_tree &&
        !is_on_path(entry.parents, token - entry.old_length, key - entry.old_length)) {
      continue;
    }
    if (windows_show(rule, position, token_position(entry, key))) tokens.push_back(key);
  }
  return tokens;
}

NaiveResult RandomRun::expected_row(size_t layer, Scope scope, HostTensor& q,
                                    const ModelEntry& entry, int64_t i, int head, int q_heads,
                                    const NaiveOptions& options) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const NaiveRows& rows =
      naive_.at(entry.seq).layers[spec.source >= 0 ? static_cast<size_t>(spec.source) : layer];
  const ModelSequence& sequence = model_.at(entry.seq);
  const int64_t row = entry.row_begin + i;
  const bool on_read = spec.rope.mode == KVC_ROPE_ON_READ;
  const Row query_row = row_of(q, row, head, 1, spec.k_dim);
  NaiveQuery query{query_row.data(), head, row_position_[static_cast<size_t>(row)], row, {}, {}};
  query.rope = query.sink_rope = query_rope(spec.rope, entry, row);
  if (sequence.window != 0 && on_read) {
    const double clipped = static_cast<double>(std::min(query.position, sequence.window - 1));
    query.sink_rope = RopePosition::all(clipped, query.rope.is_long);
  }
  std::vector<NaiveKey> keys;
  for (const int64_t token : seen_tokens(spec, scope, entry, i, options)) {
    const auto t = static_cast<size_t>(token);
    NaiveKey key;
    key.k = &rows.k[t];
    key.v = spec.v_in_k ? &rows.k[t] : &rows.v[t];
    key.position = token_position(entry, token);
    key.token = token;
    key.is_sink = sequence.window != 0 && key.position < sequence.sink;
    key.rope = RopePosition::all(static_cast<double>(key.position), query.rope.is_long);
    keys.push_back(key);
  }
  NaiveHeads heads = spec.heads();
  heads.q_heads = q_heads;
  return attend(heads, spec.rope, keys, query, options);
}

void RandomRun::compare_row(const RowCheck& check, const NaiveResult& want, HostTensor& out,
                            HostTensor* lse, int64_t row, int head) {
  const NaiveLayer& spec = setup_.layers()[check.layer];
  double error = 0, size = 0;
  for (size_t d = 0; d < want.out.size(); ++d) {
    const double difference = out.get(row, head, static_cast<int64_t>(d)) - want.out[d];
    error += difference * difference;
    size += want.size[d] * want.size[d];
  }
  // 16-bit arithmetic, here of bfloat16: q rounded (some 3e-3 in all for inputs like these at the
  // default scale), weights rounded; K rounded when it turns.
  const double half = setup_.half_rounding(spec);
  const double roundings = spec.rope.mode == KVC_ROPE_ON_READ ? 2 : 1;
  // Where a row has a scale, a weight that is all of a row's is not 1 when it is rounded.
  const double weights = spec.is_quantised() ? 0x1p-8 : 1.5e-3;
  const double noise = check.score_error * want.score_noise;
  const double base =
      setup_.tolerance(spec) + noise + half * (weights + roundings * 0x1.4p-8 * want.score_noise);
  const double allowed =
      check.slack * (base + 4e-7 * want.largest_score + storing_error(out.elem()));
  const double floor =
      check.slack * storing_floor(out.elem()) * std::sqrt(static_cast<double>(want.out.size()));
  if (!(std::sqrt(error) <= allowed * std::sqrt(size) + floor + 1e-12)) {
    mismatch("%s: layer %zu, row %lld, head %d: relative error %.3g, allowed %.3g", check.function,
             check.layer, ll(row), head, std::sqrt(error / size), allowed);
  }
  if (lse == nullptr) return;
  const double got = lse->get(row, head);
  const double lse_allowed =
      check.slack * (setup_.tolerance(spec) + noise + half * roundings * 0x1p-7 * want.score_noise +
                     4e-7 * want.largest_score) +
      2e-7 * std::fabs(want.lse);
  if (std::isinf(want.lse) ? got != want.lse : !(std::fabs(got - want.lse) <= lse_allowed)) {
    mismatch("%s: layer %zu, row %lld, head %d: lse %.9g, expected %.9g", check.function,
             check.layer, ll(row), head, got, want.lse);
  }
}

void RandomRun::compare_attention(const RowCheck& check, HostTensor& out, HostTensor* lse,
                                  const ExpectedRow& expected) {
  out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
    if (!std::isfinite(out.get(t, h, d)))
      mismatch("%s: row %lld head %lld element %lld is not finite", check.function, ll(t), ll(h),
               ll(d));
  });
  if (!out.padding_untouched() || (lse != nullptr && !lse->padding_untouched()))
    mismatch("%s wrote padding", check.function);
  // The first and the last row of every sequence, and some between: the oracle is slow.
  for (const ModelEntry& entry : model_.entries()) {
    for (int sample = 0; sample < 4; ++sample) {
      const int64_t i = sample == 0   ? 0
                        : sample == 1 ? entry.append - 1
                                      : random_.range(0, entry.append - 1);
      const auto head = static_cast<int>(random_.range(0, out.size(1) - 1));
      compare_row(check, expected(entry, i, head), out, lse, entry.row_begin + i, head);
    }
  }
}

void RandomRun::op_attention(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const int32_t id = setup_.global_layer(layer);
  if (spec.kind == KVC_LAYER_ATTENTION && !spec.v_in_k && spec.k_dim == spec.v_dim &&
      random_.chance(0.4))
    return op_fused(layer);
  const std::unique_ptr<Options> options = draw_options(spec, spec.q_heads, true);
  const bool with_lse = random_.chance(0.7);
  trace("attn layer %zu, %lld rows%s", layer, ll(model_.num_rows()), options->describe().c_str());
  Inputs in(random_, spec, model_.num_rows());
  DLTensor* lse = with_lse ? in.lse.dl() : nullptr;
  expect_ok("kvc_attn",
            [&](kvc_error* err) {
              return kvc_attn(forward_, id, options->pointer, in.q.dl(), in.k.dl(), in.v_dl(),
                              in.out.dl(), lse, err);
            },
            {&in.out, &in.lse});
  adopt_rows(layer, in.k, &in.v);
  compare_attention({"kvc_attn", layer, 1, 0}, in.out, with_lse ? &in.lse : nullptr,
                    [&](const ModelEntry& entry, int64_t i, int head) {
                      return expected_row(layer, Scope::kAll, in.q, entry, i, head, spec.q_heads,
                                          options->naive);
                    });
}

void RandomRun::op_fused(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const std::unique_ptr<Options> options = draw_options(spec, spec.q_heads, true);
  trace("attn_fused_qkv layer %zu, %lld rows%s", layer, ll(model_.num_rows()),
        options->describe().c_str());
  Inputs in(random_, spec, model_.num_rows());
  HostTensor qkv(draw_activation(random_),
                 {model_.num_rows(), spec.q_heads + 2 * spec.kv_heads, spec.k_dim},
                 random_placement(random_, Elem::kF32));
  qkv.fill_random(random_);
  expect_ok("kvc_attn_fused_qkv",
            [&](kvc_error* err) {
              return kvc_attn_fused_qkv(forward_, setup_.global_layer(layer), options->pointer,
                                        qkv.dl(), in.out.dl(), err);
            },
            {&in.out});
  adopt_rows(layer, qkv, &qkv, spec.q_heads, spec.q_heads + spec.kv_heads);
  compare_attention({"kvc_attn_fused_qkv", layer, 1, 0}, in.out, nullptr,
                    [&](const ModelEntry& entry, int64_t i, int head) {
                      return expected_row(layer, Scope::kAll, qkv, entry, i, head, spec.q_heads,
                                          options->naive);
                    });
}

bool RandomRun::is_readable(size_t layer) const {
  const NaiveLayer& spec = setup_.layers()[layer];
  return written_[spec.source >= 0 ? static_cast<size_t>(spec.source) : layer];
}

void RandomRun::op_read_only(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const int32_t id = setup_.global_layer(layer);
  const std::unique_ptr<Options> options = draw_options(spec, spec.q_heads, true);
  trace("read-only attn of layer %zu%s", layer, options->describe().c_str());
  Inputs in(random_, spec, model_.num_rows());
  const Call attend = [&](kvc_error* err) {
    return kvc_attn(forward_, id, options->pointer, in.q.dl(), nullptr, nullptr, in.out.dl(),
                    in.lse.dl(), err);
  };
  if (!is_readable(layer)) {
    // The host may have written the slots itself
    if (setup_.is_borrowed() || pool_exported_) return;
    Expected expected;
    expected.errors.insert(KVC_E_INVALID_STATE);
    agree("kvc_attn", expected, attend, {&in.out, &in.lse});
    return;
  }
  expect_ok("kvc_attn", attend, {&in.out, &in.lse});
  compare_attention({"kvc_attn (read only)", layer, 1, 0}, in.out, &in.lse,
                    [&](const ModelEntry& entry, int64_t i, int head) {
                      return expected_row(layer, Scope::kAll, in.q, entry, i, head, spec.q_heads,
                                          options->naive);
                    });
}

// Query heads of a layer that is not in the plan.
void RandomRun::op_shared_kv(size_t layer) {
  if (!written_[layer]) return op_read_only(layer);
  const NaiveLayer& spec = setup_.layers()[layer];
  NaiveHeads heads = spec.heads();
  heads.q_heads = heads.kv_heads * static_cast<int>(random_.range(1, 3));
  const std::unique_ptr<Options> options = draw_options(spec, heads.q_heads, true);
  trace("attn_shared_kv of layer %zu by %d heads%s", layer, heads.q_heads,
        options->describe().c_str());
  Inputs in(random_, heads, spec.v_in_k, model_.num_rows(), 1);
  expect_ok("kvc_attn_shared_kv",
            [&](kvc_error* err) {
              return kvc_attn_shared_kv(forward_, setup_.global_layer(layer), options->pointer,
                                        in.q.dl(), in.out.dl(), in.lse.dl(), err);
            },
            {&in.out, &in.lse});
  compare_attention({"kvc_attn_shared_kv", layer, 1, 0}, in.out, &in.lse,
                    [&](const ModelEntry& entry, int64_t i, int head) {
                      return expected_row(layer, Scope::kAll, in.q, entry, i, head, heads.q_heads,
                                          options->naive);
                    });
}

}  // namespace kvc::test
