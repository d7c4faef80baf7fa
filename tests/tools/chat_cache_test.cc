// Files that a chat loads: a conversation alone, with its beginnings, and what is neither.
#include "tools/chat/chat_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tools/refusal.h"

namespace kvc::chat {
namespace {
TEST(ToolChatCache, RefusesSequencesThatAreNotAChatAndItsBeginnings) {
  llm::Shape shape;
  shape.q_heads = shape.kv_heads = 1, shape.head_dim = 16;
  shape.layers.resize(1);
  shape.ropes.resize(1);
  shape.ropes[0].struct_size = sizeof(kvc_rope);
  shape.ropes[0].mode = KVC_ROPE_ON_APPEND;
  shape.ropes[0].rotary_dim = 16;
  shape.ropes[0].theta = 10000;
  llm::WorkerPool pool(1);
  ChatCache cache(shape, {kDLFloat, 32, 1}, 64, pool);
  for (kvc_seq seq = 0; seq < 3; ++seq) cache.add(seq);
  const std::string path =
      testing::TempDir() + "chat_cache_test_" + std::to_string(getpid()) + ".kvc";
  cache.save(0, {}, path, "model");
  EXPECT_EQ(cache.load(10, path, "model"), 0u);
  EXPECT_EQ(cache.length(10), 0);
  // A beginning is shorter than the chat.
  const kvc_seq equal[] = {1, 2};
  cache.save(0, equal, path, "model");
  try {
    cache.load(20, path, "model");
    FAIL() << "not refused";
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.what(),
              path + " holds several sequences that are not one chat and its beginnings");
  }
  // Nothing of the file stays.
  for (kvc_seq seq = 20; seq < 23; ++seq) cache.add(seq);
  EXPECT_THROW(cache.load(30, path, "another"), CacheError);
  EXPECT_THROW(cache.load(30, path + ".missing", "model"), CacheError);
  EXPECT_THROW(cache.length(30), CacheError);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace kvc::chat
