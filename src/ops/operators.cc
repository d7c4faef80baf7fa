#include "src/ops/operators.h"

#include <algorithm>
#include <numeric>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/exec/cpu/runner.h"
#include "src/exec/cpu/work_list.h"
#include "src/exec/launch.h"

namespace kvc {
namespace {

using kernels::AttnSequence;
using kernels::PagedRows;
using kernels::TokenRows;

// Keys of one gather task.
constexpr int64_t kGatherKeys = 128;

}  // namespace

int64_t OpSequences::add(int32_t index, const char* name, const int32_t* pages, int64_t row_begin,
                         int64_t num_rows, int64_t length) {
  if (!full_ && num_rows > length) {
    fail_with(
        KVC_E_OUT_OF_RANGE, num_rows,
        "sequence %d has %lld rows of q, but %s gives it %lld keys: causal rows are its last ones",
        index, ll(num_rows), name, ll(length));
  }
  if (num_rows == 0) return 0;
  AttnSequence sequence{};
  sequence.pages = pages;
  sequence.row_begin = row_begin;
  sequence.num_rows = num_rows;
  sequence.position = length - num_rows;
  sequence.first_key_end = full_ ? length : length - num_rows + 1;
  sequences_.push_back(sequence);
  const int64_t first_key =
      window_ == 0 ? 0 : std::max<int64_t>(0, sequence.first_key_end - window_);
  const bool hides = window_ != 0 && window_ < length;
  begin_offsets_.push_back(hides ? static_cast<int64_t>(key_begins_.size()) : -1);
  for (int64_t row = 0; hides && row < num_rows; ++row)
    key_begins_.push_back(
        static_cast<int32_t>(std::max<int64_t>(0, sequence.first_key_end + row - window_)));
  return first_key;
}

const std::vector<AttnSequence>& OpSequences::finish() {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (begin_offsets_[i] >= 0) sequences_[i].key_begins = key_begins_.data() + begin_offsets_[i];
  }
  return sequences_;
}

Operators::Operators(kvc_cpu_isa isa, const kvc_executor* host)
    : kernels_(choose_kernels(isa, "opt.cpu_isa")),
      executor_(host != nullptr ? Executor(*host) : Executor(1)) {}

kernels::Rotation Operators::cos_sin_of(const OpRotation& rotation, int64_t num_rows) {
  if (!rotation.rotates()) return {};
  return cos_sin_.get(rotation.rope, {.positions = rotation.positions, .num_rows = num_rows},
                      executor_);
}

void Operators::attend(OpAttention& attention, const AttnOptions& options,
                       const AttnTensors& tensors, const OpRotation& rotation, int64_t num_rows) {
  const LayerSpec& shape = attention.shape;
  const std::vector<AttnSequence>& sequences = attention.sequences.finish();
  kernels::AttnParams params =
      attn_params(shape, attention.page_size, !attention.sequences.full(), options, tensors);
  params.q_rotation = params.sink_q_rotation = cos_sin_of(rotation, num_rows);
  params.k = attention.k;
  params.v = attention.v;
  params.sequences = sequences.data();
  WorkList list;
  schedule_work(sequences.data(), static_cast<int64_t>(sequences.size()),
                work_shape(*kernels_, params, options.tiles_only, executor_.concurrency()), {},
                &list);
  ItemRunner runner(kernels_, &executor_);
  runner.secure(list, params);
  runner.run(list, params);
}

void Operators::append(const OpPool& pool, const TokenRows& k, const TokenRows& v,
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

void Operators::rotate(const TokenRows& x, const TokenRows& out, int32_t num_heads, int32_t dim,
                       int64_t num_rows, const OpRotation& rotation) {
  std::vector<int64_t> slots(static_cast<size_t>(num_rows));
  std::iota(slots.begin(), slots.end(), 0);
  run_append(*kernels_, executor_,
             rotate_params(x, out, num_heads, dim, slots.data(), cos_sin_of(rotation, num_rows)),
             num_rows);
}

void Operators::gather(const OpPool& pool, const OpTable& table, const TokenRows& k_out,
                       const TokenRows& v_out) {
  struct Piece {
    int32_t sequence;
    int64_t key_begin, key_end;
    int64_t row;
  };
  std::vector<Piece> pieces;
  int64_t row = 0;
  for (int32_t i = 0; i < table.num_sequences; ++i) {
    for (int64_t key = 0, end; key < table.lengths[i]; row += end - key, key = end) {
      end = std::min<int64_t>(key + kGatherKeys, table.lengths[i]);
      pieces.push_back({i, key, end, row});
    }
  }
  const auto move = [&](const Piece& piece, const PagedRows& from, int32_t dim, TokenRows out) {
    if (out.base == nullptr) return;
    out.base += piece.row * out.token_stride;
    kernels_->gather({.rows = from,
                      .pages = table.pages_of(piece.sequence),
                      .out = out,
                      .page_size = pool.page_size,
                      .num_heads = pool.num_heads,
                      .dim = dim},
                     piece.key_begin, piece.key_end);
  };
  const auto move_piece = [&](int64_t index, int32_t) {
    move(pieces[index], pool.k, pool.k_dim, k_out);
    move(pieces[index], pool.v, pool.v_dim, v_out);
  };
  const double bytes = 4.0 * static_cast<double>(row) * pool.num_heads * (pool.k_dim + pool.v_dim);
  const auto num_pieces = static_cast<int64_t>(pieces.size());
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    for (int64_t index = 0; index < num_pieces; ++index) move_piece(index, 0);
  } else {
    executor_.run(num_pieces, move_piece);
  }
}

}  // namespace kvc
