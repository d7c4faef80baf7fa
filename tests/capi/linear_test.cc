// kvc_attn_linear and kvc_state_conv inside a forward: the state goes in, comes out, and is
// forgotten by an abort.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

constexpr int64_t kStateHeads = 2, kStateK = 3, kStateV = 4, kChannels = 5, kWidth = 3;

// Layer 0 keeps tokens; layer 1 has S [2, 3, 4] and the last inputs of a convolution [5, 2].
class Linear : public testing::Test {
 protected:
  Linear() {
    for (const kvc_seq seq : {1, 2}) EXPECT_EQ(kvc_seq_add(cache_.get(), seq, nullptr), KVC_OK);
    opt_.struct_size = sizeof opt_;
    opt_.scale = 1;
  }

  // One token of each sequence, q = k = v = 1: S grows by 1 everywhere, so out = k_dim * (steps so
  // far).
  kvc_status attend(kvc_error* err = nullptr) {
    return kvc_attn_linear(cache_.forward, 1, &opt_, q_.dl(), q_.dl(), v_.dl(), nullptr, nullptr,
                           out_.dl(), err);
  }
  kvc_status convolve(kvc_error* err = nullptr) {
    return kvc_state_conv(cache_.forward, 1, 1, x_.dl(), weight_.dl(), nullptr, KVC_ACTIVATION_NONE,
                          y_.dl(), err);
  }
  void begin() { ASSERT_EQ(cache_.begin({1, 2}, {1, 1}), KVC_OK); }

  struct Filled : HostTensor {
    Filled(std::vector<int64_t> shape, double value) : HostTensor(Elem::kF32, std::move(shape)) {
      for_each([&](int64_t a, int64_t b, int64_t c, int64_t d) { set(value, a, b, c, d); });
    }
  };

  std::vector<int64_t> matrix_{kStateHeads, kStateK, kStateV}, inputs_{kChannels, kWidth - 1};
  std::vector<kvc_state_spec> specs_{state_spec(matrix_), state_spec(inputs_)};
  Net net_{std::vector<kvc_layer>{attention_layer(), state_layer(specs_)}};
  Cache cache_{net_.config};
  kvc_linear_opt opt_{};
  Filled q_{{2, kStateHeads, kStateK}, 1}, v_{{2, kStateHeads, kStateV}, 1},
      out_{{2, kStateHeads, kStateV}, -1};
  Filled x_{{2, kChannels}, 1}, weight_{{kChannels, kWidth}, 1}, y_{{2, kChannels}, -1};
};

TEST_F(Linear, StepsGoOnFromTheStateOfTheForwardBefore) {
  for (int step = 1; step <= 3; ++step) {
    begin();
    ASSERT_EQ(attend(), KVC_OK);
    ASSERT_EQ(convolve(), KVC_OK);
    EXPECT_DOUBLE_EQ(out_.get(1, 1, 3), kStateK * step);
    EXPECT_DOUBLE_EQ(y_.get(1, 4), std::min<double>(step, kWidth));
    cache_.finish();
  }
}

TEST_F(Linear, CallingTwiceStartsFromTheSameState) {
  begin();
  ASSERT_EQ(attend(), KVC_OK);
  ASSERT_EQ(attend(), KVC_OK);
  EXPECT_DOUBLE_EQ(out_.get(0, 0, 0), kStateK);
  cache_.finish();
}

TEST_F(Linear, AnAbortForgetsTheStep) {
  begin();
  ASSERT_EQ(attend(), KVC_OK);
  cache_.finish();
  begin();
  ASSERT_EQ(attend(), KVC_OK);
  ASSERT_EQ(convolve(), KVC_OK);
  cache_.abort();
  begin();
  ASSERT_EQ(attend(), KVC_OK);
  EXPECT_DOUBLE_EQ(out_.get(0, 0, 0), 2 * kStateK);
  ASSERT_EQ(convolve(), KVC_OK);
  EXPECT_DOUBLE_EQ(y_.get(0, 0), 1) << "the convolution was not set by a forward that ended";
}

TEST_F(Linear, RefusesWrongLayersStatesAndShapes) {
  begin();
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           auto&& call) { expect_refused(cache_, status, parts, call); };
  refused(KVC_E_INVALID_STATE, {"kvc_attn_linear", "layer 0"}, [&](kvc_error* err) {
    return kvc_attn_linear(cache_.forward, 0, &opt_, q_.dl(), q_.dl(), v_.dl(), nullptr, nullptr,
                           out_.dl(), err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_state_conv", "layer 0"}, [&](kvc_error* err) {
    return kvc_state_conv(cache_.forward, 0, 0, x_.dl(), weight_.dl(), nullptr, KVC_ACTIVATION_NONE,
                          y_.dl(), err);
  });
  refused(KVC_E_SHAPE, {"state 0", "3 dimensions", "2"}, [&](kvc_error* err) {
    return kvc_state_conv(cache_.forward, 1, 0, x_.dl(), weight_.dl(), nullptr, KVC_ACTIVATION_NONE,
                          y_.dl(), err);
  });
  refused(KVC_E_OUT_OF_RANGE, {"state 2", "2 states"}, [&](kvc_error* err) {
    return kvc_state_conv(cache_.forward, 1, 2, x_.dl(), weight_.dl(), nullptr, KVC_ACTIVATION_NONE,
                          y_.dl(), err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"decay"}, [&](kvc_error* err) {
    return kvc_attn_linear(cache_.forward, 1, &opt_, q_.dl(), q_.dl(), v_.dl(), q_.dl(), nullptr,
                           out_.dl(), err);
  });
  opt_.state = 1;
  refused(KVC_E_SHAPE, {"state 1", "2 dimensions", "3"},
          [&](kvc_error* err) { return attend(err); });
  opt_.state = 7;
  refused(KVC_E_OUT_OF_RANGE, {"state 7", "2 states"}, [&](kvc_error* err) { return attend(err); });
  opt_.state = 0;
  Filled narrow({2, kStateHeads, kStateK + 1}, 1);
  refused(KVC_E_SHAPE, {"q", "4", "3"}, [&](kvc_error* err) {
    return kvc_attn_linear(cache_.forward, 1, &opt_, narrow.dl(), q_.dl(), v_.dl(), nullptr,
                           nullptr, out_.dl(), err);
  });
  const kvc_forward* open = cache_.forward;
  cache_.finish();
  EXPECT_EQ(kvc_attn_linear(const_cast<kvc_forward*>(open), 1, &opt_, q_.dl(), q_.dl(), v_.dl(),
                            nullptr, nullptr, out_.dl(), nullptr),
            KVC_E_INVALID_STATE);
}

}  // namespace
}  // namespace kvc::test
