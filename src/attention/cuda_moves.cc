// CudaEngine: states, pages, and rows that move without attention.
#include <algorithm>

#include "src/attention/cuda_engine.h"
#include "src/attention/cuda_storage.h"
#include "src/base/error.h"
#include "src/base/log.h"

namespace kvc {
namespace {

using cuda::ConvertParams;

// Rows of a device array that is used by many sequences: some hundreds of bytes each.
template <typename T>
constexpr int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T));
}

}  // namespace

// A call that is not part of the forward: on the stream that was set, between what the forward has enqueued and what it will.
class CudaEngine::Outside {
 public:
  // What a capture is no part of must not get into its graph: it goes to the library's stream, and is done when the capture goes on.
  Outside(const CudaEngine& engine, cuda::Stream stream)
      : engine_(engine), lock_(engine.outside_), stream_(stream) {
    is_beside_capture_ = engine_.device_->is_capturing(stream);
    if (is_beside_capture_) stream_ = engine_.own_stream_.get();
    if (engine_.in_forward_ && engine_.forward_stream_ != stream_)
      engine_.order_.used(engine_.forward_stream_);
    engine_.order_.use(stream_);
  }
  ~Outside() {
    engine_.uploads_of(*this).finish(stream_);
    engine_.order_.used(stream_);
    try {
      if (is_beside_capture_) engine_.device_->synchronize(stream_);
      if (engine_.in_forward_ && engine_.forward_stream_ != stream_)
        engine_.order_.use(engine_.forward_stream_);
    } catch (...) {
      // The device is lost; the next call will see it.
    }
  }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

  cuda::Stream stream() const { return stream_; }

 private:
  const CudaEngine& engine_;
  std::unique_lock<std::mutex> lock_;
  cuda::Stream stream_;
  bool is_beside_capture_ = false;
};

DeviceUploads& CudaEngine::uploads_of(const Outside&) const { return outside_uploads_; }

// ------------------------------------------------------------------------------------------------------- states

// The state of every sequence of the step, in the memory of the pool.
ConvertParams CudaEngine::state_rows(const StateRef& ref) const {
  const StateSpec& spec =
      spec_->layers[static_cast<size_t>(ref.local_layer)].states[static_cast<size_t>(ref.state)];
  ConvertParams params{};
  params.num_rows = step_.max_sequences();
  params.num_rows_at = step_.state().counts;
  params.num_elements = spec.num_elements;
  return params;
}

void CudaEngine::get_states(Forward&, const StateRef& ref, const StateRows& out) {
  require_stream();
  copy_states_out(ref, out);
}

void CudaEngine::copy_states_out(const StateRef& ref, const StateRows& out) {
  const StateSpec& spec =
      spec_->layers[static_cast<size_t>(ref.local_layer)].states[static_cast<size_t>(ref.state)];
  ConvertParams params = state_rows(ref);
  params.in = states_->state(0, ref.local_layer, ref.state);
  params.in_stride = states_->slot_stride();
  params.in_type = spec.dtype;
  params.fallback = states_->state(kInitialState, ref.local_layer, ref.state);
  params.rows = step_.state().state_in;
  params.out = out.base;
  params.out_stride = out.row_stride;
  params.out_type = out.dtype;
  device_->call("convert", device_->table->convert, params, forward_stream_);
}

void CudaEngine::set_states(Forward&, const StateRef& ref, const StateRows& value) {
  require_stream();
  copy_states_in(ref, value);
}

void CudaEngine::copy_states_in(const StateRef& ref, const StateRows& value) {
  const StateSpec& spec =
      spec_->layers[static_cast<size_t>(ref.local_layer)].states[static_cast<size_t>(ref.state)];
  ConvertParams params = state_rows(ref);
  params.in = value.base;
  params.in_stride = value.row_stride;
  params.in_type = value.dtype;
  params.rows = step_.state().state_out;
  params.scatter = 1;
  params.out = states_->state(0, ref.local_layer, ref.state);
  params.out_stride = states_->slot_stride();
  params.out_type = spec.dtype;
  device_->call("convert", device_->table->convert, params, forward_stream_);
}

