// Recurrent states in random runs.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "tests/model/random_inputs.h"

namespace kvc::test {
namespace {

// By how much one token of the delta rule can make an error of the state grow.
double growth_of(const LinearToken& token, int64_t heads, int64_t qk_heads) {
  const size_t dim = token.k.size() / static_cast<size_t>(qk_heads);
  double growth = 1;
  for (int64_t h = 0; h < heads; ++h) {
    const auto first =
        token.k.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(h / (heads / qk_heads)) * dim);
    const double square =
        std::inner_product(first, first + static_cast<ptrdiff_t>(dim), first, 0.0);
    const double beta = token.beta.empty() ? 1 : token.beta[static_cast<size_t>(h)];
    growth = std::max(growth, std::fabs(1 - beta * square));
  }
  return growth;
}

}  // namespace

namespace {

std::vector<int64_t> with_batch(int64_t batch, const std::vector<int64_t>& shape) {
  std::vector<int64_t> result{batch};
  result.insert(result.end(), shape.begin(), shape.end());
  return result;
}

// All elements of one entry of the first dimension.
StateValue entry_of(HostTensor& tensor, int64_t entry) {
  StateValue value;
  tensor.for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
    if (i == entry) value.push_back(tensor.get(i, j, k, l));
  });
  return value;
}

// A state is compact; states of a batch may have gaps between them.
Placement state_placement(Random& random, bool has_batch) {
  Placement placement = random_placement(random, Elem::kF32);
  placement.inner_gap = 0;
  if (!has_batch) placement.row_gap = placement.extra_rows = 0;
  return placement;
}

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

}  // namespace

void RandomRun::op_state_get(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const auto index =
      static_cast<size_t>(random_.range(0, static_cast<int64_t>(spec.states.size()) - 1));
  trace("state_get of layer %zu, state %zu", layer, index);
  const auto batch = static_cast<int64_t>(model_.entries().size());
  HostTensor out(draw_activation(random_), with_batch(batch, spec.states[index].shape),
                 state_placement(random_, true));
  expect_ok("kvc_state_get",
            [&](kvc_error* err) {
              return kvc_state_get(forward_, setup_.global_layer(layer),
                                   static_cast<int32_t>(index), out.dl(), err);
            },
            {&out});
  for (int64_t b = 0; b < batch; ++b) {
    const ModelEntry& entry = model_.entries()[static_cast<size_t>(b)];
    const StateValue& want = naive_.at(entry.seq).states.at(entry.old_length)[layer][index];
    if (entry_of(out, b) != rounded(out.elem(), want))
      mismatch("state %zu of layer %zu, sequence %lld, is not what it was before the forward",
               index, layer, ll(entry.seq));
  }
  if (!out.padding_untouched()) mismatch("kvc_state_get wrote padding");
}

void RandomRun::op_state_set(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const auto index =
      static_cast<size_t>(random_.range(0, static_cast<int64_t>(spec.states.size()) - 1));
  trace("state_set of layer %zu, state %zu", layer, index);
  const auto batch = static_cast<int64_t>(model_.entries().size());
  HostTensor value(draw_activation(random_), with_batch(batch, spec.states[index].shape),
                   state_placement(random_, true));
  value.fill_random(random_);
  expect_ok("kvc_state_set", [&](kvc_error* err) {
    return kvc_state_set(forward_, setup_.global_layer(layer), static_cast<int32_t>(index),
                         value.dl(), err);
  });
  PendingState& pending = pending_states_[{layer, index}];
  pending = {};
  for (int64_t b = 0; b < batch; ++b)
    pending.values.push_back(rounded(spec.states[index].elem, entry_of(value, b)));
}

