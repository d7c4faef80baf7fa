// The interface to everything that moves the bytes of a cache without computing: whole pages, rows
// of tokens, states. One class per kind of device; the callers do not know which one they have.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "kvcache.h"
#include "src/base/page.h"

namespace kvc {

// Where a call enqueues on a GPU: a stream of the host program, or the cache's own. A CPU has no
// streams.
class CallStream {
 public:
  constexpr CallStream(kvc_stream stream) : stream_(stream) {}
  static CallStream own() { return {&own_}; }
  // The stream; `own_stream` where the cache's own is meant.
  void* get(void* own_stream) const { return stream_ == &own_ ? own_stream : stream_; }

 private:
  static inline char own_;  // Its address is no stream of anybody.
  void* stream_;
};
inline const CallStream kOwnStream = CallStream::own();

enum class CopyDirection { kDeviceToHost, kHostToDevice, kInsideDevice };

// A copy inside the device pool, of the layers of one layer group.
struct PageCopy {
  PageId from;
  PageId to;
  int32_t group;
};

// Tokens that move inside the pages of a layer group, as slots: page * page size + offset. List i
// begins at list_begins[i]. A list moves in order, since a destination may be the source of a later
// token; lists touch different pages.
struct TokenMoves {
  std::vector<int64_t> from, to;
  std::vector<int64_t> list_begins;

  // Room for so many; throws std::bad_alloc.
  void reserve(int64_t num_tokens, int64_t num_lists) {
    from.reserve(num_tokens);
    to.reserve(num_tokens);
    list_begins.reserve(num_lists);
  }
  void clear() { from.clear(), to.clear(), list_begins.clear(); }
  void begin_list() { list_begins.push_back(size()); }
  void add(int64_t from_slot, int64_t to_slot) {
    from.push_back(from_slot);
    to.push_back(to_slot);
  }
  int64_t size() const { return static_cast<int64_t>(from.size()); }
};

// The layer whose rows a call names, and whether they are V.
struct RowSource {
  int32_t local_layer;
  bool is_v;
};

// Elements that lie one behind the other.
struct Elements {
  std::byte* data;
  kernels::DType dtype;
};

// On a GPU a call is enqueued on its stream, in its place among all work on the cache; on the CPU
// it is complete on return. What is noexcept cannot run out of memory; a GPU that fails in it is
// lost, which the next call that throws reports. One call at a time, const ones aside.
class Device {
 public:
  virtual ~Device() = default;

  // The instruction set, or the GPU.
  virtual const char* name() const = 0;
  // Threads of the CPU that may run a call; 0: a GPU runs it.
  virtual int32_t num_threads() const = 0;
  // What calls keep for the next ones, pinned memory included. Not beside a call.
  virtual int64_t host_bytes() const = 0;
  // Copies that copy_pages() has made, adjacent pages counted once.
  virtual uint64_t num_copy_runs() const = 0;

  // ---- Pages and states; arrays lie on the host, and are not needed after the call

  // Copies page from[i] to page to[i]. No destination comes twice or is another pair's source.
  // Neighbours of the list that are adjacent in both pools, ascending or descending, become one
  // copy. Without storage nothing is copied.
  virtual void copy_pages(CopyDirection direction, const PageId* from, const PageId* to,
                          int64_t count, CallStream stream) noexcept = 0;
  virtual void copy_group_pages(const std::vector<PageCopy>& copies,
                                CallStream stream) noexcept = 0;
  // Between states, on the device or in the memory that swaps use.
  virtual void copy_bytes(void* to, const void* from, int64_t bytes,
                          CallStream stream) noexcept = 0;

  // Of each page the first `bytes`, as in a pool of the layout PAGE_FIRST, one page behind the
  // other; complete on return. On a GPU the host's memory is pinned. read_pages() may run beside
  // any other call. Throw DEVICE.
  virtual void read_pages(const PageId* pages, int64_t count, int64_t bytes, std::byte* to,
                          CallStream stream) const = 0;
  virtual void write_pages(const PageId* pages, int64_t count, int64_t bytes, const std::byte* from,
                           CallStream stream) = 0;
  // Between a state and the host, likewise.
  virtual void read_bytes(std::byte* to, const std::byte* from, int64_t bytes,
                          CallStream stream) const = 0;
  virtual void write_bytes(std::byte* to, const std::byte* from, int64_t bytes,
                           CallStream stream) = 0;

  // ---- Rows

  // In all layers of the layer group.
  virtual void move_tokens(int32_t group, const TokenMoves& moves, CallStream stream) noexcept = 0;
  // K of these slots, stored rotated, is rotated further, by one angle per pair.
  virtual void rotate_keys(int32_t local_layer, const kernels::Rotation& rotation,
                           const std::vector<int64_t>& slots, CallStream stream) noexcept = 0;
  // Given rows into the slots of a layer; complete on return. Returns how many elements saturated,
  // 0 where nothing counts them.
  virtual uint64_t write_rows(int32_t local_layer, const kernels::AppendParams& params,
                              int64_t num_rows, CallStream stream) noexcept = 0;
  // Tokens [key_begin, key_end); complete on return. Several may run at once, beside any other
  // call. Throws DEVICE, NO_MEMORY.
  virtual void read_rows(const RowSource& source, const kernels::GatherParams& params,
                         int64_t key_begin, int64_t key_end, CallStream stream) const = 0;
  // A state in or out, in the dtype of either side; as read_rows().
  virtual void convert(const Elements& to, const Elements& from, int64_t count,
                       CallStream stream) const = 0;
};

}  // namespace kvc
