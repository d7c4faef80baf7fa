/* A user of an installed libkvcache: bookkeeping only, in a few lines; checks its own result. */
#include <kvcache.h>
#include <stdio.h>

int main(void) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_layer layer = {.struct_size = sizeof layer, .num_q_heads = 8, .num_kv_heads = 2, .k_dim = 64};
  kvc_config config = {.struct_size = sizeof config, .num_layers = 1, .layers = &layer};
  config.num_pages = 4;
  config.storage = KVC_STORAGE_NONE;
  kvc_plan *plan = NULL;
  kvc_cache *cache = NULL;
  if (kvc_plan_create(&config, &plan, &err) || kvc_cache_create(plan, &cache, &err) ||
      kvc_seq_add(cache, 7, &err)) {
    fprintf(stderr, "%s: %s\n", kvc_status_name(err.status), err.message);
    return 1;
  }
  const int64_t available_pages = kvc_cache_available_pages(cache);
  kvc_cache_destroy(cache);
  kvc_plan_destroy(plan);
  if (available_pages != 4 || kvc_abi_version() != KVC_ABI_VERSION) {
    fprintf(stderr, "%lld pages available, ABI %x\n", (long long)available_pages,
            (unsigned)kvc_abi_version());
    return 1;
  }
  printf("%s\n", kvc_version_string());
  return 0;
}