void RandomRun::op_linear(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  std::vector<size_t> fitting;
  for (size_t i = 0; i < spec.states.size(); ++i) {
    if (spec.states[i].shape.size() == 3) fitting.push_back(i);
  }
  const size_t index = random_.pick(fitting);
  const std::vector<int64_t>& dims = spec.states[index].shape;
  const int64_t rows = model_.num_rows();
  trace("attn_linear of layer %zu, state %zu, %lld rows", layer, index, ll(rows));
  LinearShape shape{static_cast<int>(dims[0]),
                    static_cast<int>(dims[0]),
                    static_cast<int>(dims[1]),
                    static_cast<int>(dims[2]),
                    random_.chance(0.5),
                    1 / std::sqrt(static_cast<double>(dims[1])),
                    {}};
  if (random_.chance(0.4)) shape.qk_heads = 1;
  kvc_linear_opt opt{};
  opt.struct_size = sizeof opt;
  opt.flags = shape.delta ? KVC_LINEAR_DELTA : 0;
  opt.decay = static_cast<kvc_decay>(random_.range(0, 3));
  opt.state = static_cast<int32_t>(index);
  if (random_.chance(0.4)) {
    opt.scale = static_cast<float>(0.1 + random_.unit());
    shape.scale = static_cast<double>(opt.scale);
  }
  HostTensor skip(Elem::kF32, {dims[0]});
  skip.fill_random(random_);
  if (random_.chance(0.3)) {
    opt.skip = skip.dl();
    for (int64_t h = 0; h < dims[0]; ++h) shape.skip.push_back(skip.get(h));
  }
  const auto placed = [&] { return random_placement(random_, Elem::kF32); };
  HostTensor q(draw_activation(random_), {rows, shape.qk_heads, dims[1]}, placed());
  HostTensor k(draw_activation(random_), {rows, shape.qk_heads, dims[1]}, placed());
  HostTensor v(draw_activation(random_), {rows, dims[0], dims[2]}, placed());
  HostTensor out(draw_activation(random_), {rows, dims[0], dims[2]}, placed());
  HostTensor beta(Elem::kF32, {rows, dims[0]}, placed());
  const std::vector<int64_t> decay_shape =
      opt.decay == KVC_DECAY_HEAD    ? std::vector<int64_t>{dims[0]}
      : opt.decay == KVC_DECAY_TOKEN ? std::vector<int64_t>{rows, dims[0]}
                                     : std::vector<int64_t>{rows, dims[0], dims[1]};
  HostTensor decay(Elem::kF32, decay_shape);
  q.fill_random(random_);
  k.fill_random(random_, shape.delta ? 1 / std::sqrt(static_cast<double>(dims[1])) : 1);
  v.fill_random(random_);
  const auto positive = [&](HostTensor& tensor, double sign) {
    tensor.for_each([&](int64_t i, int64_t j, int64_t l, int64_t m) {
      tensor.set(sign * random_.unit(), i, j, l, m);
    });
  };
  positive(beta, 1);
  positive(decay, -1);
  const bool with_beta = random_.chance(0.5);
  const bool no_opt =
      opt.flags == 0 && opt.decay == KVC_DECAY_NONE && index == 0 && opt.scale == 0 && !opt.skip;
  expect_ok("kvc_attn_linear",
            [&](kvc_error* err) {
              return kvc_attn_linear(forward_, setup_.global_layer(layer), no_opt ? nullptr : &opt,
                                     q.dl(), k.dl(), v.dl(),
                                     opt.decay == KVC_DECAY_NONE ? nullptr : decay.dl(),
                                     with_beta ? beta.dl() : nullptr, out.dl(), err);
            },
            {&out});
  PendingState& pending = pending_states_[{layer, index}];
  pending = {{}, 1e-5};
  for (const ModelEntry& entry : model_.entries()) {
    StateValue state = naive_.at(entry.seq).states.at(entry.old_length)[layer][index];
    double size = 1 + largest_of(state), drift = 0;
    for (int64_t row = entry.row_begin; row < entry.row_begin + entry.append; ++row) {
      LinearToken token{row_of(q, row, 0, shape.qk_heads, dims[1]),
                        row_of(k, row, 0, shape.qk_heads, dims[1]),
                        row_of(v, row, 0, dims[0], dims[2]),
                        {},
                        {}};
      for (int64_t h = 0; h < dims[0]; ++h) {
        if (with_beta) token.beta.push_back(beta.get(row, h));
        if (opt.decay == KVC_DECAY_HEAD) token.ln_decay.push_back(decay.get(h));
        if (opt.decay == KVC_DECAY_TOKEN) token.ln_decay.push_back(decay.get(row, h));
        for (int64_t d = 0; d < dims[1] && opt.decay == KVC_DECAY_CHANNEL; ++d)
          token.ln_decay.push_back(decay.get(row, h, d));
      }
      const std::vector<double> want = linear_step(shape, token, &state);
      size = std::max({size, largest_of(state), largest_of(want)});
      // Roundings of many tokens add up as a random walk. The delta rule turns an earlier error
      // along k by 1 - beta |k|^2.
      const double growth = shape.delta ? growth_of(token, dims[0], shape.qk_heads) : 1;
      drift = std::hypot(drift * growth, 1e-7 * size);
      for (size_t e = 0; e < want.size(); ++e) {
        const auto element = static_cast<int64_t>(e);
        const double got = out.get(row, element / dims[2], element % dims[2]);
        if (!(std::fabs(got - want[e]) <=
              1e-5 * size + storing_error(out.elem()) * std::fabs(want[e])))
          mismatch("kvc_attn_linear: layer %zu, row %lld, element %zu is %.9g, expected %.9g",
                   layer, ll(row), e, got, want[e]);
      }
    }
    pending.tolerance = std::max({pending.tolerance, 1e-5 * size, drift});
    pending.values.push_back(std::move(state));
  }
  if (!out.padding_untouched()) mismatch("kvc_attn_linear wrote padding");
}

