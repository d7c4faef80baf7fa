// The oracle for values: a dense cache in double precision. Per sequence and layer a vector of K
// rows and one of V rows, as the pool has to hold them; forking and popping copy vectors; no window
// ever drops anything. States are kept at every position that they had.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kvcache.h"
#include "tests/model/host_tensor.h"
#include "tests/model/naive_attention.h"
#include "tests/model/naive_quant.h"
#include "tests/model/naive_state.h"

namespace kvc::test {

struct NaiveLayer {
  kvc_layer_kind kind = KVC_LAYER_ATTENTION;
  int q_heads = 1;
  int kv_heads = 1;
  int k_dim = 16;  // of a stored row. MLA: rank + rope dim
  int v_dim = 16;  // MLA: rank
  Elem k_type = Elem::kF32;
  Elem v_type = Elem::kF32;
  // Quantised rows; the type above is unused.
  Code k_code = Code::kNone, v_code = Code::kNone;
  float k_shared = 0, v_shared = 0;  // PER_TENSOR: the scales.
  bool v_in_k = false;               // V is the beginning of the K row: MLA, K = V
  bool is_latent = false;  // MLA, or SHARED with an MLA source: attention in the absorbed form
  int64_t window = 0, chunk = 0;
  int source = -1;  // SHARED: local index
  int group = -1;
  int kept_group = -1;                 // -1: keep is 0, or SHARED.
  int self_k_dim = 0, self_v_dim = 0;  // MLA: of kvc_attn_self
  NaiveRope rope, self_rope;
  std::vector<NaiveState> states;

  int64_t keep = 0;  // Leading tokens that are stored in bfloat16 where the others are quantised.

  NaiveStorage k_storage() const { return {k_type, k_code, k_shared}; }
  NaiveStorage v_storage() const { return {v_type, v_code, v_shared}; }
  // Of the rows of one token.
  NaiveStorage k_storage(int64_t token) const { return of_token(k_storage(), token); }
  NaiveStorage v_storage(int64_t token) const { return of_token(v_storage(), token); }
  NaiveStorage of_token(const NaiveStorage& storage, int64_t token) const {
    if (token >= keep || storage.code == Code::kNone) return storage;
    return {Elem::kBF16, Code::kNone, 0};
  }
  bool is_quantised() const { return k_code != Code::kNone || v_code != Code::kNone; }
  bool has_tokens() const { return kind == KVC_LAYER_ATTENTION || kind == KVC_LAYER_MLA; }
  bool has_pages() const { return has_tokens() || kind == KVC_LAYER_CROSS; }
  NaiveHeads heads() const { return {q_heads, kv_heads, k_dim, v_dim, v_in_k ? k_dim : v_dim}; }
};

struct NaiveRows {
  std::vector<Row> k,
      // By token, nodes of a tree behind the committed ones; CROSS: by encoder token. Not written
      // yet: empty
      v;
};

using LayerStates = std::vector<std::vector<StateValue>>;  // [layer][state]

struct NaiveSequence {
  std::vector<NaiveRows> layers;
  std::map<int64_t, LayerStates> states;  // by position; 0 is the initial state
};

class NaiveCache {
 public:
  explicit NaiveCache(std::vector<NaiveLayer> layers) : layers_(std::move(layers)) {}

  const std::vector<NaiveLayer>& layers() const { return layers_; }
  void add(kvc_seq seq);
  void remove(kvc_seq seq) { sequences_.erase(seq); }
  void fork(kvc_seq parent, kvc_seq child, int64_t length);
  void truncate(kvc_seq seq, int64_t length);  // pop, and an abort
  void extend(kvc_seq seq, int64_t length);    // A begin: rows not written yet.
  void resize_cross(kvc_seq seq, int64_t length);
  void keep_path(kvc_seq seq, int64_t length, const std::vector<int32_t>& parents, int64_t leaf);
  void erase(kvc_seq seq, int64_t begin, int64_t end);
  void clear() { sequences_.clear(); }
  NaiveSequence& at(kvc_seq seq) { return sequences_.at(seq); }

 private:
  std::vector<NaiveLayer> layers_;
  std::map<kvc_seq, NaiveSequence> sequences_;
};

}  // namespace kvc::test
