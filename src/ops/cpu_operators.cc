#include "src/ops/cpu_operators.h"

#include <algorithm>
#include <numeric>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/exec/cpu/work_list.h"
#include "src/exec/launch.h"
#include "src/exec/linear.h"

namespace kvc {
namespace {

using kernels::AttnSequence;
using kernels::OpSequenceTensors;
using kernels::PagedRows;
using kernels::TokenRows;

// Keys of one gather task.
constexpr int64_t kGatherKeys = 128;

// From 0 on, never descending.
void check_ascends(const int32_t* indptr, int32_t count, const char* name) {
  if (indptr[0] != 0)
    fail_with(KVC_E_OUT_OF_RANGE, indptr[0], "%s[0] = %d, expected 0", name, indptr[0]);
  for (int32_t i = 0; i < count; ++i) {
    if (indptr[i + 1] < indptr[i]) {
      fail_with(KVC_E_OUT_OF_RANGE, indptr[i + 1],
                "%s[%d] = %d is less than %d before it: it must not descend", name, i + 1,
                indptr[i + 1], indptr[i]);
    }
  }
}

bool is_ragged(const OpSequenceTensors& sequences) { return sequences.key_indptr != nullptr; }

int64_t row_begin(const OpSequenceTensors& sequences, int32_t i) {
  return sequences.row_indptr == nullptr ? i : sequences.row_indptr[i];
}

// Packed keys are one page, whose number is the first row.
const int32_t* pages_of(const OpSequenceTensors& sequences, int32_t i) {
  if (is_ragged(sequences)) return sequences.key_indptr + i;
  if (sequences.page_indptr == nullptr)
    return sequences.table_columns == 0 ? nullptr
                                        : sequences.block_table + i * sequences.table_stride;
  return sequences.num_indices == 0 ? nullptr : sequences.page_indices + sequences.page_indptr[i];
}

int64_t length_of(const OpSequenceTensors& sequences, int32_t i) {
  return is_ragged(sequences) ? int64_t{sequences.key_indptr[i + 1]} - sequences.key_indptr[i]
                              : sequences.seq_lens[i];
}

// Pages that end at `first_key` or before may be negative: nothing reads them.
void check_pages(const OpSequenceTensors& sequences, int32_t i, int64_t first_key) {
  const int32_t* pages = pages_of(sequences, i);
  const int64_t needed = ceil_div(sequences.seq_lens[i], sequences.page_size);
  for (int64_t index = 0; index < needed; ++index) {
    const bool is_hidden = (index + 1) * sequences.page_size <= first_key;
    if (pages[index] >= sequences.num_pages || (pages[index] < 0 && !is_hidden)) {
      fail_with(KVC_E_OUT_OF_RANGE, pages[index],
                "table: page %lld of sequence %d is %d out of range: the pool has %lld", ll(index),
                i, pages[index], ll(sequences.num_pages));
    }
  }
}

}  // namespace

CpuOperators::CpuOperators(const OpRunner& runner)
    : kernels_(choose_kernels(runner.isa, "opt.cpu_isa")),
      executor_(runner.executor != nullptr ? Executor(*runner.executor) : Executor(1)) {}

// ---- The numbers of the caller's tensors

void CpuOperators::check_paged(const OpSequenceTensors& sequences) const {
  const int32_t count = sequences.num_sequences;
  if (sequences.row_indptr != nullptr)
    check_ascends(sequences.row_indptr, count, "table.qo_indptr");
  if (sequences.page_indptr != nullptr) {
    check_ascends(sequences.page_indptr, count, "table.page_indptr");
    if (sequences.num_indices < sequences.page_indptr[count]) {
      fail_with(KVC_E_SHAPE, sequences.num_indices,
                "table.page_indices has shape[0] = %lld, but table.page_indptr ends at %d",
                ll(sequences.num_indices), sequences.page_indptr[count]);
    }
  }
  for (int32_t i = 0; i < count; ++i) {
    const int32_t length = sequences.seq_lens[i];
    if (length < 0)
      fail_with(KVC_E_OUT_OF_RANGE, length, "table.seq_lens[%d] = %d is negative", i, length);
    const int64_t needed = ceil_div(int64_t{length}, int64_t{sequences.page_size});
    const int64_t listed = sequences.page_indptr != nullptr
                               ? int64_t{sequences.page_indptr[i + 1]} - sequences.page_indptr[i]
                               : sequences.table_columns;
    if (needed > listed) {
      fail_with(KVC_E_OUT_OF_RANGE, length,
                "table.seq_lens[%d] = %d needs %lld pages of %d tokens, but its table lists %lld",
                i, length, ll(needed), sequences.page_size, ll(listed));
    }
  }
}

void CpuOperators::check_ragged(const OpSequenceTensors& sequences) const {
  const int32_t count = sequences.num_sequences;
  const bool has_own_keys = sequences.key_indptr != sequences.row_indptr;
  check_ascends(sequences.row_indptr, count, "qo_indptr");
  if (has_own_keys) check_ascends(sequences.key_indptr, count, "kv_indptr");
  if (sequences.key_indptr[count] > sequences.num_keys) {
    fail_with(KVC_E_SHAPE, sequences.num_keys, "k and v have %lld rows, but %s ends at %d",
              ll(sequences.num_keys), has_own_keys ? "kv_indptr" : "qo_indptr",
              sequences.key_indptr[count]);
  }
}

int64_t CpuOperators::add_sequence(const OpSequenceTensors& from, int32_t index, int64_t length) {
  const int64_t first_row = row_begin(from, index);
  const int64_t num_rows = row_begin(from, index + 1) - first_row;
  if (from.full == 0 && num_rows > length) {
    const char* name = !is_ragged(from)                     ? "table.seq_lens"
                       : from.key_indptr == from.row_indptr ? "qo_indptr"
                                                            : "kv_indptr";
    fail_with(
        KVC_E_OUT_OF_RANGE, num_rows,
        "sequence %d has %lld rows of q, but %s gives it %lld keys: causal rows are its last ones",
        index, ll(num_rows), name, ll(length));
  }
  if (num_rows == 0) return 0;
  AttnSequence sequence{};
  sequence.pages = pages_of(from, index);
  sequence.row_begin = first_row;
  sequence.num_rows = num_rows;
  sequence.position = length - num_rows;
  sequence.first_key_end = from.full != 0 ? length : length - num_rows + 1;
  sequences_.push_back(sequence);
  const int64_t first_key =
      from.window == 0 ? 0 : std::max<int64_t>(0, sequence.first_key_end - from.window);
  const bool hides = from.window != 0 && from.window < length;
  begin_offsets_.push_back(hides ? static_cast<int64_t>(key_begins_.size()) : -1);
  for (int64_t row = 0; hides && row < num_rows; ++row)
    key_begins_.push_back(
        static_cast<int32_t>(std::max<int64_t>(0, sequence.first_key_end + row - from.window)));
  return first_key;
}

OpExtent CpuOperators::check(const OpSequenceTensors& sequences) {
  if (is_ragged(sequences)) {
    check_ragged(sequences);
  } else {
    check_paged(sequences);
  }
  OpExtent extent{row_begin(sequences, sequences.num_sequences), 0, 0};
  for (int32_t i = 0; i < sequences.num_sequences; ++i) {
    const int64_t length = length_of(sequences, i);
    const int64_t first_key = add_sequence(sequences, i, length);
    if (!is_ragged(sequences)) check_pages(sequences, i, first_key);
    extent.num_keys += length;
    extent.longest = std::max(extent.longest, length);
  }
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (begin_offsets_[i] >= 0) sequences_[i].key_begins = key_begins_.data() + begin_offsets_[i];
  }
  num_rows_ = extent.num_rows;
  return extent;
}

