#include "src/base/close_name.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvc {
namespace {

// Single characters to change, add or drop until `a` is `b`.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t corner = std::exchange(row[0], i + 1);
    for (size_t k = 0; k < b.size(); ++k) {
      const size_t changed = corner + (a[i] == b[k] ? 0 : 1);
      corner = row[k + 1];
      row[k + 1] = std::min({changed, row[k] + 1, corner + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string close_name(const std::string& word, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 40;
  if (word.size() > kLongest) return "";
  size_t best = word.size() < 5 ? 2 : 3;  // One letter of a short name, two of a long one.
  std::string found;
  for (const std::string& name : names) {
    const size_t away = distance(word, name);
    if (away >= best) continue;
    best = away;
    found = name;
  }
  return found;
}

}  // namespace kvc
