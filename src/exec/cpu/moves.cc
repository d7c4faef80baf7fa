// CpuEngine: states, and rows that move without attention.
#include <algorithm>
#include <cstring>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/exec/cpu/engine.h"
#include "src/exec/row_moves.h"

namespace kvc {
namespace {

// A state is one row of one head in a page of one token: the kernels that move rows convert it.
kernels::PagedRows as_page(const std::byte* state, const StateSpec& spec) {
  return {const_cast<std::byte*>(state), 0, 0, 0, spec.dtype};
}

// LinearSequence or ConvSequence of every entry: its rows, and its state before and after.
template <typename T>
std::vector<T> sequences_of(const Batch& batch, const StatePool& states, const StateRef& ref) {
  std::vector<T> sequences;
  for (const BatchEntry& entry : batch.entries()) {
    sequences.push_back({entry.row_begin, entry.append_length,
                         states.memory().state(entry.sequence->state, ref.local_layer, ref.state),
                         states.memory().state(entry.new_state, ref.local_layer, ref.state)});
  }
  return sequences;
}

}  // namespace

void CpuEngine::check_begin(const Batch&, bool, bool is_replay, bool) const {
  if (!is_replay) return;
  fail_with(KVC_E_UNSUPPORTED, KVC_FORWARD_REPLAY,
            "desc->flags has KVC_FORWARD_REPLAY (%d): the CPU has no graphs",
            static_cast<int>(KVC_FORWARD_REPLAY));
}

void CpuEngine::begin(Forward& forward, bool) {
  clear_pages(forward.batch().taken_pages());
  if (spec_->clears_pages && states_->is_used()) {
    for (const BatchEntry& entry : forward.batch().entries())
      states_->memory().clear(entry.new_state);
  }
  copy_pages(forward.batch().copies());
}

// Pages are ascending: neighbours are one piece where they lie together.
void CpuEngine::clear_pages(const std::vector<PageId>& pages) noexcept {
  if (pages.empty() || pool_->regions().empty()) return;
  const auto num_pages = static_cast<int64_t>(pages.size());
  const int64_t num_slots = pool_->num_pieces();
  const auto clear = [&](int64_t slot, int64_t begin, int64_t end) {
    const PagePool::Piece piece = pool_->piece(slot);
    for (int64_t i = begin; i < end;) {
      int64_t count = 1;
      while (i + count < end && piece.stride == piece.bytes &&
             pages[static_cast<size_t>(i + count)] == pages[static_cast<size_t>(i)] + count)
        ++count;
      std::memset(piece.base + pages[static_cast<size_t>(i)] * piece.stride, 0,
                  static_cast<size_t>(piece.bytes * count));
      i += count;
    }
  };
  double bytes = 0;
  for (int64_t slot = 0; slot < num_slots; ++slot)
    bytes += static_cast<double>(pool_->piece(slot).bytes) * static_cast<double>(num_pages);
  if (executor_.concurrency() > 1 && bytes / kCopyBytesPerSecond >= kWorthThreads) {
    constexpr int64_t kPagesPerTask = 16;
    const int64_t tasks = ceil_div(num_pages, kPagesPerTask);
    try {
      executor_.run(num_slots * tasks, [&](int64_t task, int32_t) {
        const int64_t begin = task % tasks * kPagesPerTask;
        clear(task / tasks, begin, std::min(num_pages, begin + kPagesPerTask));
      });
      return;
    } catch (...) {
      // A host's executor that throws although it must not. Clearing once more is right, whatever
      // it has done.
    }
  }
  for (int64_t slot = 0; slot < num_slots; ++slot) clear(slot, 0, num_pages);
}

// ----------------------------------------------------------------------------------------------
// states

void CpuEngine::linear(Forward& forward, const StateRef& state, kernels::LinearParams params) {
  const auto sequences = sequences_of<kernels::LinearSequence>(forward.batch(), *states_, state);
  params.sequences = sequences.data();
  run_linear(*kernels_, executor_, linear_workspace_, params,
             static_cast<int64_t>(sequences.size()));
}

void CpuEngine::conv(Forward& forward, const StateRef& state, kernels::ConvParams params) {
  const auto sequences = sequences_of<kernels::ConvSequence>(forward.batch(), *states_, state);
  params.sequences = sequences.data();
  run_conv(*kernels_, executor_, linear_workspace_, params, static_cast<int64_t>(sequences.size()));
}

void CpuEngine::read_state(const std::byte* state, const StateSpec& spec, const StateRows& out,
                           kvc_stream) const {
  const int32_t page = 0;
  read_rows({0, false},
            {.rows = as_page(state, spec),
             .pages = &page,
             .out = {out.base, 0, 0, out.dtype},
             .page_size = 1,
             .num_heads = 1,
             .dim = static_cast<int32_t>(spec.num_elements)},
            0, 1, nullptr);
}

void CpuEngine::write_state(std::byte* state, const StateSpec& spec, const StateRows& value) {
  const int64_t slot = 0;
  kernels::AppendParams params{};
  params.k = {value.base, 0, 0, value.dtype};
  params.k_pages = params.v_pages = as_page(state, spec);
  params.slots = &slot;
  params.page_size = 1;
  params.num_kv_heads = 1;
  params.k_dim = static_cast<int32_t>(spec.num_elements);
  write_rows(0, params, 1);
}

void CpuEngine::get_states(Forward& forward, const StateRef& ref, const StateRows& out) {
  const StateSpec& spec =
      spec_->layers[static_cast<size_t>(ref.local_layer)].states[static_cast<size_t>(ref.state)];
  StateRows row = out;
  for (const BatchEntry& entry : forward.batch().entries()) {
    read_state(states_->memory().state(entry.sequence->state, ref.local_layer, ref.state), spec,
               row, nullptr);
    row.base += out.row_stride;
  }
}

void CpuEngine::set_states(Forward& forward, const StateRef& ref, const StateRows& value) {
  const StateSpec& spec =
      spec_->layers[static_cast<size_t>(ref.local_layer)].states[static_cast<size_t>(ref.state)];
  StateRows row = value;
  for (const BatchEntry& entry : forward.batch().entries()) {
    write_state(states_->memory().state(entry.new_state, ref.local_layer, ref.state), spec, row);
    row.base += value.row_stride;
  }
}

void CpuEngine::carry_states_on(Forward& forward) noexcept {
  for (size_t layer = 0; layer < spec_->layers.size(); ++layer) {
    const std::vector<StateSpec>& states = spec_->layers[layer].states;
    const auto local = static_cast<int32_t>(layer);
    for (int32_t state = 0; state < static_cast<int32_t>(states.size()); ++state) {
      if (forward.written().is_state_set(local, state)) continue;
      for (const BatchEntry& entry : forward.batch().entries()) {
        std::memcpy(states_->memory().state(entry.new_state, local, state),
                    states_->memory().state(entry.sequence->state, local, state),
                    static_cast<size_t>(states[static_cast<size_t>(state)].bytes()));
      }
    }
  }
}

// ----------------------------------------------------------------------------------------------
// rows

void CpuEngine::write_positions(const Forward& forward, const I32Matrix& out) const {
  const int64_t num_rows = forward.batch().num_rows();
  const int32_t* given = forward.given_positions();
  if (given == nullptr) return forward.write_token_positions(out.data);
  for (int64_t row = 0; row < out.num_rows; ++row)
    std::copy_n(given + row * num_rows, num_rows, out.data + row * out.row_stride);
}

void CpuEngine::copy_bytes(void* to, const void* from, int64_t bytes) noexcept {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CpuEngine::move_token(int32_t group, const TokenPlace& from, const TokenPlace& to) noexcept {
  for (const int32_t layer : spec_->groups[static_cast<size_t>(group)].layers)
    pool_->copy_token(layer, from.page, from.offset, to.page, to.offset);
}

void CpuEngine::turn_keys(int32_t local_layer, const kernels::Rotation& angles,
                          const PageTable& table, int64_t begin, int64_t end) noexcept {
  std::byte row[kMaxLatentDim * sizeof(float)];  // kernels don't rotate in place
  const LayerSpec& layer = spec_->layers[static_cast<size_t>(local_layer)];
  const int64_t page_size = spec_->layer_page_size(local_layer);
  const kernels::PagedRows keys = pool_->k_rows(local_layer);
  kernels::AppendParams params{};
  params.k_rotation = angles;
  params.k_pages = params.v_pages = keys;
  params.k = {row, 0, 0, layer.k_dtype};
  params.page_size = static_cast<int32_t>(page_size);
  params.num_kv_heads = 1;
  params.k_dim = layer.k_dim;
  params.v_dim = layer.v_dim;
  const auto row_bytes = static_cast<size_t>(layer.k_dim * kernels::dtype_bytes(layer.k_dtype));
  for (int64_t token = begin; token < end; ++token) {
    const PageId page = table.pages[static_cast<size_t>(token / page_size)];
    const int64_t slot = page * page_size + token % page_size;
    params.slots = &slot;
    for (int32_t head = 0; head < layer.num_kv_heads; ++head) {
      params.k_pages.base = keys.base + head * keys.head_stride;
      std::memcpy(row, row_address(params.k_pages, page, 0, token % page_size), row_bytes);
      kernels_->append(params, 0, 1);
    }
  }
}

}  // namespace kvc
