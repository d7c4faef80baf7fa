#include "tools/plan/size.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>

namespace kvc::plan_tool {
namespace {

struct Unit {
  std::string_view name;  // lower case
  uint64_t bytes;
};
constexpr Unit kUnits[] = {{"", 1},
                           {"b", 1},
                           {"kb", 1000},
                           {"mb", 1000'000},
                           {"gb", 1000'000'000},
                           {"tb", 1000'000'000'000},
                           {"k", uint64_t{1} << 10},
                           {"m", uint64_t{1} << 20},
                           {"g", uint64_t{1} << 30},
                           {"t", uint64_t{1} << 40},
                           {"kib", uint64_t{1} << 10},
                           {"mib", uint64_t{1} << 20},
                           {"gib", uint64_t{1} << 30},
                           {"tib", uint64_t{1} << 40}};

constexpr uint64_t kMost = INT64_MAX;
constexpr uint64_t kLeastWithoutUnit = uint64_t{1} << 20;

}  // namespace

std::optional<uint64_t> parse_size(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string_view unit = text.substr(digits);
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  const auto same = [&](const Unit& known) {
    return std::equal(
        unit.begin(), unit.end(), known.name.begin(), known.name.end(),
        [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
  };
  const Unit* known = std::find_if(std::begin(kUnits), std::end(kUnits), same);
  if (known == std::end(kUnits)) return std::nullopt;
  const char* end = text.data() + digits;
  uint64_t whole = 0;
  if (const auto [stop, error] = std::from_chars(text.data(), end, whole);
      error == std::errc{} && stop == end) {
    if (whole > kMost / known->bytes) return std::nullopt;
    return whole * known->bytes;
  }
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  const double bytes = std::floor(number * static_cast<double>(known->bytes));
  if (!(bytes < static_cast<double>(kMost))) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

std::string size_problem(const std::string& text) {
  const auto bytes = parse_size(text);
  if (!bytes || *bytes == 0)
    return "'" + text + "' is not an amount of memory, such as 24GiB, 24G, 500MB or 25769803776";
  const bool has_unit = text.find_first_not_of("0123456789.") != std::string::npos;
  if (!has_unit && *bytes < kLeastWithoutUnit)
    return "'" + text + "' has no unit and would be bytes: write " + text + "GiB, " + text +
           "GB or " + text + "B";
  return "";
}

std::string size_text(uint64_t bytes) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kNames)) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kNames[unit]);
  return text;
}

std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t place = text.size(); place > first + 3;) text.insert(place -= 3, 1, ',');
  return text;
}

}  // namespace kvc::plan_tool
