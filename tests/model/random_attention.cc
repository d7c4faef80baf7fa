// Tensors in random runs: append, attention in all its forms, gather, debug access, poison in unused slots.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "tests/model/random_run.h"

namespace kvc::test {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

Elem draw_activation(Random& random) {
  return random.pick_of({Elem::kF32, Elem::kF32, Elem::kF16, Elem::kBF16});
}

// Relative error that storing a result in `elem` adds.
double storing_error(Elem elem) {
  return elem == Elem::kBF16 ? 0x1.0p-8 : elem == Elem::kF16 ? 0x1.0p-11 : 0;
}

}  // namespace

// kvc_attn_opt with its tensors, and the same for the oracle.
struct RandomRun::Options {
  kvc_attn_opt opt{};
  NaiveOptions naive;
  std::optional<HostTensor> sinks, alibi, bias;
  const kvc_attn_opt* pointer = nullptr;  // NULL: defaults
};

std::unique_ptr<RandomRun::Options> RandomRun::draw_options(size_t layer, bool allow_sinks) {
  const NaiveLayer& spec = setup_.layers()[layer];
  auto options = std::make_unique<Options>();
  options->naive.scale = 1.0 / std::sqrt(spec.k_dim);
  options->opt.struct_size = sizeof options->opt;
  if (random_.chance(0.3)) return options;
  options->pointer = &options->opt;
  if (random_.chance(0.3)) options->opt.flags = KVC_ATTN_BATCH_INVARIANT;
  if (random_.chance(0.3)) {
    options->opt.scale = static_cast<float>(0.05 + 0.4 * random_.unit());
    options->naive.scale = static_cast<double>(options->opt.scale);
  }
  if (random_.chance(0.3)) {
    options->opt.soft_cap = static_cast<float>(0.5 + 10 * random_.unit());
    options->naive.soft_cap = static_cast<double>(options->opt.soft_cap);
  }
  if (allow_sinks && random_.chance(0.3)) {
    options->sinks.emplace(Elem::kF32, std::vector<int64_t>{spec.q_heads});
    for (int h = 0; h < spec.q_heads; ++h)
      options->naive.sinks.push_back(options->sinks->set(3 * random_.symmetric(), h));
    options->opt.sinks = options->sinks->dl();
  }
  if (random_.chance(0.3)) {
    options->alibi.emplace(Elem::kF32, std::vector<int64_t>{spec.q_heads});
    for (int h = 0; h < spec.q_heads; ++h)
      options->naive.alibi.push_back(options->alibi->set(0.05 * random_.unit(), h));
    options->opt.alibi_slopes = options->alibi->dl();
  }
  if (random_.chance(0.3)) {
    int64_t longest = 0;
    for (const ModelEntry& entry : model_.entries())
      longest = std::max(longest, entry.old_length + entry.append);
    NaiveOptions& naive = options->naive;
    naive.bias_heads = random_.chance(0.5) ? 1 : spec.q_heads;
    naive.bias_rows = model_.num_rows();
    naive.bias_columns = longest + random_.range(0, 3);
    std::vector<int64_t> shape{naive.bias_rows, naive.bias_columns};
    if (naive.bias_heads != 1 || random_.chance(0.3)) shape.insert(shape.begin(), spec.q_heads);
    if (shape.size() == 3) naive.bias_heads = spec.q_heads;
    options->bias.emplace(Elem::kF32, shape);
    const double masked = random_.chance(0.1) ? 0.9 : 0.2;
    for (int64_t h = 0; h < naive.bias_heads; ++h) {
      for (int64_t t = 0; t < naive.bias_rows; ++t) {
        for (int64_t j = 0; j < naive.bias_columns; ++j) {
          const double value =
              random_.chance(masked) ? -std::numeric_limits<double>::infinity() : random_.symmetric();
          naive.bias.push_back(shape.size() == 3 ? options->bias->set(value, h, t, j)
                                                 : options->bias->set(value, t, j));
        }
      }
    }
    options->opt.bias = options->bias->dl();
  }
  return options;
}

