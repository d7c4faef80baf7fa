// kvc_stats in the text format that Prometheus scrapes (version 0.0.4).
#pragma once

#include <kvcache.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvc::metrics {

constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

// One cache: its statistics and the labels that tell it from others, names as
// [a-zA-Z_][a-zA-Z0-9_]*, values any UTF-8.
struct LabelledStats {
  std::vector<std::pair<std::string, std::string>> labels;
  kvc_stats stats{};
};

// All families, each once, with a sample per cache. Fields behind stats.struct_size are left out.
// Throws std::invalid_argument: a name of a label.
std::string prometheus_text(const std::vector<LabelledStats>& caches);

std::string escaped_label(std::string_view value);

}  // namespace kvc::metrics
