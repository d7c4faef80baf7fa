// Typed access to the fields of a configuration. Every failure names the field by its path:
// "text_config.num_hidden_layers".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache.h"

namespace kvc::hf {

struct Member;

// Limits of a JSON text: hostile texts stay cheap.
constexpr size_t kMaxTextBytes = size_t{16} << 20;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = size_t{1} << 18;

// A JSON text as a tree.
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

// A view of one JSON object, which must outlive it. A null member counts as missing, as in Python's
// configuration classes.
class Fields {
 public:
  // Throws INVALID_ARGUMENT when `object` is not an object. `path` is empty or ends in a dot.
  Fields(const Json& object, std::string path);

  bool has(const char* name) const { return find(name) != nullptr; }
  // The member is null, which means no even when the default of the class means yes.
  bool is_null(const char* name) const { return object_->find(name) != nullptr && !has(name); }
  std::string path(const char* name) const { return path_ + name; }
  // A nested configuration. Hugging Face leaves out fields that equal the default of their class.
  bool is_nested() const { return !path_.empty(); }
  const std::vector<Member>& members() const { return object_->members; }
  // The first of these names that exists, else the first one. Older configurations have other names
  // for the same field.
  const char* first_of(std::initializer_list<const char*> names) const;

  // These throw INVALID_ARGUMENT for a missing field or another type, and OUT_OF_RANGE beyond
  // least..most.
  int64_t integer(const char* name, int64_t least, int64_t most) const;
  int64_t integer_or(const char* name, int64_t fallback, int64_t least, int64_t most) const;
  // `class_default`, unless 0, stands for a field that a nested configuration leaves out.
  int64_t class_integer(const char* name, int64_t class_default, int64_t least, int64_t most) const;
  double number(const char* name) const;
  double number_or(const char* name, double fallback) const;
  bool flag_or(const char* name, bool fallback) const;
  std::string text(const char* name) const;
  std::string text_or(const char* name, const char* fallback) const;
  std::optional<Fields> object(const char* name) const;  // Empty: missing.
  std::vector<double> numbers(const char* name) const;
  std::vector<int64_t> integers(const char* name, int64_t least, int64_t most) const;
  std::vector<std::string> texts(const char* name) const;
  std::vector<bool> flags(const char* name) const;   // Booleans, or 0 and 1.
  bool is(const char* name, Json::Type type) const;  // False when it is missing.

  // Throws UNSUPPORTED: the field asks for a feature that the library does not have.
  [[noreturn]] void refuse(const char* name, const char* what) const;

 private:
  const Json* find(const char* name) const;
  const Json& need(const char* name) const;
  const Json& need(const char* name, Json::Type type, const char* expected) const;
  [[noreturn]] void wrong_type(const std::string& name, const Json& value,
                               const char* expected) const;
  int64_t checked_integer(const std::string& name, const Json& value, int64_t least,
                          int64_t most) const;

  const Json* object_;
  std::string path_;
};

// a / b, where b divides a. Throws INVALID_ARGUMENT and names both.
int64_t divide(const Fields& fields, const char* dividend, int64_t a, const char* divisor,
               int64_t b);

// A dtype by name: "bfloat16", "torch.float16". Throws UNSUPPORTED for other types.
DLDataType dtype_of(const Fields& fields, const char* name);

}  // namespace kvc::hf
