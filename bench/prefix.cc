// The prefix index on one long prompt: what it costs to name its blocks, to find them, to take
// them, to publish them, to give them up. No tensor memory: nothing but the host's bookkeeping.
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

constexpr kvc_seq kOwner = 1, kReader = 2;

template <typename Work>
double milliseconds(Work&& work) {
  const double start = now_seconds();
  work();
  return (now_seconds() - start) * 1e3;
}

class PromptIndex {
 public:
  explicit PromptIndex(const PrefixOptions& options)
      : cache_(shape(options)), page_size_(options.page_size) {
    tokens_.resize(static_cast<size_t>(options.tokens));
    std::iota(tokens_.begin(), tokens_.end(), 1000);
    num_blocks_ = tokens_.size() / static_cast<size_t>(page_size_);
    hashes_.resize(num_blocks_ * KVC_HASH_BYTES);
    hash();
    query_.struct_size = sizeof query_;
    query_.flags = KVC_PREFIX_ALL_TOKENS;
    query_.num_tokens = static_cast<int64_t>(tokens_.size());
    query_.tokens = tokens_.data();
    query_.hashes = hashes_.data();
    query_.num_hashes = num_blocks_;
  }

  size_t num_blocks() const { return num_blocks_; }
  void hash() {
    size_t count = num_blocks_;
    kvc_error error = fresh();
    check(kvc_prefix_hash(tokens_.data(), tokens_.size(), page_size_, nullptr, 0, nullptr, 0,
                          hashes_.data(), &count, &error),
          error);
  }
  // A sequence of the whole prompt whose tokens the cache does not know yet, and an empty index.
  void prepare() {
    kvc_error error = fresh();
    check(kvc_prefix_reset(cache_.get(), &error), error);
    cache_.add(kOwner);
    filler_.grow(kOwner, query_.num_tokens);
  }
  void insert() {
    int64_t found = 0;
    kvc_error error = fresh();
    check(kvc_prefix_insert(cache_.get(), kOwner, &query_, &found, &error), error);
    expect("kvc_prefix_insert", found);
  }
  void match() {
    int64_t found = 0;
    kvc_error error = fresh();
    check(kvc_prefix_match(cache_.get(), &query_, &found, &error), error);
    expect("kvc_prefix_match", found);
  }
  void attach() {
    int64_t found = 0;
    kvc_error error = fresh();
    check(kvc_prefix_attach(cache_.get(), kReader, &query_, &found, &error), error);
    expect("kvc_prefix_attach", found);
  }
  void remove_reader() { cache_.remove(kReader); }
  void remove_owner() { cache_.remove(kOwner); }
  void evict() {
    int64_t freed = 0;
    kvc_error error = fresh();
    check(kvc_prefix_evict(cache_.get(), static_cast<int64_t>(num_blocks_), &freed, &error), error);
    if (freed != static_cast<int64_t>(num_blocks_))
      throw std::runtime_error("kvc_prefix_evict freed " + std::to_string(freed) + " pages");
  }

 private:
  static CacheShape shape(const PrefixOptions& options) {
    CacheShape shape;
    shape.layers = options.layers;
    shape.page_size = options.page_size;
    shape.tensor_memory = false;
    shape.num_pages = 2 * (options.tokens / options.page_size + 1);
    return shape;
  }
  static kvc_error fresh() {
    kvc_error error{};
    error.struct_size = sizeof error;
    return error;
  }
  void expect(const char* function, int64_t found) const {
    const auto whole = static_cast<int64_t>(num_blocks_) * page_size_;
    if (found != whole) {
      throw std::runtime_error(std::string(function) + " answers " + std::to_string(found) +
                               " tokens of " + std::to_string(whole));
    }
  }

  Cache cache_;
  SequenceFiller filler_{cache_};
  int32_t page_size_;
  size_t num_blocks_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> hashes_;
  kvc_prefix_query query_{};
};

}  // namespace

Report run_prefix(const PrefixOptions& options) {
  PromptIndex index(options);
  if (index.num_blocks() == 0)
    throw std::runtime_error("the prompt has no full block: more --tokens");
  std::vector<double> hash, insert, match, attach, remove, evict;
  const double end = now_seconds() + options.common.budget.seconds;
  constexpr int kFewest = 5;
  for (int round = -2;
       round < kFewest || (round < options.common.budget.repetitions && now_seconds() < end);
       ++round) {
    index.prepare();
    const double hashed = milliseconds([&] { index.hash(); });
    const double inserted = milliseconds([&] { index.insert(); });
    const double matched = milliseconds([&] { index.match(); });
    const double attached = milliseconds([&] { index.attach(); });
    const double removed = milliseconds([&] { index.remove_reader(); });
    index.remove_owner();
    const double evicted = milliseconds([&] { index.evict(); });
    if (round < 0) continue;  // Warm-up
    hash.push_back(hashed);
    insert.push_back(inserted);
    match.push_back(matched);
    attach.push_back(attached);
    remove.push_back(removed);
    evict.push_back(evicted * 1e3 / static_cast<double>(index.num_blocks()));
  }
  Report report = new_report("prefix", "none", 1);
  report["tokens"] = options.tokens;
  report["block"] = options.page_size;
  report["blocks"] = index.num_blocks();
  report["layers"] = options.layers;
  const auto put = [&](const std::string& name, const std::vector<double>& values) {
    const Spread spread = spread_of(values);
    report[name] = rounded(spread.median);
    report[name + "_min"] = rounded(spread.min);
    report[name + "_max"] = rounded(spread.max);
  };
  put("hash_ms", hash);
  put("match_ms", match);
  put("attach_ms", attach);
  put("insert_ms", insert);
  put("remove_ms", remove);
  put("evict_us_per_block", evict);
  report["reps"] = hash.size();
  return report;
}

}  // namespace kvc::bench
