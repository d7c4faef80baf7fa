// Pages and states as bytes that leave the cache or come from outside: zeros where nothing is kept,
// pages of other element types, a layer's part of pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/table.h"
#include "kvcache.h"
#include "src/base/memory.h"
#include "src/device/device.h"
#include "src/device/gpu.h"
#include "src/plan/layout.h"
#include "src/plan/plan.h"

namespace kvc {

struct CacheCore;

// What lies between and behind the contents of pages and states belongs to nobody, or to others:
// whatever leaves the process has zeros there.
class UnusedBytes {
 public:
  explicit UnusedBytes(const Plan& plan);  // Throws std::bad_alloc.

  // `tokens`: those that the packed page of a layer group holds.
  void clear_page(size_t group, int64_t tokens, std::byte* page) const;
  // Rows [begin, end) of every layer.
  void clear_rows(size_t group, int64_t begin, int64_t end, std::byte* page) const;
  void clear_state(std::byte* state) const { clear(state_gaps_, state); }

 private:
  struct Range {
    int64_t begin, end;
  };
  // Rows [num_rows][page_size][row_bytes] at an offset of a packed page.
  struct Block {
    int64_t begin, row_bytes, num_rows;
  };
  static std::vector<Range> gaps(std::vector<Range> used, int64_t size);
  static void clear(const std::vector<Range>& ranges, std::byte* data) {
    for (const Range& range : ranges)
      std::memset(data + range.begin, 0, static_cast<size_t>(range.end - range.begin));
  }

  std::vector<int64_t> page_sizes_;            // [layer group]
  std::vector<std::vector<Block>> blocks_;     // [layer group]
  std::vector<std::vector<Range>> page_gaps_;  // [layer group]
  std::vector<Range> state_gaps_;
};

// Host memory that the device copies from and to, pinned where that is a GPU. Throws std::bad_alloc
// or Error.
class Staging {
 public:
  Staging(const Gpu& gpu, int64_t bytes) {
    if (gpu.table != nullptr) {
      pinned_ = PinnedMemory(gpu, bytes);
    } else {
      plain_.ensure(static_cast<size_t>(bytes));
    }
  }
  std::byte* data() const { return pinned_.data() != nullptr ? pinned_.data() : plain_.data(); }
  int64_t host_bytes() const { return pinned_.bytes() + plain_.host_bytes(); }

 private:
  PinnedMemory pinned_;
  AlignedBuffer plain_;
};

// Pages and states of a file whose layout differs from a cache's in element types alone.
class PageConversion {
 public:
  // `file_layout`: layout_text() of what is read, `name` for messages. Borrows the plan. Throws
  // UNSUPPORTED naming the first field that is no element type, or one of quantised storage.
  PageConversion(const Plan& plan, const std::string& file_layout, const char* name);

  // Of the file.
  const Layout& layout() const { return from_; }
  // One page or state, both on the host; what is no element becomes zero.
  void convert_page(size_t group, const std::byte* from, std::byte* to) const;
  void convert_state(const std::byte* from, std::byte* to) const;

 private:
  void convert(const std::byte* from, kernels::DType from_type, std::byte* to,
               kernels::DType to_type, int64_t count) const;

  const Plan* plan_;
  Spec spec_;  // The plan's, with the element types of the file.
  Layout from_;
  const kernels::cpu::KernelTable* kernels_;
};

// A layer's part of pages as bytes of the host (kvc_pages_export, kvc_pages_import). Both functions
// are complete on return and throw Error or std::bad_alloc; nothing has changed then.
class PageBytes {
 public:
  explicit PageBytes(CacheCore& core) : core_(core) {}

  void read(int32_t layer, const DLTensor* ids, const DLTensor* out, CallStream stream) const;
  void write(int32_t layer, const DLTensor* ids, const DLTensor* in, CallStream stream);

 private:
  struct Rows;
  void rotate_copies(int32_t layer, const Rows& rows) const;
  Rows check(const char* function, int32_t layer, const DLTensor* ids, const DLTensor* bytes,
             const char* name) const;

  CacheCore& core_;
};

}  // namespace kvc
