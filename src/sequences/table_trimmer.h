// Takes pages out of the tables of sequences: those that windows hide, and those beyond an end.
#pragma once

#include <cstdint>

#include "src/pages/allocator.h"
#include "src/plan/spec.h"
#include "src/sequences/sequence.h"

namespace kvc {

struct PageRange {
  int64_t begin = 0, end = 0;
};

// Tables of sequences on the device. Borrows all.
class TableTrimmer {
 public:
  TableTrimmer(const Spec& spec, PageAllocator* allocator)
      : spec_(&spec), allocator_(allocator), has_windows_(spec.has_windows()) {}

  // Keeps the first `keep` pages of a table whose pages are in `allocator`.
  static void cut(PageTable& table, int64_t keep, PageAllocator& allocator) noexcept;
  // Cuts the tables of every layer group, CROSS layers aside, to `tokens`.
  void truncate(Sequence& sequence, int64_t tokens) noexcept;
  // Drops entries [begin, end) of a table.
  void drop_pages(PageTable& table, int64_t begin, int64_t end) noexcept;
  // Drops the pages outside the visible ranges of all later queries. Call it after every change of
  // the committed length or of the windows.
  void drop_hidden(Sequence& sequence) noexcept {
    if ((has_windows_ && sequence.length >= sequence.next_drop) || sequence.window != 0)
      drop_behind_windows(sequence);
  }
  // The pages of a table that a layer's window keeps for pops alone once the sequence, with the
  // tokens of the open forward, has `stored` tokens. A forward that lacks pages takes them.
  PageRange spare_pages(const Sequence& sequence, size_t group, int64_t stored) const;
  // Drops them in every layer group.
  void drop_spare(Sequence& sequence, int64_t stored) noexcept;
  // Drops the pages of a table whose tokens all lie in [sink_kept, kept_begin).
  void keep_only(Sequence& sequence, size_t group, int64_t sink_kept, int64_t kept_begin) noexcept;
  // Sets the window and the sink tokens of the sequence, which is on the device and in no forward.
  // Throws INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED; nothing has changed then.
  void set_window(Sequence& sequence, int64_t window, int64_t sink);

 private:
  void check_window(const Sequence& sequence, int64_t window, int64_t sink) const;
  void drop_table(Sequence& sequence, size_t group) noexcept;
  void drop_range(PageTable& table, PageRange range, int64_t sink_end, int32_t page_size) noexcept;
  void drop_behind_windows(Sequence& sequence) noexcept;
  void note_next_drop(Sequence& sequence) noexcept;

  const Spec* spec_;
  PageAllocator* allocator_;
  bool has_windows_;
};

}  // namespace kvc
