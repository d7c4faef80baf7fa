#include "src/model_config/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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

}  // namespace kvc::hf
