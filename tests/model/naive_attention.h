// Attention by direct loops in double, to the letter of kvc_attn_opt. The caller lists the keys
// that a query sees.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/model/naive_rope.h"

namespace kvc::test {

// Options with the defaults resolved. Empty vectors: off.
struct NaiveOptions {
  double scale = 1;
  double soft_cap = 0;
  int64_t window = 0;
  std::vector<double> sinks;
  std::vector<double> alibi;
  std::vector<double> bias;  // [heads or 1][rows][columns]
  int64_t bias_heads = 0, bias_rows = 0, bias_columns = 0;
  struct Span {
    int64_t entry, begin, end;
  };
  std::vector<Span> spans;
};

// Shape of one attention: heads, elements of a K row's head and of a V row's head.
struct NaiveHeads {
  int q_heads = 1, kv_heads = 1, k_dim = 1, v_dim = 1;
  int v_stride =
      // Elements from one head of a V row to the next: larger than v_dim where V is part of the K
      // row
      1;
};

struct NaiveQuery {
  const double* q = nullptr;  // [k_dim] of one head, unrotated
  int head = 0;
  int64_t position = 0;
  int64_t row = 0;  // packed row, for the bias
  RopePosition rope, sink_rope;
};

struct NaiveKey {
  const Row* k = nullptr;  // as stored
  const Row* v = nullptr;
  int64_t position = 0;
  bool is_sink = false;  // the query turns by sink_rope for it
  RopePosition rope;     // ON_READ only
  int64_t token = 0;     // column of the bias
};

// One query head: `out` [v_dim], `size` [v_dim] = the same sum over |v|, the yardstick for rounding
// errors.
struct NaiveResult {
  std::vector<double> out;
  std::vector<double> size;
  double lse = 0;
  double largest_score = 0;  // in magnitude: float32 scores are off by a rounding of this
  // Largest scale * |q_d * k_d|_2: scores from a rounded q are off by about its relative rounding
  // of this.
  double score_noise = 0;
};

NaiveResult attend(const NaiveHeads& heads, const NaiveRope& rope,
                   const std::vector<NaiveKey>& keys, const NaiveQuery& query,
                   const NaiveOptions& options);

// Two parts over disjoint keys, weighted by their sums.
NaiveResult merged(const NaiveResult& a, const NaiveResult& b);

}  // namespace kvc::test
