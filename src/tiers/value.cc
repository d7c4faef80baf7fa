#include "src/tiers/value.h"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvc {
namespace {

constexpr uint32_t kMagic = 0x3142564b;  // "KVB1"
constexpr size_t kFlags = 4, kPayloadBytes = 8, kBlockTokens = 16, kNumPages = 20, kHeadDigest = 24,
                 kKey = 32, kPayloadDigest = 64, kPages = 80;
constexpr uint32_t kHasState = 1;

XXH128_canonical_t digest_of(const std::byte* payload, size_t size) noexcept {
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(payload, size));
  return digest;
}

}  // namespace

size_t ValueShape::head_bytes() const { return kPages + (page_bytes.size() + 63) / 64 * 8; }

size_t ValueShape::most_bytes() const {
  int64_t bytes = state_bytes;
  for (const int64_t page : page_bytes) bytes += page;
  return head_bytes() + static_cast<size_t>(bytes);
}

template <typename T>
T ValueHead::get(size_t offset) const noexcept {
  T value;
  std::memcpy(&value, data_ + offset, sizeof value);
  return value;
}

template <typename T>
void ValueHeadWriter::set(size_t offset, T value) noexcept {
  std::memcpy(out_ + offset, &value, sizeof value);
}

void ValueHeadWriter::start(const TierKey& key) noexcept {
  std::memset(out_, 0, shape_->head_bytes());
  set(0, kMagic);
  set(kBlockTokens, shape_->block_tokens);
  set(kNumPages, static_cast<uint32_t>(shape_->page_bytes.size()));
  set(kKey, key);
}

void ValueHeadWriter::add_page(int32_t page) noexcept {
  const size_t offset = kPages + static_cast<size_t>(page / 64) * 8;
  set(offset, get<uint64_t>(offset) | uint64_t{1} << (page % 64));
}

void ValueHeadWriter::add_state() noexcept { set(kFlags, get<uint32_t>(kFlags) | kHasState); }

void ValueHeadWriter::seal(const std::byte* payload) noexcept {
  set(kPayloadBytes, uint64_t{payload_bytes()});
  set(kPayloadDigest, digest_of(payload, payload_bytes()));
  set(kHeadDigest, digest());
}

uint64_t ValueHead::digest() const noexcept {
  const uint64_t begin = XXH3_64bits(data_, kHeadDigest);
  return XXH3_64bits_withSeed(data_ + kKey, shape_->head_bytes() - kKey, begin);
}

bool ValueHead::is_of(const TierKey& key) const noexcept {
  return get<uint32_t>(0) == kMagic && get<uint64_t>(kHeadDigest) == digest() &&
         get<TierKey>(kKey) == key && get<int32_t>(kBlockTokens) == shape_->block_tokens &&
         get<uint32_t>(kNumPages) == shape_->page_bytes.size() &&
         get<uint64_t>(kPayloadBytes) == payload_bytes() &&
         (!has_state() || shape_->state_bytes != 0);
}

bool ValueHead::has_page(int32_t page) const noexcept {
  return (get<uint64_t>(kPages + static_cast<size_t>(page / 64) * 8) >> (page % 64) & 1) != 0;
}

bool ValueHead::has_state() const noexcept { return (get<uint32_t>(kFlags) & kHasState) != 0; }

size_t ValueHead::payload_bytes() const noexcept {
  int64_t bytes = has_state() ? shape_->state_bytes : 0;
  for (size_t page = 0; page < shape_->page_bytes.size(); ++page) {
    if (has_page(static_cast<int32_t>(page))) bytes += shape_->page_bytes[page];
  }
  return static_cast<size_t>(bytes);
}

bool ValueHead::fits(const std::byte* payload) const noexcept {
  const XXH128_canonical_t digest = digest_of(payload, payload_bytes());
  return std::memcmp(&digest, data_ + kPayloadDigest, sizeof digest) == 0;
}

}  // namespace kvc
