// Committed tokens in and out, as stored: behind kvc_debug_get_kv, kvc_debug_get_layer and their
// like.
#include <algorithm>
#include <vector>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/cache/cache.h"

namespace kvc {
// Throws OUT_OF_RANGE when [begin, end) is not inside what the layers keep.
void Cache::require_tokens(const Sequence& sequence, int64_t begin, int64_t end,
                           const std::vector<LayerRows>& layers) const {
  for (const LayerRows& rows : layers) {
    const LayerSpec& layer = spec().layers[static_cast<size_t>(rows.local_layer)];
    const bool is_cross = spec().groups[static_cast<size_t>(layer.group)].is_cross;
    const int64_t length = is_cross ? sequence.cross_length : sequence.length;
    if (begin < 0 || begin > end || end > length) {
      fail_with(KVC_E_OUT_OF_RANGE, end,
                "[begin, end) = [%lld, %lld) out of range: sequence %lld has %lld tokens",
                ll(begin), ll(end), ll(sequence.id), ll(length));
    }
    const PageTable& table = sequence.tables[static_cast<size_t>(layer.group)];
    if (!table.keeps(begin, end)) {
      fail_with(
          KVC_E_OUT_OF_RANGE, table.kept_begin,
          "[begin, end) = [%lld, %lld): layer %d keeps the first %lld tokens of sequence %lld and "
          "those from %lld "
          "on, a window has dropped the others",
          ll(begin), ll(end), spec().layer_begin + rows.local_layer, ll(table.sink_kept),
          ll(sequence.id), ll(table.kept_begin));
    }
  }
}

void Cache::check_token_range(kvc_seq id, int64_t begin, int64_t end) const {
  const Sequence& sequence = sequences_.get_on_device(id, "read the tokens of");
  if (begin < 0 || begin > end || end > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, end,
              "[begin, end) = [%lld, %lld) out of range: sequence %lld has %lld tokens", ll(begin),
              ll(end), ll(id), ll(sequence.length));
  }
}

void Cache::debug_get(kvc_seq id, int64_t begin, int64_t end, const std::vector<LayerRows>& layers,
                      kvc_stream stream) const {
  const Sequence& sequence = sequences_.get_on_device(id, "read the tokens of");
  for (const LayerRows& rows : layers) require_readable(rows.local_layer, "reading tokens");
  require_tokens(sequence, begin, end, layers);
  if (begin == end) return;
  for (const LayerRows& rows : layers) {
    const LayerSpec& layer = spec().layers[static_cast<size_t>(rows.local_layer)];
    kernels::GatherParams params{
        .rows = {},
        .pages = sequence.tables[static_cast<size_t>(layer.group)].pages.data(),
        .out = {},
        .page_size = spec().groups[static_cast<size_t>(layer.group)].page_size,
        .num_heads = layer.num_kv_heads,
        .dim = 0};
    if (rows.k.base != nullptr) {
      params.rows = pool_.k_rows(rows.local_layer), params.out = rows.k, params.dim = layer.k_dim;
      engine_->read_rows({rows.local_layer, false}, params, begin, end, stream);
    }
    if (rows.v.base != nullptr) {
      params.rows = pool_.v_rows(rows.local_layer), params.out = rows.v, params.dim = layer.v_dim;
      engine_->read_rows({rows.local_layer, true}, params, begin, end, stream);
    }
  }
}

template <typename Visit>
void Cache::visit_shared_pages(const Sequence& sequence, int64_t begin, int64_t end,
                               const std::vector<uint8_t>& groups, Visit&& visit) const {
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group] == 0) continue;
    const std::vector<PageId>& pages = sequence.tables[group].pages;
    const int32_t page_size = spec().groups[group].page_size;
    for (int64_t i = begin / page_size; i < ceil_div(end, page_size); ++i) {
      const PageId page = pages[static_cast<size_t>(i)];
      if (page != kNoPage && !is_private(allocator_, page)) visit(group, i);
    }
  }
}

Cache::SharedPages& Cache::SharedPages::operator+=(const SharedPages& other) {
  held += other.held;
  cached += other.cached;
  return *this;
}

Cache::SharedPages Cache::count_shared_pages(const Sequence& sequence, int64_t begin, int64_t end,
                                             const std::vector<uint8_t>& groups) const {
  SharedPages shared;
  visit_shared_pages(sequence, begin, end, groups, [&](size_t group, int64_t i) {
    const PageId page = sequence.tables[group].pages[static_cast<size_t>(i)];
    ++(allocator_.refs(page) > 1 ? shared.held : shared.cached);
  });
  return shared;
}

