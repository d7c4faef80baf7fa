#include "src/model_config/fields.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/error.h"
#include "src/base/print.h"

namespace kvc::hf {
namespace {

// Builds the tree from the parser's events, so that limits hold while the text is read and not
// after.
class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Json take() { return std::move(root_); }

  bool null() override { return add(Json{}); }
  bool boolean(bool value) override {
    Json json = of(Json::Type::kBoolean);
    json.boolean = value;
    return add(std::move(json));
  }
  bool number_integer(number_integer_t value) override { return add_integer(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX))
      return add_real(static_cast<double>(value));
    return add_integer(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return add_real(value); }
  bool string(string_t& value) override {
    Json json = of(Json::Type::kString);
    json.text = std::move(value);
    return add(std::move(json));
  }
  bool binary(binary_t&) override { return false; }  // not in JSON texts
  bool start_object(std::size_t) override { return open(Json::Type::kObject); }
  bool start_array(std::size_t) override { return open(Json::Type::kArray); }
  bool end_array() override { return close(); }
  bool end_object() override {
    check_keys(open_.back());
    return close();
  }
  bool key(string_t& value) override {
    open_.back().members.push_back({std::move(value), Json{}});
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    constexpr int kNumberOverflow = 406;
    // Positions count from one.
    const auto offset = static_cast<int64_t>(position == 0 ? 0 : position - 1);
    if (error.id == kNumberOverflow) {
      fail_with(KVC_E_OUT_OF_RANGE, offset,
                "json has a number beyond the range of a double before byte %lld", ll(offset));
    }
    fail_with(KVC_E_INVALID_ARGUMENT, offset, "json is not JSON at byte %lld", ll(offset));
  }

 private:
  static Json of(Json::Type type) {
    Json json;
    json.type = type;
    return json;
  }
  bool add_integer(int64_t value) {
    Json json = of(Json::Type::kInteger);
    json.integer = value;
    json.real = static_cast<double>(value);
    return add(std::move(json));
  }
  bool add_real(double value) {
    Json json = of(Json::Type::kReal);
    json.real = value;
    return add(std::move(json));
  }
  bool open(Json::Type type) {
    if (open_.size() >= kMaxDepth) {
      fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(kMaxDepth),
                "json is nested deeper than %zu levels", kMaxDepth);
    }
    open_.push_back(of(type));
    return true;
  }
  bool close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    return add(std::move(done));
  }
  bool add(Json json) {
    if (++num_values_ > kMaxValues) {
      fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(kMaxValues),
                "json has more than %zu values", kMaxValues);
    }
    if (open_.empty()) {
      root_ = std::move(json);
    } else if (open_.back().type == Json::Type::kArray) {
      open_.back().items.push_back(std::move(json));
    } else {
      open_.back().members.back().value = std::move(json);
    }
    return true;
  }
  static void check_keys(const Json& object) {
    std::vector<std::string_view> keys;
    keys.reserve(object.members.size());
    for (const Member& member : object.members) keys.emplace_back(member.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end())
      fail(KVC_E_INVALID_ARGUMENT, "json has the key '%s' twice in one object",
           shown(*twice).c_str());
  }

  Json root_;
  std::vector<Json> open_;
  size_t num_values_ = 0;
};

// Python writes infinite numbers as words that are not JSON. Same length, so that byte offsets stay
// those of the caller's text.
std::string without_infinities(std::string_view text) {
  static constexpr std::string_view kInfinity = "Infinity", kNull = "null";
  std::string out(text);
  bool in_string = false;
  for (size_t i = 0; i < out.size(); ++i) {
    if (in_string) {
      if (out[i] == '\\')
        ++i;
      else if (out[i] == '"')
        in_string = false;
      continue;
    }
    if (out[i] == '"') in_string = true;
    if (out.compare(i, kInfinity.size(), kInfinity) != 0) continue;
    const size_t begin = i > 0 && out[i - 1] == '-' ? i - 1 : i;
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(begin),
              out.begin() + static_cast<std::ptrdiff_t>(i + kInfinity.size()), ' ');
    out.replace(begin, kNull.size(), kNull);
    i += kInfinity.size() - 1;
  }
  return out;
}

}  // namespace

Json::Json() = default;

const char* Json::type_name() const {
  static constexpr const char* kNames[] = {"null",     "a boolean", "a number", "a number",
                                           "a string", "an array",  "an object"};
  return kNames[static_cast<size_t>(type)];
}

const Json* Json::find(std::string_view key) const {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const auto& member) { return member.key == key; });
  return found == members.end() ? nullptr : &found->value;
}

Json parse_json(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(kMaxTextBytes),
              "json is longer than %zu bytes", kMaxTextBytes);
  }
  const std::string plain = without_infinities(text);
  const CLocale in_c;
  TreeBuilder tree;
  if (!nlohmann::json::sax_parse(plain.begin(), plain.end(), &tree))
    fail(KVC_E_INVALID_ARGUMENT, "json is not JSON");
  return tree.take();
}

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 48;
  std::string out;
  for (const char c : text.substr(0, kLongest)) out += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kLongest ? out + "..." : out;
}

Fields::Fields(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {
  if (object.type == Json::Type::kObject) return;
  const std::string name = path_.empty() ? "json" : path_.substr(0, path_.size() - 1);
  wrong_type(name, object, "an object");
}

const Json* Fields::find(const char* name) const {
  const Json* value = object_->find(name);
  return value == nullptr || value->type == Json::Type::kNull ? nullptr : value;
}

const char* Fields::first_of(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (has(name)) return name;
  }
  return *names.begin();
}

const Json& Fields::need(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s is missing", path(name).c_str());
  return *value;
}

