// What a budget holds: pages, recurrent states, host pages, the longest request.
#include <gtest/gtest.h>

#include <string>

#include "src/base/error.h"
#include "src/plan/plan.h"
#include "tests/unit/spec_support.h"

namespace kvc {
namespace {

using kernels::DType;

Error refusal_of(const Spec& spec) {
  try {
    Plan plan(spec);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "the plan was accepted";
  return Error(KVC_OK, 0);
}

TEST(Budget, OneByteLessThanTheLongestRequestNeedsIsRefused) {
  Spec spec = spec_of(
      std::vector<LayerSpec>(16, attention_layer(32, 8, 128, 128, DType::kBF16, DType::kBF16)), 16);
  spec.max_seq_len = 131072;
  spec.byte_budget = 8589934592;
  EXPECT_EQ(Plan(spec).num_pages(), 8192) << "no page is set aside";
  EXPECT_EQ(Plan(spec).concurrency(), 1.0);
  spec.byte_budget -= 1;
  const Error error = refusal_of(spec);
  EXPECT_EQ(error.status(), KVC_E_NEVER_FITS);
  EXPECT_EQ(error.detail(), 131056);
  spec.max_seq_len = 131056;
  EXPECT_NO_THROW(Plan{spec});
}

TEST(Budget, FewerPagesThanARequestAreCountedWhereNoLengthIsPromised) {
  Spec spec = spec_of(
      std::vector<LayerSpec>(2, attention_layer(8, 8, 128, 128, DType::kBF16, DType::kBF16)), 16);
  spec.num_pages = 100;
  const Plan plan(spec);
  EXPECT_EQ(100 * plan.layout().layers[0].page_bytes, 6553600);
  EXPECT_EQ(static_cast<double>(plan.num_pages()) / static_cast<double>(plan.request_pages(8192)),
            0.1953125);
  EXPECT_EQ(plan.max_seq_len(100), 1600);
  EXPECT_EQ(plan.reference_tokens(), 1600);
  EXPECT_EQ(plan.concurrency(), 1.0);
}

TEST(Budget, WindowsKeepTheTokensOfEveryForwardInFlight) {
  for (const int32_t forwards : {1, 2, 64}) {
    Spec spec = spec_of({window_layer(1, 1, 8, 1024), attention_layer(1, 1, 8, 8)}, 16);
    spec.num_pages = 100000;
    spec.max_tokens_per_forward = 512;
    spec.forwards_in_flight = forwards;
    const int64_t m = 512 * forwards;
    EXPECT_EQ(Plan(spec).request_pages(100000), 6250 + (1023 + m + 15) / 16 + 1);
  }
}

TEST(Budget, TheSlicesOfAPipelineShareTheirLeastPages) {
  const LayerSpec layer = attention_layer(32, 8, 128, 128, DType::kBF16, DType::kBF16);
  for (const size_t layers : {17, 15}) {
    Spec spec = spec_of(std::vector<LayerSpec>(layers, layer), 16);
    spec.byte_budget = uint64_t{4} << 30;
    EXPECT_EQ(Plan(spec).num_pages(), layers == 17 ? 3855 : 4369);
    EXPECT_EQ(3855 * make_layout(spec).layers[0].page_bytes, 252641280);
  }
}

TEST(Budget, WasteIsPaddingAndWhatLiesBehindTheLastToken) {
  Spec spec = spec_of({attention_layer(1, 1, 8, 8)}, 16);
  spec.num_pages = 10;
  spec.max_seq_len = 24;
  EXPECT_DOUBLE_EQ(Plan(spec).waste(), 0.25) << "24 tokens in 2 pages of 16";
  spec =
      spec_of({attention_layer(2, 2, 8, 8), window_layer(1, 1, 8, 64)}, 16, {.pads_pages = true});
  spec.num_pages = 10;
  spec.max_seq_len = 32;
  EXPECT_DOUBLE_EQ(Plan(spec).waste(), 0.25) << "half of every other page is padding";
}

TEST(Budget, TokensOfDifferentPagesAreCountedTogether) {
  Spec spec = spec_of(
      {attention_layer(1, 1, 8, 8), window_layer(1, 1, 8, 64), window_layer(1, 1, 8, 64)}, 16);
  spec.groups = {{.layers = {0}, .page_size = 32},
                 {.layers = {1, 2}, .window = 64, .page_size = 16}};
  spec.layers[0].group = 0, spec.layers[1].group = spec.layers[2].group = 1;
  assign_regions(spec);
  spec.num_pages = 100;
  const Plan plan(spec);
  EXPECT_EQ(plan.max_tokens(3), 32);
  EXPECT_EQ(plan.max_tokens(2), 16);
  EXPECT_EQ(plan.max_tokens(1), 0);
  EXPECT_EQ(plan.max_tokens(100), 33 * 32);
  EXPECT_EQ(plan.layout().regions.size(), 1u) << "a layer of 32 tokens lies over two of 16";
  EXPECT_EQ(plan.layout().page_bytes, 2 * 16 * 16 * 4);
}

// ----------------------------------------------------------------------------------------------
// states

// One attention layer of 2048 bytes per page, states of 5000 bytes (5056 in a slot).
Spec hybrid_of_states() {
  return spec_of({attention_layer(1, 1, 16, 16), state_layer({1250})}, 16);
}

TEST(States, ThatAreNotLimitedTakePagesOutOfUse) {
  Spec spec = hybrid_of_states();
  spec.byte_budget = 100 * 2048 + 1;
  const Plan plan(spec);
  EXPECT_EQ(plan.layout().page_bytes, 2048) << "pages of attention stay as small as they are";
  EXPECT_EQ(plan.num_pages(), 100);
  EXPECT_EQ(plan.state_slot_pages(), 3);
  EXPECT_EQ(plan.request_pages(0), 0);
  EXPECT_EQ(plan.request_pages(1), 1 + 2 * 3) << "before and after a forward";
  EXPECT_EQ(plan.max_seq_len(100), (100 - 6) * 16);
  const double taken = 100.0 * 2048, kept = 94.0 * 2048 + 2 * 5056;
  EXPECT_DOUBLE_EQ(plan.waste(), 1 - kept / taken);
}

TEST(States, ThatAreLimitedAreSetAsideFirst) {
  Spec spec = hybrid_of_states();
  spec.num_state_slots = 7;
  spec.byte_budget = 7 * 5056 + 10 * 2048;
  EXPECT_EQ(Plan(spec).num_pages(), 10);
  EXPECT_EQ(Plan(spec).state_slot_pages(), 0);
  EXPECT_EQ(Plan(spec).request_pages(16), 1);
  EXPECT_EQ(Plan(spec).pages_for_bytes(7 * 5056 + 2048), 1);
  EXPECT_EQ(Plan(spec).pages_for_bytes(7 * 5056 - 1), 0);
  spec.byte_budget -= 1;
  EXPECT_EQ(Plan(spec).num_pages(), 9);
  spec.byte_budget = 7 * 5056 + 2047;
  EXPECT_EQ(refusal_of(spec).detail(), 2048) << "bytes of one page";
  spec.byte_budget = 7 * 5056 - 1;
  const Error error = refusal_of(spec);
  EXPECT_EQ(error.status(), KVC_E_INVALID_ARGUMENT);
  EXPECT_EQ(error.detail(), 7 * 5056);
  EXPECT_NE(std::string(error.what()).find("num_state_slots = 7"), std::string::npos)
      << error.what();
}

TEST(States, BesideANumberOfPagesHaveMemoryOfTheirOwn) {
  Spec spec = hybrid_of_states();
  spec.num_pages = 20;
  EXPECT_EQ(Plan(spec).state_slot_pages(), 0);
  EXPECT_EQ(Plan(spec).max_seq_len(20), 320);
}

TEST(States, AloneAreWhatThePagesAreFor) {
  Spec spec = spec_of({state_layer({1250}), state_layer({16})}, 16);
  spec.byte_budget = 10 * (5056 + 64) + 5000;
  const Plan plan(spec);
  EXPECT_EQ(plan.layout().page_bytes, 5056 + 64);
  EXPECT_EQ(plan.num_pages(), 10);
  EXPECT_EQ(plan.state_slot_pages(), 1);
  EXPECT_EQ(plan.request_pages(1000), 2);
  EXPECT_EQ(plan.concurrency(), 5.0);
  EXPECT_EQ(plan.max_tokens(10), 0) << "tokens keep no pages";
  EXPECT_EQ(plan.max_seq_len(10), kMaxSequenceLength);
  spec.num_state_slots = 8;
  EXPECT_EQ(Plan(spec).num_pages(), 10);
  spec.num_state_slots = 11;
  EXPECT_EQ(refusal_of(spec).status(), KVC_E_INVALID_ARGUMENT);
  spec.num_state_slots = 0;
  spec.byte_budget = 5119;
  EXPECT_EQ(refusal_of(spec).detail(), 5120);
}

// ----------------------------------------------------------------------------------------------
// host

TEST(HostBudget, IsCountedInPages) {
  Spec spec = spec_of({attention_layer(1, 1, 16, 16)}, 16);
  spec.num_pages = 5;
  EXPECT_EQ(Plan(spec).num_host_pages(), 0);
  spec.host_byte_budget = 3 * 2048 - 1;
  EXPECT_EQ(Plan(spec).num_host_pages(), 2);
  spec.host_byte_budget = 2047;
  const Error error = refusal_of(spec);
  EXPECT_EQ(error.status(), KVC_E_INVALID_ARGUMENT);
  EXPECT_EQ(error.detail(), 2048);
  spec.host_byte_budget = UINT64_MAX;
  EXPECT_EQ(Plan(spec).num_host_pages(), INT32_MAX - 1);
}

}  // namespace
}  // namespace kvc
