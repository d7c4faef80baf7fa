// Random operations against the oracle.
#include "tests/model/random_run.h"
#include "tests/model/seeds.h"

namespace kvc::test {
namespace {

TEST(RandomOperations, BookkeepingAgreesWithThePageModel) {
  SeedResult result = run_seeds<RandomRun>("bookkeeping", 1000, 160, 6500, RunKind::kBookkeeping);
  result.expect_met("kvc_forward_begin", {KVC_OK, KVC_E_INVALID_ARGUMENT, KVC_E_NOT_FOUND,
                                          KVC_E_OUT_OF_RANGE, KVC_E_NO_PAGES, KVC_E_NEVER_FITS,
                                          KVC_E_BUSY, KVC_E_INVALID_STATE, KVC_E_UNSUPPORTED});
  result.expect_met("kvc_seq_can_append", {KVC_OK, KVC_E_NEVER_FITS, KVC_E_BUSY});
  result.expect_met("kvc_seq_add", {KVC_OK, KVC_E_ALREADY_EXISTS, KVC_E_INVALID_ARGUMENT});
  result.expect_met("kvc_seq_remove", {KVC_OK, KVC_E_NOT_FOUND, KVC_E_BUSY});
  result.expect_met("kvc_seq_fork", {KVC_OK, KVC_E_NOT_FOUND, KVC_E_ALREADY_EXISTS,
                                     KVC_E_OUT_OF_RANGE, KVC_E_BUSY, KVC_E_INVALID_STATE});
  result.expect_met("kvc_seq_pop",
                    {KVC_OK, KVC_E_NOT_FOUND, KVC_E_OUT_OF_RANGE, KVC_E_BUSY, KVC_E_INVALID_STATE});
  result.expect_met("kvc_seq_set_window",
                    {KVC_OK, KVC_E_NOT_FOUND, KVC_E_BUSY, KVC_E_INVALID_STATE,
                     KVC_E_INVALID_ARGUMENT, KVC_E_OUT_OF_RANGE, KVC_E_UNSUPPORTED});
  result.expect_met("kvc_seq_shift", {KVC_OK, KVC_E_NOT_FOUND, KVC_E_BUSY, KVC_E_INVALID_STATE,
                                      KVC_E_NO_PAGES, KVC_E_OUT_OF_RANGE, KVC_E_UNSUPPORTED});
  result.expect_met("kvc_seq_can",
                    {KVC_OK, KVC_E_NOT_FOUND, KVC_E_UNSUPPORTED, KVC_E_OUT_OF_RANGE, KVC_E_BUSY});
  result.expect_met("kvc_tree_commit", {KVC_OK, KVC_E_NOT_FOUND, KVC_E_INVALID_ARGUMENT,
                                        KVC_E_INVALID_STATE, KVC_E_OUT_OF_RANGE});
  result.expect_met("kvc_state_checkpoint",
                    {KVC_OK, KVC_E_NOT_FOUND, KVC_E_BUSY, KVC_E_UNSUPPORTED});
  result.expect_met("kvc_cache_resize", {KVC_OK, KVC_E_OUT_OF_RANGE, KVC_E_BUSY, KVC_E_NEVER_FITS});
  result.expect_met("kvc_cache_clear", {KVC_OK, KVC_E_BUSY});
  result.expect_met("kvc_forward_abort", {KVC_OK, KVC_E_INVALID_STATE});
}

TEST(RandomOperations, TensorsAgreeWithADenseCacheInDouble) {
  SeedResult result = run_seeds<RandomRun>("tensors", 2000, 160, 1500, RunKind::kData);
  for (const char* function :
       {"kvc_attn", "kvc_attn_fused_qkv", "kvc_attn_self", "kvc_attn_cached", "kvc_attn_shared_kv",
        "kvc_attn_cross", "kvc_attn_linear", "kvc_kv_append", "kvc_mla_append", "kvc_kv_gather",
        "kvc_state_get", "kvc_state_set", "kvc_state_conv", "kvc_seq_shift", "kvc_tree_commit"}) {
    result.expect_met(function, {KVC_OK});
  }
  for (const char* function :
       {"kvc_attn", "kvc_attn_cross", "kvc_attn_linear", "kvc_state_set", "kvc_mla_append"})
    result.expect_met(function, {KVC_E_INVALID_STATE});
  result.expect_met("kvc_attn_self", {KVC_E_UNSUPPORTED});
  result.expect_met("kvc_kv_gather", {KVC_E_OUT_OF_RANGE, KVC_E_INVALID_STATE, KVC_E_NOT_FOUND});
  for (const char* function : {"kvc_debug_set_kv", "kvc_debug_set_mla", "kvc_debug_set_layer"})
    result.expect_met(function, {KVC_OK, KVC_E_BUSY, KVC_E_OUT_OF_RANGE});
  result.expect_met("kvc_debug_set_kv", {KVC_E_NO_PAGES});
  for (const char* function : {"kvc_debug_get_kv", "kvc_debug_get_mla", "kvc_debug_get_layer"})
    result.expect_met(function, {KVC_OK, KVC_E_NOT_FOUND, KVC_E_OUT_OF_RANGE});
  result.expect_met("kvc_debug_set_state", {KVC_OK, KVC_E_NO_PAGES, KVC_E_BUSY});
  result.expect_met("kvc_debug_get_state", {KVC_OK, KVC_E_OUT_OF_RANGE});
  result.expect_met("kvc_cache_resize", {KVC_OK, KVC_E_BUSY, KVC_E_UNSUPPORTED});
}

TEST(RandomOperations, EveryAllocationMayFailOnceAndNothingChanges) {
  SeedResult result =
      run_seeds<RandomRun>("allocation failures", 3000, 80, 600, RunKind::kFailures);
  for (const char* function :
       {"kvc_plan_create", "kvc_cache_create", "kvc_seq_add", "kvc_seq_fork", "kvc_seq_shift",
        "kvc_tree_commit", "kvc_state_checkpoint", "kvc_forward_begin", "kvc_cache_resize",
        "kvc_attn", "kvc_attn_self", "kvc_attn_cross", "kvc_attn_linear", "kvc_state_conv",
        "kvc_kv_append", "kvc_export_page_table", "kvc_debug_set_layer"}) {
    result.expect_met(function, {KVC_OK, KVC_E_NO_MEMORY});
  }
}

}  // namespace
}  // namespace kvc::test
