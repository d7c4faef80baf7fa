#include "tools/replay/replay.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>
#include <stdexcept>

#include "tools/replay/keys.h"

namespace kvc::replay {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWindows = 200;
constexpr int64_t kMostPages = (int64_t{1} << 31) - 1;  // ids of pages are 32 bits

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

int64_t pages_of(int64_t tokens, int64_t block) { return (tokens + block - 1) / block; }

class Replay {
 public:
  Replay(const Trace& trace, const ReplayOptions& options, int64_t pages, int64_t pool_pages,
         Bookkeeper& books)
      : trace_(trace), options_(options), books_(books) {
    result_.pages = pages;
    result_.pool_pages = pool_pages;
    result_.requests = static_cast<int64_t>(trace.requests.size());
    result_.x_is_time =
        trace.has_times() && trace.requests.back().seconds > trace.requests.front().seconds;
    query_.struct_size = sizeof(query_);
    query_.flags = options.whole_blocks ? KVC_PREFIX_WHOLE_BLOCKS : 0;
    costs_.reserve(trace.requests.size());
    // A prompt of less than a block has no keys, but says so by a pointer
    keys_.reserve(KVC_HASH_BYTES);
  }

  RunResult run() {
    const int64_t per_window = std::max<int64_t>(1, pages_of(result_.requests, kWindows));
    for (int64_t i = 0; i < result_.requests; ++i) {
      serve(i);
      if ((i + 1) % per_window == 0 || i + 1 == result_.requests) close_window(i);
    }
    result_.stats = books_.stats();
    books_.check();
    result_.hit_blocks = result_.hit_tokens / options_.block;
    result_.key_us = costs_.empty() ? 0 : key_us_ / static_cast<double>(costs_.size());
    result_.cost = cost_of(&costs_);
    return std::move(result_);
  }

 private:
  int64_t outputs_of(const TraceRequest& request) const {
    return options_.outputs ? request.output_tokens : 0;
  }

  // Keys of the request's full blocks, those of known outputs too.
  void make_keys(int64_t index, const TraceRequest& request) {
    if (trace_.kind == TraceKind::kTokenIds) {
      query_.tokens = trace_.token_ids.data() + request.first_id;
      const int64_t known =
          options_.outputs ? static_cast<int64_t>(request.num_ids) : request.prompt_tokens;
      books_.make_keys(query_.tokens, known, &keys_);
    } else {
      const int64_t count = request.prompt_tokens / options_.block;
      keys_.resize(static_cast<size_t>(count) * KVC_HASH_BYTES);
      const int64_t parts =
          trace_.kind == TraceKind::kBlockIds ? trace_.block_tokens / options_.block : 1;
      for (int64_t block = 0; block < count; ++block) {
        const auto id = static_cast<size_t>(block / parts);
        // A block in the part of a prompt that no id names is like no other.
        const bool is_named = trace_.kind == TraceKind::kBlockIds && id < request.num_ids;
        const uint64_t number =
            is_named ? trace_.block_ids[request.first_id + id] : static_cast<uint64_t>(index);
        write_block_key(is_named ? KeyDomain::kBlockId : KeyDomain::kUnique, number,
                        static_cast<uint64_t>(is_named ? block % parts : block),
                        keys_.data() + block * KVC_HASH_BYTES);
      }
    }
    query_.hashes = keys_.data();
  }
  const kvc_prefix_query& query_of(int64_t num_tokens) {
    query_.num_tokens = num_tokens;
    query_.num_hashes = static_cast<size_t>(num_tokens / options_.block);
    return query_;
  }

  void serve(int64_t index) {
    const TraceRequest& request = trace_.requests[static_cast<size_t>(index)];
    if (options_.num_groups() *
            pages_of(request.prompt_tokens + outputs_of(request), options_.block) >
        result_.pool_pages) {
      ++result_.refused;
      return;
    }
    const bool is_cached = options_.policy != Policy::kNone;
    if (is_cached) {
      const Clock::time_point begin = Clock::now();
      make_keys(index, request);
      key_us_ += microseconds_since(begin);
    }
    const Clock::time_point begin = Clock::now();
    const int64_t hit = bookkeeping(index, request, is_cached);
    const double us = microseconds_since(begin);

    costs_.push_back(static_cast<float>(us));
    result_.prompt_tokens += request.prompt_tokens;
    result_.output_tokens += outputs_of(request);
    result_.hit_tokens += hit;
    ++window_.requests;
    window_.prompt_tokens += request.prompt_tokens;
    window_.hit_tokens += hit;
    window_.mean_us += us;
    window_.largest_us = std::max(window_.largest_us, us);
  }

  // What is timed. Returns the tokens that hit.
  int64_t bookkeeping(kvc_seq seq, const TraceRequest& request, bool is_cached) {
    int64_t hit = 0;
    bool has_waited = false;
    if (is_cached) {
      hit = books_.attach(seq, query_of(request.prompt_tokens));
    } else {
      books_.add(seq);
    }
    append(seq, request.prompt_tokens - hit, &has_waited);
    if (is_cached) books_.insert(seq, query_of(request.prompt_tokens));
    if (outputs_of(request) > 0) {
      append(seq, request.output_tokens, &has_waited);
      const auto known = static_cast<int64_t>(request.num_ids);
      if (is_cached && trace_.kind == TraceKind::kTokenIds && known > request.prompt_tokens) {
        books_.insert(seq, query_of(known));
      }
    }
    running_.push_back(seq);
    while (static_cast<int64_t>(running_.size()) > options_.concurrency) remove_oldest();
    if (has_waited) ++result_.waited;
    return hit;
  }

