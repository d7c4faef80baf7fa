#include "tools/metrics/prometheus.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <stdexcept>

namespace kvc::metrics {
namespace {

enum class Kind { kGauge, kCounter };

struct Family {
  const char* name;
  Kind kind;
  const char* help;
  size_t offset;  // byte offset of the field
  bool is_signed;
};

constexpr size_t kBuckets = sizeof(kvc_stats::block_lifetime) / sizeof(uint64_t);

struct Histogram {
  const char* name;
  const char* help;
  size_t offset;
};

constexpr Family gauge(const char* name, size_t offset, const char* help) {
  return {name, Kind::kGauge, help, offset, true};
}
constexpr Family unsigned_gauge(const char* name, size_t offset, const char* help) {
  return {name, Kind::kGauge, help, offset, false};
}
constexpr Family counter(const char* name, size_t offset, const char* help) {
  return {name, Kind::kCounter, help, offset, false};
}

constexpr Family kFamilies[] = {
    gauge("sequences", offsetof(kvc_stats, num_seqs), "Sequences."),
    gauge("tokens", offsetof(kvc_stats, total_length),
          "Tokens over all sequences; a shared token counts once per sequence."),
    unsigned_gauge("tree_tokens", offsetof(kvc_stats, tree_tokens),
                   "Uncommitted tree nodes over all sequences."),
    gauge("pages", offsetof(kvc_stats, pages_total), "Pages of the pool."),
    gauge("pages_available", offsetof(kvc_stats, pages_available),
          "Pages that no sequence holds, those of the prefix cache included."),
    gauge("pages_used", offsetof(kvc_stats, pages_used),
          "Pages held by sequences or the open forward."),
    gauge("pages_shared", offsetof(kvc_stats, pages_shared),
          "Used pages that several sequences hold."),
    gauge("pages_used_peak", offsetof(kvc_stats, pages_peak), "Most pages used at once so far."),
    gauge("pages_indexed", offsetof(kvc_stats, pages_indexed),
          "Pages that the prefix cache knows, used ones too."),
    gauge("pages_cached", offsetof(kvc_stats, pages_cached),
          "Pages that the prefix cache alone holds; counted as available."),
    unsigned_gauge("page_bytes", offsetof(kvc_stats, page_bytes), "Bytes of a page."),
    unsigned_gauge("pool_bytes", offsetof(kvc_stats, pool_bytes), "Bytes of all pages."),
    gauge("slots_unused", offsetof(kvc_stats, slots_unused),
          "Token slots of used pages behind the last token of their sequence."),
    counter("forwards_total", offsetof(kvc_stats, forwards), "Forwards ended."),
    counter("forwards_aborted_total", offsetof(kvc_stats, forwards_aborted), "Forwards aborted."),
    counter("tokens_appended_total", offsetof(kvc_stats, tokens_appended),
            "Tokens appended by ended forwards."),
    counter("pages_copied_total", offsetof(kvc_stats, pages_copied),
            "Pages copied before a write because others hold them."),
    counter("no_pages_total", offsetof(kvc_stats, no_pages),
            "Forwards refused because the pool was full."),
    counter("cascades_total", offsetof(kvc_stats, cascades),
            "Shared prefixes read once for several sequences."),
    unsigned_gauge("step_bytes", offsetof(kvc_stats, step_bytes),
                   "Bytes that the last forward sends to a device."),
    unsigned_gauge("step_copies", offsetof(kvc_stats, step_copies),
                   "Copies to a device that the last forward needs."),
    gauge("state_slots_used", offsetof(kvc_stats, state_slots_used),
          "Recurrent states and checkpoints of sequences."),
    gauge("state_slots_cached", offsetof(kvc_stats, state_slots_cached),
          "Recurrent states that the prefix index alone keeps."),
    unsigned_gauge("state_slot_bytes", offsetof(kvc_stats, state_slot_bytes),
                   "Bytes of a recurrent state."),
    gauge("prefix_blocks", offsetof(kvc_stats, prefix_blocks),
          "Blocks in the prefix cache, on device and host."),
    gauge("prefix_blocks_host", offsetof(kvc_stats, prefix_blocks_host),
          "Of these, with pages on the host."),
    gauge("prefix_pinned_blocks", offsetof(kvc_stats, prefix_pinned), "Pinned blocks."),
    counter("prefix_lookups_total", offsetof(kvc_stats, prefix_lookups), "Prompts looked up."),
    counter("prefix_query_tokens_total", offsetof(kvc_stats, prefix_query_tokens),
            "Tokens of these prompts."),
    counter("prefix_hit_tokens_total", offsetof(kvc_stats, prefix_hit_tokens),
            "Tokens of these prompts that were found."),
    unsigned_gauge("prefix_recent_query_tokens", offsetof(kvc_stats, recent_query_tokens),
                   "Tokens of the last 1000 prompts looked up."),
    unsigned_gauge("prefix_recent_hit_tokens", offsetof(kvc_stats, recent_hit_tokens),
                   "Tokens of the last 1000 prompts looked up that were found."),
    counter("prefix_stored_blocks_total", offsetof(kvc_stats, prefix_stored), "Blocks published."),
    counter("prefix_duplicate_blocks_total", offsetof(kvc_stats, prefix_duplicates),
            "Blocks computed again although the prefix cache held them."),
    counter("prefix_evicted_blocks_total", offsetof(kvc_stats, prefix_evicted),
            "Blocks evicted for others."),
    counter("prefix_rejected_blocks_total", offsetof(kvc_stats, prefix_rejected),
            "Blocks that a quota kept out."),
    counter("prefix_demoted_pages_total", offsetof(kvc_stats, prefix_demoted),
            "Pages of the prefix cache that went to the host."),
    counter("prefix_promoted_pages_total", offsetof(kvc_stats, prefix_promoted),
            "Pages of the prefix cache that came back."),
    gauge("host_pages", offsetof(kvc_stats, host_pages_total), "Pages of the host pool."),
    gauge("host_pages_used", offsetof(kvc_stats, host_pages_used),
          "Host pages held by swapped sequences and the prefix cache."),
    gauge("swapped_sequences", offsetof(kvc_stats, num_swapped_seqs), "Sequences on the host."),
    counter("pages_swapped_out_total", offsetof(kvc_stats, pages_swapped_out),
            "Pages swapped to the host."),
    counter("pages_swapped_in_total", offsetof(kvc_stats, pages_swapped_in), "Pages swapped back."),
    unsigned_gauge("host_bytes", offsetof(kvc_stats, host_bytes),
                   "Host memory allocated, all pages of pools in host memory included."),
    unsigned_gauge("cos_sin_bytes", offsetof(kvc_stats, cos_sin_bytes),
                   "Bytes of cos and sin on the host, of layers that rotate K on read."),
    counter("values_saturated_total", offsetof(kvc_stats, values_saturated),
            "Elements of K and V that did not fit their type of 8 bits."),
    counter("copy_runs_total", offsetof(kvc_stats, copy_runs),
            "Contiguous copies that swaps and page copies were merged into."),
    counter("events_total", offsetof(kvc_stats, events_made), "Events made."),
    counter("events_lost_total", offsetof(kvc_stats, events_lost),
            "Events overwritten before they were read."),
};

constexpr Histogram kHistograms[] = {
    {"block_lifetime_seconds", "Evicted blocks by time in the prefix cache.",
     offsetof(kvc_stats, block_lifetime)},
    {"block_idle_seconds", "Evicted blocks by time since their last use.",
     offsetof(kvc_stats, block_idle)},
    {"block_reuse_gap_seconds", "Hits by time since the block's use before.",
     offsetof(kvc_stats, block_reuse_gap)},
};
constexpr const char* kSumNote = " The sum is approximate: each bucket counts at its middle.";

std::string decimal(double value) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), end);
}