int64_t CpuOperators::check(const kernels::OpStateTensors& states) {
  const int32_t* ends = states.row_indptr;
  if (ends != nullptr && ends[0] != 0)
    fail_with(KVC_E_INVALID_ARGUMENT, ends[0], "qo_indptr[0] = %d, expected 0", ends[0]);
  states_.resize(static_cast<size_t>(states.num_sequences));
  for (int32_t i = 0; i < states.num_sequences; ++i) {
    std::byte* state = states.states + i * states.stride;
    states_[i] = {i, 1, state, state};
    if (ends == nullptr) continue;
    if (ends[i + 1] < ends[i]) {
      fail_with(KVC_E_INVALID_ARGUMENT, ends[i + 1],
                "qo_indptr[%d] = %d is less than qo_indptr[%d] = %d", i + 1, ends[i + 1], i,
                ends[i]);
    }
    states_[i].row_begin = ends[i];
    states_[i].num_rows = ends[i + 1] - ends[i];
  }
  return states_.empty() ? 0 : states_.back().row_begin + states_.back().num_rows;
}

// ---- Runs

kernels::Rotation CpuOperators::cos_sin_of(const OpRotation& rotation, int64_t num_rows) {
  if (!rotation.rotates()) return {};
  return cos_sin_.get(rotation.rope, {.positions = rotation.positions, .num_rows = num_rows},
                      executor_);
}

