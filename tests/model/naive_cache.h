// The oracle for values: a dense cache in double precision. Per sequence and layer a vector of K rows and one of V rows; forking and
// popping copy vectors; attention follows the formulas of kvc_attn_opt to the letter.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kvcache.h"
#include "tests/model/host_tensor.h"

namespace kvc::test {

// Pair i at position p turns by p * inverse_frequency[i].
struct NaiveRope {
  bool interleaved = false;
  int rotary_dim = 0;  // 0: no rotation
  std::vector<double> inverse_frequency;
};

struct NaiveLayer {
  int q_heads = 1;
  int kv_heads = 1;
  int k_dim = 16;
  int v_dim = 16;
  Elem k_type = Elem::kF32;
  Elem v_type = Elem::kF32;
  NaiveRope rope;
};

using Row = std::vector<double>;  // [heads * dim] of one token

struct NaiveSequence {
  std::vector<std::vector<Row>> k, v;  // [layer][token]; a row that was never written is empty
};

// Options with the defaults resolved. Empty vectors: off.
struct NaiveOptions {
  double scale = 1;
  double soft_cap = 0;
  std::vector<double> sinks;
  std::vector<double> alibi;
  std::vector<double> bias;  // [heads or 1][rows][columns]
  int64_t bias_heads = 0, bias_rows = 0, bias_columns = 0;
};

// Attention of one query head over keys [0, keys): `out` [v_dim], `size` [v_dim] = the same sum over |v|, the yardstick for rounding errors.
struct NaiveResult {
  std::vector<double> out;
  std::vector<double> size;
  double lse = 0;
  double largest_score = 0;  // in magnitude: float32 scores are off by a rounding of this
  double score_noise =
      0;  // largest scale * |q_d * k_d|_2: scores from a rounded q are off by about its relative rounding of this
};

// x turned to position `position`, all heads of a row; not rounded.
Row rotated(const NaiveRope& rope, int dim, const Row& x, int64_t position);

// Keys [key_begin, key_end) of one sequence. `q` is one head, unrotated; `row` the packed row of the query (for the bias).
NaiveResult attend(const NaiveLayer& layer, const std::vector<Row>& k, const std::vector<Row>& v,
                   int64_t key_begin, int64_t key_end, const double* q, int head, int64_t position,
                   int64_t row, const NaiveOptions& options);

class NaiveCache {
 public:
  explicit NaiveCache(std::vector<NaiveLayer> layers) : layers_(std::move(layers)) {}

  const std::vector<NaiveLayer>& layers() const { return layers_; }
  void add(kvc_seq seq);
  void remove(kvc_seq seq) { sequences_.erase(seq); }
  void fork(kvc_seq parent, kvc_seq child, int64_t length);
  void truncate(kvc_seq seq, int64_t length);  // pop, and an abort
  void extend(kvc_seq seq, int64_t length);    // a begin: rows not written yet
  void clear() { sequences_.clear(); }
  NaiveSequence& at(kvc_seq seq) { return sequences_.at(seq); }

 private:
  std::vector<NaiveLayer> layers_;
  std::map<kvc_seq, NaiveSequence> sequences_;
};

}  // namespace kvc::test