// All rows of a sequence, read back from the library.
void RandomRun::compare_rows(const char* what, const std::vector<Row>& rows, HostTensor& got, int64_t heads,
                             int64_t dim, Elem stored, int64_t layer) {
  for (size_t t = 0; t < rows.size(); ++t) {
    if (rows[t].empty()) continue;  // not written yet
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < dim; ++d) {
        const auto token = static_cast<int64_t>(t);
        const double value = layer < 0 ? got.get(token, h, d) : got.get(layer, token, h, d);
        const double want = round_to(got.elem(), rows[t][static_cast<size_t>(h * dim + d)]);
        if (value != want)
          mismatch("%s: token %zu head %lld element %lld is %g, expected %g (stored %s)", what, t, ll(h),
                   ll(d), value, want, name_of(stored));
      }
    }
  }
}

void RandomRun::adopt_rows(size_t layer, HostTensor& k, HostTensor& v, int64_t k_head, int64_t v_head) {
  const NaiveLayer& spec = setup_.layers()[layer];
  for (const ModelEntry& entry : model_.entries()) {
    const int64_t length = entry.old_length + entry.append;
    HostTensor k_out(Elem::kF32, {length, spec.kv_heads, spec.k_dim});
    HostTensor v_out(Elem::kF32, {length, spec.kv_heads, spec.v_dim});
    if (kvc_kv_gather(forward_, setup_.global_layer(layer), entry.seq, k_out.dl(), v_out.dl(), nullptr) !=
        KVC_OK)
      mismatch("gather failed");
    NaiveSequence& sequence = naive_.at(entry.seq);
    for (int64_t i = 0; i < entry.append; ++i) {
      const int64_t row = entry.row_begin + i;
      const int64_t token = entry.old_length + i;
      Row plain_k, new_v;
      for (int64_t h = 0; h < spec.kv_heads; ++h) {
        for (int64_t d = 0; d < spec.k_dim; ++d) plain_k.push_back(k.get(row, k_head + h, d));
        for (int64_t d = 0; d < spec.v_dim; ++d)
          new_v.push_back(round_to(spec.v_type, v.get(row, v_head + h, d)));
      }
      Row new_k = rotated(spec.rope, spec.k_dim, plain_k, token);
      for (size_t e = 0; e < new_k.size(); ++e) {
        const auto element = static_cast<int64_t>(e);
        const double stored = k_out.get(token, element / spec.k_dim, element % spec.k_dim);
        const double want = round_to(spec.k_type, new_k[e]);
        const bool turned = element % spec.k_dim < spec.rope.rotary_dim;
        // A float32 rotation is off by a few roundings of its inputs (at most 1 here), which may tip the rounding to storage.
        const double allowed =
            turned ? 4e-7 + (spec.k_type == Elem::kF32 ? 0 : ulp_of(spec.k_type, want)) : 0;
        if (!(std::fabs(stored - want) <= allowed)) {
          mismatch("K of layer %zu, sequence %lld, token %lld, element %zu is stored as %.9g, expected %.9g",
                   layer, ll(entry.seq), ll(token), e, stored, want);
        }
        new_k[e] = stored;
      }
      sequence.k[layer][static_cast<size_t>(token)] = std::move(new_k);
      sequence.v[layer][static_cast<size_t>(token)] = std::move(new_v);
    }
    compare_rows("K after an append", sequence.k[layer], k_out, spec.kv_heads, spec.k_dim, spec.k_type, -1);
    compare_rows("V after an append", sequence.v[layer], v_out, spec.kv_heads, spec.v_dim, spec.v_type, -1);
  }
  written_[layer] = true;
}

