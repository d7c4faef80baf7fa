// Checks of attention: what each new token sees, stated by a scenario, against the outputs of a call.
#pragma once

#include <deque>

#include "tests/conformance/session.h"

namespace kvc::conformance {

// One attention call, as the formulas take it.
struct Rows {
  int32_t q_layer = 0, key_layer = 0;  // numbers of the layers whose formulas make q, and K and V
  int32_t q_heads = 1, kv_heads = 1, k_dim = 4, v_dim = 4;
  bool v_is_k = false;  // V is the first v_dim elements of K
  Rope rope;
  Ids ids;  // of the rows
};

Rows rows_of_layer(const Session& session, int32_t layer);

// kvc_attn_opt of a step's "opt", whose tensors it owns, and the same for the reference.
class Options {
 public:
  Options(const Json& step, int32_t q_heads, DLDevice device = test::device());
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  const kvc_attn_opt* call() const { return given_ ? &call_ : nullptr; }
  Softmax softmax(int32_t head, int32_t k_dim) const;
  // What is added to the score of a key.
  double bias(int32_t head, size_t row, double query_position, double key_position) const;

 private:
  bool given_ = false;
  kvc_attn_opt call_{};
  std::vector<double> sinks_, alibi_;
  std::vector<std::vector<double>> bias_;
  std::deque<HostTensor> tensors_;
};

// One row more than there are tokens: padding, which no call may touch. It stays NaN.
HostTensor query_tensor(const Json& step, const Rows& rows);
HostTensor key_tensor(Kind kind, int32_t layer, const Ids& ids, int32_t heads, int32_t dim);
HostTensor value_tensor(const Rows& rows);
Partial output_tensors(const Rows& rows);

// `sees`: a template for all rows, one text per row, or an object of row numbers.
void check_rows(const Session& session, const Json& step, const Json& sees, const Rows& rows,
                const Options& options, const Partial& result);

// K of a token as a layer stores it (`rotated`), or the latent of an MLA layer.
Vector key_vector(const Rows& rows, int64_t id, int64_t head, const Vector& position, bool use_long);

}  // namespace kvc::conformance
