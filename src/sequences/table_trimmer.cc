#include "src/sequences/table_trimmer.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/sequences/visibility.h"

namespace kvc {

void TableTrimmer::cut(PageTable& table, int64_t keep, PageAllocator& allocator) noexcept {
  table.pages.truncate(keep, [&](PageId page) { allocator.drop_ref(page); });
  table.send_from(keep);
  table.owns_last = false;
}

void TableTrimmer::truncate(Sequence& sequence, int64_t tokens) noexcept {
  sequence.invalidate_tables();
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    if (spec_->groups[group].is_cross) continue;
    PageTable& table = sequence.tables[group];
    cut(table, spec_->groups[group].pages_for(spec_->groups[group].tokens_of(tokens)), *allocator_);
    table.note_length(tokens);
  }
}

void TableTrimmer::drop_pages(PageTable& table, int64_t begin, int64_t end) noexcept {
  end = std::min(end, table.pages.size());
  for (int64_t i = begin; i < end; ++i) {
    if (table.pages[i] == kNoPage) continue;
    allocator_->drop_ref(table.pages[i]);
    table.pages.set(i, kNoPage);
  }
}

void TableTrimmer::drop_table(Sequence& sequence, size_t group) noexcept {
  PageTable& table = sequence.tables[group];
  const int32_t page_size = spec_->groups[group].page_size;
  const KeyRange keys = keys_of_query(spec_->groups[group], sequence, sequence.length);
  const int64_t sink_pages = ceil_div(keys.sink_end, page_size);
  if (table.sink_kept > keys.sink_end) {  // Fewer sink tokens than before.
    drop_pages(table, sink_pages,
               std::min(ceil_div(table.sink_kept, page_size), table.kept_begin / page_size));
    table.sink_kept = keys.sink_end;
  }
  const int64_t first_kept =
      first_kept_key(spec_->groups[group], sequence, sequence.length - spec_->window_reserve);
  drop_range(table, {std::max(sink_pages, table.kept_begin / page_size), first_kept / page_size},
             keys.sink_end, page_size);
}

void TableTrimmer::drop_range(PageTable& table, PageRange range, int64_t sink_end,
                              int32_t page_size) noexcept {
  range.end = std::min(range.end, table.pages.size());
  if (range.begin >= range.end) return;
  drop_pages(table, range.begin, range.end);
  if (table.kept_begin == 0) table.sink_kept = sink_end;
  table.kept_begin = range.end * page_size;
  table.close_up(page_size);
}

void TableTrimmer::keep_only(Sequence& sequence, size_t group, int64_t sink_kept,
                             int64_t kept_begin) noexcept {
  PageTable& table = sequence.tables[group];
  const int32_t page_size = spec_->groups[group].page_size;
  sequence.invalidate_tables();
  drop_pages(table, ceil_div(sink_kept, page_size), kept_begin / page_size);
  table.sink_kept = sink_kept;
  table.kept_begin = kept_begin;
  table.send_from(sink_kept / page_size);
  table.close_up(page_size);
}

PageRange TableTrimmer::spare_pages(const Sequence& sequence, size_t group, int64_t stored) const {
  const GroupSpec& spec = spec_->groups[group];
  if (spec_->window_reserve == 0 || spec.is_cross || !spec.is_windowed()) return {};
  const PageTable& table = sequence.tables[group];
  // The first query of the forward needs its visible range.
  const int64_t index = std::min(stored - spec_->window_reserve, sequence.length);
  const KeyRange keys = keys_of_query(spec, sequence, sequence.length);
  const int64_t begin =
      std::max(ceil_div(keys.sink_end, spec.page_size), table.kept_begin / spec.page_size);
  const int64_t end =
      std::min(first_kept_key(spec, sequence, index) / spec.page_size, table.pages.size());
  return begin < end ? PageRange{begin, end} : PageRange{};
}

void TableTrimmer::drop_spare(Sequence& sequence, int64_t stored) noexcept {
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    if (!spec_->groups[group].may_drop()) continue;
    const PageRange spare = spare_pages(sequence, group, stored);
    const KeyRange keys = keys_of_query(spec_->groups[group], sequence, sequence.length);
    drop_range(sequence.tables[group], spare, keys.sink_end, spec_->groups[group].page_size);
  }
  sequence.next_drop = 0;
}

