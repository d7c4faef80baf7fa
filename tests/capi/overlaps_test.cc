// Outputs that have bytes in common with other tensors of their call.
#include "tests/capi/layers.h"
#include "tests/capi/ops_fixture.h"

namespace kvc::test {
namespace {

constexpr int64_t kRows = 3, kQHeads = 4, kKvHeads = 2;

// float32 inside somebody else's memory.
class View {
 public:
  View(float* data, std::vector<int64_t> shape, std::vector<int64_t> strides = {})
      : shape_(std::move(shape)), strides_(std::move(strides)) {
    tensor_ = {.data = data,
               .device = {kDLCPU, 0},
               .ndim = static_cast<int32_t>(shape_.size()),
               .dtype = {kDLFloat, 32, 1},
               .shape = shape_.data(),
               .strides = strides_.empty() ? nullptr : strides_.data(),
               .byte_offset = 0};
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  DLTensor* dl() { return &tensor_; }

 private:
  std::vector<int64_t> shape_, strides_;
  DLTensor tensor_{};
};

class Overlaps : public testing::Test {
 protected:
  Overlaps() {
    EXPECT_EQ(kvc_seq_add(cache_.get(), 1, nullptr), KVC_OK);
    EXPECT_EQ(cache_.begin({1}, {kRows}), KVC_OK);
  }
  ~Overlaps() override { cache_.abort(); }

  Call attn(DLTensor* q, DLTensor* k, DLTensor* v, DLTensor* out, DLTensor* lse = nullptr,
            const kvc_attn_opt* opt = nullptr) {
    return [=, this](kvc_error* err) {
      return kvc_attn(cache_.forward, 0, opt, q, k, v, out, lse, err);
    };
  }
  void refused(std::initializer_list<const char*> parts, const Call& call) {
    const std::vector<float> before = memory_;
    expect_refused(cache_, KVC_E_INVALID_ARGUMENT, parts, call);
    EXPECT_EQ(memory_, before) << "a refused call wrote";
  }
  float* at(int64_t element) { return memory_.data() + element; }

