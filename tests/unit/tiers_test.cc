// Parts of tiers: values and what damage does to them, breakers, modules that are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "src/base/error.h"
#include "src/tiers/tier.h"
#include "src/tiers/tier_store.h"
#include "src/tiers/value.h"

namespace kvc {
namespace {

using testing::HasSubstr;

TierKey key_of(uint8_t byte) {
  TierKey key;
  key.fill(byte);
  return key;
}

// A block of 70 pages, of which every third is missing, and a state.
struct Value {
  Value() {
    for (int64_t page = 0; page < 70; ++page) shape.page_bytes.push_back(8 + page % 3 * 8);
    shape.state_bytes = 24;
    shape.block_tokens = 16;
    bytes.resize(shape.most_bytes());
    std::mt19937_64 random(1);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    ValueHeadWriter head(shape, bytes.data());
    head.start(key_of(3));
    for (int32_t page = 0; page < 70; ++page) {
      if (page % 3 != 1) head.add_page(page);
    }
    head.add_state();
    bytes.resize(shape.head_bytes() + head.payload_bytes());
    ValueHeadWriter(shape, bytes.data()).seal(bytes.data() + shape.head_bytes());
  }
  bool is_good() const {
    const ValueHead head(shape, bytes.data());
    return head.is_of(key_of(3)) && head.payload_bytes() == bytes.size() - shape.head_bytes() &&
           head.fits(bytes.data() + shape.head_bytes());
  }

  ValueShape shape;
  std::vector<std::byte> bytes;
};

TEST(TierValue, SaysWhatItHas) {
  const Value value;
  EXPECT_TRUE(value.is_good());
  const ValueHead head(value.shape, value.bytes.data());
  EXPECT_EQ(value.shape.head_bytes(), 96u);
  for (int32_t page = 0; page < 70; ++page) EXPECT_EQ(head.has_page(page), page % 3 != 1) << page;
  EXPECT_TRUE(head.has_state());
  EXPECT_FALSE(head.is_of(key_of(4)));
}

TEST(TierValue, EveryFlippedBitIsFound) {
  Value value;
  for (size_t byte = 0; byte < value.bytes.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      value.bytes[byte] ^= std::byte{1} << bit;
      EXPECT_FALSE(value.is_good()) << "byte " << byte << " bit " << bit;
      value.bytes[byte] ^= std::byte{1} << bit;
    }
  }
  EXPECT_TRUE(value.is_good());
}

TEST(TierValue, AnotherShapeReadsNothing) {
  const Value value;
  ValueShape other = value.shape;
  other.block_tokens = 32;
  EXPECT_FALSE(ValueHead(other, value.bytes.data()).is_of(key_of(3)));
  other = value.shape;
  other.page_bytes[0] += 8;
  EXPECT_FALSE(ValueHead(other, value.bytes.data()).is_of(key_of(3)));
  other = value.shape;
  other.page_bytes.pop_back();
  EXPECT_FALSE(ValueHead(other, value.bytes.data()).is_of(key_of(3)));
  other = value.shape;
  other.state_bytes = 0;
  EXPECT_FALSE(ValueHead(other, value.bytes.data()).is_of(key_of(3)));
}

TEST(TierBreaker, OpensAfterThreeFailuresInARow) {
  Breaker breaker("file", "reads");
  const TierFailure failure;
  for (int i = 0; i < 2; ++i) breaker.failed(failure);
  EXPECT_TRUE(breaker.allows());
  breaker.succeeded();
  for (int i = 0; i < 2; ++i) breaker.failed(failure);
  EXPECT_TRUE(breaker.allows()) << "a success in between";
  breaker.failed(failure);
  EXPECT_FALSE(breaker.allows());
  breaker.succeeded();
  EXPECT_TRUE(breaker.allows());
}

TEST(TierModules, AMissingOneIsNamed) {
  for (const auto& [tier, name, file] :
       {std::tuple{KVC_TIER_FILE, "FILE", "libkvcache_tier_rocksdb.so"},
        {KVC_TIER_REDIS, "REDIS", "libkvcache_tier_redis.so"}}) {
    std::string why;
    if (find_tier_module(tier, &why) != nullptr) GTEST_SKIP() << "it lies beside this program";
    EXPECT_THAT(why, HasSubstr(file));
    try {
      (void)require_tier_module(tier);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_E_UNSUPPORTED);
      EXPECT_EQ(error.detail(), tier);
      for (const char* part : {name, file, "kvc_module_path_set"})
        EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

}  // namespace
}  // namespace kvc
