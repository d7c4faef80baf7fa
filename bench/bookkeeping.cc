// The bookkeeping by itself: single calls on caches without tensor memory.
#include <vector>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

// Sequences 0 .. count-1 of a length, and room for `spare` tokens more.
class Books {
 public:
  Books(int count, int64_t tokens, int64_t spare, const BookkeepingOptions& options)
      : cache_(shape(count, tokens, spare, options)), ones_(static_cast<size_t>(count), 1) {
    SequenceFiller filler(cache_);
    for (int seq = 0; seq < count; ++seq) {
      seqs_.push_back(seq);
      cache_.add(seq);
      if (tokens > 0) filler.grow(seq, tokens);
    }
  }
  Cache& cache() { return cache_; }
  const std::vector<kvc_seq>& seqs() const { return seqs_; }
  const std::vector<int64_t>& ones() const { return ones_; }

 private:
  static CacheShape shape(int count, int64_t tokens, int64_t spare,
                          const BookkeepingOptions& options) {
    CacheShape shape;
    shape.page_size = options.page_size;
    shape.tensor_memory = false;
    shape.num_pages = count * (tokens / options.page_size + 2) + spare / options.page_size + 1;
    return shape;
  }

  Cache cache_;
  std::vector<kvc_seq> seqs_;
  std::vector<int64_t> ones_;
};

}  // namespace

Report run_bookkeeping(const BookkeepingOptions& options) {
  Report report = new_report("bookkeeping", "none", 1);
  report["sequences"] = options.sequences;
  report["tokens"] = options.tokens;
  report["page"] = options.page_size;
  const auto add = [&](const char* name, const std::function<void()>& call) {
    const Spread time = seconds_of_call(options.common.budget, call);
    report[name] = rounded(time.median * 1e9);
    report[std::string(name) + "_min"] = rounded(time.min * 1e9);
  };

  Books empty(options.sequences, 0, 0, options);
  const kvc_seq other = options.sequences;
  add("add_remove_ns", [&] {
    empty.cache().add(other);
    empty.cache().remove(other);
  });

  // A fork shares every page of its parent: its time grows with pages, not with bytes.
  Books one(1, options.tokens, options.tokens, options);
  add("fork_remove_ns", [&] {
    one.cache().fork(0, 1);
    one.cache().remove(1);
  });
  add("append_pop_ns", [&] {
    one.cache().step_without_layers({0}, {options.tokens});
    one.cache().pop(0, options.tokens);
  });

  Books batch(options.sequences, options.tokens, 0, options);
  add("begin_abort_ns",
      [&] { batch.cache().abort(batch.cache().begin(batch.seqs(), batch.ones())); });
  add("can_append_ns", [&] {
    int64_t missing = 0;
    kvc_error error{};
    error.struct_size = sizeof error;
    check(kvc_seq_can_append(batch.cache().get(), batch.seqs().size(), batch.seqs().data(),
                             batch.ones().data(), &missing, &error),
          error);
  });
  return report;
}

}  // namespace kvc::bench
