// A layer's part of pages as bytes of the host: kvc_pages_export, kvc_pages_import.
#pragma once

#include <cstdint>

#include "kvcache.h"
#include "src/device/device.h"

namespace kvc {

struct CacheCore;

// Both are complete on return and throw Error or std::bad_alloc; nothing has changed then.
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