void RandomRun::compare_attention(const char* function, size_t layer, Scope scope, HostTensor& q,
                                  HostTensor& out, HostTensor* lse, const NaiveOptions& options,
                                  double slack) {
  const NaiveLayer& spec = setup_.layers()[layer];
  out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
    if (!std::isfinite(out.get(t, h, d)))
      mismatch("%s: row %lld head %lld element %lld is not finite", function, ll(t), ll(h), ll(d));
  });
  if (!out.padding_untouched() || (lse != nullptr && !lse->padding_untouched()))
    mismatch("%s wrote padding", function);
  // The first and the last row of every sequence, and some between: the oracle is slow.
  for (const ModelEntry& entry : model_.entries()) {
    NaiveSequence& sequence = naive_.at(entry.seq);
    for (int sample = 0; sample < 4; ++sample) {
      const int64_t i = sample == 0 ? 0 : sample == 1 ? entry.append - 1 : random_.range(0, entry.append - 1);
      const auto head = static_cast<int>(random_.range(0, spec.q_heads - 1));
      const int64_t row = entry.row_begin + i;
      const int64_t position = entry.old_length + i;
      std::vector<double> query;
      for (int64_t d = 0; d < spec.k_dim; ++d) query.push_back(q.get(row, head, d));
      const int64_t key_begin = scope == Scope::kNew ? entry.old_length : 0;
      const int64_t key_end = scope == Scope::kCached ? entry.old_length : position + 1;
      const NaiveResult want = attend(spec, sequence.k[layer], sequence.v[layer], key_begin, key_end,
                                      query.data(), head, position, row, options);
      double error = 0, size = 0;
      for (int64_t d = 0; d < spec.v_dim; ++d) {
        const double difference = out.get(row, head, d) - want.out[static_cast<size_t>(d)];
        error += difference * difference;
        size += want.size[static_cast<size_t>(d)] * want.size[static_cast<size_t>(d)];
      }
      // bfloat16 arithmetic: q rounded (some 3e-3 in all for inputs like these at the default scale), weights rounded.
      const bool bf16 = setup_.computes_in_bf16(spec);
      const double base = setup_.tolerance(spec) + (bf16 ? 1.5e-3 + 0x1.4p-8 * want.score_noise : 0);
      const double allowed = slack * (base + 4e-7 * want.largest_score + storing_error(out.elem()));
      if (!(std::sqrt(error) <= allowed * std::sqrt(size) + 1e-12)) {
        mismatch(
            "%s: layer %zu, sequence %lld, new token %lld, head %d over keys [%lld, %lld): relative error "
            "%.3g, allowed %.3g",
            function, layer, ll(entry.seq), ll(i), head, ll(key_begin), ll(key_end), std::sqrt(error / size),
            allowed);
      }
      if (lse == nullptr) continue;
      const double got = lse->get(row, head);
      const double lse_allowed = slack * (setup_.tolerance(spec) + (bf16 ? 0x1p-7 * want.score_noise : 0) +
                                          4e-7 * want.largest_score) +
                                 2e-7 * std::fabs(want.lse);
      if (std::isinf(want.lse) ? got != want.lse : !(std::fabs(got - want.lse) <= lse_allowed)) {
        mismatch("%s: layer %zu, sequence %lld, new token %lld, head %d: lse %.9g, expected %.9g", function,
                 layer, ll(entry.seq), ll(i), head, got, want.lse);
      }
    }
  }
}

void RandomRun::append(size_t layer, HostTensor& k, HostTensor& v) {
  expect_ok("kvc_kv_append", [&](kvc_error* err) {
    return kvc_kv_append(forward_, setup_.global_layer(layer), k.dl(), v.dl(), err);
  });
  adopt_rows(layer, k, v);
}

struct RandomRun::Inputs {
  Inputs(Random& random, const NaiveLayer& layer, int64_t rows)
      : q(draw_activation(random), {rows, layer.q_heads, layer.k_dim}, random_placement(random, Elem::kF32)),
        k(draw_activation(random), {rows, layer.kv_heads, layer.k_dim}, random_placement(random, Elem::kF32)),
        v(draw_activation(random), {rows, layer.kv_heads, layer.v_dim}, random_placement(random, Elem::kF32)),
        out(draw_activation(random), {rows, layer.q_heads, layer.v_dim}, random_placement(random, Elem::kF32)),
        lse(Elem::kF32, {rows, layer.q_heads}, random_placement(random, Elem::kF32)) {
    q.fill_random(random);
    k.fill_random(random);
    v.fill_random(random);
  }
  HostTensor q, k, v, out, lse;
};