bool Cache::require_private_pages(const Sequence& sequence, const SharedPages& shared) const {
  const int64_t free = allocator_.num_available();
  if (shared.held > free) {
    fail_with(KVC_E_NO_PAGES, shared.held - free,
              "sequence %lld shares %lld pages that have to be copied, %lld are free: %lld missing",
              ll(sequence.id), ll(shared.held), ll(free), ll(shared.held - free));
  }
  return shared.held + shared.cached > free;
}

std::vector<PageCopy> Cache::prepare_private(const SharedPages& shared, bool forget_cached) {
  const int64_t needed = shared.held + (forget_cached ? 0 : shared.cached);
  std::vector<PageCopy> copies;
  copies.reserve(static_cast<size_t>(needed));
  engine_->prepare_copies(needed);
  return copies;
}

void Cache::take_private(Sequence& sequence, int64_t begin, int64_t end,
                         const std::vector<uint8_t>& groups, bool forget_cached,
                         std::vector<PageCopy>& copies) noexcept {
  const SharedPages shared = count_shared_pages(sequence, begin, end, groups);
  const int64_t needed = shared.held + (forget_cached ? 0 : shared.cached);
  if (forget_cached) {
    visit_shared_pages(sequence, begin, end, groups, [&](size_t group, int64_t i) {
      const PageId page = sequence.tables[group].pages[static_cast<size_t>(i)];
      if (allocator_.refs(page) == 1) index_.eviction().forget_page(page);
    });
  }
  index_.eviction().evict_for(needed);
  visit_shared_pages(sequence, begin, end, groups, [&](size_t group, int64_t i) {
    sequence.invalidate_tables();
    PageTable& table = sequence.tables[group];
    PageId& page = table.pages[static_cast<size_t>(i)];
    const PageId copy =
        allocator_.take(i == 0 ? kNoPage : table.pages[static_cast<size_t>(i - 1)], 0);
    copies.push_back({page, copy, static_cast<int32_t>(group)});
    page = copy;
    table.synced_pages = std::min(table.synced_pages, i);
  });
}

void Cache::copy_private(const std::vector<PageCopy>& copies) noexcept {
  engine_->copy_pages(copies);
  for (const PageCopy& copy : copies) allocator_.drop_ref(copy.from);
  counters_.pages_copied += copies.size();
  note_pages_used();
}

void Cache::debug_set(kvc_seq id, int64_t begin, int64_t count,
                      const std::vector<LayerRows>& layers) {
  Sequence& sequence = sequences_.get_idle(id, "set tokens of");
  check_on_device(sequence, "set tokens of");
  for (const LayerRows& rows : layers) require_readable(rows.local_layer, "setting tokens");
  require_tokens(sequence, begin, begin > INT64_MAX - count ? -1 : begin + count, layers);
  if (count == 0) return;
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::vector<uint8_t> groups(spec().groups.size(), 0);
  for (const LayerRows& rows : layers)
    groups[static_cast<size_t>(spec().layers[static_cast<size_t>(rows.local_layer)].group)] = 1;
  const SharedPages shared = count_shared_pages(sequence, begin, begin + count, groups);
  const bool forget_cached = require_private_pages(sequence, shared);
  std::vector<PageCopy> copies = prepare_private(shared, forget_cached);
  engine_->prepare_writes(static_cast<int64_t>(layers.size()), count);
  // Nothing throws from here on but for a device that fails.
  take_private(sequence, begin, begin + count, groups, forget_cached, copies);
  copy_private(copies);
  sequence.history.diverge();
  for (const LayerRows& rows : layers) {
    const LayerSpec& layer = spec().layers[static_cast<size_t>(rows.local_layer)];
    const std::vector<PageId>& pages = sequence.tables[static_cast<size_t>(layer.group)].pages;
    const int32_t page_size = spec().groups[static_cast<size_t>(layer.group)].page_size;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = begin + i;
      slots[static_cast<size_t>(i)] =
          pages[static_cast<size_t>(token / page_size)] * int64_t{page_size} + token % page_size;
    }
    engine_->write_rows(rows.local_layer,
                        {.k = rows.k,
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
  engine_->finish_moves();
  engine_->require_alive();
}

}  // namespace kvc