  Net net_{std::vector<kvc_layer>{[] {
    kvc_layer layer = attention_layer();
    layer.num_q_heads = kQHeads, layer.num_kv_heads = kKvHeads;
    layer.k_dim = layer.v_dim = kDim;
    layer.k_dtype = layer.v_dtype = {kDLFloat, 32, 1};
    return layer;
  }()}};
  Cache cache_{net_.config};
  std::vector<float> memory_ = std::vector<float>(1 << 14, 0.25f);
  View q_{at(0), {kRows, kQHeads, kDim}}, k_{at(1024), {kRows, kKvHeads, kDim}},
      v_{at(2048), {kRows, kKvHeads, kDim}}, out_{at(4096), {kRows, kQHeads, kDim}},
      lse_{at(8192), {kRows, kQHeads}};
};

TEST_F(Overlaps, AnOutputInTheMemoryOfAnInputIsRefusedByBothNames) {
  View on_k(at(1024), {kRows, kQHeads, kDim}), on_v(at(2048), {kRows, kQHeads, kDim});
  View lse_on_q(at(0), {kRows, kQHeads}), lse_on_out(at(4096), {kRows, kQHeads});
  refused({"out overlaps q"}, attn(q_.dl(), k_.dl(), v_.dl(), q_.dl()));
  refused({"out overlaps k"}, attn(q_.dl(), k_.dl(), v_.dl(), on_k.dl()));
  refused({"out overlaps v"}, attn(q_.dl(), k_.dl(), v_.dl(), on_v.dl()));
  refused({"lse overlaps q"}, attn(q_.dl(), k_.dl(), v_.dl(), out_.dl(), lse_on_q.dl()));
  refused({"out overlaps lse"}, attn(q_.dl(), k_.dl(), v_.dl(), out_.dl(), lse_on_out.dl()));
  kvc_attn_opt opt{};
  opt.struct_size = sizeof opt;
  View sinks(at(4096), {kQHeads}), bias(at(4100), {kRows, 16});
  opt.sink_logits = sinks.dl();
  refused({"out overlaps opt.sink_logits"},
          attn(q_.dl(), k_.dl(), v_.dl(), out_.dl(), nullptr, &opt));
  opt.sink_logits = nullptr, opt.bias = bias.dl();
  refused({"out overlaps opt.bias"}, attn(q_.dl(), k_.dl(), v_.dl(), out_.dl(), nullptr, &opt));
  expect_ok(attn(q_.dl(), k_.dl(), v_.dl(), out_.dl(), lse_.dl()));
}

TEST_F(Overlaps, OneElementInCommonIsEnough) {
  const int64_t q_elements = kRows * kQHeads * kDim;
  View behind(at(q_elements), {kRows, kQHeads, kDim}),
      on_the_last(at(q_elements - 1), {kRows, kQHeads, kDim});
  refused({"out overlaps q"}, attn(q_.dl(), k_.dl(), v_.dl(), on_the_last.dl()));
  expect_ok(attn(q_.dl(), k_.dl(), v_.dl(), behind.dl()));
}

TEST_F(Overlaps, SlicesOfOneBufferSideBySideAreServed) {
  // [T, q | k | v | out heads, dim], as fused projections leave it.
  const int64_t heads = 2 * kQHeads + 2 * kKvHeads, row = heads * kDim;
  const auto slice = [&](int64_t head, int64_t count) {
    return std::make_unique<View>(at(head * kDim), std::vector<int64_t>{kRows, count, kDim},
                                  std::vector<int64_t>{row, kDim, 1});
  };
  const auto q = slice(0, kQHeads), k = slice(kQHeads, kKvHeads),
             v = slice(kQHeads + kKvHeads, kKvHeads), out = slice(kQHeads + 2 * kKvHeads, kQHeads),
             shifted = slice(kQHeads + 2 * kKvHeads - 1, kQHeads);
  expect_ok(attn(q->dl(), k->dl(), v->dl(), out->dl()));
  refused({"out overlaps v"}, attn(q->dl(), k->dl(), v->dl(), shifted->dl()));
  // Rows of q and out by turns, and heads by turns.
  View even(at(0), {kRows, kQHeads, kDim}, {2 * kQHeads * kDim, kDim, 1}),
      odd(at(kQHeads * kDim), {kRows, kQHeads, kDim}, {2 * kQHeads * kDim, kDim, 1});
  expect_ok(attn(even.dl(), k_.dl(), v_.dl(), odd.dl()));
  View low(at(0), {kRows, kQHeads, kDim}, {2 * kQHeads * kDim, 2 * kDim, 1}),
      high(at(kDim), {kRows, kQHeads, kDim}, {2 * kQHeads * kDim, 2 * kDim, 1});
  expect_ok(attn(low.dl(), k_.dl(), v_.dl(), high.dl()));
  // Heads of q in planes, out in rows behind them.
  View planes(at(0), {kRows, kQHeads, kDim}, {kDim, kRows * kDim, 1});
  refused({"out overlaps q"}, attn(planes.dl(), k_.dl(), v_.dl(), q_.dl()));
}

TEST_F(Overlaps, PaddingRowsDoNotCount) {
  View padded(at(0), {kRows + 5, kQHeads, kDim}),
      behind(at(kRows * kQHeads * kDim), {kRows, kQHeads, kDim});
  expect_ok(attn(padded.dl(), k_.dl(), v_.dl(), behind.dl()));
}

TEST_F(Overlaps, EveryCallOfAForwardLooks) {
  ASSERT_EQ(kvc_kv_append(cache_.forward, 0, k_.dl(), v_.dl(), nullptr), KVC_OK);
  View qkv(at(0), {kRows, kQHeads + 2 * kKvHeads, kDim});
  refused({"out overlaps qkv"}, [&](kvc_error* err) {
    return kvc_attn_fused_qkv(cache_.forward, 0, nullptr, qkv.dl(), q_.dl(), err);
  });
  refused({"out overlaps q"}, [&](kvc_error* err) {
    return kvc_attn_self(cache_.forward, 0, nullptr, q_.dl(), k_.dl(), v_.dl(), q_.dl(), nullptr,
                         err);
  });
  refused({"out overlaps q"}, [&](kvc_error* err) {
    return kvc_attn_cached(cache_.forward, 0, nullptr, q_.dl(), q_.dl(), nullptr, err);
  });
  refused({"out overlaps q"}, [&](kvc_error* err) {
    return kvc_attn_shared_kv(cache_.forward, 0, nullptr, q_.dl(), q_.dl(), nullptr, err);
  });
  refused({"out overlaps other_out"}, [&](kvc_error* err) {
    return kvc_attn_merge(cache_.forward, out_.dl(), lse_.dl(), out_.dl(), lse_.dl(), err);
  });
  refused({"k_out overlaps v_out"}, [&](kvc_error* err) {
    return kvc_kv_gather(cache_.forward, 0, 1, k_.dl(), k_.dl(), err);
  });
}

TEST_F(Overlaps, DebuggingWritesTwoTensorsApart) {
  ASSERT_EQ(kvc_kv_append(cache_.forward, 0, k_.dl(), v_.dl(), nullptr), KVC_OK);
  cache_.end();
  View all_k(at(0), {1, kRows, kKvHeads, kDim}),
      all_v(at(kRows * kKvHeads * kDim - 1), {1, kRows, kKvHeads, kDim});
  refused({"k overlaps v"}, [&](kvc_error* err) {
    return kvc_debug_get_kv(cache_.get(), 1, 0, kRows, all_k.dl(), all_v.dl(), nullptr, err);
  });
  refused({"k overlaps v"}, [&](kvc_error* err) {
    return kvc_debug_get_layer(cache_.get(), 1, 0, 0, kRows, k_.dl(), k_.dl(), nullptr, err);
  });
  ASSERT_EQ(cache_.begin({1}, {kRows}), KVC_OK);
}

TEST(OverlapsOfOperators, AreRefusedAlike) {
  std::vector<float> memory(1 << 12, 0.25f);
  View q(memory.data(), {3, 4, 8}), k(memory.data() + 512, {3, 2, 8}),
      v(memory.data() + 768, {3, 2, 8}), out(memory.data() + 1024, {3, 4, 8}),
      lse(memory.data() + 2048, {3, 4}), other_lse(memory.data() + 2060, {3, 4}),
      wide(memory.data() + 512, {3, 4, 8});
  Indices<int32_t> cuts({0, 3}), positions({0, 1, 2});
  const auto ragged = [&](DLTensor* result) {
    return [&, result](kvc_error* err) {
      return kvc_op_attention_ragged(cuts.dl(), nullptr, nullptr, q.dl(), k.dl(), v.dl(), result,
                                     nullptr, err);
    };
  };
  expect_error(KVC_E_INVALID_ARGUMENT, {"out overlaps q"}, ragged(q.dl()));
  expect_error(KVC_E_INVALID_ARGUMENT, {"out overlaps k"}, ragged(wide.dl()));
  expect_ok(ragged(out.dl()));
  expect_error(KVC_E_INVALID_ARGUMENT, {"out overlaps other_out"}, [&](kvc_error* err) {
    return kvc_op_merge(nullptr, out.dl(), lse.dl(), out.dl(), other_lse.dl(), err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"lse overlaps other_lse"}, [&](kvc_error* err) {
    return kvc_op_merge(nullptr, out.dl(), lse.dl(), q.dl(), lse.dl(), err);
  });
  expect_ok([&](kvc_error* err) {
    return kvc_op_merge(nullptr, out.dl(), lse.dl(), q.dl(), other_lse.dl(), err);
  });
  kvc_rope rope = rope_on_append(KVC_ROPE_HALF, 8);
  kvc_op_opt opt = op_options();
  opt.rope = &rope, opt.positions = positions.dl();
  View next_row(memory.data() + 32, {3, 4, 8});
  expect_error(KVC_E_INVALID_ARGUMENT, {"out overlaps x"},
               [&](kvc_error* err) { return kvc_op_rotate(&opt, q.dl(), next_row.dl(), err); });
  expect_ok([&](kvc_error* err) { return kvc_op_rotate(&opt, q.dl(), q.dl(), err); });
}

TEST(OverlapsOfRecurrences, AreRefusedAlike) {
  std::vector<float> memory(1 << 12, 0.25f);
  View states(memory.data(), {2, 1, 4, 4}), q(memory.data() + 512, {2, 1, 4}),
      k(memory.data() + 640, {2, 1, 4}), v(memory.data() + 768, {2, 1, 4}),
      out(memory.data() + 1024, {2, 1, 4}), on_states(memory.data() + 8, {2, 1, 4});
  const auto step = [&](View& values, View& result) {
    return [&](kvc_error* err) {
      return kvc_op_linear_step(nullptr, nullptr, nullptr, states.dl(), q.dl(), k.dl(), values.dl(),
                                nullptr, nullptr, result.dl(), err);
    };
  };
  expect_error(KVC_E_INVALID_ARGUMENT, {"out overlaps v"}, step(v, v));
  expect_error(KVC_E_INVALID_ARGUMENT, {"states overlaps out"}, step(v, on_states));
  expect_error(KVC_E_INVALID_ARGUMENT, {"states overlaps v"}, step(on_states, out));
  expect_ok(step(v, out));
}

}  // namespace
}  // namespace kvc::test
