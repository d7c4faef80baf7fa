// Random windows, sinks, spans, token trees, dropped pages, moved positions and rotated keys on top
// of a random attention problem; and the same attention written down once more, as plainly as
// possible, to check the reference kernels themselves.
#pragma once

#include "kernels_support.h"

namespace kvc::kernels::test {

// Owns what it adds to the sequences of a problem. NaN lies in every key that no row sees, pages of
// such keys are dropped.
class Visibility {
 public:
  struct Kinds {
    bool rotated_keys = true;
    bool positions = true;  // of rows and keys out of line
    bool row_map = true;
    double tree = 0.4;  // chance of one
  };

  Visibility(AttnProblem& problem, const Kinds& kinds)
      : problem_(problem), random_(problem.random) {
    rows_.resize(problem.sequences.size());
    if (kinds.rotated_keys && random_.chance(0.5)) add_key_rotations();
    for (int32_t s = 0; s < problem.num_sequences(); ++s) {
      add_window(s);
      if (random_.chance(kinds.tree)) add_tree(s);
      if (kinds.positions && random_.chance(0.4)) add_positions(s);
      if (kinds.row_map && random_.chance(0.4)) add_row_map(s);
      sequence(s).k_rotation_index = random_.between(0, 1);
      hide(s);
    }
  }

  static bool sees(const AttnProblem& problem, int32_t s, int64_t row, int64_t key) {
    const AttnSequence& sequence = problem.sequences[static_cast<size_t>(s)];
    const int64_t causal_end = sequence.first_key_end + (problem.params.causal != 0 ? row : 0);
    if (key >= (sequence.key_ends != nullptr ? sequence.key_ends[row] : causal_end)) return false;
    const bool window = sequence.key_begins == nullptr || key >= sequence.key_begins[row];
    if (!window && key >= sequence.sink_end) return false;
    if (sequence.tree_mask == nullptr || key < sequence.tree_begin) return true;
    const int64_t bit = (row * sequence.tree_words) * 64 + key - sequence.tree_begin;
    return (sequence.tree_mask[bit / 64] & uint64_t{1} << bit % 64) != 0;
  }

 private:
  struct Arrays {
    std::vector<int32_t> begins, ends, map, row_positions, key_positions, pages;
    std::vector<uint64_t> tree;
  };

  AttnSequence& sequence(int32_t s) { return problem_.sequences[static_cast<size_t>(s)]; }
  Arrays& arrays(int32_t s) { return rows_[static_cast<size_t>(s)]; }

  int64_t end_of(int32_t s, int64_t row) {
    return arrays(s).ends.empty()
               ? sequence(s).first_key_end + (problem_.params.causal != 0 ? row : 0)
               : arrays(s).ends[static_cast<size_t>(row)];
  }

  void add_window(int32_t s) {
    AttnSequence& target = sequence(s);
    Arrays& own = arrays(s);
    if (random_.chance(0.3)) {  // spans: some rows see as far as a later one
      int64_t end = 0;
      for (int64_t row = 0; row < target.num_rows; ++row) {
        end = std::max(
            end, std::min(problem_.max_keys(s), end_of_causal(s, row) + random_.between(0, 9)));
        own.ends.push_back(static_cast<int32_t>(end));
      }
      target.key_ends = own.ends.data();
    }
    if (random_.chance(0.3)) return;
    const int64_t window = random_.pick<int64_t>({1, 3, 16, 40, 100, 1000});
    const int64_t kind = random_.between(0, 2);
    for (int64_t row = 0; row < target.num_rows; ++row) {
      const int64_t end = end_of(s, row);
      int64_t begin = end - window;                                     // a window
      if (kind == 1) begin = (end - 1) / window * window;               // a chunk
      if (kind == 2) begin = random_.between(0, problem_.max_keys(s));  // anything, in any order
      own.begins.push_back(static_cast<int32_t>(std::max<int64_t>(begin, 0)));
    }
    target.key_begins = own.begins.data();
    target.sink_end = random_.pick<int64_t>({0, 0, 4, 17, 80});
  }

