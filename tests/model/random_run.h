// Random operations on a cache, each compared with the page model and, where there are tensors,
// with the naive cache.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "tests/model/coverage.h"
#include "tests/model/naive_cache.h"
#include "tests/model/page_model.h"
#include "tests/model/random.h"
#include "tests/model/random_setup.h"
#include "tests/model/snapshot.h"
#include "tests/model/trace.h"

namespace kvc::test {

// The library and the oracle disagree.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] [[gnu::format(printf, 1, 2)]] void mismatch(const char* format, ...);

inline long long ll(int64_t value) { return static_cast<long long>(value); }

inline Elem draw_activation(Random& random) {
  return random.pick_of({Elem::kF32, Elem::kF32, Elem::kF16, Elem::kBF16});
}

// Relative error that storing a result in `elem` adds.
inline double storing_error(Elem elem) {
  return elem == Elem::kBF16 ? 0x1.0p-8 : elem == Elem::kF16 ? 0x1.0p-11 : 0;
}
// And absolute, where the result is among the subnormal ones of float16: behind a sink logit that
// takes nearly all of the weight, for instance.
inline double storing_floor(Elem elem) { return elem == Elem::kF16 ? 0x1.0p-25 : 0; }

constexpr kvc_seq kMostIds = 12;

class RandomRun {
 public:
  RandomRun(uint64_t seed, RunKind kind);
  // Throws Mismatch. Returns the number of operations done.
  int64_t run(int64_t operations);
  // Where a run stands: seed, configuration, step and the last operations.
  std::string describe() const;
  const Coverage& coverage() const { return coverage_; }

 private:
  using Call = std::function<kvc_status(kvc_error*)>;

  // Calls the library; with failures injected, first makes every allocation fail once and proves
  // that nothing changed. `untouched` are outputs that a failing call must not write.
  kvc_status call(const char* function, const Call& fn,
                  std::initializer_list<HostTensor*> untouched = {});
  // The answer must be one of the expected errors, or KVC_OK when there are none; an error must
  // have changed nothing. True: KVC_OK.
  bool agree(const char* function, const Expected& expected, const Call& fn,
             std::initializer_list<HostTensor*> untouched = {});
  void refuse(const char* function, kvc_status status, const Call& fn);
  void expect_ok(const char* function, const Call& fn,
                 std::initializer_list<HostTensor*> untouched = {});
  void trace(const char* format, ...) __attribute__((format(printf, 2, 3)));

  // random_run.cc: the loop and what is compared after every operation
  void create();
  void step();
  bool step_open(double dice);
  void step_data(double dice);
  void compare_state();
  void compare_sequence(kvc_seq seq);
  void compare_tables();
  kvc_seq any_seq();
  bool pick_idle(kvc_seq* seq);
  std::vector<int32_t> sequence_pages(kvc_seq seq, size_t group);
  size_t num_groups() const { return model_.limits().groups.size(); }

  // random_sequences.cc
  void op_add();
  void op_remove();
  void op_fork();
  void op_pop();
  void op_clear();
  void trim();
  void op_resize();
  void op_can();
  void op_set_window();
  void op_shift();
  void shift_rows(kvc_seq seq, int64_t begin, int64_t end, int64_t delta);
  void op_tree_commit();
  void op_checkpoint();
  void hand_out_pool();
  bool keeps_pool() const { return setup_.has_data() && !setup_.is_borrowed() && !pool_exported_; }
  void op_hold_export();

  // random_forward.cc
  ModelBatch draw_batch();
  void draw_parents(ModelBatch* batch);
  void op_begin();
  void note_rows(HostTensor* positions);
  void op_close();
  void op_dead_handle();
  void op_positions();

  // random_tables.cc: what the open forward exports; random_refused.cc
  void op_tables();
  void compare_group_tables(size_t group);
  std::vector<int64_t> table(size_t group, kvc_table_kind kind, std::vector<int64_t>* shape);
  void op_refused();
  void refuse_in_forward();
  void refuse_layers();

  // random_append.cc: rows in and out
  struct Inputs;
  void op_append(size_t layer);
  void op_gather(size_t layer);
  void append(size_t layer, Inputs& in);
  void append_missing_layers();
  // Compares the new rows in the pool with the oracle's and takes the pool's over: a rotated value
  // may round the other way.
  void adopt_rows(size_t layer, HostTensor& k, HostTensor* v, int64_t k_head = 0,
                  int64_t v_head = 0);
  void adopt_cross_rows(size_t layer, HostTensor& k, HostTensor& v);
  // How K of new rows is rotated: by the factor of its rope, 0 for none; is_moved: for other
  // positions than those of its tokens.
  struct KeyTurn {
    double by = 0;
    bool is_moved = false;
  };
  static Row pair_norms(const NaiveLayer& spec, const Row& row);
  static double moved_step(const NaiveLayer& spec, int64_t token, const Row& want, size_t element);
  // Counts what does not fit of a row that the library was given.
  void count_saturated_key(const NaiveLayer& spec, const Row& given, KeyTurn turn);
  void count_saturated_value(const NaiveLayer& spec, const Row& given);
  void adopt_row(size_t layer, const char* what, const Row& k_want, const Row& v_want, KeyTurn turn,
                 NaiveRows* rows, size_t token, const Row& k_got, const Row& v_got);
  // A row of K of a moved sequence, read back.
  void adopt_moved_key(const char* what, size_t layer, kvc_seq seq, int64_t token, const Row& want,
                       double rounding);
  // A row of the pool, by slot, through an export of the pool.
  Row read_slot(size_t layer, kvc_pool_kind kind, int64_t slot, int heads, int dim);
  void compare_rows(const char* what, const std::vector<Row>& rows, HostTensor& got, int64_t heads,
                    int64_t dim, int64_t layer);
  bool dropped_any(size_t layer, const ModelSequence& sequence) const;