void RandomRun::op_conv(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  std::vector<size_t> fitting;
  for (size_t i = 0; i < spec.states.size(); ++i) {
    if (spec.states[i].shape.size() == 2) fitting.push_back(i);
  }
  if (fitting.empty()) return op_linear(layer);
  const size_t index = random_.pick(fitting);
  const int64_t channels = spec.states[index].shape[0], width = spec.states[index].shape[1] + 1;
  const int64_t rows = model_.num_rows();
  trace("state_conv of layer %zu, state %zu, %lld rows", layer, index, ll(rows));
  const auto placed = [&] { return random_placement(random_, Elem::kF32); };
  HostTensor x(draw_activation(random_), {rows, channels}, placed());
  HostTensor out(draw_activation(random_), {rows, channels}, placed());
  HostTensor weight(Elem::kF32, {channels, width}), bias(Elem::kF32, {channels});
  x.fill_random(random_);
  weight.fill_random(random_);
  bias.fill_random(random_);
  const bool with_bias = random_.chance(0.5);
  const kvc_activation activation = random_.chance(0.5) ? KVC_ACTIVATION_SILU : KVC_ACTIVATION_NONE;
  expect_ok("kvc_state_conv",
            [&](kvc_error* err) {
              return kvc_state_conv(forward_, setup_.global_layer(layer),
                                    static_cast<int32_t>(index), x.dl(), weight.dl(),
                                    with_bias ? bias.dl() : nullptr, activation, out.dl(), err);
            },
            {&out});
  std::vector<double> weights, biases;
  weight.for_each(
      [&](int64_t i, int64_t j, int64_t, int64_t) { weights.push_back(weight.get(i, j)); });
  for (int64_t c = 0; c < channels && with_bias; ++c) biases.push_back(bias.get(c));
  PendingState& pending = pending_states_[{layer, index}];
  pending = {{}, 1e-6};
  for (const ModelEntry& entry : model_.entries()) {
    StateValue state = naive_.at(entry.seq).states.at(entry.old_length)[layer][index];
    for (int64_t row = entry.row_begin; row < entry.row_begin + entry.append; ++row) {
      std::vector<double> inputs;
      for (int64_t c = 0; c < channels; ++c) inputs.push_back(x.get(row, c));
      const std::vector<double> want =
          conv_step(channels, width, weights, biases, activation, inputs, &state);
      for (int64_t c = 0; c < channels; ++c) {
        const double expected = want[static_cast<size_t>(c)];
        if (!(std::fabs(out.get(row, c) - expected) <=
              4e-6 + storing_error(out.elem()) * std::fabs(expected)))
          mismatch("kvc_state_conv: layer %zu, row %lld, channel %lld is %.9g, expected %.9g",
                   layer, ll(row), ll(c), out.get(row, c), expected);
      }
    }
    pending.values.push_back(std::move(state));
  }
  if (!out.padding_untouched()) mismatch("kvc_state_conv wrote padding");
}

StateValue RandomRun::read_state(kvc_seq seq, size_t layer, size_t state) {
  HostTensor out(Elem::kF32, setup_.layers()[layer].states[state].shape);
  const kvc_status status =
      kvc_debug_get_state(setup_.cache(), seq, setup_.global_layer(layer),
                          static_cast<int32_t>(state), out.dl(), nullptr, nullptr);
  if (status != KVC_OK) mismatch("kvc_debug_get_state answered %s", kvc_status_name(status));
  StateValue value;
  out.for_each(
      [&](int64_t i, int64_t j, int64_t k, int64_t l) { value.push_back(out.get(i, j, k, l)); });
  return value;
}

