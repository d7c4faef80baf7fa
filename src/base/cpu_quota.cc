#include "src/base/cpu_quota.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <vector>

namespace kvc {
namespace {

// The first bytes of a file of the kernel, empty where there is none.
std::string read_text(const std::string& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    text.resize(4096);
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
  }
  return text;
}

// The numbers at the begin of `text`; "max" and what else is none ends them.
std::vector<int64_t> numbers_of(const std::string& text) {
  std::vector<int64_t> numbers;
  const char* at = text.data();
  const char* end = at + text.size();
  for (int64_t number = 0;;) {
    while (at != end && *at == ' ') ++at;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return numbers;
    numbers.push_back(number);
    at = next;
  }
}

// Of one group; 0: none.
int32_t quota_of(const std::string& folder, bool is_v2) {
  std::vector<int64_t> quota =
      numbers_of(read_text(folder + (is_v2 ? "/cpu.max" : "/cpu.cfs_quota_us")));
  if (!is_v2 && quota.size() == 1) {
    const std::vector<int64_t> period = numbers_of(read_text(folder + "/cpu.cfs_period_us"));
    quota.insert(quota.end(), period.begin(), period.end());
  }
  if (quota.size() < 2 || quota[0] <= 0 || quota[1] <= 0) return 0;
  return static_cast<int32_t>(std::clamp<int64_t>(quota[0] / quota[1], 1, INT32_MAX));
}

// The least of a group and of those around it. A container may see the path that its group has
// outside, where only the mounted root is its own.
int32_t least_quota(const std::string& mount, std::string path, bool is_v2) {
  int32_t least = 0;
  for (;;) {
    const int32_t quota = quota_of(mount + path, is_v2);
    if (quota != 0) least = least == 0 ? quota : std::min(least, quota);
    if (path.empty()) return least;
    path.resize(path.find_last_of('/'));
  }
}

bool lists_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

// A line is hierarchy:controllers:path; that of v2 is 0::path.
int32_t cores_by_quota(const std::string& proc, const std::string& mount) {
  const std::string groups = read_text(proc + "/self/cgroup");
  int32_t least = 0;
  for (size_t begin = 0; begin < groups.size();) {
    const size_t end = std::min(groups.find('\n', begin), groups.size());
    const std::string line = groups.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    while (!path.empty() && path.back() == '/') path.pop_back();
    const bool is_v2 = controllers.empty();
    if (!is_v2 && !lists_cpu(controllers)) continue;
    const int32_t quota = least_quota(is_v2 ? mount : mount + "/" + controllers, path, is_v2);
    if (quota != 0) least = least == 0 ? quota : std::min(least, quota);
  }
  return least;
}

}  // namespace kvc
