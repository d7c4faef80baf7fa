// kvc_stats as Prometheus reads it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/metrics/prometheus.h"

namespace kvc::metrics {
namespace {

kvc_stats stats_of_one_kind() {
  kvc_stats stats{};
  stats.struct_size = sizeof(stats);
  stats.pages_used = 42;
  stats.prefix_hit_tokens = ~uint64_t{0};
  stats.block_lifetime[0] = 3;
  stats.block_lifetime[1] = 1;
  stats.block_lifetime[31] = 2;
  return stats;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool holds(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(ToolMetrics, GaugesAndCountersHaveTheirValues) {
  const std::string text = prometheus_text({{{}, stats_of_one_kind()}});
  EXPECT_TRUE(holds(text, "# TYPE kvcache_pages_used gauge\nkvcache_pages_used 42"));
  EXPECT_TRUE(holds(text,
                    "# TYPE kvcache_prefix_hit_tokens_total counter\n"
                    "kvcache_prefix_hit_tokens_total 18446744073709551615"));
}

TEST(ToolMetrics, EverySampleBelongsToTheFamilyAboveItAndEveryFamilyComesOnce) {
  const std::string text = prometheus_text(
      {{{{"pool", "a"}}, stats_of_one_kind()}, {{{"pool", "b"}}, stats_of_one_kind()}});
  EXPECT_EQ(text.back(), '\n');
  std::set<std::string> families;
  std::string family, type;
  for (const std::string& line : lines_of(text)) {
    if (line.rfind("# HELP ", 0) == 0) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family;
      EXPECT_GT(line.size(), 8 + family.size()) << line;
      type.clear();
    } else if (line.rfind("# TYPE ", 0) == 0) {
      EXPECT_EQ(line.substr(7, family.size() + 1), family + " ");
      type = line.substr(8 + family.size());
      EXPECT_EQ(type == "counter",
                family.size() > 6 && family.substr(family.size() - 6) == "_total")
          << family;
    } else {
      EXPECT_FALSE(type.empty()) << line;
      EXPECT_EQ(line.substr(0, family.size()), family);
      EXPECT_NE(line.find("pool=\""), std::string::npos) << line;
      EXPECT_EQ(line.find_first_not_of("0123456789.e+-", line.find("} ") + 2), std::string::npos)
          << line;
    }
  }
  EXPECT_GE(families.size(), 40u);
}

TEST(ToolMetrics, BucketsAreCumulativeAndTheLastIsInfinite) {
  const std::string text = prometheus_text({{{}, stats_of_one_kind()}});
  const std::string name = "kvcache_block_lifetime_seconds";
  EXPECT_TRUE(holds(text, "# TYPE " + name + " histogram"));
  EXPECT_TRUE(holds(text, name + "_bucket{le=\"0.002\"} 3"));
  EXPECT_TRUE(holds(text, name + "_bucket{le=\"0.004\"} 4"));
  EXPECT_TRUE(holds(text, name + "_bucket{le=\"+Inf\"} 6"));
  EXPECT_TRUE(holds(text, name + "_count 6"));
  uint64_t last = 0;
  double last_bound = 0;
  size_t buckets = 0;
  for (const std::string& line : lines_of(text)) {
    if (line.rfind(name + "_bucket", 0) != 0) continue;
    const uint64_t count = std::stoull(line.substr(line.find("} ") + 2));
    EXPECT_GE(count, last) << line;
    last = count;
    if (line.find("+Inf") == std::string::npos) {
      const double bound = std::stod(line.substr(line.find("le=\"") + 4));
      EXPECT_GT(bound, last_bound) << line;
      last_bound = bound;
    }
    ++buckets;
  }
  EXPECT_EQ(buckets, 32u);
}

TEST(ToolMetrics, TheSumOfAHistogramIsTakenFromTheMiddlesOfItsBucketsAndSaysSo) {
  kvc_stats stats = stats_of_one_kind();
  stats.block_lifetime[31] = 0;
  const std::string text = prometheus_text({{{}, stats}});
  EXPECT_TRUE(holds(text, "kvcache_block_lifetime_seconds_sum 0.006"));  // 3 * 1 ms + 1 * 3 ms
  EXPECT_NE(text.find("# HELP kvcache_block_lifetime_seconds Evicted blocks by time in the prefix "
                      "cache. The sum is "
                      "approximate"),
            std::string::npos);
}

TEST(ToolMetrics, LabelsAreEscapedAndTheirNamesChecked) {
  EXPECT_EQ(escaped_label("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
  const std::string text =
      prometheus_text({{{{"model", "x\"y"}, {"rank", "0"}}, stats_of_one_kind()}});
  EXPECT_TRUE(holds(text, "kvcache_pages_used{model=\"x\\\"y\",rank=\"0\"} 42"));
  EXPECT_TRUE(holds(
      text, "kvcache_block_lifetime_seconds_bucket{model=\"x\\\"y\",rank=\"0\",le=\"+Inf\"} 6"));
  for (const char* name : {"", "le", "0a", "a-b", "a b", "\xC3\xA4"}) {
    EXPECT_THROW(prometheus_text({{{{name, "x"}}, kvc_stats{}}}), std::invalid_argument) << name;
  }
}

TEST(ToolMetrics, WhatAnOlderLibraryDoesNotKnowIsLeftOut) {
  kvc_stats stats = stats_of_one_kind();
  stats.struct_size = offsetof(kvc_stats, pages_indexed);
  const std::string text = prometheus_text({{{}, stats}});
  EXPECT_TRUE(holds(text, "kvcache_pages_used 42"));
  EXPECT_EQ(text.find("kvcache_pages_indexed"), std::string::npos);
  EXPECT_EQ(text.find("kvcache_block_lifetime"), std::string::npos);
  EXPECT_EQ(prometheus_text({}), "");
}

// A field that is added to the struct and forgotten here fails this.
TEST(ToolMetrics, EveryFieldOfTheStatisticsIsExported) {
  kvc_stats stats{};
  stats.struct_size = sizeof(stats);
  const size_t first = offsetof(kvc_stats, num_seqs),
               histograms = offsetof(kvc_stats, block_lifetime),
               behind = histograms + 3 * 32 * sizeof(uint64_t);
  std::set<std::string> values;
  for (size_t at = first; at < sizeof(kvc_stats); at += 8) {
    if (at >= histograms && at < behind) continue;
    const uint64_t value = 1000000 + at;
    std::copy_n(reinterpret_cast<const char*>(&value), 8, reinterpret_cast<char*>(&stats) + at);
    values.insert(std::to_string(value));
  }
  std::set<std::string> shown;
  for (const std::string& line : lines_of(prometheus_text({{{}, stats}}))) {
    if (line[0] != '#') shown.insert(line.substr(line.find(' ') + 1));
  }
  for (const std::string& value : values)
    EXPECT_EQ(shown.count(value), 1u) << "field at " << std::stoul(value) - 1000000;
}

}  // namespace
}  // namespace kvc::metrics