bool has_field(const kvc_stats& stats, size_t offset, size_t size) {
  return stats.struct_size >= offset + size;
}

std::string field(const kvc_stats& stats, size_t offset, bool is_signed) {
  const char* place = reinterpret_cast<const char*>(&stats) + offset;
  if (is_signed) return std::to_string(*reinterpret_cast<const int64_t*>(place));
  return std::to_string(*reinterpret_cast<const uint64_t*>(place));
}

// `more`: a label that is there already, escaped; may be empty.
std::string label_set(const LabelledStats& cache, const std::string& more = "") {
  std::string out;
  for (const auto& [name, value] : cache.labels) {
    out += (out.empty() ? "" : ",") + name + "=\"" + escaped_label(value) + "\"";
  }
  if (!more.empty()) out += (out.empty() ? "" : ",") + more;
  return out.empty() ? "" : "{" + out + "}";
}

void check_labels(const LabelledStats& cache) {
  for (const auto& [name, value] : cache.labels) {
    bool is_good = !name.empty() && name != "le" && !(name[0] >= '0' && name[0] <= '9');
    for (const char c : name) {
      is_good &=
          (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    }
    if (!is_good) throw std::invalid_argument("'" + name + "' is not the name of a label");
  }
}

std::string head(const std::string& name, const char* type, const std::string& help) {
  return "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void add_histogram(const Histogram& histogram, const LabelledStats& cache, const std::string& name,
                   std::string* out) {
  const auto* counts = reinterpret_cast<const uint64_t*>(
      reinterpret_cast<const char*>(&cache.stats) + histogram.offset);
  uint64_t count = 0;
  double sum = 0, upper = 2e-3;  // seconds
  for (size_t i = 0; i < kBuckets; ++i, upper *= 2) {
    count += counts[i];
    sum += static_cast<double>(counts[i]) * upper * (i == 0 ? 0.5 : 0.75);  // bucket 0 begins at 0
    // And holds all that is longer
    const bool is_last = i + 1 == kBuckets;
    *out += name + "_bucket" +
            label_set(cache, "le=\"" + (is_last ? "+Inf" : decimal(upper)) + "\"") + " " +
            std::to_string(count) + "\n";
  }
  *out += name + "_sum" + label_set(cache) + " " + decimal(sum) + "\n";
  *out += name + "_count" + label_set(cache) + " " + std::to_string(count) + "\n";
}

}  // namespace

std::string escaped_label(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string prometheus_text(const std::vector<LabelledStats>& caches) {
  for (const LabelledStats& cache : caches) check_labels(cache);
  std::string out;
  for (const Family& family : kFamilies) {
    const std::string name = std::string("kvcache_") + family.name;
    std::string samples;
    for (const LabelledStats& cache : caches) {
      if (!has_field(cache.stats, family.offset, sizeof(uint64_t))) continue;
      samples += name + label_set(cache) + " " +
                 field(cache.stats, family.offset, family.is_signed) + "\n";
    }
    if (samples.empty()) continue;
    out += head(name, family.kind == Kind::kCounter ? "counter" : "gauge", family.help) + samples;
  }
  for (const Histogram& histogram : kHistograms) {
    const std::string name = std::string("kvcache_") + histogram.name;
    std::string samples;
    for (const LabelledStats& cache : caches) {
      if (!has_field(cache.stats, histogram.offset, kBuckets * sizeof(uint64_t))) continue;
      add_histogram(histogram, cache, name, &samples);
    }
    if (samples.empty()) continue;
    out += head(name, "histogram", std::string(histogram.help) + kSumNote) + samples;
  }
  return out;
}

}  // namespace kvc::metrics
