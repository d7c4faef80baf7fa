/* The prefix cache and its events. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_PREFIX_H_
#define KVCACHE_GO_SHIM_PREFIX_H_

#include "shim_abi.h"

/* Extra keys as arrays of their fields; the bytes of key i follow those of key i-1 in `data`. */
typedef struct shim_key {
  int64_t offset;
  uint64_t size;
  uint32_t type;
  uint32_t reserved;
} shim_key;

/* NULL when there are none, or no memory (then *failed is set). To be freed. */
static inline kvc_prefix_key *shim_keys(const shim_key *keys, size_t n, const uint8_t *data,
                                        int32_t *failed) {
  *failed = 0;
  if (n == 0) return NULL;
  kvc_prefix_key *out = calloc(n, sizeof *out);
  if (out == NULL) {
    *failed = 1;
    return NULL;
  }
  for (size_t i = 0; i < n; ++i) {
    out[i].struct_size = sizeof out[i];
    out[i].type = keys[i].type;
    out[i].offset = keys[i].offset;
    out[i].data = keys[i].size == 0 ? NULL : data;
    out[i].size = keys[i].size;
    data += keys[i].size;
  }
  return out;
}

static inline kvc_error *shim_prefix_hash(uintptr_t api, const int32_t *tokens, size_t num_tokens,
                                          int32_t block_tokens, const uint8_t *salt,
                                          size_t salt_size, const shim_key *keys, size_t num_keys,
                                          const uint8_t *key_data, uint8_t *out, size_t *len) {
  SHIM_ERROR;
  int32_t failed;
  kvc_prefix_key *extra = shim_keys(keys, num_keys, key_data, &failed);
  if (failed) return &shim_no_memory;
  const kvc_status status = SHIM_API(api)->prefix_hash(tokens, num_tokens, block_tokens, salt,
                                                       salt_size, extra, num_keys, out, len, &err);
  free(extra);
  return shim_result(status, &err);
}

enum shim_query { SHIM_MATCH = 0, SHIM_ATTACH = 1, SHIM_INSERT = 2, SHIM_PIN = 3, SHIM_UNPIN = 4 };

static inline kvc_error *shim_prefix(uintptr_t api, int32_t which, uintptr_t cache, int64_t seq,
                                     uint64_t flags, int64_t num_tokens, const int32_t *tokens,
                                     const uint8_t *hashes, size_t num_hashes, const uint8_t *salt,
                                     size_t salt_size, const shim_key *keys, size_t num_keys,
                                     const uint8_t *key_data, int32_t priority, int64_t *out) {
  SHIM_ERROR;
  int32_t failed;
  kvc_prefix_key *extra = shim_keys(keys, num_keys, key_data, &failed);
  if (failed) return &shim_no_memory;
  const kvc_prefix_query query = {sizeof query, NULL,       flags, num_tokens, tokens,
                                  hashes,       num_hashes, salt,  salt_size,  extra,
                                  num_keys,     priority,   0};
  kvc_status status;
  switch (which) {
    case SHIM_ATTACH:
      status = SHIM_API(api)->prefix_attach(SHIM_CACHE(cache), seq, &query, out, &err);
      break;
    case SHIM_INSERT:
      status = SHIM_API(api)->prefix_insert(SHIM_CACHE(cache), seq, &query, out, &err);
      break;
    case SHIM_PIN: status = SHIM_API(api)->prefix_pin(SHIM_CACHE(cache), &query, out, &err); break;
    case SHIM_UNPIN:
      status = SHIM_API(api)->prefix_unpin(SHIM_CACHE(cache), &query, out, &err);
      break;
    default: status = SHIM_API(api)->prefix_match(SHIM_CACHE(cache), &query, out, &err);
  }
  free(extra);
  return shim_result(status, &err);
}

/* `out` is an array of C, zeroed: the library writes addresses of its own into it. */
static inline kvc_error *shim_events_poll(uintptr_t api, uintptr_t cache, kvc_event *out,
                                          size_t *count) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  return shim_result(SHIM_API(api)->events_poll(SHIM_CACHE(cache), out, count, &err), &err);
}
static inline kvc_error *shim_events_snapshot(uintptr_t api, uintptr_t cache, kvc_event *out,
                                              size_t *count, uint64_t *out_number) {
  SHIM_ERROR;
  if (out != NULL) out->struct_size = sizeof *out;
  return shim_result(
      SHIM_API(api)->events_snapshot(SHIM_CACHE(cache), out, count, out_number, &err), &err);
}

#endif /* KVCACHE_GO_SHIM_PREFIX_H_ */