// Through a buffer, by the slots that the step says: in a graph these are each step's own.
void CudaEngine::carry_states_on(Forward& forward) noexcept {
  try {
    for (size_t layer = 0; layer < spec_->layers.size(); ++layer) {
      const std::vector<StateSpec>& states = spec_->layers[layer].states;
      const auto local = static_cast<int32_t>(layer);
      for (int32_t state = 0; state < static_cast<int32_t>(states.size()); ++state) {
        if (forward.is_state_set(local, state)) continue;
        const StateSpec& spec = states[static_cast<size_t>(state)];
        carried_states_.ensure(step_.max_sequences() * spec.bytes(), forward_stream_);
        const StateRows rows{carried_states_.data(), spec.bytes(), spec.dtype};
        copy_states_out({local, state}, rows);
        copy_states_in({local, state}, rows);
      }
    }
  } catch (...) {
    lost("carrying states on");
  }
}

template <typename Params>
Params CudaEngine::with_states(const StateRef& ref, Params params, int64_t sequence_bytes) {
  const cuda::StateViewParams view{.step = step_.state(),
                                   .states = states_->state(0, ref.local_layer, ref.state),
                                   .slot_stride = states_->slot_stride(),
                                   .initial = states_->state(kInitialState, ref.local_layer, ref.state),
                                   .sequences = nullptr};
  state_sequences_.ensure(step_.max_sequences() * sequence_bytes, forward_stream_);
  cuda::StateViewParams placed = view;
  placed.sequences = state_sequences_.data();
  device_->call("state_view", device_->table->state_view, placed, step_.max_sequences(), forward_stream_);
  params.sequences = reinterpret_cast<decltype(params.sequences)>(state_sequences_.data());
  return params;
}

void CudaEngine::linear(Forward& forward, const StateRef& ref, kernels::LinearParams params) {
  require_stream();
  if (params.k_dim > kMaxHeadDim) {
    fail_with(KVC_E_UNSUPPORTED, params.k_dim, "state %d has a k dim of %d: on a device at most %d",
              ref.state, params.k_dim, kMaxHeadDim);
  }
  params = with_states(ref, params, sizeof(kernels::LinearSequence));
  device_->call("linear", device_->table->linear, params, step_.max_sequences(), step_.state().counts,
                longest_append(forward), forward_stream_);
}

void CudaEngine::conv(Forward& forward, const StateRef& ref, kernels::ConvParams params) {
  require_stream();
  params = with_states(ref, params, sizeof(kernels::ConvSequence));
  device_->call("conv", device_->table->conv, params, step_.max_sequences(), step_.state().counts,
                longest_append(forward), forward_stream_);
}

int64_t CudaEngine::longest_append(const Forward& forward) {
  int64_t longest = 0;
  for (const BatchEntry& entry : forward.batch().entries()) longest = std::max(longest, entry.append_length);
  return longest;
}

void CudaEngine::read_state(const std::byte* state, const StateSpec& spec, const StateRows& out,
                            kvc_stream stream) const {
  require_alive();
  const Outside outside(*this, stream);
  ConvertParams params{};
  params.in = state;
  params.in_type = spec.dtype;
  params.out = out.base;
  params.out_type = out.dtype;
  params.num_rows = 1;
  params.num_elements = spec.num_elements;
  device_->call("convert", device_->table->convert, params, outside.stream());
  device_->synchronize(outside.stream());
}

void CudaEngine::write_state(std::byte* state, const StateSpec& spec, const StateRows& value) {
  require_alive();
  const Outside outside(*this, stream_);
  ConvertParams params{};
  params.in = value.base;
  params.in_type = value.dtype;
  params.out = state;
  params.out_type = spec.dtype;
  params.num_rows = 1;
  params.num_elements = spec.num_elements;
  device_->call("convert", device_->table->convert, params, outside.stream());
  device_->synchronize(outside.stream());
}

// --------------------------------------------------------------------------------------------------------- rows

void CudaEngine::gather_on(const RowSource& source, const kernels::GatherParams& params, int64_t key_begin,
                           int64_t key_end, DeviceUploads& uploads, cuda::Stream stream) const {
  const int64_t num_pages = (key_end + params.page_size - 1) / params.page_size;
  kernels::GatherParams placed = params;
  placed.pages = reinterpret_cast<const int32_t*>(
      uploads.put(params.pages, num_pages * static_cast<int64_t>(sizeof(int32_t)), stream));
  const cuda::RowStorage storage = source.is_v ? v_storage(*plan_, *pool_, source.local_layer)
                                               : k_storage(*plan_, *pool_, source.local_layer);
  device_->call("gather", device_->table->gather, placed, storage, key_begin, key_end, stream);
}

