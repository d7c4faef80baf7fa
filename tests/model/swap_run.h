// Random swaps, saves and loads among random everything else. The model knows of every token which
// value each layer holds for it, of every sequence where it is, and of every page on the host who
// needs it; it knows nothing of how the library moves anything.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/model/coverage.h"
#include "tests/model/host_tensor.h"
#include "tests/model/random.h"
#include "tests/model/snapshot.h"
#include "tests/model/trace.h"

namespace kvc::test {

class SwapRun {
 public:
  explicit SwapRun(uint64_t seed);
  ~SwapRun();
  SwapRun(const SwapRun&) = delete;
  SwapRun& operator=(const SwapRun&) = delete;

  // Throws std::runtime_error at the first disagreement. Returns the number of calls that were
  // made.
  int64_t run(int64_t operations);
  // The setup and the last calls.
  std::string describe() const;

  // With "hit" besides functions.
  const Coverage& coverage() const { return coverage_; }

 private:
  // A page on the host: the call that brought it there and where it was on the device.
  using HostPage = std::pair<int64_t, int32_t>;
  struct Seq {
    std::vector<uint64_t> chain;                // of each token: names it and all before it
    std::vector<std::vector<uint64_t>> values;  // [layer][token]: what the layer holds
    std::vector<int32_t>
        // Leading ones whose chain follows from the text: ids were given, nothing shifted or set
        tokens;
    uint64_t root = 0;  // of the namespace
    uint64_t cross = 0;
    int64_t cross_length = 0;
    bool is_swapped = false;
    bool has_tree = false;
    bool has_window = false;
    std::set<HostPage> host_pages;
    int64_t length() const { return static_cast<int64_t>(chain.size()); }
    bool is_text() const { return tokens.size() == chain.size(); }
    void truncate(int64_t length);
    void keep_text(int64_t length);  // tokens from there on are no longer the text's
  };

  struct File {
    std::vector<uint8_t> bytes;
    std::vector<Seq> seqs;  // as they were saved
    std::vector<kvc_seq_info> infos;
  };

  static constexpr int64_t kLongest = 40;
  static constexpr size_t kMostSeqs = 7;

  void set_up();
  void step();
  void op_add();
  void op_remove();
  void op_forward();
  void op_tree();
  void op_fork();
  void op_pop();
  void op_shift();
  void op_window();
  void op_debug_set();
  void op_resize();
  void op_clear();
  void op_swap_out();
  void op_swap_in();
  void op_refused();
  void op_attach();
  void op_evict();
  void op_reset();
  void op_save();
  void op_load();

  // Calls, with an allocation that fails first now and then: then nothing has changed, and the call
  // is made again.
  kvc_status call(const char* name, const std::function<kvc_status(kvc_error*)>& fn);
  // Like call(), and when the answer is not KVC_OK nothing has changed.
  kvc_status call_strong(const char* name, const std::function<kvc_status(kvc_error*)>& fn);
  void allow(const char* name, kvc_status status, std::initializer_list<kvc_status> allowed);
  [[noreturn]] void fail(const std::string& what) const;
  void note(std::string text) { trace_.note(std::move(text)); }

  void swap_others();
  void swap_out(const std::vector<kvc_seq>& which);
  void swap_in(const std::vector<kvc_seq>& which);
  kvc_status save(const std::vector<kvc_seq>& which, std::vector<uint8_t>* file);
  kvc_status load(const std::vector<kvc_seq>& which, const std::vector<uint8_t>& file);
  void load_damaged(const std::vector<kvc_seq>& which, std::vector<uint8_t> bytes);
  void write_cross(kvc_seq id, int64_t count);
  void write_rows(const std::vector<kvc_seq>& seqs,
                  const std::vector<std::vector<uint64_t>>& new_chain);
  void append_values(Seq& seq, const std::vector<uint64_t>& new_chain);
  void check_contents(kvc_seq id);
  void check_counts();
  void check_all();
  std::set<int32_t> device_pages(kvc_seq id) const;
  kvc_seq_info info(kvc_seq id) const;
  kvc_stats stats() const;
  std::vector<kvc_seq> ids(const std::function<bool(const Seq&)>& which) const;
  std::vector<kvc_seq> some_of(std::vector<kvc_seq> from, int64_t most);
  uint64_t chain_after(const Seq& seq, uint64_t before, int32_t token);
  static uint64_t start_of(const Seq& seq);
  int32_t draw_token();
  kvc_status begin(const char* name, const std::vector<kvc_seq>& batch,
                   const std::vector<int64_t>& lengths, const std::vector<int32_t>& tokens,
                   const std::vector<int32_t>& parents, const std::vector<int64_t>& cross);
  void close(bool commit);
  int64_t host_pages_held() const;

  Random random_;
  uint64_t seed_;
  int64_t page_size_ = 4, num_host_pages_ = 0;
  size_t num_groups_ = 0;
  bool is_indexed_ = false, has_state_ = false, has_cross_ = false, has_chunk_ = false;
  bool has_kept_ = false;      // A layer has keep_tokens.
  bool gives_tokens_ = false;  // the present forward
  bool injects_ = false;
  std::vector<kvc_layer> layers_;
  std::vector<int64_t> state_shape_{2, 2};
  kvc_state_spec state_spec_{};
  kvc_plan* plan_ = nullptr;
  kvc_cache* cache_ = nullptr;
  kvc_forward* forward_ = nullptr;
  std::set<kvc_seq> in_forward_;
  std::map<kvc_seq, Seq> seqs_;
  // (root, tokens) that were published once
  std::deque<std::pair<uint64_t, std::vector<int32_t>>> texts_;
  std::deque<File> files_;
  kvc_seq next_id_ = 1;
  int64_t swap_calls_ = 0, calls_ = 0;
  uint64_t fresh_ = 0;
  kvc_error error_{};
  Trace trace_;
  Coverage coverage_;
};

}  // namespace kvc::test
