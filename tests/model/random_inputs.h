// Tensors and options of attention calls in random runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/model/host_tensor.h"
#include "tests/model/random_run.h"

namespace kvc::test {

// q, k, v, out and lse of one call, with random places in memory; what the layer does not take is
// NULL.
struct RandomRun::Inputs {
  Inputs(Random& random, const NaiveHeads& heads, bool v_in_k, int64_t rows, int64_t kv_rows)
      : q(draw_activation(random), {rows, heads.q_heads, heads.k_dim},
          random_placement(random, Elem::kF32)),
        k(draw_activation(random), {kv_rows, heads.kv_heads, heads.k_dim},
          random_placement(random, Elem::kF32)),
        v(draw_activation(random), {kv_rows, heads.kv_heads, heads.v_dim},
          random_placement(random, Elem::kF32)),
        out(draw_activation(random), {rows, heads.q_heads, heads.v_dim},
            random_placement(random, Elem::kF32)),
        lse(Elem::kF32, {rows, heads.q_heads}, random_placement(random, Elem::kF32)),
        has_v(!v_in_k) {
    q.fill_random(random);
    k.fill_random(random);
    v.fill_random(random);
  }
  Inputs(Random& random, const NaiveLayer& layer, int64_t rows)
      : Inputs(random, layer.heads(), layer.v_in_k, rows, rows) {}
  DLTensor* v_dl() { return has_v ? v.dl() : nullptr; }

  HostTensor q, k, v, out, lse;
  bool has_v;
};

// kvc_attn_opt with its tensors, and the same for the oracle.
struct RandomRun::Options {
  kvc_attn_opt opt{};
  NaiveOptions naive;
  std::optional<HostTensor> sinks, alibi, bias, spans;
  const kvc_attn_opt* pointer = nullptr;  // NULL: defaults

  std::string describe() const {
    if (pointer == nullptr) return "";
    std::string text = ", options " + std::to_string(opt.flags);
    if (opt.scale != 0) text += " scale";
    if (opt.soft_cap != 0) text += " cap";
    if (opt.window != 0) text += " window " + std::to_string(opt.window);
    if (opt.sink_logits != nullptr) text += " sinks";
    if (opt.alibi_slopes != nullptr) text += " alibi";
    if (opt.bias != nullptr) text += " bias";
    if (opt.spans != nullptr) text += " spans";
    return text;
  }
};

// All heads of one token.
inline Row row_of(HostTensor& tensor, int64_t token, int64_t first_head, int64_t heads,
                  int64_t dim) {
  Row row;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t d = 0; d < dim; ++d) row.push_back(tensor.get(token, first_head + h, d));
  }
  return row;
}

inline Row rounded(Elem elem, Row row) {
  for (double& value : row) value = round_to(elem, value);
  return row;
}

}  // namespace kvc::test