void CudaEngine::gather(const RowSource& source, const kernels::GatherParams& params, int64_t num_keys) {
  require_stream();
  gather_on(source, params, 0, num_keys, uploads_, forward_stream_);
}

void CudaEngine::read_rows(const RowSource& source, const kernels::GatherParams& params, int64_t key_begin,
                           int64_t key_end, kvc_stream stream) const {
  require_alive();
  const Outside outside(*this, stream);
  gather_on(source, params, key_begin, key_end, outside_uploads_, outside.stream());
  device_->synchronize(outside.stream());
}

void CudaEngine::write_rows(int32_t local_layer, const kernels::AppendParams& params, int64_t num_rows) {
  require_alive();
  const Outside outside(*this, stream_);
  kernels::AppendParams placed = params;
  placed.slots = reinterpret_cast<const int64_t*>(
      outside_uploads_.put(params.slots, num_rows * static_cast<int64_t>(sizeof(int64_t)), outside.stream()));
  const cuda::AppendLaunch launch{.params = placed,
                                  .k_storage = k_storage(*plan_, *pool_, local_layer),
                                  .v_storage = v_storage(*plan_, *pool_, local_layer),
                                  .num_rows = num_rows,
                                  .num_rows_at = nullptr};
  device_->call("append", device_->table->append, launch, outside.stream());
  device_->synchronize(outside.stream());
}

void CudaEngine::copy_pages(const std::vector<PageCopy>& copies) {
  require_alive();
  if (copies.empty() || !pool_->has_storage()) return;
  const Outside outside(*this, stream_);
  const std::vector<GroupSpec>& groups = spec_->groups;
  std::vector<int32_t> from, to;
  for (size_t group = 0; group < groups.size(); ++group) {
    from.clear(), to.clear();
    for (const PageCopy& copy : copies) {
      if (copy.group != static_cast<int32_t>(group)) continue;
      from.push_back(copy.from), to.push_back(copy.to);
    }
    if (from.empty()) continue;
    const cuda::StepPages& pages = step_.pages(outside.stream());
    cuda::PageCopyParams params{};
    params.from_layers = params.to_layers = pages.layers;
    params.num_layers = pages.num_layers;
    params.from = outside_uploads_.put(from, outside.stream());
    params.to = outside_uploads_.put(to, outside.stream());
    params.num_pairs = static_cast<int64_t>(from.size());
    params.group = static_cast<int32_t>(group);
    device_->call("copy_pages", device_->table->copy_pages, params, outside.stream());
  }
}

void CudaEngine::enqueue(const char* what, void (*run)(void* arg, cuda::Stream stream), void* arg) noexcept {
  try {
    const Outside outside(*this, stream_);
    run(arg, outside.stream());
  } catch (...) {
    lost(what);
  }
}

void CudaEngine::copy_bytes(void* to, const void* from, int64_t bytes) noexcept {
  try {
    const Outside outside(*this, stream_);
    device_->copy(to, from, bytes, outside.stream());
  } catch (...) {
    lost("copying bytes");
  }
}

// -------------------------------------------------------------------------------------------------------- moves

// Room for the lists of all groups, and for the slots and angles of every layer whose keys turn: what follows can't run out of memory.
void CudaEngine::prepare_moves(int64_t num_moves) {
  require_alive();
  const auto count = static_cast<size_t>(num_moves);
  for (MoveList& list : moves_) {
    list.from.clear(), list.to.clear(), list.first.clear();
    list.from.reserve(count), list.to.reserve(count), list.first.reserve(count + 2);
  }
  turned_slots_.reserve(count);
  const int64_t slots = DeviceUploads::room_of((num_moves + 2) * static_cast<int64_t>(sizeof(int64_t)));
  const int64_t angles = DeviceUploads::room_of(kMaxLatentDim * static_cast<int64_t>(sizeof(float)));
  const auto groups = static_cast<int64_t>(moves_.size()),
             layers = static_cast<int64_t>(spec_->layers.size());
  move_uploads_.reserve(groups * 3 * slots + layers * (2 * slots + 2 * angles));
}

