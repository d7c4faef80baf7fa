#include "tests/model/naive_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvc::test {

Row rotated(const NaiveRope& rope, int dim, const Row& x, int64_t position) {
  Row result = x;
  const int half = rope.rotary_dim / 2;
  for (size_t head = 0; head < x.size(); head += static_cast<size_t>(dim)) {
    for (int i = 0; i < half; ++i) {
      const auto first = head + static_cast<size_t>(rope.interleaved ? 2 * i : i);
      const auto second = head + static_cast<size_t>(rope.interleaved ? 2 * i + 1 : i + half);
      const double angle = static_cast<double>(position) * rope.inverse_frequency[static_cast<size_t>(i)];
      result[first] = x[first] * std::cos(angle) - x[second] * std::sin(angle);
      result[second] = x[first] * std::sin(angle) + x[second] * std::cos(angle);
    }
  }
  return result;
}

NaiveResult attend(const NaiveLayer& layer, const std::vector<Row>& k, const std::vector<Row>& v,
                   int64_t key_begin, int64_t key_end, const double* q, int head, int64_t position,
                   int64_t row, const NaiveOptions& options) {
  const auto k_dim = static_cast<size_t>(layer.k_dim);
  const auto v_dim = static_cast<size_t>(layer.v_dim);
  const auto kv_head = static_cast<size_t>(head / (layer.q_heads / layer.kv_heads));
  const Row query = rotated(layer.rope, layer.k_dim, Row(q, q + k_dim), position);
  const double none = -std::numeric_limits<double>::infinity();

  std::vector<double> scores;
  double largest = none;
  double largest_size = options.soft_cap;
  double noise = 0;
  for (int64_t j = key_begin; j < key_end; ++j) {
    double bias = 0;
    if (!options.bias.empty()) {
      const int64_t bias_head = options.bias_heads == 1 ? 0 : head;
      bias =
          options.bias[static_cast<size_t>((bias_head * options.bias_rows + row) * options.bias_columns + j)];
    }
    double score = none;
    if (bias != none) {  // a masked key may hold anything
      const double* key = k[static_cast<size_t>(j)].data() + kv_head * k_dim;
      double dot = 0, squares = 0;
      for (size_t d = 0; d < k_dim; ++d) {
        dot += query[d] * key[d];
        squares += query[d] * key[d] * query[d] * key[d];
      }
      noise = std::max(noise, options.scale * std::sqrt(squares));
      score = options.scale * dot;
      if (options.soft_cap > 0) score = options.soft_cap * std::tanh(score / options.soft_cap);
      if (!options.alibi.empty())
        score -= options.alibi[static_cast<size_t>(head)] * static_cast<double>(position - j);
      score += bias;
    }
    scores.push_back(score);
    largest = std::max(largest, score);
    if (score != none) largest_size = std::max(largest_size, std::fabs(score));
  }

  NaiveResult result{std::vector<double>(v_dim, 0), std::vector<double>(v_dim, 0), none, largest_size, noise};
  if (largest == none) return result;
  double sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (scores[j] == none) continue;
    const double weight = std::exp(scores[j] - largest);
    sum += weight;
    const double* value = v[static_cast<size_t>(key_begin) + j].data() + kv_head * v_dim;
    for (size_t d = 0; d < v_dim; ++d) {
      result.out[d] += weight * value[d];
      result.size[d] += weight * std::fabs(value[d]);
    }
  }
  result.lse = largest + std::log(sum);
  const double sink =
      options.sinks.empty() ? 0 : std::exp(options.sinks[static_cast<size_t>(head)] - largest);
  for (size_t d = 0; d < v_dim; ++d) {
    result.out[d] /= sum + sink;
    result.size[d] /= sum + sink;
  }
  return result;
}

void NaiveCache::add(kvc_seq seq) {
  NaiveSequence& sequence = sequences_[seq];
  sequence.k.resize(layers_.size());
  sequence.v.resize(layers_.size());
}

void NaiveCache::fork(kvc_seq parent, kvc_seq child, int64_t length) {
  sequences_[child] = sequences_.at(parent);
  truncate(child, length);
}

void NaiveCache::truncate(kvc_seq seq, int64_t length) {
  for (auto* rows : {&sequences_.at(seq).k, &sequences_.at(seq).v}) {
    for (std::vector<Row>& layer : *rows) layer.resize(static_cast<size_t>(length));
  }
}

void NaiveCache::extend(kvc_seq seq, int64_t length) { truncate(seq, length); }

}  // namespace kvc::test
