#include "src/model_config/fields.h"

#include <cmath>
#include <utility>

#include "src/base/error.h"

namespace kvc::hf {
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
