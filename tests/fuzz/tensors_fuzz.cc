// DLTensors of any shape, stride, offset, type and device through every call of a cache that takes
// some: appends, attention, gathers, debug access, states, positions. Claims: no byte is touched
// outside the memory that a description covers, none between its elements is written; a refused
// call writes nothing and leaves the cache as it was; what is as wanted is served.
#include <array>

#include "kvcache.h"
#include "tests/fuzz/cache_state.h"
#include "tests/fuzz/plan_shelf.h"
#include "tests/fuzz/tensor_box.h"

namespace kvc::fuzz {
namespace {

constexpr DLDataType kFloat32 = {kDLFloat, 32, 1};
constexpr DLDataType kInt32 = {kDLInt, 32, 1};
constexpr int64_t kHeads = 2, kQueryHeads = 4, kDim = 4, kValueDim = 6, kRank = 6, kRope = 2;
enum Layer { kFull, kWindowed, kMla, kStates, kNumLayers };

class Calls {
 public:
  Calls(Input& input, kvc_cache* cache, DLDataType type)
      : input_(input), cache_(cache), type_(type) {}

  void run() {
    for (kvc_seq seq = 0; seq < 2; ++seq)
      KVC_FUZZ_CHECK(kvc_seq_add(cache_, seq, nullptr) == KVC_OK);
    for (int round = 0; round < 3; ++round) {
      begin();
      for (int i = 0; i < 6 && !input_.empty(); ++i) in_forward();
      KVC_FUZZ_CHECK(kvc_forward_abort(fwd_, nullptr) == KVC_OK);
      begin();
      fill();
      KVC_FUZZ_CHECK(kvc_forward_end(fwd_, nullptr) == KVC_OK);
      fwd_ = nullptr;
      length_ += lengths_[0];
      for (int i = 0; i < 4 && !input_.empty(); ++i) between_forwards();
      KVC_FUZZ_CHECK(kvc_cache_check(cache_, nullptr) == KVC_OK);
    }
  }

 private:
  void begin() {
    const std::array<kvc_seq, 2> seqs = {0, 1};
    lengths_ = {static_cast<int64_t>(1 + input_.choose(5)),
                static_cast<int64_t>(1 + input_.choose(3))};
    tokens_ = lengths_[0] + lengths_[1];
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 2;
    desc.seqs = seqs.data();
    desc.append_lengths = lengths_.data();
    KVC_FUZZ_CHECK(kvc_forward_begin(cache_, &desc, &fwd_, nullptr) == KVC_OK);
  }