  // When the pool is full, the requests before this one are removed until it fits, the oldest
  // first: it would have had to wait for them.
  void append(kvc_seq seq, int64_t num_tokens, bool* has_waited) {
    while (true) {
      const Append answer = books_.append(seq, num_tokens);
      if (answer == Append::kDone) return;
      if (answer == Append::kNeverFits || running_.empty()) {
        throw std::logic_error("request " + std::to_string(seq + 1) + ": no room for " +
                               std::to_string(num_tokens) +
                               " more tokens in an otherwise empty pool of " +
                               std::to_string(result_.pool_pages) + " pages");
      }
      remove_oldest();
      *has_waited = true;
    }
  }
  void remove_oldest() {
    books_.remove(running_.front());
    running_.pop_front();
  }

  void close_window(int64_t last) {
    const double seconds = trace_.requests[static_cast<size_t>(last)].seconds;
    const kvc_stats stats = books_.stats();
    window_.x = result_.x_is_time ? seconds - trace_.requests.front().seconds
                                  : static_cast<double>(last + 1);
    window_.evicted = stats.prefix_evicted - evicted_before_;
    evicted_before_ = stats.prefix_evicted;
    window_.pages_used = stats.pages_used;
    window_.pages_filled = stats.pages_used + stats.pages_cached;
    if (window_.requests > 0) window_.mean_us /= static_cast<double>(window_.requests);
    result_.peak_filled = std::max(result_.peak_filled, window_.pages_filled);
    result_.windows.push_back(window_);
    window_ = Window();
    if (options_.progress) {
      options_.progress(static_cast<double>(last + 1) / static_cast<double>(result_.requests));
    }
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  Bookkeeper& books_;
  RunResult result_;
  Window window_;
  uint64_t evicted_before_ = 0;
  kvc_prefix_query query_{};
  std::vector<uint8_t> keys_;
  std::deque<kvc_seq> running_;
  std::vector<float> costs_;
  double key_us_ = 0;
};

}  // namespace

const char* policy_name(Policy policy) { return policy == Policy::kLru ? "lru" : "none"; }

std::string block_problem(const Trace& trace, int64_t block) {
  if (trace.kind != TraceKind::kBlockIds || trace.block_tokens % block == 0) return "";
  return "an id of this trace names " + std::to_string(trace.block_tokens) +
         " tokens: it can be cut into smaller blocks of equal size, not into blocks of " +
         std::to_string(block);
}

int64_t pages_for_all(const Trace& trace, const ReplayOptions& options) {
  int64_t sum = 0;
  for (const TraceRequest& request : trace.requests) {
    sum += options.num_groups() *
           pages_of(request.prompt_tokens + (options.outputs ? request.output_tokens : 0),
                    options.block);
  }
  return std::min(sum, kMostPages);
}

int64_t pages_for_largest(const Trace& trace, const ReplayOptions& options) {
  int64_t largest = 1;
  for (const TraceRequest& request : trace.requests) {
    const int64_t tokens = request.prompt_tokens + (options.outputs ? request.output_tokens : 0);
    largest = std::max(largest, options.num_groups() * pages_of(tokens, options.block));
  }
  return largest;
}

std::vector<int64_t> sizes_below(int64_t needed, int64_t largest) {
  constexpr size_t kMostSizes = 10;
  std::vector<int64_t> sizes;
  for (int64_t power = 1; power < needed; power *= 10) {
    for (const int64_t factor : {1, 2, 5}) {
      if (power * factor >= largest && power * factor < needed) sizes.push_back(power * factor);
    }
  }
  // The large ones: that is where a pool begins to hold what comes again.
  if (sizes.size() > kMostSizes) sizes.erase(sizes.begin(), sizes.end() - kMostSizes);
  return sizes;
}

RunResult replay(const Trace& trace, const ReplayOptions& options, int64_t pages,
                 int64_t pool_pages, Bookkeeper& books) {
  return Replay(trace, options, pages, pool_pages, books).run();
}

std::vector<RunResult> sweep(const Trace& trace, const ReplayOptions& options,
                             const std::vector<int64_t>& pages, const MakeBookkeeper& make) {
  std::vector<RunResult> runs;
  ReplayOptions part = options;
  const double all = static_cast<double>(pages.size()) * options.repeat;
  double done = 0;
  if (options.progress)
    part.progress = [&](double fraction) { options.progress((done + fraction) / all); };
  for (const int64_t count : pages) {
    const int64_t pool_pages = count == kUnlimited ? pages_for_all(trace, options) : count;
    RunResult best;
    for (int i = 0; i < options.repeat; ++i, ++done) {
      const std::unique_ptr<Bookkeeper> books = make(options.block, pool_pages);
      RunResult result = replay(trace, part, count, pool_pages, *books);
      if (i == 0 || result.cost.mean < best.cost.mean) best = std::move(result);
    }
    runs.push_back(std::move(best));
  }
  return runs;
}

Cost cost_of(std::vector<float>* microseconds) {
  Cost cost;
  if (microseconds->empty()) return cost;
  const auto count = microseconds->size();
  cost.mean =
      std::accumulate(microseconds->begin(), microseconds->end(), 0.0) / static_cast<double>(count);
  std::sort(microseconds->begin(), microseconds->end());
  // The smallest that at least so many of a hundred do not exceed.
  const auto percentile = [&](size_t percent) {
    return (*microseconds)[(count * percent + 99) / 100 - 1];
  };
  cost.p50 = percentile(50);
  cost.p99 = percentile(99);
  cost.largest = microseconds->back();
  return cost;
}

}  // namespace kvc::replay
