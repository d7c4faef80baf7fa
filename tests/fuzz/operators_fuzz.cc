// Operators over pools and page tables of the host: hostile descriptions, and numbers inside index
// tensors that name pages, slots and rows which are not there. Claims: no byte is touched outside
// the memory that a description covers; a refused call writes nothing; what is as wanted is served.
#include <array>
#include <cmath>

#include "kvcache.h"
#include "tests/fuzz/tensor_box.h"

namespace kvc::fuzz {
namespace {

constexpr DLDataType kFloat32 = {kDLFloat, 32, 1};
constexpr DLDataType kInt32 = {kDLInt, 32, 1};
constexpr DLDataType kInt64 = {kDLInt, 64, 1};
constexpr int64_t kPages = 5, kPage = 4, kHeads = 2, kQueryHeads = 4, kDim = 4, kRank = 6,
                  kRope = 2;

class Operators {
 public:
  explicit Operators(Input& input) : input_(input), t_(input) {}

  void run() {
    type_ = kTypes[input_.choose(kTypes.size())];
    layout_ = input_.one_in(32) ? static_cast<kvc_op_layout>(input_.choose(6)) - 1
                                : static_cast<kvc_op_layout>(input_.choose(2));
    options_.struct_size = sizeof options_;
    if (input_.one_in(3)) options_.cpu_isa = KVC_CPU_ISA_SCALAR;
    switch (input_.choose(9)) {
      case 0: return append();
      case 1: return paged();
      case 2: return ragged();
      case 3: return mla();
      case 4: return merge();
      case 5: return gather();
      case 6: return copy();
      case 7: return rotate();
      default: break;
    }
    // What was added later shares the last choice, so that inputs of earlier findings stay theirs.
    switch (input_.choose(7)) {
      case 0: return quantise();
      case 1: return dequantise();
      case 2: return make_quantised(), append();
      case 3: return make_quantised(), paged();
      case 4: return make_quantised(), gather();
      case 5: return make_quantised(), copy();
      default: return linear();
    }
  }

 private:
  static constexpr std::array<DLDataType, 3> kTypes = {
      {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1}}};
  static constexpr std::array<DLDataType, 3> kCodes = {
      {{kDLInt, 8, 1}, {kDLFloat8_e4m3fn, 8, 1}, {kDLFloat8_e5m2, 8, 1}}};

  template <typename Call>
  void call(bool served, Call make) {
    ErrorBox err(input_);
    const kvc_status status = t_.run(err, make);
    if (served && is_usual_ && t_.are_as_wanted() && status != KVC_OK) {
      std::fprintf(stderr, "refused with status %d: %s\n", status, err.message());
      KVC_FUZZ_CHECK(status == KVC_OK);
    }
  }

  // Numbers as they should be, and now and then one that should not.
  template <typename Int>
  const DLTensor* indices(DLDataType type, std::vector<Int> numbers) {
    static constexpr std::array<int64_t, 12> kOdd = {
        -1, -2, 0, 1, 7, 8, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 1 << 20, 3};
    for (Int& number : numbers) {
      if (!input_.one_in(24)) continue;
      number = static_cast<Int>(kOdd[input_.choose(kOdd.size())]);
      is_usual_ = false;
    }
    DLTensor* tensor = t_.add({type, {static_cast<int64_t>(numbers.size())}});
    if (tensor != nullptr) t_.last().fill(numbers.data(), numbers.size() * sizeof(Int));
    return tensor;
  }

  const kvc_op_pool* pool(int64_t k_dim, int64_t v_dim) {
    pool_.struct_size = sizeof pool_;
    pool_.layout = layout_;
    const auto shape = [&](int64_t dim) -> std::vector<int64_t> {
      if (layout_ == KVC_OP_HND) return {kPages, kHeads, kPage, dim};
      if (layout_ == KVC_OP_NHD) return {kPages, kPage, kHeads, dim};
      return {kPages, kPage, dim};
    };
    pool_.k = t_.add({type_, shape(k_dim)});
    pool_.v = v_dim == 0 ? nullptr : t_.add({type_, shape(v_dim)});
    if (pool_.quant == KVC_QUANT_PER_TOKEN_HEAD) {
      std::vector<int64_t> rows = shape(1);
      rows.pop_back();
      pool_.k_scales = t_.add({kFloat32, rows});
      pool_.v_scales = v_dim == 0 ? nullptr : t_.add({kFloat32, rows});
    }
    return &pool_;
  }

