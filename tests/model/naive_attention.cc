#include "tests/model/naive_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvc::test {

NaiveResult attend(const NaiveHeads& heads, const NaiveRope& rope,
                   const std::vector<NaiveKey>& keys, const NaiveQuery& query,
                   const NaiveOptions& options) {
  const auto k_dim = static_cast<size_t>(heads.k_dim);
  const auto v_dim = static_cast<size_t>(heads.v_dim);
  const auto kv_head = static_cast<size_t>(query.head / (heads.q_heads / heads.kv_heads));
  const auto head = static_cast<size_t>(query.head);
  const Row plain(query.q, query.q + k_dim);
  const bool turns = rope.mode != KVC_ROPE_NONE;
  const Row q = turns ? rotated(rope, heads.k_dim, plain, query.rope) : plain;
  const Row sink_q = turns ? rotated(rope, heads.k_dim, plain, query.sink_rope) : plain;
  const double none = -std::numeric_limits<double>::infinity();

  std::vector<double> scores;
  double largest = none;
  double largest_size = options.soft_cap;
  double noise = 0;
  for (const NaiveKey& key : keys) {
    double bias = 0;
    if (!options.bias.empty()) {
      const int64_t bias_head = options.bias_heads == 1 ? 0 : query.head;
      bias = options.bias[static_cast<size_t>(
          (bias_head * options.bias_rows + query.row) * options.bias_columns + key.token)];
    }
    double score = none;
    if (bias != none) {  // a masked key may hold anything
      Row k(key.k->begin() + static_cast<int64_t>(kv_head * k_dim),
            key.k->begin() + static_cast<int64_t>((kv_head + 1) * k_dim));
      if (rope.mode == KVC_ROPE_ON_READ) k = rotated(rope, heads.k_dim, k, key.rope);
      const Row& turned = key.is_sink ? sink_q : q;
      double dot = 0, squares = 0;
      for (size_t d = 0; d < k_dim; ++d) {
        dot += turned[d] * k[d];
        squares += turned[d] * k[d] * turned[d] * k[d];
      }
      noise = std::max(noise, options.scale * std::sqrt(squares));
      score = options.scale * dot;
      if (options.soft_cap > 0) score = options.soft_cap * std::tanh(score / options.soft_cap);
      if (!options.alibi.empty())
        score -= options.alibi[head] * static_cast<double>(query.position - key.position);
      score += bias;
    }
    scores.push_back(score);
    largest = std::max(largest, score);
    if (score != none) largest_size = std::max(largest_size, std::fabs(score));
  }

  NaiveResult result{std::vector<double>(v_dim, 0), std::vector<double>(v_dim, 0), none,
                     largest_size, noise};
  if (largest == none) return result;
  double sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (scores[j] == none) continue;
    const double weight = std::exp(scores[j] - largest);
    sum += weight;
    const double* value = keys[j].v->data() + kv_head * static_cast<size_t>(heads.v_stride);
    for (size_t d = 0; d < v_dim; ++d) {
      result.out[d] += weight * value[d];
      result.size[d] += weight * std::fabs(value[d]);
    }
  }
  result.lse = largest + std::log(sum);
  const double sink = options.sinks.empty() ? 0 : std::exp(options.sinks[head] - largest);
  for (size_t d = 0; d < v_dim; ++d) {
    result.out[d] /= sum + sink;
    result.size[d] /= sum + sink;
  }
  return result;
}

NaiveResult merged(const NaiveResult& a, const NaiveResult& b) {
  if (std::isinf(b.lse)) return a;
  if (std::isinf(a.lse)) return b;
  const double largest = std::max(a.lse, b.lse);
  const double wa = std::exp(a.lse - largest), wb = std::exp(b.lse - largest);
  NaiveResult result = a;
  for (size_t d = 0; d < a.out.size(); ++d) {
    result.out[d] = (wa * a.out[d] + wb * b.out[d]) / (wa + wb);
    result.size[d] = (wa * a.size[d] + wb * b.size[d]) / (wa + wb);
  }
  result.lse = largest + std::log(wa + wb);
  result.largest_score = std::max(a.largest_score, b.largest_score);
  result.score_noise = std::max(a.score_noise, b.score_noise);
  return result;
}

}  // namespace kvc::test
