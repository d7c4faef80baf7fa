// Plays one case: the cache, the open forward, and what is compared after every step.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/config.h"

namespace kvc::conformance {

// A pool of a host program, for kvc_op_*.
struct HostPool {
  HostTensor k, v, k_scales, v_scales;
  kvc_op_pool call{};
};

// One cache of a case.
struct Side {
  kvc_plan* plan = nullptr;
  kvc_cache* cache = nullptr;
  kvc_forward* fwd = nullptr;  // The last one, also when it has ended.
  bool open = false;
};

// A transfer from each of `senders` to one receiver. Both ends end with this object.
struct Transfer {
  kvc_transport* transport = nullptr;
  kvc_transfer* receiving = nullptr;
  std::vector<kvc_transfer*> sending;

  Transfer() = default;
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  // Waits for the senders, then for the receiver, who is cancelled where a sender has failed.
  kvc_status wait(kvc_status status, kvc_error* err) const;
};

// As a Side it is the one that the step is about.
class Player : public Side {
 public:
  Player(const Json& scenario, kvc_cpu_isa cpu_isa);
  ~Player();
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  void run();

  // Counts one comparison; a case without any is a mistake.
  void count_check() { ++checks_; }
  // Compares a result with what the case expects of it.
  void compare(const Fields& want, const HostTensor& got, const std::string& what);
  // Number of the page table that a layer reads.
  int32_t group_of(int32_t layer) const;
  std::vector<int64_t> seq_pages(kvc_seq seq, int32_t group) const;
  // The cache of a name.
  kvc_cache* cache_of(const std::string& name) const {
    return name == name_ ? cache : others_.at(name).cache;
  }

  const kvc_cpu_isa isa;
  std::map<std::string, std::map<std::string, HostTensor>> partials;  // "out" and "lse" by name
  std::map<std::string, HostPool> pools;
  std::map<std::string, std::vector<char>> files;  // state files by name
  std::unique_ptr<Transfer> transfer;              // The one that waits to arrive.

 private:
  void add_side(const Fields& config, const std::string& name);
  // Makes the cache of a name the one that steps are about.
  void use(const std::string& name);
  void run_step(const Fields& step);
  void check_expectations(const Fields& expect);
  void check_fields(const Json& actual, const Fields& expected, const char* key,
                    const std::string& what);
  // What a refused step must leave as it was.
  std::string snapshot() const;
  std::vector<kvc_seq> all_seqs() const;
  kvc_seq_info seq_info(kvc_seq seq) const;
  void finish();

  const Fields case_;
  const double tolerance_;
  std::deque<Config> configs_;
  std::string name_;                    // Of the cache that steps are about.
  std::map<std::string, Side> others_;  // The other caches.
  int64_t checks_ = 0;
};

// One step: its arguments as the C interface takes them, and its results, which check() compares
// when the call has succeeded. Arguments live as long as the call.
class Call {
 public:
  Call(Player& player, const Fields& step, kvc_error* error)
      : player(player), step(step), err(error) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  int32_t layer() const { return step.get<int32_t>("layer"); }
  int32_t state() const { return step.get<int32_t>("state"); }
  kvc_seq seq() const { return step.get<kvc_seq>("seq"); }

  // The tensor under a key; null where the step has none.
  DLTensor* in(const char* key, DLDevice device = test::device());
  DLTensor* host_in(const char* key) { return in(key, {kDLCPU, 0}); }
  // A new tensor for a result, compared with what the step has under the key.
  DLTensor* out(const char* key, DLDevice device = test::device());
  DLTensor* host_out(const char* key) { return out(key, {kDLCPU, 0}); }
  // A tensor of the step that the call changes, compared with what the step has under another key.
  DLTensor* in_place(const char* key, const char* want);
  // A number for a result, compared with the step's where it has one.
  int64_t* answer(const char* key);
  // Members of a result of an earlier step, which this one may change.
  DLTensor* partial(const char* key, const char* part);
  template <class T>
  const T* list(const char* key, size_t* count = nullptr) {
    if (!step.has(key)) return nullptr;
    auto& kept = lists_.emplace_back(step.at(key).size() * sizeof(T) + sizeof(T));
    const auto numbers = step.get<std::vector<T>>(key);
    if (!numbers.empty()) std::memcpy(kept.data(), numbers.data(), numbers.size() * sizeof(T));
    if (count != nullptr) *count = numbers.size();
    return reinterpret_cast<const T*>(kept.data());
  }
  const kvc_attn_opt* opt(DLDevice device = test::device());
  const kvc_op_opt* op_opt();
  const kvc_op_table* table();
  const kvc_linear_opt* linear_opt();

  void expect_equal(int64_t actual, const char* key);
  // After the call: results, or that a refused call wrote no number.
  void check(kvc_status status);

  Player& player;
  const Fields step;
  kvc_error* const err;

 private:
  HostTensor& keep(const Fields& spec) { return tensors_.emplace_back(spec); }

  std::deque<HostTensor> tensors_;
  std::deque<std::vector<char>> lists_;
  std::vector<std::pair<std::string, const HostTensor*>> results_;
  std::deque<std::pair<const char*, int64_t>> answers_;
  kvc_attn_opt opt_{};
  kvc_op_opt op_opt_{};
  kvc_rope rope_{};
  std::deque<std::vector<float>> factors_;
  kvc_op_table table_{};
  kvc_linear_opt linear_opt_{};
};

// Performs a step. Checks that are no tensor and no number follow the call inside the handler.
using Handler = kvc_status (*)(Call&);
const std::map<std::string, Handler>& handlers();
void add_cache_calls(std::map<std::string, Handler>& handlers);
void add_layer_calls(std::map<std::string, Handler>& handlers);
void add_operator_calls(std::map<std::string, Handler>& handlers);

// Content of an exported tensor of integers, and its deletion.
std::vector<int64_t> take_integers(DLManagedTensorVersioned* exported);

}  // namespace kvc::conformance
