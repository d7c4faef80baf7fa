// Steps on recurrent state: read, set, linear attention, convolution, and what is stored.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/conformance/linear.h"
#include "tests/conformance/session.h"

namespace kvc::conformance {
namespace {

int32_t state_of(const Json& step) { return step.value("state", 0); }

// A state that the scenario has not got is asked for with a shape of its own.
StateView view_of(const Session& session, const Json& step) {
  const auto layer = static_cast<size_t>(layer_of(step));
  const auto state = static_cast<size_t>(state_of(step));
  if (layer < session.model.layers().size() && state < session.model.layers()[layer].states.size())
    return session.model.layers()[layer].states[state];
  return {{2}, -1};
}

// Element of the value that `id` names: -1 is the initial value.
double state_value(const Session& session, const Json& step, int64_t id, int64_t element) {
  if (id < 0) id = view_of(session, step).init;
  if (id < 0) return 0;
  return value(Kind::kState, layer_of(step), id, state_of(step), element);
}

int64_t elements(const StateView& view) {
  int64_t count = 1;
  for (const int64_t extent : view.shape) count *= extent;
  return count;
}

HostTensor batch_tensor(const Session& session, const Json& step) {
  std::vector<int64_t> shape = view_of(session, step).shape;
  shape.insert(shape.begin(), static_cast<int64_t>(session.batch.seqs.size()) + 1);
  return HostTensor(shape);
}

kvc_status state_get(Session& session, const Json& step, kvc_error* err) {
  HostTensor out = batch_tensor(session, step);
  const kvc_status status = kvc_state_get(session.fwd, layer_of(step), state_of(step), out.view(), err);
  if (status != KVC_OK) return status;
  const int64_t size = elements(view_of(session, step));
  int64_t entry = 0;
  for (const Json& id : step.at("values")) {
    for (int64_t i = 0; i < size; ++i)
      EXPECT_EQ(out.get(entry * size + i), state_value(session, step, id.get<int64_t>(), i))
          << "state of entry " << entry << " is not value " << id;
    ++entry;
  }
  return status;
}

kvc_status state_set(Session& session, const Json& step, kvc_error* err) {
  HostTensor values = batch_tensor(session, step);
  const int64_t size = elements(view_of(session, step));
  int64_t entry = 0;
  for (const Json& id : step.at("values")) {
    for (int64_t i = 0; i < size; ++i)
      values.set(entry * size + i, state_value(session, step, id.get<int64_t>(), i));
    ++entry;
  }
  return kvc_state_set(session.fwd, layer_of(step), state_of(step), values.view(), err);
}

Linear linear_of(const Session& session, const Json& step, const Json& json) {
  const StateView view = view_of(session, step);
  if (view.shape.size() != 3) return Linear(json, layer_of(step), 1, 2, 2);
  return Linear(json, layer_of(step), view.shape[0], view.shape[1], view.shape[2]);
}

void check_linear(const Session& session, const Json& step, const Linear& linear, const HostTensor& out) {
  size_t row = 0;
  for (size_t entry = 0; entry < session.batch.seqs.size(); ++entry) {
    const auto length = static_cast<size_t>(session.batch.lengths[entry]);
    const Ids ids(session.batch.ids.begin() + static_cast<ptrdiff_t>(row),
                  session.batch.ids.begin() + static_cast<ptrdiff_t>(row + length));
    std::vector<std::vector<Vector>> state;
    const auto want = linear.run(parse_ids(step.at("history").at(entry).get<std::string>()), ids, state);
    for (size_t t = 0; t < length; ++t, ++row) {
      for (int64_t h = 0; h < linear.heads; ++h) {
        for (int64_t d = 0; d < linear.v_dim; ++d) {
          const double got = out.get((static_cast<int64_t>(row) * linear.heads + h) * linear.v_dim + d);
          const double expected = want[static_cast<size_t>(h)][t][static_cast<size_t>(d)];
          ASSERT_TRUE(session.near(got, expected))
              << got << " instead of " << expected << " in row " << row << " head " << h << " element " << d;
        }
      }
    }
  }
}

kvc_status linear(Session& session, const Json& step, kvc_error* err) {
  const Linear linear = linear_of(session, step, step);
  const Ids& ids = session.batch.ids;
  HostTensor q = linear.q(ids), k = linear.k(ids), v = linear.v(ids);
  HostTensor decay = linear.decay_tensor(ids), beta = linear.beta_tensor(ids), skip = linear.skip_tensor();
  HostTensor out({static_cast<int64_t>(ids.size()), linear.heads, linear.v_dim});
  kvc_linear_opt opt{};
  opt.struct_size = sizeof opt;
  opt.flags = linear.delta ? KVC_LINEAR_DELTA : 0;
  opt.decay = linear.decay;
  opt.state = state_of(step);
  opt.scale = static_cast<float>(linear.scale);
  opt.skip = linear.skip ? skip.view() : nullptr;
  const kvc_status status = kvc_attn_linear(session.fwd, layer_of(step), &opt, q.view(), k.view(), v.view(),
                                            linear.decay == KVC_DECAY_NONE ? nullptr : decay.view(),
                                            linear.beta ? beta.view() : nullptr, out.view(), err);
  if (status == KVC_OK && step.contains("history")) check_linear(session, step, linear, out);
  return status;
}

double conv_input(int32_t layer, const Ids& all, int64_t index, int64_t channel) {
  return index < 0 ? 0 : value(Kind::kInput, layer, all[static_cast<size_t>(index)], 0, channel);
}

void check_conv(const Session& session, const Json& step, int64_t channels, int64_t width,
                const HostTensor& out) {
  const int32_t layer = layer_of(step);
  size_t row = 0;
  for (size_t entry = 0; entry < session.batch.seqs.size(); ++entry) {
    Ids all = parse_ids(step.at("history").at(entry).get<std::string>());
    for (int64_t t = 0; t < session.batch.lengths[entry]; ++t, ++row) {
      all.push_back(session.batch.ids[row]);
      for (int64_t c = 0; c < channels; ++c) {
        double x = step.value("bias", false) ? value(Kind::kWeight, layer, 1, c, 0) : 0;
        for (int64_t j = 0; j < width; ++j)
          x += value(Kind::kWeight, layer, 0, c, j) *
               conv_input(layer, all, static_cast<int64_t>(all.size()) - width + j, c);
        if (step.value("activation", "NONE") == "SILU") x = x / (1 + std::exp(-x));
        const double got = out.get(static_cast<int64_t>(row) * channels + c);
        ASSERT_TRUE(session.near(got, x))
            << got << " instead of " << x << " in row " << row << " channel " << c;
      }
    }
  }
}

kvc_status conv(Session& session, const Json& step, kvc_error* err) {
  static const std::map<std::string, int32_t> kActivations{{"NONE", KVC_ACTIVATION_NONE},
                                                           {"SILU", KVC_ACTIVATION_SILU}};
  const StateView view = view_of(session, step);
  const int64_t channels = view.shape[0], width = (view.shape.size() == 2 ? view.shape[1] : 1) + 1;
  const auto tokens = static_cast<int64_t>(session.batch.ids.size());
  const int32_t layer = layer_of(step);
  HostTensor x({tokens, channels}), weight({channels, width}), bias({channels}), out({tokens, channels});
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < channels; ++c)
      x.set(t * channels + c, conv_input(layer, session.batch.ids, t, c));
  for (int64_t c = 0; c < channels; ++c) {
    bias.set(c, value(Kind::kWeight, layer, 1, c, 0));
    for (int64_t j = 0; j < width; ++j) weight.set(c * width + j, value(Kind::kWeight, layer, 0, c, j));
  }
  const kvc_status status =
      kvc_state_conv(session.fwd, layer, state_of(step), x.view(), weight.view(),
                     step.value("bias", false) ? bias.view() : nullptr,
                     look_up(step.value("activation", "NONE"), kActivations), out.view(), err);
  if (status == KVC_OK && step.contains("history")) check_conv(session, step, channels, width, out);
  return status;
}

// What a stored state must hold: a formula's value, the last inputs of a convolution, or what a recurrence leaves.
Vector expected_state(const Session& session, const Json& step, const StateView& view) {
  Vector expected;
  if (step.contains("conv_inputs")) {
    const Ids all = parse_ids(step["conv_inputs"].get<std::string>());
    const int64_t kept = view.shape.at(1);
    for (int64_t c = 0; c < view.shape[0]; ++c)
      for (int64_t j = 0; j < kept; ++j)
        expected.push_back(conv_input(layer_of(step), all, static_cast<int64_t>(all.size()) - kept + j, c));
    return expected;
  }
  if (step.contains("linear")) {
    std::vector<std::vector<Vector>> state;
    linear_of(session, step, step["linear"])
        .run(parse_ids(step["linear"].at("history").get<std::string>()), {}, state);
    for (const auto& head : state)
      for (const Vector& row : head) expected.insert(expected.end(), row.begin(), row.end());
    return expected;
  }
  for (int64_t i = 0; i < elements(view); ++i)
    expected.push_back(state_value(session, step, step.at("value").get<int64_t>(), i));
  return expected;
}

kvc_status stored_state(Session& session, const Json& step, kvc_error* err) {
  const StateView view = view_of(session, step);
  HostTensor out(view.shape);
  const kvc_status status = kvc_debug_get_state(session.cache, step.at("seq").get<kvc_seq>(), layer_of(step),
                                                state_of(step), out.view(), nullptr, err);
  if (status != KVC_OK) return status;
  const Vector expected = expected_state(session, step, view);
  for (int64_t i = 0; i < out.size(); ++i)
    EXPECT_TRUE(session.near(out.get(i), expected.at(static_cast<size_t>(i))))
        << "element " << i << ": " << out.get(i) << " instead of " << expected.at(static_cast<size_t>(i));
  return status;
}

kvc_status store_state(Session& session, const Json& step, kvc_error* err) {
  HostTensor values(view_of(session, step).shape);
  for (int64_t i = 0; i < values.size(); ++i)
    values.set(i, state_value(session, step, step.at("value").get<int64_t>(), i));
  return kvc_debug_set_state(session.cache, step.at("seq").get<kvc_seq>(), layer_of(step), state_of(step),
                             values.view(), nullptr, err);
}

}  // namespace

void add_state_steps(Handlers& handlers) {
  handlers["state_get"] = state_get;
  handlers["state_set"] = state_set;
  handlers["linear"] = linear;
  handlers["conv"] = conv;
  handlers["stored_state"] = stored_state;
  handlers["store_state"] = store_state;
}

}  // namespace kvc::conformance
