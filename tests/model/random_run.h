// Random operations on a cache, each compared with the page model and, where there are tensors, with the naive cache.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/model/naive_cache.h"
#include "tests/model/page_model.h"
#include "tests/model/random.h"
#include "tests/model/random_setup.h"
#include "tests/model/snapshot.h"

namespace kvc::test {

// The library and the oracle disagree.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] [[gnu::format(printf, 1, 2)]] void mismatch(const char* format, ...);

class RandomRun {
 public:
  RandomRun(uint64_t seed, RunKind kind);
  // Throws Mismatch. Returns the number of operations done.
  int64_t run(int64_t operations);
  // Where a run stands: seed, configuration, step and the last operations.
  std::string describe() const;
  // How often each function gave each status.
  using Coverage = std::map<std::string, std::map<kvc_status, int64_t>>;
  void add_coverage(Coverage* coverage) const;

 private:
  using Call = std::function<kvc_status(kvc_error*)>;

  // Calls the library; with failures injected, first makes every allocation fail once and proves that nothing changed. `untouched` are outputs
  // that a failing call must not write.
  kvc_status call(const char* function, const Call& fn, std::initializer_list<HostTensor*> untouched = {});
  // The answer must be one of the expected errors, or KVC_OK when there are none; an error must have changed nothing.
  bool agree(const char* function, const Expected& expected, const Call& fn);
  void expect_ok(const char* function, const Call& fn, std::initializer_list<HostTensor*> untouched = {});
  void trace(const char* format, ...) __attribute__((format(printf, 2, 3)));

  // random_run.cc: bookkeeping
  void create();
  void step();
  void compare_state();
  void compare_sequence(kvc_seq seq);
  void compare_tables();
  kvc_seq any_seq();
  bool pick_idle(kvc_seq* seq);
  void op_add();
  void op_remove();
  void op_fork();
  void op_pop();
  void op_clear();
  void op_resize();
  void op_can();
  void op_begin();
  void op_close();
  void op_dead_handle();
  void op_refused();
  void op_hold_export();

  // random_tables.cc: what the open forward exports
  void op_tables();
  void op_positions();
  std::vector<int32_t> sequence_pages(kvc_seq seq);
  std::vector<int64_t> table(kvc_table_kind kind, std::vector<int64_t>* shape);

  // random_attention.cc: tensors
  struct Inputs;
  void op_append(size_t layer);
  void op_attention(size_t layer);
  void op_split_attention(size_t layer);
  void op_read_only(size_t layer);
  void op_gather();
  void op_get();
  void op_set();
  void op_poison();
  void append_missing_layers();
  void append(size_t layer, HostTensor& k, HostTensor& v);
  // Compares the new rows in the pool with the oracle's and takes the pool's over: a rotated value may round the other way.
  void adopt_rows(size_t layer, HostTensor& k, HostTensor& v, int64_t k_head = 0, int64_t v_head = 0);
  enum class Scope { kAll, kCached, kNew };
  void compare_attention(const char* function, size_t layer, Scope scope, HostTensor& q, HostTensor& out,
                         HostTensor* lse, const NaiveOptions& options, double slack);
  void compare_rows(const char* what, const std::vector<Row>& rows, HostTensor& got, int64_t heads,
                    int64_t dim, Elem stored, int64_t layer);
  struct Options;
  std::unique_ptr<Options> draw_options(size_t layer, bool allow_sinks);

  uint64_t seed_;
  RunKind kind_;
  Random random_;
  RandomSetup setup_;
  PageModel model_;
  NaiveCache naive_;
  kvc_forward* forward_ = nullptr;
  kvc_forward* dead_ = nullptr;
  std::vector<bool> written_;  // layers appended in the open forward
  bool pool_exported_ = false;
  DLManagedTensorVersioned* held_export_ = nullptr;
  int64_t steps_ = 0;
  std::map<int32_t, int> page_names_;  // library's page id -> model's handle, of used pages
  std::map<const char*, std::array<int64_t, KVC_E_INTERNAL + 1>> answers_;
  static constexpr size_t kTrace = 20;
  std::array<std::array<char, 160>, kTrace> trace_{};
  size_t num_traced_ = 0;
};

}  // namespace kvc::test