  // The pools of the call have 8 bits.
  void make_quantised() {
    type_ = kCodes[input_.choose(kCodes.size())];
    pool_.quant = quant();
    if (pool_.quant != KVC_QUANT_PER_TENSOR && pool_.quant != KVC_QUANT_PER_TOKEN_HEAD)
      is_usual_ = false;
    if (pool_.quant == KVC_QUANT_PER_TENSOR) {
      static constexpr std::array<float, 6> kScales = {0, 0.5f, 2, -1, NAN, INFINITY};
      const uint64_t k = input_.choose(kScales.size()), v = input_.choose(kScales.size());
      pool_.k_scale = kScales[k], pool_.v_scale = kScales[v];
      if (k > 2 || v > 2) is_usual_ = false;
    }
  }

  // Sequences of 6 and 3 keys with 2 and 1 new rows, as either kind of table.
  const kvc_op_table* table(bool has_rows) {
    table_.struct_size = sizeof table_;
    table_.seq_lens = indices<int32_t>(kInt32, {6, 3});
    if (has_rows) table_.qo_indptr = indices<int32_t>(kInt32, {0, 2, 3});
    if (input_.one_in(2)) {
      table_.page_indptr = indices<int32_t>(kInt32, {0, 2, 3});
      table_.page_indices = indices<int32_t>(kInt32, {4, 1, 2});
    } else {
      std::array<int32_t, 4> block = {4, 1, 2, -1};
      if (input_.one_in(6)) {
        block[input_.choose(3)] = static_cast<int32_t>(input_.choose(12)) - 2;
        is_usual_ = false;
      }
      table_.block_table = t_.add({kInt32, {2, 2}});
      if (table_.block_table != nullptr) t_.last().fill(block.data(), sizeof block);
    }
    return &table_;
  }

  const kvc_op_opt* options(bool has_attention, bool has_rope, int64_t rows) {
    if (has_attention) {
      attention_.struct_size = sizeof attention_;
      attention_.scale = 0.5f;
      if (input_.one_in(8)) attention_.alibi_slopes = t_.add({kFloat32, {kQueryHeads}});
      if (input_.one_in(8)) attention_.bias = t_.add({kFloat32, {rows, 8}});
      if (input_.one_in(8)) {
        mutate(input_, &attention_, sizeof attention_,
               {offsetof(kvc_attn_opt, ext), offsetof(kvc_attn_opt, alibi_slopes) - sizeof(void*),
                offsetof(kvc_attn_opt, alibi_slopes), offsetof(kvc_attn_opt, bias),
                offsetof(kvc_attn_opt, spans)});
        attention_.struct_size = sizeof attention_;
        is_usual_ = false;
      }
      options_.attn = &attention_;
    }
    if (has_rope) {
      rope_.struct_size = sizeof rope_;
      rope_.mode = KVC_ROPE_ON_APPEND;
      if (input_.one_in(8)) {
        mutate(input_, &rope_, sizeof rope_,
               {offsetof(kvc_rope, freq_factors), offsetof(kvc_rope, long_freq_factors)});
        rope_.struct_size = sizeof rope_;
        is_usual_ = false;
      }
      options_.rope = &rope_;
      std::vector<int32_t> positions(static_cast<size_t>(rows));
      for (int32_t& position : positions) position = static_cast<int32_t>(input_.choose(8));
      options_.positions = indices<int32_t>(kInt32, positions);
    }
    return &options_;
  }