  int64_t end_of_causal(int32_t s, int64_t row) {
    return sequence(s).first_key_end + (problem_.params.causal != 0 ? row : 0);
  }

  // Rows are the newest nodes of a random tree: a row sees itself and its ancestors.
  void add_tree(int32_t s) {
    AttnSequence& target = sequence(s);
    const int64_t keys = problem_.max_keys(s);
    if (problem_.params.causal == 0 || target.key_ends != nullptr || target.first_key_end == 0)
      return;
    target.tree_begin = random_.between(0, keys - target.num_rows);
    const int64_t nodes = keys - target.tree_begin;
    target.tree_words = (nodes + 63) / 64;
    std::vector<int64_t> parents;
    for (int64_t node = 0; node < nodes; ++node) parents.push_back(random_.between(-1, node - 1));
    Arrays& own = arrays(s);
    own.tree.resize(static_cast<size_t>(target.num_rows * target.tree_words), 0);
    for (int64_t row = 0; row < target.num_rows; ++row) {
      uint64_t* words = own.tree.data() + row * target.tree_words;
      for (int64_t node = nodes - target.num_rows + row; node >= 0;
           node = parents[static_cast<size_t>(node)])
        words[node / 64] |= uint64_t{1} << node % 64;
      for (int64_t node = nodes - target.num_rows + row + 1; node < nodes; ++node)
        // Beyond the row's end: of no matter
        words[node / 64] |= uint64_t{random_.chance(0.5)} << node % 64;
    }
    target.tree_mask = own.tree.data();
  }

  void add_positions(int32_t s) {
    AttnSequence& target = sequence(s);
    Arrays& own = arrays(s);
    for (int64_t row = 0; row < target.num_rows; ++row)
      own.row_positions.push_back(static_cast<int32_t>(random_.between(0, 900)));
    target.row_positions = own.row_positions.data();
    const int64_t limit =
        problem_.params.bias != nullptr ? problem_.params.bias_token_stride : kPositions;
    for (int64_t key = 0; key < problem_.max_keys(s); ++key)
      own.key_positions.push_back(
          static_cast<int32_t>(random_.between(0, std::min(limit, kPositions) - 1)));
    target.key_positions = own.key_positions.data();
  }

  void add_row_map(int32_t s) {
    AttnSequence& target = sequence(s);
    std::vector<int32_t>& map = arrays(s).map;
    for (int64_t row = 0; row < target.num_rows; ++row)
      map.push_back(static_cast<int32_t>(target.row_begin + row));
    std::shuffle(map.begin(), map.end(), random_.engine());
    target.row_map = map.data();
    target.row_begin = -1000000;
  }

  void add_key_rotations() {
    for (int i = 0; i < 2; ++i) {
      key_rotations_[i] = RotationOwner(random_, kPositions, problem_.params.k_dim);
      problem_.params.k_rotations[i] = key_rotations_[i].rotation;
    }
  }

  void hide(int32_t s) {
    const AttnParams& params = problem_.params;
    Arrays& own = arrays(s);
    own.pages = problem_.page_tables[static_cast<size_t>(s)];
    std::vector<char> kept(own.pages.size(), 0);
    std::vector<char> seen(static_cast<size_t>(problem_.max_keys(s)), 0);
    for (int64_t key = 0; key < problem_.max_keys(s); ++key) {
      for (int64_t row = 0; row < sequence(s).num_rows && seen[static_cast<size_t>(key)] == 0;
           ++row)
        seen[static_cast<size_t>(key)] = sees(problem_, s, row, key) ? 1 : 0;
      kept[static_cast<size_t>(key / params.page_size)] |= seen[static_cast<size_t>(key)];
    }
    for (int64_t key = 0; key < problem_.max_keys(s); ++key) {
      if (seen[static_cast<size_t>(key)] != 0) continue;
      const int32_t page = own.pages[static_cast<size_t>(key / params.page_size)];
      for (int64_t head = 0; head < params.num_kv_heads; ++head) {
        const auto poison = [](int64_t) { return NAN; };
        store_row(params.k, page, head, key % params.page_size, params.k_dim, poison);
        store_row(params.v, page, head, key % params.page_size, params.v_dim, poison);
      }
      if (!own.key_positions.empty()) own.key_positions[static_cast<size_t>(key)] = INT32_MIN / 2;
    }
    for (size_t page = 0; page < own.pages.size(); ++page) {
      if (kept[page] == 0) own.pages[page] = -1;
    }
    sequence(s).pages = own.pages.data();
  }