  // random_attention.cc, random_cross.cc
  struct Options;
  enum class Scope { kAll, kCached, kNew };
  void op_attention(size_t layer);
  void op_fused(size_t layer);
  void op_split_attention(size_t layer);
  void op_split_mla(size_t layer);
  void op_read_only(size_t layer);
  void op_shared_kv(size_t layer);
  void op_cross(size_t layer, bool must_give);
  std::unique_ptr<Options> draw_options(const NaiveLayer& spec, int q_heads, bool allow_sinks);
  void draw_bias(int q_heads, Options* options);
  void draw_spans(Options* options);
  bool is_readable(size_t layer) const;
  RopePosition query_rope(const NaiveRope& rope, const ModelEntry& entry, int64_t row) const;
  int64_t token_position(const ModelEntry& entry, int64_t token) const;
  // Tokens of the longest path of the sequence with its new tokens: what LongRoPE goes by.
  static int64_t longest_path(const ModelEntry& entry);
  std::vector<int64_t> seen_tokens(const NaiveLayer& spec, Scope scope, const ModelEntry& entry,
                                   int64_t i, const NaiveOptions& options) const;
  // What attention of one row and head has to give, over stored rows.
  NaiveResult expected_row(size_t layer, Scope scope, HostTensor& q, const ModelEntry& entry,
                           int64_t i, int head, int q_heads, const NaiveOptions& options);
  // Over rows that the caller gave to kvc_attn_self.
  NaiveResult expected_self_row(size_t layer, Inputs& in, const ModelEntry& entry, int64_t i,
                                int head, const NaiveOptions& options);
  struct RowCheck {
    const char* function;
    size_t layer;
    double slack;        // factor on all tolerances
    double score_error;  // relative to score_noise, besides arithmetic in bfloat16
  };
  void compare_row(const RowCheck& check, const NaiveResult& want, HostTensor& out, HostTensor* lse,
                   int64_t row, int head);
  using ExpectedRow = std::function<NaiveResult(const ModelEntry&, int64_t i, int head)>;
  void compare_attention(const RowCheck& check, HostTensor& out, HostTensor* lse,
                         const ExpectedRow& expected);

  // random_debug.cc
  void op_get(bool mla);
  void op_set(bool mla);
  void op_get_layer(size_t layer);
  void op_set_layer(size_t layer);
  void set_key(size_t layer, kvc_seq seq, int64_t token, Row row);
  void op_poison();
  void poison_layer(size_t layer, const std::map<int32_t, std::pair<size_t, int64_t>>& used);

  // random_states.cc
  void op_state_get(size_t layer);
  void op_state_set(size_t layer);
  void op_linear(size_t layer);
  void op_conv(size_t layer);
  void op_get_state(size_t layer);
  void op_set_state(size_t layer);
  void close_states(const ModelEntry& entry, size_t index);
  StateValue read_state(kvc_seq seq, size_t layer, size_t state);

  uint64_t seed_;
  RunKind kind_;
  Random random_;
  RandomSetup setup_;
  PageModel model_;
  NaiveCache naive_;
  kvc_forward* forward_ = nullptr;
  kvc_forward* dead_ = nullptr;
  std::vector<bool> written_;                           // layers appended in the open forward
  std::vector<int64_t> row_position_;                   // of the open forward's rows
  std::vector<std::array<double, 4>> given_positions_;  // by row; empty: none given
  int64_t given_sections_ = 1;
  // What the open forward has set: by layer and state, for each entry of the batch.
  struct PendingState {
    std::vector<StateValue> values;
    double tolerance = 0;  // 0: exact
  };
  std::map<std::pair<size_t, size_t>, PendingState> pending_states_;
  // Until the pool is handed out, the library keeps K as shifts have left it. Half of the runs hand
  // it out at once, and poison unused slots; the others never do.
  bool pool_exported_ = false;
  DLManagedTensorVersioned* held_export_ = nullptr;
  int64_t steps_ = 0;
  // Bounds of kvc_stats.values_saturated: a rotation may round to either side of the limit.
  uint64_t least_saturated_ = 0, most_saturated_ = 0;
  kvc_error last_error_{};
  std::map<int32_t, int> page_names_;  // library's page id -> model's handle, of used pages
  Coverage coverage_;
  Trace trace_;
};

}  // namespace kvc::test
