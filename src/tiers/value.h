// The value of a block in a tier: a head, the bytes of its pages, those of its state. The head says
// whose they are and what they digest to, so that a tier can lose and damage values, but not serve
// wrong ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/tiers/tier.h"

namespace kvc {

// What a block of one cache may consist of.
struct ValueShape {
  std::vector<int64_t> page_bytes;  // [page of the block]
  int64_t state_bytes = 0;
  int32_t block_tokens = 0;

  size_t head_bytes() const;
  // Head, all pages and the state.
  size_t most_bytes() const;
};

// A head in memory. Little endian, 8-byte aligned:
//
//   0  "KVB1"           magic and version
//   4  flags            bit 0: a state is there
//   8  payload_bytes    bytes behind the head
//  16  block_tokens
//  20  num_pages        pages of a whole block
//  24  head_digest      XXH3, 64 bits, of all other bytes of the head
//  32  key              32 bytes
//  64  payload_digest   XXH3, 128 bits
//  80  pages            one bit per page of the block that is there, as 64-bit words
class ValueHead {
 public:
  // Borrows both; [shape.head_bytes()].
  ValueHead(const ValueShape& shape, const std::byte* data) : shape_(&shape), data_(data) {}

  // Whether it is the sealed head of this key, in a cache of this shape.
  bool is_of(const TierKey& key) const noexcept;
  bool has_page(int32_t page) const noexcept;
  bool has_state() const noexcept;
  size_t payload_bytes() const noexcept;
  bool fits(const std::byte* payload) const noexcept;  // It has the payload's digest.

 protected:
  template <typename T>
  T get(size_t offset) const noexcept;
  uint64_t digest() const noexcept;

  const ValueShape* shape_;
  const std::byte* data_;
};

class ValueHeadWriter : public ValueHead {
 public:
  ValueHeadWriter(const ValueShape& shape, std::byte* data) : ValueHead(shape, data), out_(data) {}

  // A head without pages.
  void start(const TierKey& key) noexcept;
  void add_page(int32_t page) noexcept;
  void add_state() noexcept;
  // Once everything is there: computes both digests.
  void seal(const std::byte* payload) noexcept;

 private:
  template <typename T>
  void set(size_t offset, T value) noexcept;

  std::byte* out_;
};

}  // namespace kvc