void RandomRun::op_append(size_t layer) {
  trace("append layer %zu", layer);
  Inputs in(random_, setup_.layers()[layer], model_.num_rows());
  append(layer, in.k, in.v);
}

void RandomRun::append_missing_layers() {
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    if (!written_[layer]) op_append(layer);
  }
}

void RandomRun::op_attention(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const int32_t id = setup_.global_layer(layer);
  const std::unique_ptr<Options> options = draw_options(layer, true);
  const bool fused = spec.k_dim == spec.v_dim && random_.chance(0.4);
  const bool with_lse = !fused && random_.chance(0.7);
  trace("%s layer %zu, %lld rows%s", fused ? "attn_fused_qkv" : "attn", layer, ll(model_.num_rows()),
        options->pointer ? ", options" : "");
  Inputs in(random_, spec, model_.num_rows());
  if (!fused) {
    DLTensor* lse = with_lse ? in.lse.dl() : nullptr;
    expect_ok("kvc_attn",
              [&](kvc_error* err) {
                return kvc_attn(forward_, id, options->pointer, in.q.dl(), in.k.dl(), in.v.dl(), in.out.dl(),
                                lse, err);
              },
              {&in.out, &in.lse});
    adopt_rows(layer, in.k, in.v);
    compare_attention("kvc_attn", layer, Scope::kAll, in.q, in.out, with_lse ? &in.lse : nullptr,
                      options->naive, 1);
    return;
  }
  HostTensor qkv(draw_activation(random_), {model_.num_rows(), spec.q_heads + 2 * spec.kv_heads, spec.k_dim},
                 random_placement(random_, Elem::kF32));
  qkv.fill_random(random_);
  expect_ok("kvc_attn_fused_qkv",
            [&](kvc_error* err) {
              return kvc_attn_fused_qkv(forward_, id, options->pointer, qkv.dl(), in.out.dl(), err);
            },
            {&in.out});
  adopt_rows(layer, qkv, qkv, spec.q_heads, spec.q_heads + spec.kv_heads);
  compare_attention("kvc_attn_fused_qkv", layer, Scope::kAll, qkv, in.out, nullptr, options->naive, 1);
}

// Over the new tokens, over the cached ones, and both merged: equal to attention over all.
void RandomRun::op_split_attention(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const int32_t id = setup_.global_layer(layer);
  const std::unique_ptr<Options> options = draw_options(layer, false);
  trace("attn_self, attn_cached, merge of layer %zu, %lld rows", layer, ll(model_.num_rows()));
  Inputs in(random_, spec, model_.num_rows());
  append(layer, in.k, in.v);
  expect_ok("kvc_attn_self",
            [&](kvc_error* err) {
              return kvc_attn_self(forward_, id, options->pointer, in.q.dl(), in.k.dl(), in.v.dl(),
                                   in.out.dl(), in.lse.dl(), err);
            },
            {&in.out, &in.lse});
  compare_attention("kvc_attn_self", layer, Scope::kNew, in.q, in.out, &in.lse, options->naive, 1);
  HostTensor other(draw_activation(random_), {model_.num_rows(), spec.q_heads, spec.v_dim},
                   random_placement(random_, Elem::kF32));
  HostTensor other_lse(Elem::kF32, {model_.num_rows(), spec.q_heads}, random_placement(random_, Elem::kF32));
  expect_ok("kvc_attn_cached",
            [&](kvc_error* err) {
              return kvc_attn_cached(forward_, id, options->pointer, in.q.dl(), other.dl(), other_lse.dl(),
                                     err);
            },
            {&other, &other_lse});
  compare_attention("kvc_attn_cached", layer, Scope::kCached, in.q, other, &other_lse, options->naive, 1);
  const double rounding = storing_error(other.elem()) + storing_error(in.out.elem());
  const double slack = 3 + rounding / (setup_.tolerance(spec) + storing_error(in.out.elem()));
  if (kvc_attn_merge(forward_, in.out.dl(), in.lse.dl(), other.dl(), other_lse.dl(), nullptr) != KVC_OK)
    mismatch("kvc_attn_merge failed");
  compare_attention("kvc_attn_merge", layer, Scope::kAll, in.q, in.out, &in.lse, options->naive, slack);
}