void TableTrimmer::drop_behind_windows(Sequence& sequence) noexcept {
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    if (spec_->groups[group].may_drop() &&
        (spec_->groups[group].is_windowed() || sequence.window != 0))
      drop_table(sequence, group);
  }
  note_next_drop(sequence);
}

void TableTrimmer::note_next_drop(Sequence& sequence) noexcept {
  if (sequence.window != 0) return;  // Two windows at once: drop_hidden() looks every time.
  int64_t next = INT64_MAX;
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    const GroupSpec& spec = spec_->groups[group];
    if (spec.is_cross || !spec.is_windowed()) continue;
    // The visible range has to begin one page further.
    const int64_t first_key =
        sequence.tables[group].kept_begin / spec.page_size * spec.page_size + spec.page_size;
    const int64_t visible = spec.chunk != 0 ? ceil_div(first_key, spec.chunk) * spec.chunk
                                            : first_key + spec.window - 1;
    next = std::min(next, visible + spec_->window_reserve);
  }
  sequence.next_drop = next;
}

void TableTrimmer::check_window(const Sequence& sequence, int64_t window, int64_t sink) const {
  if (window < 1)
    fail_with(KVC_E_INVALID_ARGUMENT, window, "window = %lld, expected at least 1", ll(window));
  if (sink < 0 || sink >= window) {
    fail_with(KVC_E_INVALID_ARGUMENT, sink, "sink = %lld out of range: 0 to window - 1 = %lld",
              ll(sink), ll(window - 1));
  }
  bool has_tokens = false;
  for (size_t index = 0; index < spec_->groups.size(); ++index) {
    const GroupSpec& group = spec_->groups[index];
    has_tokens = has_tokens || group.may_drop();
    if (group.chunk != 0) {
      fail_with(
          KVC_E_UNSUPPORTED, group.chunk,
          "a window of sequence %lld is not supported: the layers of group %zu have chunk = %lld",
          ll(sequence.id), index, ll(group.chunk));
    }
    if (sink > 0 && group.window > window - sink) {
      fail_with(KVC_E_UNSUPPORTED, group.window,
                "sink = %lld is not supported: the layers of group %zu have window = %lld, more "
                "than window "
                "- sink = "
                "%lld",
                ll(sink), index, ll(group.window), ll(window - sink));
    }
  }
  if (!has_tokens) {
    fail_with(KVC_E_UNSUPPORTED, sequence.id,
              "a window of sequence %lld is not supported: no layer keeps its tokens",
              ll(sequence.id));
  }
  if (!sequence.segments.empty()) {
    const PositionSegment& last = sequence.segments.back();
    fail_with(KVC_E_UNSUPPORTED, last.offset,
              "a window of sequence %lld is not supported: its positions were moved by %lld from "
              "token %lld on",
              ll(sequence.id), ll(last.offset), ll(last.begin));
  }
  Sequence wanted;
  wanted.window = window;
  wanted.sink = sink;
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    if (!spec_->groups[group].may_drop()) continue;
    const PageTable& table = sequence.tables[group];
    const KeyRange keys = keys_of_query(spec_->groups[group], wanted, sequence.length);
    if (!table.keeps(0, std::min(keys.sink_end, sequence.length)) ||
        !table.keeps(keys.begin, sequence.length)) {
      fail_with(KVC_E_OUT_OF_RANGE, table.kept_begin,
                "window = %lld with sink = %lld needs tokens that sequence %lld has dropped: it "
                "keeps the first %lld and those from %lld on",
                ll(window), ll(sink), ll(sequence.id), ll(table.sink_kept), ll(table.kept_begin));
    }
  }
}

void TableTrimmer::set_window(Sequence& sequence, int64_t window, int64_t sink) {
  check_window(sequence, window, sink);
  sequence.history.diverge();  // Rows computed from now on depend on the window.
  sequence.window = window;
  sequence.sink = sink;
  sequence.invalidate_tables();
  drop_hidden(sequence);
}

}  // namespace kvc
