#include "tests/conformance/linear.h"

#include <cmath>

#include "tests/conformance/model.h"

namespace kvc::conformance {
namespace {

const std::map<std::string, int32_t> kDecays{{"NONE", KVC_DECAY_NONE},
                                             {"HEAD", KVC_DECAY_HEAD},
                                             {"TOKEN", KVC_DECAY_TOKEN},
                                             {"CHANNEL", KVC_DECAY_CHANNEL}};

}  // namespace

Linear::Linear(const Json& json, int32_t layer_id, int64_t num_heads, int64_t dim_k, int64_t dim_v)
    : layer(layer_id),
      heads(num_heads),
      heads_k(json.value("heads_k", num_heads)),
      k_dim(dim_k),
      v_dim(dim_v),
      decay(look_up(json.value("decay", "NONE"), kDecays)),
      delta(json.value("delta", false)),
      beta(json.value("beta", false)),
      scale(json.value("scale", 0.0)),
      skip(json.value("skip", false)) {}

LinearToken Linear::token(int64_t id, int64_t head) const {
  const int64_t head_k = head / (heads / heads_k);
  LinearToken token;
  token.q = values(Kind::kQuery, layer, id, head_k, k_dim);
  token.k = values(Kind::kKey, layer, id, head_k, k_dim);
  token.v = values(Kind::kValue, layer, id, head, v_dim);
  for (int64_t i = 0; i < k_dim; ++i) {
    double x = -1;  // -(x + 1) / 4 = 0: no decay
    if (decay == KVC_DECAY_HEAD) x = value(Kind::kDecay, layer, 0, head, 0);
    if (decay == KVC_DECAY_TOKEN) x = value(Kind::kDecay, layer, id, head, 0);
    if (decay == KVC_DECAY_CHANNEL) x = value(Kind::kDecay, layer, id, head, i);
    token.decay.push_back(-(x + 1) / 4);
  }
  if (beta) token.beta = (value(Kind::kBeta, layer, id, head, 0) + 1) / 2;
  if (skip) token.skip = value(Kind::kWeight, layer, 0, head, 0);
  token.scale = scale == 0 ? 1 / std::sqrt(static_cast<double>(k_dim)) : scale;
  token.delta = delta;
  return token;
}

std::vector<std::vector<Vector>> Linear::run(const Ids& history, const Ids& ids,
                                             std::vector<std::vector<Vector>>& state) const {
  std::vector<std::vector<Vector>> outputs;
  state.clear();
  for (int64_t head = 0; head < heads; ++head) {
    state.emplace_back(k_dim, Vector(static_cast<size_t>(v_dim), 0.0));
    outputs.emplace_back();
    for (const int64_t id : history) linear_step(token(id, head), state.back());
    for (const int64_t id : ids) outputs.back().push_back(linear_step(token(id, head), state.back()));
  }
  return outputs;
}

namespace {

// [tokens][heads][dim] of one formula.
HostTensor formula(Kind kind, int32_t layer, const Ids& ids, int64_t heads, int64_t dim) {
  HostTensor tensor({static_cast<int64_t>(ids.size()), heads, dim});
  int64_t index = 0;
  for (const int64_t id : ids)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t d = 0; d < dim; ++d) tensor.set(index++, value(kind, layer, id, h, d));
  return tensor;
}

}  // namespace

HostTensor Linear::q(const Ids& ids) const { return formula(Kind::kQuery, layer, ids, heads_k, k_dim); }
HostTensor Linear::k(const Ids& ids) const { return formula(Kind::kKey, layer, ids, heads_k, k_dim); }
HostTensor Linear::v(const Ids& ids) const { return formula(Kind::kValue, layer, ids, heads, v_dim); }

HostTensor Linear::decay_tensor(const Ids& ids) const {
  const auto tokens = static_cast<int64_t>(ids.size());
  std::vector<int64_t> shape{heads};
  if (decay == KVC_DECAY_TOKEN) shape = {tokens, heads};
  if (decay == KVC_DECAY_CHANNEL) shape = {tokens, heads, k_dim};
  const bool of_tokens = decay == KVC_DECAY_TOKEN || decay == KVC_DECAY_CHANNEL;
  HostTensor tensor(shape);
  int64_t index = 0;
  for (int64_t t = 0; t < (of_tokens ? tokens : 1); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const LinearToken one = token(of_tokens ? ids[static_cast<size_t>(t)] : 0, h);
      for (int64_t i = 0; i < (decay == KVC_DECAY_CHANNEL ? k_dim : 1); ++i)
        tensor.set(index++, one.decay[static_cast<size_t>(i)]);
    }
  }
  return tensor;
}

HostTensor Linear::beta_tensor(const Ids& ids) const {
  HostTensor tensor({static_cast<int64_t>(ids.size()), heads});
  int64_t index = 0;
  for (const int64_t id : ids)
    for (int64_t h = 0; h < heads; ++h) tensor.set(index++, token(id, h).beta);
  return tensor;
}

HostTensor Linear::skip_tensor() const {
  HostTensor tensor({heads});
  for (int64_t h = 0; h < heads; ++h) tensor.set(h, token(0, h).skip);
  return tensor;
}

}  // namespace kvc::conformance