  void append() {
    const kvc_op_pool* to = pool(kDim, kDim);
    const kvc_op_opt* opt = options(false, input_.one_in(3), 3);
    const DLTensor* slots = indices<int64_t>(kInt64, {17, -1, 3});
    const DLTensor *k = t_.add({kFloat32, {3, kHeads, kDim}}),
                   *v = t_.add({kFloat32, {3, kHeads, kDim}});
    call(layout_ == KVC_OP_HND || layout_ == KVC_OP_NHD,
         [&](kvc_error* err) { return kvc_op_append(to, opt, slots, k, v, err); });
  }
  void paged() {
    const kvc_op_pool* from = pool(kDim, kDim);
    const kvc_op_table* rows = table(true);
    const kvc_op_opt* opt = options(true, input_.one_in(4), 3);
    const DLTensor* q = t_.add({kFloat32, {3, kQueryHeads, kDim}});
    DLTensor* out = t_.add({kFloat32, {3, kQueryHeads, kDim}});
    DLTensor* lse = input_.one_in(2) ? t_.add({kFloat32, {3, kQueryHeads}}) : nullptr;
    call(layout_ == KVC_OP_HND || layout_ == KVC_OP_NHD,
         [&](kvc_error* err) { return kvc_op_attention_paged(from, rows, opt, q, out, lse, err); });
  }
  void ragged() {
    const DLTensor *qo = indices<int32_t>(kInt32, {0, 2, 3}),
                   *kv = indices<int32_t>(kInt32, {0, 5, 8});
    const kvc_op_opt* opt = options(true, false, 3);
    const DLTensor *q = t_.add({kFloat32, {3, kQueryHeads, kDim}}),
                   *k = t_.add({type_, {8, kHeads, kDim}}), *v = t_.add({type_, {8, kHeads, kDim}});
    DLTensor* out = t_.add({kFloat32, {3, kQueryHeads, kDim}});
    DLTensor* lse = input_.one_in(2) ? t_.add({kFloat32, {3, kQueryHeads}}) : nullptr;
    call(false, [&](kvc_error* err) {
      return kvc_op_attention_ragged(qo, kv, opt, q, k, v, out, lse, err);
    });
  }
  void mla() {
    layout_ = KVC_OP_MLA;
    const kvc_op_pool* from = pool(kRank + kRope, 0);
    const kvc_op_table* rows = table(true);
    const kvc_op_opt* opt = options(true, false, 3);
    const DLTensor* q = t_.add({kFloat32, {3, kQueryHeads, kRank + kRope}});
    DLTensor* out = t_.add({kFloat32, {3, kQueryHeads, kRank}});
    const int32_t rank = input_.one_in(16) ? static_cast<int32_t>(input_.choose(20)) - 4 : kRank;
    call(rank == kRank, [&](kvc_error* err) {
      return kvc_op_mla_paged(from, rows, rank, opt, q, out, nullptr, err);
    });
  }
  void merge() {
    DLTensor *out = t_.add({kFloat32, {3, kQueryHeads, kDim}}),
             *lse = t_.add({kFloat32, {3, kQueryHeads}});
    const DLTensor *other = t_.add({kFloat32, {3, kQueryHeads, kDim}}),
                   *other_lse = t_.add({kFloat32, {3, kQueryHeads}});
    call(true,
         [&](kvc_error* err) { return kvc_op_merge(&options_, out, lse, other, other_lse, err); });
  }
  void gather() {
    const kvc_op_pool* from = pool(kDim, kDim);
    const kvc_op_table* rows = table(false);
    DLTensor *k = t_.add({kFloat32, {9, kHeads, kDim}}), *v = t_.add({kFloat32, {9, kHeads, kDim}});
    call(false, [&](kvc_error* err) { return kvc_op_gather(from, rows, &options_, k, v, err); });
  }
  void copy() {
    const kvc_op_pool* of = pool(kDim, kDim);
    std::array<int64_t, 4> pairs = {0, 3, 1, 4};
    if (input_.one_in(4)) {
      pairs[input_.choose(4)] = static_cast<int64_t>(input_.choose(12)) - 3;
      is_usual_ = false;
    }
    const DLTensor* tensor = t_.add({kInt64, {2, 2}});
    if (tensor != nullptr) t_.last().fill(pairs.data(), sizeof pairs);
    call(layout_ == KVC_OP_HND || layout_ == KVC_OP_NHD,
         [&](kvc_error* err) { return kvc_op_copy_pages(of, &options_, tensor, err); });
  }
  void rotate() {
    const kvc_op_opt* opt = options(false, true, 3);
    const DLTensor* x = t_.add({kFloat32, {3, kHeads, kDim}});
    DLTensor* out = t_.add({kFloat32, {3, kHeads, kDim}});
    call(true, [&](kvc_error* err) { return kvc_op_rotate(opt, x, out, err); });
  }
  // Scales of rows [3, kHeads]; or a scale of all that is one, or not even a number.
  kvc_quant quant() {
    return static_cast<kvc_quant>(input_.one_in(16) ? input_.choose(6) : 1 + input_.choose(2));
  }
  DLTensor* scales(kvc_quant quant) {
    if (quant == KVC_QUANT_PER_TOKEN_HEAD) return t_.add({kFloat32, {3, kHeads}});
    static constexpr std::array<float, 4> kOdd = {0, -1, NAN, INFINITY};
    const bool is_odd = input_.one_in(8);
    const float scale = is_odd ? kOdd[input_.choose(kOdd.size())] : 0.25f;
    if (is_odd) is_usual_ = false;
    DLTensor* tensor = t_.add({kFloat32, {1}});
    if (tensor != nullptr) t_.last().fill(&scale, sizeof scale);
    return tensor;
  }
  void quantise() {
    const kvc_quant kind = quant();
    const DLTensor* x = t_.add({type_, {3, kHeads, kDim}});
    DLTensor *out = t_.add({kCodes[input_.choose(kCodes.size())], {3, kHeads, kDim}}),
             *scale = scales(kind);
    uint64_t saturated = 0;
    call(kind == 1 || kind == 2, [&](kvc_error* err) {
      return kvc_op_quantize(&options_, kind, x, out, scale, &saturated, err);
    });
  }
  void dequantise() {
    const kvc_quant kind = quant();
    const DLTensor *x = t_.add({kCodes[input_.choose(kCodes.size())], {3, kHeads, kDim}}),
                   *scale = scales(kind);
    DLTensor* out = t_.add({type_, {3, kHeads, kDim}});
    call(kind == 1 || kind == 2,
         [&](kvc_error* err) { return kvc_op_dequantize(&options_, kind, x, scale, out, err); });
  }
  void linear() {
    const DLTensor* rows = input_.one_in(2) ? indices<int32_t>(kInt32, {0, 1, 3}) : nullptr;
    const int64_t tokens = rows != nullptr ? 3 : 2;
    DLTensor* states = t_.add({kFloat32, {2, 2, 3, 4}});
    const DLTensor *q = t_.add({kFloat32, {tokens, 2, 3}}), *k = t_.add({kFloat32, {tokens, 2, 3}}),
                   *v = t_.add({kFloat32, {tokens, 2, 4}}), *beta = t_.add({kFloat32, {tokens, 2}});
    DLTensor* out = t_.add({kFloat32, {tokens, 2, 4}});
    call(false, [&](kvc_error* err) {
      return kvc_op_linear_step(nullptr, &options_, rows, states, q, k, v, nullptr, beta, out, err);
    });
  }

  Input& input_;
  TensorSet t_;
  DLDataType type_{};
  kvc_op_layout layout_ = 0;
  kvc_op_pool pool_{};
  kvc_op_table table_{};
  kvc_op_opt options_{};
  kvc_attn_opt attention_{};
  kvc_rope rope_{};
  bool is_usual_ = true;
};

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvc::fuzz::Input input(data, size);
  while (!input.empty()) kvc::fuzz::Operators(input).run();
  return 0;
}
