// The table of prefix keys under keys that somebody chose to collide.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "src/prefix/key_table.h"

namespace kvc {
namespace {

// 4,096 keys that agree in all but two bytes at `place`.
std::vector<BlockKey> keys_that_differ_at(size_t place) {
  std::vector<BlockKey> keys(4096);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i].bytes.fill(0xA5);
    const auto number = static_cast<uint16_t>(i);
    std::memcpy(keys[i].bytes.data() + place, &number, sizeof(number));
  }
  return keys;
}

TEST(KeyTable, KeysThatSomebodyChoseAreFoundWithoutALookAtAllOthers) {
  for (const size_t place : {0, 8, 14, 30}) {
    const std::vector<BlockKey> keys = keys_that_differ_at(place);
    KeyTable table;
    table.reserve(static_cast<int64_t>(keys.size()));
    for (size_t i = 0; i < keys.size(); ++i) table.insert(keys[i], static_cast<int32_t>(i));
    int64_t compared = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto is_it = [&](int32_t id) {
        ++compared;
        return keys[static_cast<size_t>(id)] == keys[i];
      };
      ASSERT_EQ(table.find(keys[i], is_it), static_cast<int32_t>(i));
    }
    EXPECT_LT(compared, 2 * 4096) << "differing at byte " << place;
  }
}

TEST(KeyTable, PlacesDependOnASecretThatIsDrawn) {
  const std::vector<BlockKey> keys = keys_that_differ_at(8);
  std::set<uint32_t> first, second;
  const KeySecret one = draw_secret(), other = draw_secret();
  EXPECT_NE(one.words, other.words);
  int equal = 0;
  for (const BlockKey& key : keys) {
    first.insert(keyed_hash(one, key));
    second.insert(keyed_hash(other, key));
    equal += keyed_hash(one, key) == keyed_hash(other, key);
  }
  EXPECT_LE(equal, 2);
  EXPECT_GT(first.size(), 4090u);
  EXPECT_GT(second.size(), 4090u);
  EXPECT_EQ(process_secret().words, process_secret().words);
  EXPECT_NE(process_secret().words, one.words);
}

}  // namespace
}  // namespace kvc