const Json& Fields::need(const char* name, Json::Type type, const char* expected) const {
  const Json& value = need(name);
  if (value.type != type) wrong_type(path(name), value, expected);
  return value;
}

void Fields::wrong_type(const std::string& name, const Json& value, const char* expected) const {
  fail(KVC_E_INVALID_ARGUMENT, "%s is %s, expected %s", name.c_str(), value.type_name(), expected);
}

int64_t Fields::checked_integer(const std::string& name, const Json& value, int64_t least,
                                int64_t most) const {
  if (value.type != Json::Type::kInteger && value.type != Json::Type::kReal)
    wrong_type(name, value, "a number");
  int64_t number = value.integer;
  if (value.type == Json::Type::kReal) {
    if (!(std::abs(value.real) < 0x1p53)) {
      fail(KVC_E_OUT_OF_RANGE, "%s = %g out of range: %lld to %lld", name.c_str(), value.real,
           ll(least), ll(most));
    }
    number = static_cast<int64_t>(value.real);
    if (static_cast<double>(number) != value.real)
      fail(KVC_E_INVALID_ARGUMENT, "%s = %g, expected an integer", name.c_str(), value.real);
  }
  if (number < least || number > most) {
    fail_with(KVC_E_OUT_OF_RANGE, number, "%s = %lld out of range: %lld to %lld", name.c_str(),
              ll(number), ll(least), ll(most));
  }
  return number;
}

int64_t Fields::integer(const char* name, int64_t least, int64_t most) const {
  return checked_integer(path(name), need(name), least, most);
}

int64_t Fields::integer_or(const char* name, int64_t fallback, int64_t least, int64_t most) const {
  return has(name) ? integer(name, least, most) : fallback;
}

int64_t Fields::class_integer(const char* name, int64_t class_default, int64_t least,
                              int64_t most) const {
  if (!has(name) && is_nested() && class_default != 0) return class_default;
  return integer(name, least, most);
}

double Fields::number(const char* name) const {
  const Json& value = need(name);
  if (value.type != Json::Type::kInteger && value.type != Json::Type::kReal)
    wrong_type(path(name), value, "a number");
  return value.real;
}

double Fields::number_or(const char* name, double fallback) const {
  return has(name) ? number(name) : fallback;
}

bool Fields::flag_or(const char* name, bool fallback) const {
  return has(name) ? need(name, Json::Type::kBoolean, "a boolean").boolean : fallback;
}

std::string Fields::text(const char* name) const {
  return need(name, Json::Type::kString, "a string").text;
}

std::string Fields::text_or(const char* name, const char* fallback) const {
  return has(name) ? text(name) : std::string(fallback);
}

std::optional<Fields> Fields::object(const char* name) const {
  if (!has(name)) return std::nullopt;
  return Fields(need(name), path(name) + ".");
}

std::vector<double> Fields::numbers(const char* name) const {
  std::vector<double> out;
  for (const Json& item : need(name, Json::Type::kArray, "an array").items) {
    if (item.type != Json::Type::kInteger && item.type != Json::Type::kReal)
      wrong_type(path(name) + "[" + std::to_string(out.size()) + "]", item, "a number");
    out.push_back(item.real);
  }
  return out;
}

std::vector<int64_t> Fields::integers(const char* name, int64_t least, int64_t most) const {
  std::vector<int64_t> out;
  for (const Json& item : need(name, Json::Type::kArray, "an array").items)
    out.push_back(
        checked_integer(path(name) + "[" + std::to_string(out.size()) + "]", item, least, most));
  return out;
}

std::vector<std::string> Fields::texts(const char* name) const {
  std::vector<std::string> out;
  for (const Json& item : need(name, Json::Type::kArray, "an array").items) {
    if (item.type != Json::Type::kString)
      wrong_type(path(name) + "[" + std::to_string(out.size()) + "]", item, "a string");
    out.push_back(item.text);
  }
  return out;
}

std::vector<bool> Fields::flags(const char* name) const {
  std::vector<bool> out;
  for (const Json& item : need(name, Json::Type::kArray, "an array").items) {
    const std::string item_name = path(name) + "[" + std::to_string(out.size()) + "]";
    out.push_back(item.type == Json::Type::kBoolean ? item.boolean
                                                    : checked_integer(item_name, item, 0, 1) != 0);
  }
  return out;
}

bool Fields::is(const char* name, Json::Type type) const {
  const Json* value = find(name);
  return value != nullptr && value->type == type;
}

void Fields::refuse(const char* name, const char* what) const {
  fail(KVC_E_UNSUPPORTED, "%s is not supported: %s", path(name).c_str(), what);
}

int64_t divide(const Fields& fields, const char* dividend, int64_t a, const char* divisor,
               int64_t b) {
  if (b < 1 || a % b != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, a, "%s = %lld is not a multiple of %s = %lld",
              fields.path(dividend).c_str(), ll(a), divisor, ll(b));
  }
  return a / b;
}

DLDataType dtype_of(const Fields& fields, const char* name) {
  std::string text = fields.text(name);
  constexpr const char* kModule = "torch.";
  if (text.rfind(kModule, 0) == 0) text.erase(0, std::char_traits<char>::length(kModule));
  if (text == "bfloat16") return {kDLBfloat, 16, 1};
  if (text == "float16" || text == "half") return {kDLFloat, 16, 1};
  if (text == "float32" || text == "float") return {kDLFloat, 32, 1};
  fail(KVC_E_UNSUPPORTED, "%s = '%s' is not supported: storage is float32, float16 or bfloat16",
       fields.path(name).c_str(), shown(text).c_str());
}

}  // namespace kvc::hf
