#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "src/prefix/key_table.h"
#include "src/prefix/keys.h"
#include "tests/model/random.h"
#include "tests/support/source_tree.h"

namespace kvc {
namespace {

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::string to_hex(const BlockKey& key) {
  std::string text;
  for (const uint8_t byte : key.bytes) {
    text.push_back("0123456789abcdef"[byte >> 4]);
    text.push_back("0123456789abcdef"[byte & 15]);
  }
  return text;
}

// A query as the C interface makes it: extra keys in order.
struct VectorCase {
  explicit VectorCase(const nlohmann::json& json)
      : tokens(json["tokens"].get<std::vector<int32_t>>()), block_tokens(json["block_tokens"]) {
    const std::string salt = from_hex(json["salt"]);
    query.root = namespace_root(salt.data(), salt.size());
    query.num_tokens = static_cast<int64_t>(tokens.size());
    query.tokens = tokens.data();
    for (const auto& key : json["keys"])
      query.extra.push_back({key["type"], key["offset"], from_hex(key["data"])});
    std::sort(query.extra.begin(), query.extra.end(), [](const ExtraKey& a, const ExtraKey& b) {
      return std::tie(a.offset, a.type, a.data) < std::tie(b.offset, b.type, b.data);
    });
  }

  std::vector<int32_t> tokens;
  int32_t block_tokens;
  PrefixQuery query;
};

nlohmann::json vectors() {
  const auto file = test::source_path("tests/conformance/vectors/prefix_hash.json");
  return nlohmann::json::parse(std::ifstream(file))["cases"];
}

TEST(PrefixKeys, AreThoseThatAnotherLanguageComputes) {
  int num_keys = 0;
  for (const auto& json : vectors()) {
    SCOPED_TRACE(json["name"].get<std::string>());
    const VectorCase wanted(json);
    EXPECT_EQ(to_hex(wanted.query.root), json["root"]);
    KeyChain chain(wanted.query, wanted.block_tokens);
    ASSERT_EQ(chain.num_blocks(), static_cast<int64_t>(json["hashes"].size()));
    for (int64_t block = 0; block < chain.num_blocks(); ++block, ++num_keys)
      EXPECT_EQ(to_hex(chain.key(block)), json["hashes"][static_cast<size_t>(block)])
          << "block " << block;
  }
  EXPECT_GT(num_keys, 20);
}

TEST(PrefixKeys, ContinueFromThoseThatTheCallerHas) {
  for (const auto& json : vectors()) {
    SCOPED_TRACE(json["name"].get<std::string>());
    VectorCase wanted(json);
    KeyChain all(wanted.query, wanted.block_tokens);
    std::vector<BlockKey> keys;
    for (int64_t block = 0; block < all.num_blocks(); ++block) keys.push_back(all.key(block));
    for (int64_t given = 0; given <= all.num_blocks(); ++given) {
      VectorCase some(json);
      some.query.keys = keys.data();
      some.query.num_keys = given;
      KeyChain chain(some.query, some.block_tokens);
      for (int64_t block = all.num_blocks(); block-- > 0;)
        ASSERT_EQ(chain.key(block), keys[static_cast<size_t>(block)]) << given << " keys given";
    }
  }
}

TEST(PrefixKeys, StayWhereTheyAreWhileMoreAreComputed) {
  std::vector<int32_t> tokens(1000, 7);
  PrefixQuery query;
  query.tokens = tokens.data();
  query.num_tokens = 1000;
  KeyChain chain(query, 1);
  const BlockKey& first = chain.key(0);
  const BlockKey copy = first;
  chain.key(999);
  EXPECT_EQ(&first, &chain.key(0));
  EXPECT_EQ(first, copy);
}

TEST(KeyTable, AgreesWithAListWhenManyKeysShareTheirFirstBytes) {
  test::Random random(5);
  std::vector<BlockKey> keys(300);
  for (size_t i = 0; i < keys.size(); ++i) {
    // Four tags, seventy-five keys each
    keys[i].bytes[0] = static_cast<uint8_t>(random.range(0, 3));
    keys[i].bytes[31] = static_cast<uint8_t>(i);
    keys[i].bytes[30] = static_cast<uint8_t>(i / 256);
  }
  KeyTable table;
  const auto find = [&](size_t wanted) {
    return table.find(keys[wanted],
                      [&](int32_t id) { return keys[static_cast<size_t>(id)] == keys[wanted]; });
  };
  std::vector<bool> is_in(keys.size(), false);
  EXPECT_EQ(find(0), KeyTable::kAbsent);
  for (int step = 0; step < 20000; ++step) {
    const auto id = static_cast<int32_t>(random.range(0, 299));
    if (step % 5000 == 0) table.reserve(random.range(300, 2000));
    if (is_in[static_cast<size_t>(id)]) {
      table.erase(keys[static_cast<size_t>(id)], id);
    } else {
      table.insert(keys[static_cast<size_t>(id)], id);
    }
    is_in[static_cast<size_t>(id)] = !is_in[static_cast<size_t>(id)];
    for (int probe = 0; probe < 5; ++probe) {
      const auto other = static_cast<int32_t>(random.range(0, 299));
      const bool is_found = find(static_cast<size_t>(other)) == other;
      ASSERT_EQ(is_found, is_in[static_cast<size_t>(other)]) << "seed 5, step " << step;
    }
    ASSERT_EQ(table.count(), std::count(is_in.begin(), is_in.end(), true));
  }
}

}  // namespace
}  // namespace kvc
