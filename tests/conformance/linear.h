// Linear attention as scenarios state it: its inputs by formula, its outputs by the recurrence over a sequence's whole history.
#pragma once

#include "tests/conformance/schema.h"
#include "tests/conformance/tensor.h"
#include "tests/conformance/values.h"

namespace kvc::conformance {

struct Linear {
  Linear(const Json& json, int32_t layer, int64_t heads, int64_t k_dim, int64_t v_dim);

  int32_t layer;
  int64_t heads, heads_k, k_dim, v_dim;
  kvc_decay decay;
  bool delta, beta;
  double scale;  // as the call takes it: 0 is 1/sqrt(k_dim)
  bool skip;

  LinearToken token(int64_t id, int64_t head) const;
  // Outputs of `ids` after `history`; [head][token][v_dim], and the state after them.
  std::vector<std::vector<Vector>> run(const Ids& history, const Ids& ids,
                                       std::vector<std::vector<Vector>>& state) const;

  HostTensor q(const Ids& ids) const;
  HostTensor k(const Ids& ids) const;
  HostTensor v(const Ids& ids) const;
  HostTensor decay_tensor(const Ids& ids) const;
  HostTensor beta_tensor(const Ids& ids) const;
  HostTensor skip_tensor() const;
};

}  // namespace kvc::conformance