void CpuOperators::attend(const OpAttention& attention, const AttnOptions& options,
                          const AttnTensors& tensors, const OpRotation& rotation) {
  kernels::AttnParams params = attn_params(attention.shape, attention.page_size,
                                           attention.sequences.full == 0, options, tensors);
  params.q_rotation = params.sink_q_rotation = cos_sin_of(rotation, num_rows_);
  params.k = attention.k;
  params.v = attention.v;
  params.sequences = sequences_.data();
  WorkList list;
  schedule_work(sequences_.data(), static_cast<int64_t>(sequences_.size()),
                work_shape(*kernels_, params, options.tiles_only, executor_.concurrency()), {},
                &list);
  ItemRunner runner(kernels_, &executor_);
  runner.secure(list, params);
  runner.run(list, params);
}

void CpuOperators::append(const OpPool& pool, const TokenRows& k, const TokenRows& v,
                          const int64_t* slots, int64_t num_rows, const OpRotation& rotation) {
  for (int64_t row = 0; row < num_rows; ++row) {
    if (slots[row] >= pool.num_slots()) {
      fail_with(KVC_E_OUT_OF_RANGE, slots[row],
                "slots[%lld] = %lld out of range: the pool has %lld pages of %d slots", ll(row),
                ll(slots[row]), ll(pool.num_pages), pool.page_size);
    }
  }
  run_append(*kernels_, executor_, append_params(pool, k, v, slots, cos_sin_of(rotation, num_rows)),
             num_rows);
}

void CpuOperators::rotate(const TokenRows& x, const TokenRows& out, int32_t num_heads, int32_t dim,
                          int64_t num_rows, const OpRotation& rotation) {
  std::vector<int64_t> slots(static_cast<size_t>(num_rows));
  std::iota(slots.begin(), slots.end(), 0);
  run_append(*kernels_, executor_,
             rotate_params(x, out, num_heads, dim, slots.data(), cos_sin_of(rotation, num_rows)),
             num_rows);
}

void CpuOperators::gather(const OpPool& pool, const OpSequenceTensors& sequences,
                          const TokenRows& k_out, const TokenRows& v_out) {
  struct GatherTask {
    int32_t sequence;
    int64_t key_begin, key_end;
    int64_t row;
  };
  std::vector<GatherTask> tasks;
  int64_t row = 0;
  for (int32_t i = 0; i < sequences.num_sequences; ++i) {
    for (int64_t key = 0, end; key < sequences.seq_lens[i]; row += end - key, key = end) {
      end = std::min<int64_t>(key + kGatherKeys, sequences.seq_lens[i]);
      tasks.push_back({i, key, end, row});
    }
  }
  const auto move = [&](const GatherTask& task, const PagedRows& from, int32_t dim, TokenRows out) {
    if (out.base == nullptr) return;
    out.base += task.row * out.token_stride;
    kernels_->gather({.rows = from,
                      .pages = pages_of(sequences, task.sequence),
                      .out = out,
                      .page_size = pool.page_size,
                      .num_heads = pool.num_heads,
                      .dim = dim},
                     task.key_begin, task.key_end);
  };
  const auto move_task = [&](int64_t index, int32_t) {
    move(tasks[index], pool.k, pool.k_dim, k_out);
    move(tasks[index], pool.v, pool.v_dim, v_out);
  };
  const double bytes = 4.0 * static_cast<double>(row) * pool.num_heads * (pool.k_dim + pool.v_dim);
  const auto num_tasks = static_cast<int64_t>(tasks.size());
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    for (int64_t index = 0; index < num_tasks; ++index) move_task(index, 0);
  } else {
    executor_.run(num_tasks, move_task);
  }
}

void CpuOperators::merge(const MergeCall& call) {
  run_merge(*kernels_, executor_, call.params, call.num_rows);
}

void CpuOperators::linear(kernels::LinearParams params, const kernels::OpStateTensors& states) {
  params.sequences = states_.data();
  LinearWorkspace workspace;
  run_linear(*kernels_, executor_, workspace, params, states.num_sequences);
}

}  // namespace kvc
