// kvc_debug_get_kv and kvc_debug_set_kv: committed tokens in and out, as stored.
#include <algorithm>
#include <vector>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/tensor.h"
#include "src/cache/cache.h"

namespace kvc {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

struct LayerRows {
  kernels::TokenRows k;
  kernels::TokenRows v;
};

// The caller's tensors, one view per layer. The dims of the tensors are at least the largest layer's.
std::vector<LayerRows> view_tensors(const Spec& spec, const DLTensor* k, const DLTensor* v,
                                    int64_t num_tokens) {
  if (k == nullptr && v == nullptr) fail(KVC_E_INVALID_ARGUMENT, "k and v are both NULL: nothing to copy");
  int32_t heads = 0, k_dim = 0, v_dim = 0;
  for (const LayerSpec& layer : spec.layers) {
    heads = std::max(heads, layer.num_kv_heads);
    k_dim = std::max(k_dim, layer.k_dim);
    v_dim = std::max(v_dim, layer.v_dim);
  }
  const int64_t num_layers = spec.num_local_layers();
  std::vector<LayerRows> rows(spec.layers.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    if (k != nullptr) rows[i].k = view_layer_rows(k, {"k", num_tokens, heads, k_dim}, num_layers, layer);
    if (v != nullptr) rows[i].v = view_layer_rows(v, {"v", num_tokens, heads, v_dim}, num_layers, layer);
  }
  return rows;
}

}  // namespace

void Cache::debug_get(kvc_seq id, int64_t begin, int64_t end, const DLTensor* k, const DLTensor* v) const {
  require_storage("kvc_debug_get_kv");
  const Sequence& sequence = sequences_.get(id);
  if (begin < 0 || begin > end || end > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, end,
              "[begin, end) = [%lld, %lld) out of range: sequence %lld has %lld tokens", ll(begin), ll(end),
              ll(id), ll(sequence.length));
  }
  const std::vector<LayerRows> rows = view_tensors(spec(), k, v, end - begin);
  if (begin == end) return;
  for (size_t i = 0; i < rows.size(); ++i) {
    const LayerSpec& layer = spec().layers[i];
    const auto local = static_cast<int32_t>(i);
    kernels::GatherParams params{.rows = {},
                                 .pages = sequence.pages.data(),
                                 .out = {},
                                 .page_size = spec().page_size,
                                 .num_heads = layer.num_kv_heads,
                                 .dim = 0};
    if (k != nullptr) {
      params.rows = pool_.k_rows(local), params.out = rows[i].k, params.dim = layer.k_dim;
      engine_.gather_range(params, begin, end);
    }
    if (v != nullptr) {
      params.rows = pool_.v_rows(local), params.out = rows[i].v, params.dim = layer.v_dim;
      engine_.gather_range(params, begin, end);
    }
  }
}

// Gives the sequence its own copies of the shared pages in [begin_page, end_page). Throws NO_PAGES or std::bad_alloc.
void Cache::make_private(Sequence& sequence, int64_t begin_page, int64_t end_page) {
  std::vector<PageCopy> copies;
  copies.reserve(static_cast<size_t>(end_page - begin_page));
  int64_t needed = 0;
  for (int64_t i = begin_page; i < end_page; ++i) {
    needed += allocator_.refs(sequence.pages[static_cast<size_t>(i)]) > 1 ? 1 : 0;
  }
  if (needed > allocator_.num_free()) {
    const int64_t missing = needed - allocator_.num_free();
    fail_with(KVC_E_NO_PAGES, missing,
              "sequence %lld shares %lld pages that have to be copied, %lld are free: %lld missing",
              ll(sequence.id), ll(needed), ll(allocator_.num_free()), ll(missing));
  }
  for (int64_t i = begin_page; i < end_page; ++i) {
    PageId& page = sequence.pages[static_cast<size_t>(i)];
    if (allocator_.refs(page) == 1) continue;
    const PageId copy = allocator_.take(i == 0 ? kNoPage : sequence.pages[static_cast<size_t>(i - 1)], 0);
    copies.push_back({page, copy});
    allocator_.drop_holder(page);
    page = copy;
    sequence.synced_pages = std::min(sequence.synced_pages, i);
  }
  engine_.copy_pages(copies);
  counters_.pages_copied += copies.size();
  note_pages_used();
}

void Cache::debug_set(kvc_seq id, int64_t begin, const DLTensor* k, const DLTensor* v) {
  require_storage("kvc_debug_set_kv");
  Sequence& sequence = sequences_.get(id);
  if (sequence.in_forward()) {
    fail_with(KVC_E_BUSY, id, "cannot set tokens of sequence %lld: it is entry %d of the open forward",
              ll(id), sequence.batch_index);
  }
  const DLTensor* counted = k != nullptr ? k : v;
  const int64_t count =
      counted != nullptr && counted->ndim == 4 && counted->shape != nullptr ? counted->shape[1] : 0;
  if (count < 0) {
    fail_with(KVC_E_SHAPE, count, "%s has shape[1] = %lld, expected at least 0", k != nullptr ? "k" : "v",
              ll(count));
  }
  const std::vector<LayerRows> rows = view_tensors(spec(), k, v, count);
  if (v != nullptr && v->shape[1] != count) {
    fail_with(KVC_E_SHAPE, v->shape[1], "v has shape[1] = %lld, k has %lld", ll(v->shape[1]), ll(count));
  }
  if (begin < 0 || count > sequence.length - begin) {
    fail_with(KVC_E_OUT_OF_RANGE, begin,
              "[begin, begin + n) = [%lld, %lld + %lld) out of range: sequence %lld has %lld tokens",
              ll(begin), ll(begin), ll(count), ll(id), ll(sequence.length));
  }
  if (count == 0) return;
  const int32_t page_size = spec().page_size;
  std::vector<int64_t> slots(static_cast<size_t>(count));
  make_private(sequence, begin / page_size, ceil_div(begin + count, page_size));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = begin + i;
    slots[static_cast<size_t>(i)] =
        sequence.pages[static_cast<size_t>(position / page_size)] * int64_t{page_size} + position % page_size;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const LayerSpec& layer = spec().layers[i];
    const auto local = static_cast<int32_t>(i);
    engine_.scatter({.k = rows[i].k,
                     .v = rows[i].v,
                     .k_rotation = {},
                     .k_pages = pool_.k_rows(local),
                     .v_pages = pool_.v_rows(local),
                     .slots = slots.data(),
                     .page_size = page_size,
                     .num_kv_heads = layer.num_kv_heads,
                     .k_dim = layer.k_dim,
                     .v_dim = layer.v_dim},
                    count);
  }
}

}  // namespace kvc
