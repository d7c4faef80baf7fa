// Random swaps and state files among forwards, forks, windows, pops, prefix hits and failing
// allocations: what was written is read again wherever it was in between, and nothing is left
// behind.
#include "tests/model/seeds.h"
#include "tests/model/swap_run.h"

namespace kvc::test {
namespace {

TEST(RandomSwaps, PatternsSurviveAnyMixAndNothingLeaks) {
  SeedResult result = run_seeds<SwapRun>("swaps", 7000, 120, 1800);
  result.expect_met("kvc_swap_out", {KVC_OK, KVC_E_NO_PAGES, KVC_E_NO_MEMORY, KVC_E_INVALID_STATE,
                                     KVC_E_BUSY, KVC_E_NOT_FOUND, KVC_E_INVALID_ARGUMENT});
  result.expect_met("kvc_swap_in", {KVC_OK, KVC_E_NO_PAGES, KVC_E_NO_MEMORY, KVC_E_INVALID_STATE,
                                    KVC_E_NOT_FOUND, KVC_E_INVALID_ARGUMENT});
  result.expect_met("kvc_forward_begin",
                    {KVC_OK, KVC_E_NO_PAGES, KVC_E_NO_MEMORY, KVC_E_INVALID_STATE});
  result.expect_met("kvc_seq_fork", {KVC_OK, KVC_E_OUT_OF_RANGE, KVC_E_INVALID_STATE});
  result.expect_met("kvc_seq_pop", {KVC_OK, KVC_E_OUT_OF_RANGE, KVC_E_INVALID_STATE});
  result.expect_met("kvc_seq_shift", {KVC_OK, KVC_E_INVALID_STATE});
  result.expect_met("kvc_seq_set_window", {KVC_OK});
  result.expect_met("kvc_debug_set_layer", {KVC_OK, KVC_E_NO_PAGES});
  result.expect_met("kvc_prefix_attach", {KVC_OK, KVC_E_NO_MEMORY});
  result.expect_met("hit", {KVC_OK});
  result.expect_met("kvc_seq_save", {KVC_OK, KVC_E_NO_MEMORY, KVC_E_INVALID_STATE, KVC_E_BUSY});
  result.expect_met("kvc_seq_load", {KVC_OK, KVC_E_NO_PAGES, KVC_E_NO_MEMORY, KVC_E_CORRUPT,
                                     KVC_E_INVALID_ARGUMENT, KVC_E_BUSY});
}

}  // namespace
}  // namespace kvc::test