void RandomRun::op_read_only(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const int32_t id = setup_.global_layer(layer);
  const std::unique_ptr<Options> options = draw_options(layer, true);
  trace("read-only attn of layer %zu", layer);
  Inputs in(random_, spec, model_.num_rows());
  const Call attend = [&](kvc_error* err) {
    return kvc_attn(forward_, id, options->pointer, in.q.dl(), nullptr, nullptr, in.out.dl(), in.lse.dl(),
                    err);
  };
  if (!written_[layer]) {
    if (setup_.is_borrowed() || pool_exported_) return;  // the host may have written the slots itself
    Expected expected;
    expected.errors.insert(KVC_E_INVALID_STATE);
    agree("kvc_attn", expected, attend);
    if (!in.out.is_untouched()) mismatch("a refused kvc_attn wrote its output");
    return;
  }
  expect_ok("kvc_attn", attend, {&in.out, &in.lse});
  compare_attention("kvc_attn (read only)", layer, Scope::kAll, in.q, in.out, &in.lse, options->naive, 1);
}

void RandomRun::op_gather() {
  const auto layer = static_cast<size_t>(random_.range(0, static_cast<int64_t>(setup_.layers().size()) - 1));
  const NaiveLayer& spec = setup_.layers()[layer];
  const kvc_seq seq = any_seq();
  trace("gather layer %zu of %lld", layer, ll(seq));
  if (!model_.exists(seq)) {
    HostTensor any(Elem::kF32, {1, 1, 1});
    Expected expected;
    expected.errors.insert(KVC_E_NOT_FOUND);
    agree("kvc_kv_gather", expected, [&](kvc_error* err) {
      return kvc_kv_gather(forward_, setup_.global_layer(layer), seq, any.dl(), nullptr, err);
    });
    return;
  }
  NaiveSequence& sequence = naive_.at(seq);
  const auto length = static_cast<int64_t>(sequence.k[layer].size());
  HostTensor k(draw_activation(random_), {length, spec.kv_heads, spec.k_dim},
               random_placement(random_, Elem::kF32));
  HostTensor v(draw_activation(random_), {length, spec.kv_heads, spec.v_dim},
               random_placement(random_, Elem::kF32));
  const int which = static_cast<int>(random_.range(0, 2));
  const Call gather = [&](kvc_error* err) {
    return kvc_kv_gather(forward_, setup_.global_layer(layer), seq, which == 1 ? nullptr : k.dl(),
                         which == 2 ? nullptr : v.dl(), err);
  };
  const bool grows = std::any_of(model_.entries().begin(), model_.entries().end(),
                                 [&](const ModelEntry& entry) { return entry.seq == seq; });
  if (grows && !written_[layer]) {  // its new slots hold whatever another sequence left there
    if (setup_.is_borrowed() || pool_exported_) return;
    Expected expected;
    expected.errors.insert(KVC_E_INVALID_STATE);
    agree("kvc_kv_gather", expected, gather);
    if (!k.is_untouched() || !v.is_untouched()) mismatch("a refused kvc_kv_gather wrote its outputs");
    return;
  }
  expect_ok("kvc_kv_gather", gather, {&k, &v});
  if (which != 1)
    compare_rows("gathered K", sequence.k[layer], k, spec.kv_heads, spec.k_dim, spec.k_type, -1);
  if (which != 2)
    compare_rows("gathered V", sequence.v[layer], v, spec.kv_heads, spec.v_dim, spec.v_type, -1);
  if (!k.padding_untouched() || !v.padding_untouched()) mismatch("kvc_kv_gather wrote padding");
  if ((which == 1 && !k.is_untouched()) || (which == 2 && !v.is_untouched()))
    mismatch("kvc_kv_gather wrote what it was not given");
}