void CudaEngine::next_sequence() noexcept {
  for (MoveList& list : moves_) {
    const auto size = static_cast<int64_t>(list.from.size());
    if (list.first.empty() || list.first.back() != size) list.first.push_back(size);
  }
}

void CudaEngine::move_token(int32_t group, const TokenPlace& from, const TokenPlace& to) noexcept {
  MoveList& list = moves_[static_cast<size_t>(group)];
  const int64_t page_tokens = spec_->groups[static_cast<size_t>(group)].page_tokens;
  if (list.first.empty()) list.first.push_back(0);
  list.from.push_back(from.page * page_tokens + from.offset);
  list.to.push_back(to.page * page_tokens + to.offset);
}

void CudaEngine::flush_moves() {
  for (size_t group = 0; group < moves_.size(); ++group) {
    MoveList& list = moves_[group];
    if (list.from.empty()) continue;
    const auto size = static_cast<int64_t>(list.from.size());
    if (list.first.back() != size) list.first.push_back(size);
    const Outside outside(*this, stream_);
    cuda::MoveParams params{};
    params.from = move_uploads_.put(list.from, outside.stream());
    params.to = move_uploads_.put(list.to, outside.stream());
    params.first = move_uploads_.put(list.first, outside.stream());
    params.num_lists = static_cast<int32_t>(list.first.size()) - 1;
    params.num_pairs = size;
    for (const int32_t local : spec_->groups[group].layers) move_layer(local, params, outside.stream());
    list.from.clear(), list.to.clear(), list.first.clear();
  }
}

void CudaEngine::finish_moves() noexcept {
  try {
    flush_moves();
  } catch (...) {
    lost("moving tokens");
  }
  move_uploads_.finish(stream_);
}

void CudaEngine::move_layer(int32_t local_layer, cuda::MoveParams params, cuda::Stream stream) const {
  const LayerSpec& layer = spec_->layers[static_cast<size_t>(local_layer)];
  params.page_size = spec_->page_tokens(local_layer);
  params.num_heads = layer.num_kv_heads;
  params.rows = pool_->k_rows(local_layer);
  params.storage = k_storage(*plan_, *pool_, local_layer);
  params.dim = layer.k_dim;
  device_->call("move_rows", device_->table->move_rows, params, stream);
  if (layer.v_in_k || params.rotation.rotary_dim != 0) return;
  params.rows = pool_->v_rows(local_layer);
  params.storage = v_storage(*plan_, *pool_, local_layer);
  params.dim = layer.v_dim;
  device_->call("move_rows", device_->table->move_rows, params, stream);
}

void CudaEngine::turn_keys(int32_t local_layer, const kernels::Rotation& angles, const PageTable& table,
                           int64_t begin, int64_t end) noexcept {
  if (begin == end) return;
  try {
    flush_moves();
    const int64_t page_tokens = spec_->page_tokens(local_layer);
    turned_slots_.clear();
    for (int64_t token = begin; token < end; ++token) {
      const PageId page = table.pages[static_cast<size_t>(token / page_tokens)];
      turned_slots_.push_back(page * page_tokens + token % page_tokens);
    }
    const Outside outside(*this, stream_);
    const int64_t first[] = {0, end - begin};
    const int64_t bytes = angles.rotary_dim / 2 * static_cast<int64_t>(sizeof(float));
    cuda::MoveParams params{};
    params.from = params.to = move_uploads_.put(turned_slots_, outside.stream());
    params.first = reinterpret_cast<const int64_t*>(move_uploads_.put(first, sizeof first, outside.stream()));
    params.num_lists = 1;
    params.num_pairs = end - begin;
    params.rotation = angles;
    params.rotation.cos =
        reinterpret_cast<const float*>(move_uploads_.put(angles.cos, bytes, outside.stream()));
    params.rotation.sin =
        reinterpret_cast<const float*>(move_uploads_.put(angles.sin, bytes, outside.stream()));
    move_layer(local_layer, params, outside.stream());
  } catch (...) {
    lost("turning keys");
  }
}

}  // namespace kvc
