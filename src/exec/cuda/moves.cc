// CudaEngine: pages, and rows that move without attention.
#include <algorithm>

#include "src/base/error.h"
#include "src/exec/cuda/engine.h"
#include "src/exec/cuda/outside.h"
#include "src/exec/cuda/storage.h"

namespace kvc {

DeviceUploads& CudaEngine::uploads_of(const Outside&) const { return outside_uploads_; }

// ----------------------------------------------------------------------------------------------
// rows

void CudaEngine::gather_on(const RowSource& source, const kernels::GatherParams& params,
                           int64_t key_begin, int64_t key_end, DeviceUploads& uploads,
                           cuda::Stream stream) const {
  const int64_t num_pages = (key_end + params.page_size - 1) / params.page_size;
  kernels::GatherParams placed = params;
  placed.pages = reinterpret_cast<const int32_t*>(
      uploads.put(params.pages, num_pages * static_cast<int64_t>(sizeof(int32_t)), stream));
  const cuda::RowStorage storage = source.is_v ? v_storage(*plan_, *pool_, source.local_layer)
                                               : k_storage(*plan_, *pool_, source.local_layer);
  device_->call("gather", device_->table->gather, placed, storage, key_begin, key_end, stream);
}

void CudaEngine::gather(const RowSource& source, const kernels::GatherParams& params,
                        int64_t num_keys) {
  require_stream();
  if (is_captured_)
    fail(KVC_E_UNSUPPORTED,
         "kvc_kv_gather in a forward that is captured: a graph would gather these pages for ever");
  gather_on(source, params, 0, num_keys, uploads_, forward_stream_);
}

void CudaEngine::read_rows(const RowSource& source, const kernels::GatherParams& params,
                           int64_t key_begin, int64_t key_end, kvc_stream stream) const {
  require_alive();
  const Outside outside(*this, stream);
  gather_on(source, params, key_begin, key_end, outside_uploads_, outside.stream());
  device_->synchronize(outside.stream());
}

void CudaEngine::prepare_writes(int64_t num_layers, int64_t num_rows) {
  require_alive();
  const int64_t slots = DeviceUploads::room_of(num_rows * static_cast<int64_t>(sizeof(int64_t)));
  if (num_layers * slots > 0) move_uploads_.reserve(num_layers * slots);
}

void CudaEngine::write_rows(int32_t local_layer, const kernels::AppendParams& params,
                            int64_t num_rows) noexcept {
  try {
    const Outside outside(*this, stream_);
    kernels::AppendParams placed = params;
    placed.slots = reinterpret_cast<const int64_t*>(move_uploads_.put(
        params.slots, num_rows * static_cast<int64_t>(sizeof(int64_t)), outside.stream()));
    const cuda::AppendLaunch launch{.params = placed,
                                    .k_storage = k_storage(*plan_, *pool_, local_layer),
                                    .v_storage = v_storage(*plan_, *pool_, local_layer),
                                    .num_rows = num_rows,
                                    .num_rows_at = nullptr};
    device_->call("append", device_->table->append, launch, outside.stream());
    device_->synchronize(outside.stream());
  } catch (...) {
    lost("writing rows");
  }
}

// Room for the ids of all groups, which may be any part of the pages each.
void CudaEngine::prepare_copies(int64_t num_pages) {
  require_alive();
  if (num_pages == 0) return;
  (void)step_.pages();
  copied_from_.reserve(static_cast<size_t>(num_pages));
  copied_to_.reserve(static_cast<size_t>(num_pages));
  const int64_t ids = DeviceUploads::room_of(num_pages * static_cast<int64_t>(sizeof(PageId)));
  const int64_t groups = std::min(num_pages, static_cast<int64_t>(spec_->groups.size()));
  copy_uploads_.reserve(2 * (ids + groups * DeviceUploads::room_of(1)));
}

void CudaEngine::copy_pages(const std::vector<PageCopy>& copies) noexcept {
  if (copies.empty() || !pool_->has_storage()) return;
  try {
    const Outside outside(*this, stream_);
    const cuda::StepPages& pages = step_.pages();
    for (size_t group = 0; group < spec_->groups.size(); ++group) {
      copied_from_.clear(), copied_to_.clear();
      for (const PageCopy& copy : copies) {
        if (copy.group != static_cast<int32_t>(group)) continue;
        copied_from_.push_back(copy.from), copied_to_.push_back(copy.to);
      }
      if (copied_from_.empty()) continue;
      cuda::PageCopyParams params{};
      params.from_layers = params.to_layers = pages.layers;
      params.num_layers = pages.num_layers;
      params.from = copy_uploads_.put(copied_from_, outside.stream());
      params.to = copy_uploads_.put(copied_to_, outside.stream());
      params.num_pairs = static_cast<int64_t>(copied_from_.size());
      params.group = static_cast<int32_t>(group);
      device_->call("copy_pages", device_->table->copy_pages, params, outside.stream());
    }
    copy_uploads_.finish(outside.stream());
  } catch (...) {
    lost("copying pages");
  }
}

void CudaEngine::make_zeros() {
  const cuda::StepPages& pages = step_.pages();
  std::vector<cuda::StepPageSlot> parts;
  int64_t largest = 1;
  for (const GroupSpec& group : spec_->groups) {
    for (const int32_t layer : group.layers) {
      const auto bytes = static_cast<int64_t>(pool_->layer_page_bytes(layer));
      parts.push_back(
          {.base = nullptr, .page_stride = 0, .bytes = bytes, .group = -1, .reserved = 0});
      largest = std::max(largest, bytes);
    }
  }
  if (pages.num_layers == 0) return;
  zeros_ = DeviceMemory(*device_, largest);
  for (cuda::StepPageSlot& part : parts) part.base = zeros_.data();
  const auto bytes = static_cast<int64_t>(parts.size() * sizeof(cuda::StepPageSlot));
  zero_regions_ = DeviceMemory(*device_, bytes);
  const DeviceStream stream(*device_);
  device_->fill(zeros_.data(), 0, largest, stream.get());
  device_->copy(zero_regions_.data(), parts.data(), bytes, stream.get());
  stream.synchronize();
}

// What the forward has taken gets zeros, before anything else is enqueued for it.
void CudaEngine::clear_taken(const Forward& forward, cuda::Stream stream) {
  if (!spec_->clears_pages) return;
  const std::vector<PageId>& pages = forward.batch().taken_pages();
  if (!pages.empty() && zero_regions_.data() != nullptr) {
    zero_pages_.assign(pages.size(), 0);
    cuda::PageCopyParams params{};
    params.from_layers = reinterpret_cast<const cuda::StepPageSlot*>(zero_regions_.data());
    params.to_layers = step_.pages().layers;
    params.num_layers = step_.pages().num_layers;
    params.from = outside_uploads_.put(zero_pages_, stream);
    params.to = outside_uploads_.put(pages, stream);
    params.num_pairs = static_cast<int64_t>(pages.size());
    params.group = -1;
    device_->call("copy_pages", device_->table->copy_pages, params, stream);
    outside_uploads_.finish(stream);
  }
  if (!states_->is_used()) return;
  for (const BatchEntry& entry : forward.batch().entries())
    states_->clear_slot(entry.new_state, stream);
}

void CudaEngine::enqueue(const char* what, void (*run)(void* arg, cuda::Stream stream),
                         void* arg) noexcept {
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

// ----------------------------------------------------------------------------------------------
// moves

// Room for the lists of all groups, and for the slots and angles of every layer whose keys turn:
// what follows can't run out of memory.
void CudaEngine::prepare_moves(int64_t num_moves) {
  require_alive();
  const auto count = static_cast<size_t>(num_moves);
  for (MoveList& list : moves_) {
    list.from.clear(), list.to.clear(), list.first.clear();
    list.from.reserve(count), list.to.reserve(count), list.first.reserve(count + 2);
  }
  turned_slots_.reserve(count);
  const int64_t slots =
      DeviceUploads::room_of((num_moves + 2) * static_cast<int64_t>(sizeof(int64_t)));
  const int64_t angles =
      DeviceUploads::room_of(kMaxLatentDim * static_cast<int64_t>(sizeof(float)));
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
  const int64_t page_size = spec_->groups[static_cast<size_t>(group)].page_size;
  if (list.first.empty()) list.first.push_back(0);
  list.from.push_back(from.page * page_size + from.offset);
  list.to.push_back(to.page * page_size + to.offset);
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
    for (const int32_t local : spec_->groups[group].layers)
      move_layer(local, params, outside.stream());
    list.from.clear(), list.to.clear(), list.first.clear();
  }
}

void CudaEngine::finish_moves() noexcept {
  cuda::Stream used = stream_;
  try {
    flush_moves();
    used = stream_beside_captures(stream_);
  } catch (...) {
    lost("moving tokens");
  }
  move_uploads_.finish(used);
}

void CudaEngine::move_layer(int32_t local_layer, cuda::MoveParams params,
                            cuda::Stream stream) const {
  const LayerSpec& layer = spec_->layers[static_cast<size_t>(local_layer)];
  params.page_size = spec_->layer_page_size(local_layer);
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

void CudaEngine::turn_keys(int32_t local_layer, const kernels::Rotation& angles,
                           const PageTable& table, int64_t begin, int64_t end) noexcept {
  if (begin == end) return;
  try {
    flush_moves();
    const int64_t page_size = spec_->layer_page_size(local_layer);
    turned_slots_.clear();
    for (int64_t token = begin; token < end; ++token) {
      const PageId page = table.pages[static_cast<size_t>(token / page_size)];
      turned_slots_.push_back(page * page_size + token % page_size);
    }
    const Outside outside(*this, stream_);
    const int64_t first[] = {0, end - begin};
    const int64_t bytes = angles.rotary_dim / 2 * static_cast<int64_t>(sizeof(float));
    cuda::MoveParams params{};
    params.from = params.to = move_uploads_.put(turned_slots_, outside.stream());
    params.first =
        reinterpret_cast<const int64_t*>(move_uploads_.put(first, sizeof first, outside.stream()));
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