namespace {

struct Extents {
  int64_t layers = 0, heads = 0, k_dim = 0, v_dim = 0;
};

Extents extents_of(const std::vector<NaiveLayer>& layers) {
  Extents extents{static_cast<int64_t>(layers.size())};
  for (const NaiveLayer& layer : layers) {
    extents.heads = std::max<int64_t>(extents.heads, layer.kv_heads);
    extents.k_dim = std::max<int64_t>(extents.k_dim, layer.k_dim);
    extents.v_dim = std::max<int64_t>(extents.v_dim, layer.v_dim);
  }
  return extents;
}

}  // namespace

void RandomRun::op_get() {
  const kvc_seq seq = any_seq();
  const int64_t length = model_.exists(seq) ? model_.at(seq).length : 4;
  const int64_t begin = random_.range(random_.chance(0.05) ? -1 : 0, length);
  const int64_t end = random_.chance(0.05) ? random_.range(-1, length + 1)
                                           : random_.range(std::max<int64_t>(0, begin), length);
  trace("debug_get %lld [%lld, %lld)", ll(seq), ll(begin), ll(end));
  Expected expected;
  expected.also(!model_.exists(seq), KVC_E_NOT_FOUND);
  expected.also(begin < 0 || begin > end || end > length, KVC_E_OUT_OF_RANGE);
  const Extents extents = extents_of(setup_.layers());
  const int64_t tokens = std::max<int64_t>(0, end - begin);
  HostTensor k(draw_activation(random_), {extents.layers, tokens, extents.heads, extents.k_dim});
  HostTensor v(draw_activation(random_), {extents.layers, tokens, extents.heads, extents.v_dim});
  const int which = static_cast<int>(random_.range(0, 2));
  const Call fn = [&](kvc_error* err) {
    return kvc_debug_get_kv(setup_.cache(), seq, begin, end, which == 1 ? nullptr : k.dl(),
                            which == 2 ? nullptr : v.dl(), nullptr, err);
  };
  if (!agree("kvc_debug_get_kv", expected, fn)) {
    if (!k.is_untouched() || !v.is_untouched()) mismatch("a refused kvc_debug_get_kv wrote its output");
    return;
  }
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    const NaiveLayer& spec = setup_.layers()[layer];
    const NaiveSequence& sequence = naive_.at(seq);
    const std::vector<Row> k_rows(sequence.k[layer].begin() + begin, sequence.k[layer].begin() + end);
    const std::vector<Row> v_rows(sequence.v[layer].begin() + begin, sequence.v[layer].begin() + end);
    if (which != 1)
      compare_rows("debug K", k_rows, k, spec.kv_heads, spec.k_dim, spec.k_type, static_cast<int64_t>(layer));
    if (which != 2)
      compare_rows("debug V", v_rows, v, spec.kv_heads, spec.v_dim, spec.v_type, static_cast<int64_t>(layer));
    // Beyond a smaller layer's own heads and dims nothing is written.
    for (int64_t t = 0; t < tokens && which != 1; ++t) {
      for (int64_t h = 0; h < extents.heads; ++h) {
        for (int64_t d = h < spec.kv_heads ? spec.k_dim : 0; d < extents.k_dim; ++d) {
          if (!std::isnan(k.get(static_cast<int64_t>(layer), t, h, d)))
            mismatch("kvc_debug_get_kv wrote beyond layer %zu", layer);
        }
      }
    }
  }
}

