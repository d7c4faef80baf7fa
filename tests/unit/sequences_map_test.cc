#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

#include "src/sequences/sequences.h"

namespace kvc {
namespace {

TEST(SequenceMap, FindsWhatAStdMapFindsUnderRandomInsertsAndErases) {
  const unsigned seed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  SequenceMap map;
  std::map<kvc_seq, std::unique_ptr<Sequence>> expected;
  // Few distinct ids, close together and far apart, so that probes collide and holes are filled.
  const auto draw_id = [&] {
    return static_cast<kvc_seq>((random() % 2) ? random() % 300 : (random() % 300) << 40);
  };
  for (int step = 0; step < 200000; ++step) {
    const kvc_seq id = draw_id();
    const auto found = expected.find(id);
    ASSERT_EQ(map.find(id), found == expected.end() ? nullptr : found->second.get())
        << "id " << id << " at step " << step;
    if (found == expected.end()) {
      if (expected.size() > 200) continue;
      auto sequence = std::make_unique<Sequence>();
      sequence->id = id;
      map.reserve(1);
      map.insert(sequence.get());
      expected.emplace(id, std::move(sequence));
    } else if (random() % 2) {
      map.erase(id);
      expected.erase(found);
    }
    ASSERT_EQ(map.size(), expected.size());
  }
  size_t visited = 0;
  map.for_each([&](const Sequence& sequence) { visited += expected.count(sequence.id); });
  EXPECT_EQ(visited, expected.size());
}

TEST(SequenceMap, FindsNothingWhileEmpty) {
  SequenceMap map;
  EXPECT_EQ(map.find(0), nullptr);
  map.reserve(1);
  EXPECT_EQ(map.find(0), nullptr);
}

}  // namespace
}  // namespace kvc