  static constexpr int64_t kPositions = 2000;

  AttnProblem& problem_;
  Random& random_;
  std::vector<Arrays> rows_;
  RotationOwner key_rotations_[2];
};

struct NaiveResult {
  std::vector<double> out, lse;  // [tokens][q heads][v_dim], [tokens][q heads]
};

// x turned by row `angles` of a rotation, in double.
inline std::vector<double> naive_rotated(std::vector<double> x, const Rotation& rotation,
                                         int64_t angles) {
  const int64_t half = rotation.rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const size_t first =
        static_cast<size_t>(rotation.begin + (rotation.interleaved != 0 ? 2 * i : i));
    const size_t second = first + static_cast<size_t>(rotation.interleaved != 0 ? 1 : half);
    const double cos = rotation.cos[angles * half + i], sin = rotation.sin[angles * half + i];
    const double a = x[first], b = x[second];
    x[first] = a * cos - b * sin, x[second] = a * sin + b * cos;
  }
  return x;
}

inline std::vector<double> naive_elements(const std::byte* row, DType dtype, int64_t dim,
                                          double scale = 1) {
  std::vector<double> values;
  for (int64_t d = 0; d < dim; ++d)
    values.push_back(scale * reference::read_element(row, dtype, d));
  return values;
}

// K, as rotated as attention wants it, and V of one sequence and kv head; read when a row first
// sees them.
struct NaiveKeys {
  const AttnParams& params;
  const AttnSequence& sequence;
  int64_t kv_head;
  std::vector<std::vector<double>> k, v;

  int64_t position(int64_t key) const {
    return sequence.key_positions != nullptr ? sequence.key_positions[key]
                                             : sequence.key_position + key;
  }
  void read(int64_t key) {
    const auto index = static_cast<size_t>(key);
    if (index >= k.size()) k.resize(index + 1), v.resize(index + 1);
    if (!k[index].empty()) return;
    const int32_t page = sequence.pages[key / params.page_size];
    const int64_t slot = key % params.page_size;
    const std::byte* k_row = row_address(params.k, page, kv_head, slot);
    k[index] = naive_rotated(naive_elements(k_row, params.k.dtype, params.k_dim,
                                            row_scale(params.k, page, kv_head, slot)),
                             params.k_rotations[sequence.k_rotation_index], position(key));
    v[index] = naive_elements(row_address(params.v, page, kv_head, slot), params.v.dtype,
                              params.v_dim, row_scale(params.v, page, kv_head, slot));
  }
};