void RandomRun::op_set() {
  const kvc_seq seq = any_seq();
  const int64_t length = model_.exists(seq) ? model_.at(seq).length : 4;
  const int64_t begin = random_.range(random_.chance(0.05) ? -1 : 0, length);
  const int64_t tokens =
      random_.range(0, random_.chance(0.05) ? length + 1 : std::max<int64_t>(0, length - begin));
  trace("debug_set %lld [%lld, +%lld)", ll(seq), ll(begin), ll(tokens));
  const Extents extents = extents_of(setup_.layers());
  HostTensor k(draw_activation(random_), {extents.layers, tokens, extents.heads, extents.k_dim});
  HostTensor v(draw_activation(random_), {extents.layers, tokens, extents.heads, extents.v_dim});
  k.fill_random(random_);
  v.fill_random(random_);
  const int which = static_cast<int>(random_.range(0, 2));
  const Call fn = [&](kvc_error* err) {
    return kvc_debug_set_kv(setup_.cache(), seq, begin, which == 1 ? nullptr : k.dl(),
                            which == 2 ? nullptr : v.dl(), nullptr, err);
  };
  if (!agree("kvc_debug_set_kv", model_.overwrite(seq, begin, tokens), fn)) return;
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    const NaiveLayer& spec = setup_.layers()[layer];
    NaiveSequence& sequence = naive_.at(seq);
    const auto local = static_cast<int64_t>(layer);
    for (int64_t t = 0; t < tokens; ++t) {
      Row k_row, v_row;
      for (int64_t h = 0; h < spec.kv_heads; ++h) {
        for (int64_t d = 0; d < spec.k_dim; ++d)
          k_row.push_back(round_to(spec.k_type, k.get(local, t, h, d)));
        for (int64_t d = 0; d < spec.v_dim; ++d)
          v_row.push_back(round_to(spec.v_type, v.get(local, t, h, d)));
      }
      if (which != 1) sequence.k[layer][static_cast<size_t>(begin + t)] = std::move(k_row);
      if (which != 2) sequence.v[layer][static_cast<size_t>(begin + t)] = std::move(v_row);
    }
  }
}

// NaN into every slot that no sequence uses: freed pages hold old values, which a kernel that reads too far would not show.
void RandomRun::op_poison() {
  trace("poison unused slots");
  const int64_t page_size = model_.limits().page_size;
  std::vector<int64_t> used(static_cast<size_t>(model_.limits().num_pages), 0);  // leading tokens in use
  const auto mark = [&](const int32_t* pages, int64_t length) {
    for (int64_t i = 0; i * page_size < length; ++i) {
      int64_t& tokens = used[static_cast<size_t>(pages[i])];
      tokens = std::max(tokens, std::min(page_size, length - i * page_size));
    }
  };
  if (model_.is_open()) return;  // what the open forward holds for an abort is not visible
  for (const auto& [seq, sequence] : model_.sequences()) mark(sequence_pages(seq).data(), sequence.length);
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    for (const kvc_pool_kind kind : {KVC_POOL_K, KVC_POOL_V}) {
      DLManagedTensorVersioned* exported = nullptr;
      if (kvc_export_pool(setup_.cache(), setup_.global_layer(layer), kind, &exported, nullptr) != KVC_OK)
        mismatch("kvc_export_pool failed");
      pool_exported_ = true;
      const DLTensor& pool = exported->dl_tensor;
      const int64_t bytes = pool.dtype.bits / 8;
      auto* base = static_cast<std::byte*>(pool.data) + pool.byte_offset;
      for (int64_t page = 0; page < pool.shape[0]; ++page) {
        for (int64_t head = 0; head < pool.shape[1]; ++head) {
          for (int64_t token = used[static_cast<size_t>(page)]; token < pool.shape[2]; ++token) {
            std::byte* row =
                base + (page * pool.strides[0] + head * pool.strides[1] + token * pool.strides[2]) * bytes;
            std::fill(row, row + pool.shape[3] * bytes, std::byte{0xFF});
          }
        }
      }
      exported->deleter(exported);
    }
  }
}

}  // namespace kvc::test