// What was set is the state now; the rest is carried on.
void RandomRun::close_states(const ModelEntry& entry, size_t index) {
  if (!setup_.has_data() || !model_.limits().has_states) return;
  std::map<int64_t, LayerStates>& history = naive_.at(entry.seq).states;
  LayerStates states = history.at(entry.old_length);
  for (const auto& [where, pending] : pending_states_) {
    const auto [layer, state] = where;
    StateValue& value = states[layer][state];
    value = pending.values[index];
    if (pending.tolerance == 0) continue;
    const Elem elem = setup_.layers()[layer].states[state].elem;
    const StateValue stored = read_state(entry.seq, layer, state);
    for (size_t e = 0; e < value.size(); ++e) {
      const double allowed = pending.tolerance + storing_error(elem) * std::fabs(value[e]);
      if (!(std::fabs(stored[e] - value[e]) <= allowed))
        mismatch("state %zu of layer %zu, sequence %lld, element %zu is %.9g, expected %.9g", state,
                 layer, ll(entry.seq), e, stored[e], value[e]);
    }
    value = stored;
  }
  history[entry.old_length + entry.append] = std::move(states);
  const ModelSequence& sequence = model_.at(entry.seq);
  for (auto old = history.begin(); old != history.end();) {
    const bool needed = old->first == 0 || old->first == sequence.length ||
                        sequence.checkpoints.count(old->first) != 0;
    old = needed ? std::next(old) : history.erase(old);
  }
}

void RandomRun::op_get_state(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const kvc_seq seq = any_seq();
  const int64_t index =
      random_.range(random_.chance(0.05) ? -1 : 0, static_cast<int64_t>(spec.states.size()) - 1);
  trace("debug_get_state of %lld, layer %zu, state %lld", ll(seq), layer, ll(index));
  Expected expected;
  expected.also(!model_.exists(seq), KVC_E_NOT_FOUND);
  expected.also(index < 0, KVC_E_OUT_OF_RANGE);
  const auto state = static_cast<size_t>(std::max<int64_t>(0, index));
  HostTensor out(draw_activation(random_), spec.states[state].shape,
                 state_placement(random_, false));
  const Call fn = [&](kvc_error* err) {
    return kvc_debug_get_state(setup_.cache(), seq, setup_.global_layer(layer),
                               static_cast<int32_t>(index), out.dl(), nullptr, err);
  };
  if (!agree("kvc_debug_get_state", expected, fn, {&out})) return;
  const StateValue& want = naive_.at(seq).states.at(model_.at(seq).length)[layer][state];
  StateValue got;
  out.for_each(
      [&](int64_t i, int64_t j, int64_t k, int64_t l) { got.push_back(out.get(i, j, k, l)); });
  if (got != rounded(out.elem(), want))
    mismatch("state %zu of layer %zu, sequence %lld, is wrong", state, layer, ll(seq));
}

void RandomRun::op_set_state(size_t layer) {
  const NaiveLayer& spec = setup_.layers()[layer];
  const kvc_seq seq = any_seq();
  if (model_.exists(seq) && model_.at(seq).length == 0)
    return;  // whether that lasts through a pop to 0 is not said
  const auto state =
      static_cast<size_t>(random_.range(0, static_cast<int64_t>(spec.states.size()) - 1));
  trace("debug_set_state of %lld, layer %zu, state %zu", ll(seq), layer, state);
  HostTensor value(draw_activation(random_), spec.states[state].shape,
                   state_placement(random_, false));
  value.fill_random(random_);
  const Call fn = [&](kvc_error* err) {
    return kvc_debug_set_state(setup_.cache(), seq, setup_.global_layer(layer),
                               static_cast<int32_t>(state), value.dl(), nullptr, err);
  };
  if (!agree("kvc_debug_set_state", model_.overwrite_state(seq), fn)) return;
  StateValue& stored = naive_.at(seq).states.at(model_.at(seq).length)[layer][state];
  stored.clear();
  value.for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
    stored.push_back(round_to(spec.states[state].elem, value.get(i, j, k, l)));
  });
}

}  // namespace kvc::test
