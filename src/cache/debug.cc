// Committed tokens in and out, as stored: behind kvc_debug_get_kv, kvc_debug_get_layer and their like.
#include <algorithm>
#include <vector>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/cache/cache.h"

namespace kvc {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

}  // namespace

// Throws OUT_OF_RANGE when [begin, end) is not inside what the layers keep.
void Cache::require_tokens(const Sequence& sequence, int64_t begin, int64_t end,
                           const std::vector<LayerRows>& layers) const {
  for (const LayerRows& rows : layers) {
    const LayerSpec& layer = spec().layers[static_cast<size_t>(rows.local_layer)];
    const bool is_cross = spec().groups[static_cast<size_t>(layer.group)].is_cross;
    const int64_t length = is_cross ? sequence.cross_length : sequence.length;
    if (begin < 0 || begin > end || end > length) {
      fail_with(KVC_E_OUT_OF_RANGE, end,
                "[begin, end) = [%lld, %lld) out of range: sequence %lld has %lld tokens", ll(begin), ll(end),
                ll(sequence.id), ll(length));
    }
    const PageTable& table = sequence.tables[static_cast<size_t>(layer.group)];
    if (!table.keeps(begin, end)) {
      fail_with(KVC_E_OUT_OF_RANGE, table.kept_begin,
                "[begin, end) = [%lld, %lld): layer %d keeps the first %lld tokens of sequence %lld and "
                "those from %lld "
                "on, a window has dropped the others",
                ll(begin), ll(end), spec().layer_begin + rows.local_layer, ll(table.sink_kept),
                ll(sequence.id), ll(table.kept_begin));
    }
  }
}

void Cache::check_token_range(kvc_seq id, int64_t begin, int64_t end) const {
  const Sequence& sequence = sequences_.get(id);
  if (begin < 0 || begin > end || end > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, end,
              "[begin, end) = [%lld, %lld) out of range: sequence %lld has %lld tokens", ll(begin), ll(end),
              ll(id), ll(sequence.length));
  }
}

void Cache::debug_get(kvc_seq id, int64_t begin, int64_t end, const std::vector<LayerRows>& layers) const {
  const Sequence& sequence = sequences_.get(id);
  require_tokens(sequence, begin, end, layers);
  if (begin == end) return;
  for (const LayerRows& rows : layers) {
    const LayerSpec& layer = spec().layers[static_cast<size_t>(rows.local_layer)];
    kernels::GatherParams params{.rows = {},
                                 .pages = sequence.tables[static_cast<size_t>(layer.group)].pages.data(),
                                 .out = {},
                                 .page_size = spec().page_size,
                                 .num_heads = layer.num_kv_heads,
                                 .dim = 0};
    if (rows.k.base != nullptr) {
      params.rows = pool_.k_rows(rows.local_layer), params.out = rows.k, params.dim = layer.k_dim;
      engine_.gather_range(params, begin, end);
    }
    if (rows.v.base != nullptr) {
      params.rows = pool_.v_rows(rows.local_layer), params.out = rows.v, params.dim = layer.v_dim;
      engine_.gather_range(params, begin, end);
    }
  }
}

void Cache::make_private(Sequence& sequence, int64_t begin, int64_t end, const std::vector<uint8_t>& groups) {
  std::vector<PageCopy> copies;
  const int64_t begin_page = begin / spec().page_size, end_page = ceil_div(end, spec().page_size);
  const auto visit_shared = [&](auto&& visit) {
    for (size_t group = 0; group < groups.size(); ++group) {
      if (groups[group] == 0) continue;
      std::vector<PageId>& pages = sequence.tables[group].pages;
      for (int64_t i = begin_page; i < end_page; ++i) {
        const PageId page = pages[static_cast<size_t>(i)];
        if (page != kNoPage && allocator_.refs(page) > 1) visit(group, i);
      }
    }
  };
  int64_t needed = 0;
  visit_shared([&](size_t, int64_t) { ++needed; });
  copies.reserve(static_cast<size_t>(needed));
  if (needed > allocator_.num_free()) {
    const int64_t missing = needed - allocator_.num_free();
    fail_with(KVC_E_NO_PAGES, missing,
              "sequence %lld shares %lld pages that have to be copied, %lld are free: %lld missing",
              ll(sequence.id), ll(needed), ll(allocator_.num_free()), ll(missing));
  }
  visit_shared([&](size_t group, int64_t i) {
    PageTable& table = sequence.tables[group];
    PageId& page = table.pages[static_cast<size_t>(i)];
    const PageId copy = allocator_.take(i == 0 ? kNoPage : table.pages[static_cast<size_t>(i - 1)], 0);
    copies.push_back({page, copy, static_cast<int32_t>(group)});
    allocator_.drop_holder(page);
    page = copy;
    table.synced_pages = std::min(table.synced_pages, i);
  });
  engine_.copy_pages(copies);
  counters_.pages_copied += copies.size();
  note_pages_used();
}

void Cache::debug_set(kvc_seq id, int64_t begin, int64_t count, const std::vector<LayerRows>& layers) {
  Sequence& sequence = sequences_.get_idle(id, "set tokens of");
  require_tokens(sequence, begin, begin > INT64_MAX - count ? -1 : begin + count, layers);
  if (count == 0) return;
  const int32_t page_size = spec().page_size;
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::vector<uint8_t> groups(spec().groups.size(), 0);
  for (const LayerRows& rows : layers)
    groups[static_cast<size_t>(spec().layers[static_cast<size_t>(rows.local_layer)].group)] = 1;
  make_private(sequence, begin, begin + count, groups);
  for (const LayerRows& rows : layers) {
    const LayerSpec& layer = spec().layers[static_cast<size_t>(rows.local_layer)];
    const std::vector<PageId>& pages = sequence.tables[static_cast<size_t>(layer.group)].pages;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = begin + i;
      slots[static_cast<size_t>(i)] =
          pages[static_cast<size_t>(token / page_size)] * int64_t{page_size} + token % page_size;
    }
    engine_.scatter({.k = rows.k,
                     .v = rows.v,
                     .k_rotation = {},
                     .k_pages = pool_.k_rows(rows.local_layer),
                     .v_pages = pool_.v_rows(rows.local_layer),
                     .slots = slots.data(),
                     .page_size = page_size,
                     .num_kv_heads = layer.num_kv_heads,
                     .k_dim = layer.k_dim,
                     .v_dim = layer.v_dim},
                    count);
  }
}

}  // namespace kvc