// One query head of one row. Keys below sink_q_end, and with `turns_sinks` those below sink_end,
// meet queries turned by sink_q_rotation.
inline void naive_row(AttnProblem& problem, int32_t s, int64_t row, int64_t head, bool turns_sinks,
                      NaiveKeys& keys, NaiveResult* result) {
  const AttnParams& params = problem.params;
  const AttnSequence& sequence = keys.sequence;
  const int64_t token =
      sequence.row_map != nullptr ? sequence.row_map[row] : sequence.row_begin + row;
  const int64_t at =
      sequence.row_positions != nullptr ? sequence.row_positions[row] : sequence.position + row;
  const std::vector<double> q =
      naive_elements(problem.q.row(token, head), params.q.dtype, params.k_dim);
  const std::vector<double> turned[2] = {naive_rotated(q, params.q_rotation, token),
                                         naive_rotated(q, params.sink_q_rotation, token)};
  double sum = 0, top = -std::numeric_limits<double>::infinity();
  std::vector<double> acc(static_cast<size_t>(params.v_dim), 0.0);
  std::vector<std::pair<size_t, double>> scores;
  for (int64_t key = 0; key < problem.max_keys(s); ++key) {
    if (!Visibility::sees(problem, s, row, key)) continue;
    keys.read(key);
    const bool turns = key < sequence.sink_q_end || (turns_sinks && key < sequence.sink_end);
    const std::vector<double>& with = turned[turns ? 1 : 0];
    const std::vector<double>& k = keys.k[static_cast<size_t>(key)];
    double score = 0;
    for (size_t d = 0; d < k.size(); ++d) score += with[d] * k[d];
    score *= params.q_scale;
    if (params.softcap != 0) score = params.softcap * std::tanh(score);
    if (params.alibi != nullptr)
      score -= params.alibi[head] * static_cast<double>(at - keys.position(key));
    if (params.bias != nullptr) {
      score += 1.4426950408889634 *
               params.bias[head * params.bias_head_stride + token * params.bias_token_stride +
                           sequence.key_position + key];
    }
    scores.push_back({static_cast<size_t>(key), score}), top = std::max(top, score);
  }
  for (const auto& [key, score] : scores) {
    const double weight = std::exp2(score - top);
    sum += weight;
    for (size_t d = 0; d < acc.size(); ++d) acc[d] += weight * keys.v[key][d];
  }
  const size_t index = static_cast<size_t>(token * params.num_q_heads + head);
  result->lse[index] = scores.empty() ? -std::numeric_limits<double>::infinity()
                                      : (top + std::log2(sum)) * 0.6931471805599453;
  const double sink = params.sinks != nullptr ? std::exp2(params.sinks[head] - top) : 0.0;
  for (size_t d = 0; d < acc.size(); ++d)
    result->out[index * acc.size() + d] = scores.empty() ? 0.0 : acc[d] / (sum + sink);
}

inline NaiveResult naive_attention(AttnProblem& problem, bool turns_sinks = false) {
  const AttnParams& params = problem.params;
  NaiveResult result;
  result.out.resize(static_cast<size_t>(problem.tokens * params.num_q_heads * params.v_dim));
  result.lse.resize(static_cast<size_t>(problem.tokens * params.num_q_heads));
  const int64_t group = params.num_q_heads / params.num_kv_heads;
  for (int32_t s = 0; s < problem.num_sequences(); ++s) {
    const AttnSequence& sequence = problem.sequences[static_cast<size_t>(s)];
    for (int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      NaiveKeys keys{params, sequence, kv_head, {}, {}};
      for (int64_t row = 0; row < sequence.num_rows; ++row) {
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
          naive_row(problem, s, row, head, turns_sinks, keys, &result);
      }
    }
  }
  return result;
}

// The distance of the problem's outputs from the naive result, relative to its size; infinite where
// only one is NaN.
inline double distance_from(AttnProblem& problem, const NaiveResult& expected) {
  double difference = 0, size = 0;
  for (int64_t t = 0; t < problem.tokens; ++t) {
    for (int64_t h = 0; h < problem.params.num_q_heads; ++h) {
      const size_t index = static_cast<size_t>(t * problem.params.num_q_heads + h);
      const double lse = problem.lse_at(t, h), wanted = expected.lse[index];
      if (std::isinf(wanted) ? lse != wanted
                             : !(std::fabs(lse - wanted) < 1e-2 * std::max(1.0, std::fabs(wanted))))
        return std::numeric_limits<double>::infinity();
      for (int64_t d = 0; d < problem.params.v_dim; ++d) {
        const double a = problem.out.at(t, h, d),
                     e = expected.out[index * static_cast<size_t>(problem.params.v_dim) +
                                      static_cast<size_t>(d)];
        if (std::isnan(a)) return std::numeric_limits<double>::infinity();
        difference += (a - e) * (a - e), size += e * e;
      }
    }
  }
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

}  // namespace kvc::kernels::test
