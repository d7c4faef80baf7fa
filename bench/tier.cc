// Tiers: writing and reading blocks of a prompt, against direct I/O of as many bytes in the same
// folder, or against redis-benchmark with values of the same size.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/benches.h"
#include "bench/rates.h"

namespace kvc::bench {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_with_errno(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

// ---- Blocks of prompts through a tier

constexpr int kQueuedPrompts = 3;

class Prompts {
 public:
  Prompts(const TierOptions& options, const CacheShape& shape, int64_t value_bytes)
      : options_(options),
        shape_(shape),
        value_bytes_(value_bytes),
        k_(shape.storage, options.tokens, shape.kv_heads, shape.head_dim, 11),
        v_(shape.storage, options.tokens, shape.kv_heads, shape.head_dim, 12),
        cache_(shape) {}

  int64_t num_blocks() const { return options_.prompts * (options_.tokens / shape_.page_size); }
  int64_t bytes() const { return num_blocks() * value_bytes_; }

  // From the first forward until every block is where it stays. Returns seconds.
  double write(const kvc_tier_desc& tier) {
    kvc_error error{};
    attach(tier);
    // The memory of the queue is warm, as it is in a process that has run for a while.
    publish(tier, -kQueuedPrompts, 0);
    check(kvc_tier_flush(cache_.get(), -1, &error), error);
    check(kvc_cache_clear(cache_.get(), &error), error);
    const uint64_t before = stats_of(tier.tier).blocks_put;
    const double begin = now_seconds();
    publish(tier, 0, options_.prompts);
    check(kvc_tier_flush(cache_.get(), -1, &error), error);
    const kvc_tier_stats stats = stats_of(tier.tier);
    check(kvc_tier_detach(cache_.get(), tier.tier, &error), error);
    const double seconds = now_seconds() - begin;
    if (stats.blocks_put - before != static_cast<uint64_t>(num_blocks()))
      throw std::runtime_error("the tier has written " + std::to_string(stats.blocks_put - before) +
                               " of " + std::to_string(num_blocks()) + " blocks");
    return seconds;
  }

  // The cache, which has nothing any more, attaches every prompt. Returns the seconds of
  // kvc_prefix_attach.
  double read(const kvc_tier_desc& tier) {
    kvc_error error{};
    attach(tier);
    double seconds = 0;
    for (kvc_seq prompt = 0; prompt < options_.prompts; ++prompt) {
      const std::vector<int32_t> ids = ids_of(prompt);
      kvc_prefix_query query{};
      query.struct_size = sizeof query;
      query.flags = KVC_PREFIX_ALL_TOKENS;
      query.num_tokens = options_.tokens;
      query.tokens = ids.data();
      int64_t found = 0;
      const double begin = now_seconds();
      check(kvc_prefix_attach(cache_.get(), prompt, &query, &found, &error), error);
      seconds += now_seconds() - begin;
      if (found != options_.tokens)
        throw std::runtime_error("prompt " + std::to_string(prompt) + " hit with " +
                                 std::to_string(found) + " tokens");
    }
    check(kvc_tier_detach(cache_.get(), tier.tier, &error), error);
    return seconds;
  }

 private:
  std::vector<int32_t> ids_of(kvc_seq prompt) const {
    std::vector<int32_t> ids(static_cast<size_t>(options_.tokens));
    std::iota(ids.begin(), ids.end(),
              static_cast<int32_t>((prompt + kQueuedPrompts) * options_.tokens));
    return ids;
  }
  // To an empty cache, whose memory is warm.
  void attach(const kvc_tier_desc& tier) {
    kvc_error error{};
    check(kvc_cache_clear(cache_.get(), &error), error);
    check(kvc_tier_attach(cache_.get(), &tier, &error), error);
  }
  void publish(const kvc_tier_desc& tier, kvc_seq begin, kvc_seq end) {
    for (kvc_seq prompt = begin; prompt < end; ++prompt) {
      append(prompt);
      // The next prompt has room in the queue.
      while (stats_of(tier.tier).waiting_bytes > tier.queue_bytes / 2)
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  // Sequences of negative prompts are numbered behind the others.
  void append(kvc_seq prompt) {
    const std::vector<int32_t> ids = ids_of(prompt);
    if (prompt < 0) prompt += options_.prompts + kQueuedPrompts;
    cache_.add(prompt);
    const int64_t length = options_.tokens;
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1;
    desc.seqs = &prompt;
    desc.append_lengths = &length;
    desc.tokens = ids.data();
    kvc_error error{};
    kvc_forward* forward = nullptr;
    check(kvc_forward_begin(cache_.get(), &desc, &forward, &error), error);
    for (int layer = 0; layer < shape_.layers; ++layer)
      cache_.append_kv(forward, layer, k_.tensor(), v_.tensor());
    cache_.end(forward);
  }
  kvc_tier_stats stats_of(kvc_tier tier) const {
    kvc_tier_stats stats{};
    stats.struct_size = sizeof stats;
    kvc_error error{};
    check(kvc_tier_stats_get(cache_.get(), tier, &stats, &error), error);
    return stats;
  }

  const TierOptions& options_;
  const CacheShape shape_;
  const int64_t value_bytes_;
  Activations k_, v_;
  Cache cache_;
};

// ---- The limit of files: direct I/O of whole values, as one file

class DirectFile {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;

  DirectFile(std::string path, int64_t value_bytes, int64_t count)
      : path_(std::move(path)),
        value_bytes_((static_cast<size_t>(value_bytes) + 4095) / 4096 * 4096),
        count_(count) {
    const size_t size = (value_bytes_ + kHugePage - 1) / kHugePage * kHugePage;
    for (std::byte*& buffer : buffers_) {
      void* memory = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) fail_with_errno("mmap");
      const auto at = reinterpret_cast<uintptr_t>(memory);
      buffer = static_cast<std::byte*>(memory) + (kHugePage - at % kHugePage) % kHugePage;
      madvise(buffer, size, MADV_HUGEPAGE);
      std::memset(buffer, 7, size);
    }
  }
  ~DirectFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  double write() {
    fs::remove(path_);
    const double begin = now_seconds();
    const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (file < 0) fail_with_errno(path_);
    for (int64_t i = 0; i < count_; ++i) {
      if (pwrite(file, buffers_[0], value_bytes_, offset(i)) != static_cast<ssize_t>(value_bytes_))
        fail_with_errno(path_);
    }
    if (fdatasync(file) != 0) fail_with_errno(path_);
    close(file);
    return now_seconds() - begin;
  }
  // The faster of one thread and two.
  double read() { return std::min(read_by(1), read_by(2)); }

 private:
  off_t offset(int64_t i) const {
    return static_cast<off_t>(i * static_cast<int64_t>(value_bytes_));
  }
  double read_by(int threads) {
    const int file = open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (file < 0) fail_with_errno(path_);
    const double begin = now_seconds();
    std::vector<std::thread> team;
    bool is_short[2] = {false, false};
    for (int thread = 0; thread < threads; ++thread) {
      team.emplace_back([this, file, thread, threads, &is_short] {
        for (int64_t i = thread; i < count_; i += threads) {
          const ssize_t got = pread(file, buffers_[thread], value_bytes_, offset(i));
          is_short[thread] |= got != static_cast<ssize_t>(value_bytes_);
        }
      });
    }
    for (std::thread& thread : team) thread.join();
    const double seconds = now_seconds() - begin;
    close(file);
    if (is_short[0] || is_short[1]) throw std::runtime_error(path_ + ": could not be read");
    return seconds;
  }

  const std::string path_;
  const size_t value_bytes_;
  const int64_t count_;
  std::byte* buffers_[2] = {};  // For the life of the process.
};

// ---- The limit of servers: redis-benchmark

// Requests per second.
double benchmark(const TierOptions& options, const std::string& test, int64_t value_bytes,
                 int64_t count) {
  const size_t colon = options.redis.rfind(':');
  if (colon == std::string::npos) throw std::runtime_error("--redis: expected host:port");
  // Two connections, as a cache has them, and values that are all there.
  const std::string command = "redis-benchmark -h '" + options.redis.substr(0, colon) + "' -p '" +
                              options.redis.substr(colon + 1) + "' -t " + test + " -d " +
                              std::to_string(value_bytes) + " -n " + std::to_string(count) +
                              " -c 2 -P 4 --csv 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) fail_with_errno("redis-benchmark");
  double rate = 0;
  for (char line[512]; std::fgets(line, sizeof line, pipe) != nullptr;) {
    const char* number = std::strstr(line, "\",\"");
    if (number != nullptr && std::strncmp(line, "\"test\"", 6) != 0)
      rate = std::strtod(number + 3, nullptr);
  }
  if (pclose(pipe) != 0 || rate <= 0) throw std::runtime_error("redis-benchmark did not run");
  return rate;
}

// ---- Rounds

kvc_tier_desc describe(const TierOptions& options, const std::string& folder, int64_t bytes) {
  kvc_tier_desc tier{};
  tier.struct_size = sizeof tier;
  tier.get_ms = 60000;
  tier.model_id = "kvcache bench tier";
  tier.queue_bytes = static_cast<uint64_t>(kQueuedPrompts * bytes / options.prompts);
  if (options.redis.empty()) {
    tier.tier = KVC_TIER_FILE;
    tier.address = folder.c_str();
    tier.byte_limit = 4 * static_cast<uint64_t>(bytes) + (uint64_t{1} << 30);
  } else {
    tier.tier = KVC_TIER_REDIS;
    tier.address = options.redis.c_str();
    tier.put_ms = tier.connect_ms = 60000;
    tier.ttl_s = 60;  // Nothing is left behind.
  }
  return tier;
}

}  // namespace

Report run_tier(const TierOptions& options) {
  Report report = model_report("tier", options.model, options.common);
  CacheShape shape = shape_of(options.model, options.common);
  shape.layers = options.layers;
  if (options.tokens % shape.page_size != 0)
    throw std::runtime_error("--tokens: expected a multiple of the page size");
  shape.num_pages = options.prompts * options.tokens / shape.page_size;
  const int64_t value_bytes = shape.layers * shape.page_layer_bytes();
  if (shape.num_pages * value_bytes > kLargestPoolBytes)
    throw std::runtime_error("the pool would be too large: fewer --tokens or --prompts");
  Prompts prompts(options, shape, value_bytes);
  const bool is_file = options.redis.empty();
  const fs::path parent =
      options.folder.empty() ? fs::temp_directory_path() : fs::path(options.folder);
  const std::string folder = parent / ("kvcache-bench-" + std::to_string(getpid()));
  const kvc_tier_desc tier = describe(options, folder, prompts.bytes());
  const auto bytes = static_cast<double>(prompts.bytes());

  Rates writes, reads;
  for (int round = 0; round <= options.rounds; ++round) {
    double write_limit = 0, read_limit = 0;
    if (is_file) {
      fs::remove_all(folder);
      fs::create_directory(folder);
      DirectFile plain(folder + ".plain", value_bytes, prompts.num_blocks());
      write_limit = bytes / plain.write();
      read_limit = bytes / plain.read();
    } else {
      const auto value = static_cast<double>(value_bytes);
      write_limit = value * benchmark(options, "set", value_bytes, prompts.num_blocks());
      // The first test leaves the value that the second one asks for.
      read_limit = value * benchmark(options, "set,get", value_bytes, prompts.num_blocks());
    }
    const double write = bytes / prompts.write(tier), read = bytes / prompts.read(tier);
    if (round == 0) continue;  // Warms up.
    writes.add(write, write_limit);
    reads.add(read, read_limit);
  }
  if (is_file) fs::remove_all(folder);
  report["tier"] = is_file ? "file" : "redis";
  report["layers"] = shape.layers;
  report["value_bytes"] = value_bytes;
  report["bytes"] = prompts.bytes();
  report["rounds"] = options.rounds;
  const char* limit = is_file ? "direct_gbps" : "redis_benchmark_gbps";
  report["write"] = writes.report(limit);
  report["read"] = reads.report(limit);
  return report;
}

}  // namespace kvc::bench
