// A JSON text as a tree. Limits keep hostile texts cheap.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvc::hf {

constexpr size_t kMaxTextBytes = size_t{16} << 20;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = size_t{1} << 18;

struct Member;

struct Json {
  enum class Type { kNull, kBoolean, kInteger, kReal, kString, kArray, kObject };

  Type type = Type::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;  // Set for integers too.
  std::string text;
  std::vector<Json> items;
  std::vector<Member> members;  // Keys are distinct.

  // Defined where the type is complete, because Clang 14 needs that for constructing `members`.
  Json();

  // Name of a type for messages, such as "a string".
  const char* type_name() const;
  // Null: no such member.
  const Json* find(std::string_view key) const;
};

// A struct of its own, because clang refuses a vector of pairs with the incomplete Json.
struct Member {
  std::string key;
  Json value;
};

// Throws INVALID_ARGUMENT (not JSON, detail = byte offset; a key twice) or OUT_OF_RANGE (too long,
// too deep, too many values, a number beyond double). `Infinity`, which Python's json writes, is
// read as null; `NaN` is refused.
Json parse_json(std::string_view text);

// The caller's text for a message: printable ASCII, shortened.
std::string shown(std::string_view text);

}  // namespace kvc::hf
