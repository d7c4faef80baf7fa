// Payloads that are copied part by part: in order, with their digest, and in any other order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "src/transfer/ucx/payload_copy.h"

namespace kvc {
namespace {

// Ranges with gaps; one is empty, one is longer than what is copied at once.
class PayloadCopies : public testing::Test {
 protected:
  static constexpr size_t kSizes[] = {1, 0, 300, 9000, 7, 4096};
  static constexpr size_t kBytes = 13'404;

  PayloadCopies() {
    size_t at = 0;
    for (const size_t size : kSizes) {
      ranges_.push_back({memory_.data() + at, size});
      at += size + 3;
    }
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 131 >> 3);
    for (const IoRange& range : ranges_)
      packed_.insert(packed_.end(), range.data, range.data + range.size);
  }
  std::vector<std::byte> packed_now() const {
    std::vector<std::byte> all;
    for (const IoRange& range : ranges_) all.insert(all.end(), range.data, range.data + range.size);
    return all;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(20'000);
  std::vector<IoRange> ranges_;
  std::vector<std::byte> packed_;  // As it was.
};

TEST_F(PayloadCopies, InOrderHaveADigest) {
  ASSERT_EQ(packed_.size(), kBytes);
  for (const size_t part : {1, 13, 5000, 20'000}) {
    PayloadCopy reading(*digest_table(), ranges_);
    std::vector<std::byte> out;
    while (out.size() < kBytes) {
      std::vector<std::byte> buffer(part);
      const size_t copied = reading.read(out.size(), buffer.data(), part);
      ASSERT_EQ(copied, std::min(part, kBytes - out.size()));
      EXPECT_EQ(reading.digest_of_all(kBytes).has_value(), out.size() + copied == kBytes);
      out.insert(out.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(copied));
    }
    EXPECT_TRUE(out == packed_) << part;
    EXPECT_EQ(reading.read(kBytes, out.data(), 1), 0u) << "there is no more";
    EXPECT_EQ(reading.digest_of_all(kBytes), digest_of(ranges_)) << part;

    const uint64_t digest = digest_of(ranges_);
    const std::vector<std::byte> gaps = memory_;
    for (const IoRange& range : ranges_) std::fill_n(range.data, range.size, std::byte{0});
    PayloadCopy writing(*digest_table(), ranges_);
    for (size_t at = 0; at < kBytes; at += part) {
      const size_t some = std::min(part, kBytes - at);
      ASSERT_EQ(writing.write(at, packed_.data() + at, some), some);
    }
    EXPECT_TRUE(memory_ == gaps) << "nothing between the ranges is written";
    EXPECT_EQ(writing.digest_of_all(kBytes), digest) << part;
    EXPECT_EQ(writing.write(kBytes, packed_.data(), 1), 0u) << "there is no room";
  }
}

TEST_F(PayloadCopies, InAnotherOrderArriveWithoutOne) {
  const std::vector<size_t> cuts{0, 1, 200, 301, 4500, 9301, 9308, kBytes};
  std::vector<size_t> order{3, 0, 6, 2, 5, 1, 4};
  PayloadCopy reading(*digest_table(), ranges_);
  std::vector<std::byte> out(kBytes);
  for (const size_t i : order) {
    const size_t size = cuts[i + 1] - cuts[i];
    ASSERT_EQ(reading.read(cuts[i], out.data() + cuts[i], size), size);
  }
  EXPECT_TRUE(out == packed_);
  EXPECT_FALSE(reading.digest_of_all(kBytes));

  for (const IoRange& range : ranges_) std::fill_n(range.data, range.size, std::byte{0});
  PayloadCopy writing(*digest_table(), ranges_);
  for (const size_t i : order) {
    const size_t size = cuts[i + 1] - cuts[i];
    ASSERT_EQ(writing.write(cuts[i], packed_.data() + cuts[i], size), size);
  }
  EXPECT_TRUE(packed_now() == packed_);
  EXPECT_FALSE(writing.digest_of_all(kBytes));
}

}  // namespace
}  // namespace kvc