  // A whole forward as anybody would write it.
  void fill() {
    std::vector<float> rows(static_cast<size_t>(tokens_ * kHeads * (kRank + kRope)), 0.25f);
    const auto plain = [&](std::array<int64_t, 3>& shape, DLDataType type) {
      return DLTensor{rows.data(), {kDLCPU, 0}, 3, type, shape.data(), nullptr, 0};
    };
    std::array<int64_t, 3> k_shape = {tokens_, kHeads, kDim},
                           v_shape = {tokens_, kHeads, kValueDim},
                           latent_shape = {tokens_, 1, kRank + kRope};
    const DLTensor k = plain(k_shape, kFloat32), v = plain(v_shape, kFloat32),
                   latent = plain(latent_shape, kFloat32);
    KVC_FUZZ_CHECK(kvc_kv_append(fwd_, kFull, &k, &v, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_kv_append(fwd_, kWindowed, &k, &v, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_mla_append(fwd_, kMla, &latent, nullptr) == KVC_OK);
  }

  int32_t layer(int32_t usual) {
    return input_.one_in(16) ? static_cast<int32_t>(input_.choose(8)) - 2 : usual;
  }
  int32_t kv_layer() { return layer(input_.one_in(2) ? kFull : kWindowed); }

  // `served`: a call whose arguments are all as wanted has to succeed.
  template <typename Call>
  void call(TensorSet& tensors, bool served, Call make) {
    const CacheState before = state_of(cache_);
    ErrorBox err(input_);
    const kvc_status status = tensors.run(err, make);
    KVC_FUZZ_CHECK(status == KVC_OK || state_of(cache_) == before);
    if (served && tensors.are_as_wanted() && status != KVC_OK) {
      std::fprintf(stderr, "refused with status %d: %s\n", status, err.message());
      KVC_FUZZ_CHECK(status == KVC_OK);
    }
  }

  void in_forward() {
    TensorSet t(input_);
    const Wanted q = {kFloat32, {tokens_, kQueryHeads, kDim}},
                 k = {kFloat32, {tokens_, kHeads, kDim}},
                 v = {kFloat32, {tokens_, kHeads, kValueDim}},
                 out = {kFloat32, {tokens_, kQueryHeads, kValueDim}},
                 lse = {kFloat32, {tokens_, kQueryHeads}};
    switch (input_.choose(12)) {
      case 0:
      case 1: {
        const DLTensor *tk = t.add(k), *tv = t.add(v);
        const int32_t id = kv_layer();
        return call(t, id == kFull || id == kWindowed,
                    [&](kvc_error* err) { return kvc_kv_append(fwd_, id, tk, tv, err); });
      }
      case 2: {
        const DLTensor* latent = t.add({kFloat32, {tokens_, 1, kRank + kRope}});
        const int32_t id = layer(kMla);
        return call(t, id == kMla,
                    [&](kvc_error* err) { return kvc_mla_append(fwd_, id, latent, err); });
      }
      case 3:
      case 4: {
        Options options(input_, t, tokens_, length_ + 8);
        const DLTensor *tq = t.add(q), *tk = t.add(k), *tv = t.add(v);
        DLTensor *to = t.add(out), *tl = input_.one_in(2) ? t.add(lse) : nullptr;
        const int32_t id = kv_layer();
        return call(t, (id == kFull || id == kWindowed) && options.are_usual(),
                    [&](kvc_error* err) {
                      return kvc_attn(fwd_, id, options.get(), tq, tk, tv, to, tl, err);
                    });
      }
      case 5: {
        const DLTensor *tq = t.add(q), *tk = t.add(k), *tv = t.add(v);
        DLTensor *to = t.add(out), *tl = input_.one_in(2) ? t.add(lse) : nullptr;
        const int32_t id = kv_layer();
        return call(t, id == kFull || id == kWindowed, [&](kvc_error* err) {
          return kvc_attn_self(fwd_, id, nullptr, tq, tk, tv, to, tl, err);
        });
      }
      case 6: {
        const DLTensor* tq = t.add(q);
        DLTensor *to = t.add(out), *tl = t.add(lse);
        const int32_t id = kv_layer();
        return call(t, false, [&](kvc_error* err) {
          return kvc_attn_cached(fwd_, id, nullptr, tq, to, tl, err);
        });
      }
      case 7: {
        DLTensor *to = t.add(out), *tl = t.add(lse);
        const DLTensor *other = t.add(out), *other_lse = t.add(lse);
        return call(t, true, [&](kvc_error* err) {
          return kvc_attn_merge(fwd_, to, tl, other, other_lse, err);
        });
      }
      case 8: {
        DLTensor* positions = t.add({kInt32, {tokens_}});
        return call(t, true,
                    [&](kvc_error* err) { return kvc_forward_positions(fwd_, positions, err); });
      }
      case 9: {
        const DLTensor* qkv = t.add({kFloat32, {tokens_, kQueryHeads + 2 * kHeads, kDim}});
        DLTensor* to = t.add(out);
        const int32_t id = kv_layer();
        return call(t, false, [&](kvc_error* err) {
          return kvc_attn_fused_qkv(fwd_, id, nullptr, qkv, to, err);
        });
      }
      case 10: return state(t);
      default: return mla(t);
    }
  }

  void mla(TensorSet& t) {
    Options options(input_, t, tokens_, length_ + 8);
    options.set_scale(0.5f);
    const DLTensor *tq = t.add({kFloat32, {tokens_, kQueryHeads, kRank + kRope}}),
                   *latent = t.add({kFloat32, {tokens_, 1, kRank + kRope}});
    DLTensor* to = t.add({kFloat32, {tokens_, kQueryHeads, kRank}});
    call(t, options.are_usual(), [&](kvc_error* err) {
      return kvc_attn(fwd_, kMla, options.get(), tq, latent, nullptr, to, nullptr, err);
    });
  }

  void state(TensorSet& t) {
    switch (input_.choose(4)) {
      case 0: {
        DLTensor* to = t.add({kFloat32, {2, 2, 3, 4}});
        const int32_t id = layer(kStates);
        return call(t, id == kStates,
                    [&](kvc_error* err) { return kvc_state_get(fwd_, id, 0, to, err); });
      }
      case 1: {
        const DLTensor* value = t.add({kFloat32, {2, 2, 3, 4}});
        const int32_t id = layer(kStates);
        return call(t, id == kStates,
                    [&](kvc_error* err) { return kvc_state_set(fwd_, id, 0, value, err); });
      }
      case 2: {
        const DLTensor *tq = t.add({kFloat32, {tokens_, 2, 3}}),
                       *tk = t.add({kFloat32, {tokens_, 2, 3}}),
                       *tv = t.add({kFloat32, {tokens_, 2, 4}}),
                       *beta = t.add({kFloat32, {tokens_, 2}});
        DLTensor* to = t.add({kFloat32, {tokens_, 2, 4}});
        return call(t, true, [&](kvc_error* err) {
          return kvc_attn_linear(fwd_, kStates, nullptr, tq, tk, tv, nullptr, beta, to, err);
        });
      }
      default: {
        const DLTensor *x = t.add({kFloat32, {tokens_, 5}}), *weight = t.add({kFloat32, {5, 4}}),
                       *bias = t.add({kFloat32, {5}});
        DLTensor* to = t.add({kFloat32, {tokens_, 5}});
        return call(t, true, [&](kvc_error* err) {
          return kvc_state_conv(fwd_, kStates, 1, x, weight, bias, KVC_ACTIVATION_SILU, to, err);
        });
      }
    }
  }

  void between_forwards() {
    TensorSet t(input_);
    const kvc_seq seq = input_.one_in(16) ? 7 : 0;
    const auto begin = static_cast<int64_t>(input_.choose(static_cast<size_t>(length_)));
    const int64_t end =
        std::min<int64_t>(length_, begin + 1 + static_cast<int64_t>(input_.choose(4)));
    const int64_t count = end - begin;
    const int64_t b = input_.one_in(24) ? INT64_MIN : begin,
                  e = input_.one_in(24) ? INT64_MAX : end;
    // Stored types are computed from float32 where the calls convert: they take the stored ones.
    const Wanted k = {type_, {count, kHeads, kDim}}, v = {type_, {count, kHeads, kValueDim}};
    const bool is_usual = seq == 0 && b == begin && e == end;
    const int32_t full = layer(kFull), states = layer(kStates);
    switch (input_.choose(6)) {
      case 0: {
        DLTensor *tk = t.add(k), *tv = t.add(v);
        return call(t, is_usual && full == kFull, [&](kvc_error* err) {
          return kvc_debug_get_layer(cache_, seq, full, b, e, tk, tv, nullptr, err);
        });
      }
      case 1: {
        const DLTensor *tk = t.add(k), *tv = t.add(v);
        return call(t, is_usual && full == kFull, [&](kvc_error* err) {
          return kvc_debug_set_layer(cache_, seq, full, b, tk, tv, nullptr, err);
        });
      }
      case 2: {
        DLTensor* latent = t.add({type_, {kNumLayers, count, kRank + kRope}});
        return call(t, is_usual, [&](kvc_error* err) {
          return kvc_debug_get_mla(cache_, seq, b, e, latent, nullptr, err);
        });
      }
      case 3: {
        const DLTensor* latent = t.add({type_, {kNumLayers, count, kRank + kRope}});
        return call(t, is_usual, [&](kvc_error* err) {
          return kvc_debug_set_mla(cache_, seq, b, latent, nullptr, err);
        });
      }
      case 4: {
        DLTensor* value = t.add({kFloat32, {2, 3, 4}});
        return call(t, seq == 0 && states == kStates, [&](kvc_error* err) {
          return kvc_debug_get_state(cache_, seq, states, 0, value, nullptr, err);
        });
      }
      default: {
        const DLTensor* value = t.add({kFloat32, {2, 3, 4}});
        return call(t, seq == 0 && states == kStates, [&](kvc_error* err) {
          return kvc_debug_set_state(cache_, seq, states, 0, value, nullptr, err);
        });
      }
    }
  }

  // Options with tensors of their own.
  class Options {
   public:
    Options(Input& input, TensorSet& tensors, int64_t tokens, int64_t longest) {
      options_.struct_size = sizeof options_;
      if (!input.one_in(4)) return;
      is_usual_ = false;
      is_given_ = true;
      if (input.one_in(3)) options_.alibi_slopes = tensors.add({kFloat32, {kQueryHeads}});
      if (input.one_in(3)) options_.bias = tensors.add({kFloat32, {tokens, longest + tokens}});
      if (input.one_in(3)) {
        options_.spans = tensors.add({kInt32, {2, 3}});
        if (options_.spans != nullptr) {
          std::array<int32_t, 6> spans{};
          for (int32_t& number : spans) number = static_cast<int32_t>(input.choose(12)) - 1;
          tensors.last().fill(spans.data(), sizeof spans);
        }
      }
      if (input.one_in(4)) {
        mutate(input, &options_, sizeof options_,
               {offsetof(kvc_attn_opt, ext), offsetof(kvc_attn_opt, alibi_slopes) - sizeof(void*),
                offsetof(kvc_attn_opt, alibi_slopes), offsetof(kvc_attn_opt, bias),
                offsetof(kvc_attn_opt, spans)});
        options_.struct_size = sizeof options_;
      }
    }
    void set_scale(float scale) {
      options_.scale = scale;
      is_given_ = true;
    }
    const kvc_attn_opt* get() const { return is_given_ ? &options_ : nullptr; }
    bool are_usual() const { return is_usual_; }

   private:
    kvc_attn_opt options_{};
    bool is_given_ = false, is_usual_ = true;
  };

  Input& input_;
  kvc_cache* cache_;
  DLDataType type_;
  kvc_forward* fwd_ = nullptr;
  std::array<int64_t, 2> lengths_{};
  int64_t tokens_ = 0, length_ = 0;
};

void run(Input& input) {
  static constexpr std::array<DLDataType, 3> kTypes = {
      {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1}}};
  const size_t which = input.choose(kTypes.size()), is_scalar = input.choose(2),
               page_first = input.choose(2);
  const DLDataType type = kTypes[which];
  std::array<kvc_layer, kNumLayers> layers{};
  for (kvc_layer& layer : layers) {
    layer.struct_size = sizeof layer;
    layer.num_q_heads = kQueryHeads;
    layer.num_kv_heads = kHeads;
    layer.k_dim = kDim;
    layer.v_dim = kValueDim;
    layer.k_dtype = type;
  }
  layers[kWindowed].window = 5;
  layers[kMla] = {};
  layers[kMla].struct_size = sizeof layers[kMla];
  layers[kMla].kind = KVC_LAYER_MLA;
  layers[kMla].num_q_heads = kQueryHeads;
  layers[kMla].latent_rank = kRank;
  layers[kMla].latent_rope_dim = kRope;
  layers[kMla].k_dtype = type;
  static constexpr std::array<int64_t, 3> kLinear = {2, 3, 4};
  static constexpr std::array<int64_t, 2> kConv = {5, 3};
  std::array<kvc_state_spec, 2> states{};
  for (kvc_state_spec& state : states) state.struct_size = sizeof state;
  states[0].ndim = 3;
  states[0].shape = kLinear.data();
  states[1].ndim = 2;
  states[1].shape = kConv.data();
  layers[kStates] = {};
  layers[kStates].struct_size = sizeof layers[kStates];
  layers[kStates].kind = KVC_LAYER_STATE;
  layers[kStates].states = states.data();
  layers[kStates].num_states = 2;
  kvc_config config{};
  config.struct_size = sizeof config;
  config.page_size = 4;
  config.num_layers = kNumLayers;
  config.layers = layers.data();
  config.num_pages = 64;
  config.num_threads = 1;
  if (is_scalar) config.cpu_isa = KVC_CPU_ISA_SCALAR;
  if (page_first) config.pool_layout = KVC_POOL_PAGE_FIRST;
  static PlanShelf shelf;
  const kvc_plan* plan = shelf.get(which * 4 + is_scalar * 2 + page_first, config);
  kvc_cache* cache = nullptr;
  KVC_FUZZ_CHECK(plan != nullptr && kvc_cache_create(plan, &cache, nullptr) == KVC_OK);
  Calls(input, cache, type).run();
  kvc_cache_destroy(cache);
}

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvc::fuzz::Input input(data, size);
  kvc::fuzz::run(input);
  return 0;
}
