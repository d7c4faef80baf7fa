#include "src/exec/cuda/moves.h"

#include <algorithm>

#include "src/base/math.h"
#include "src/exec/cuda/storage.h"

namespace kvc {

CudaMoves::CudaMoves(const Plan& plan, const PagePool* pool, const StatePool* states,
                     StreamOrder* order, DeviceStep* step)
    : plan_(&plan),
      spec_(&plan.spec()),
      pool_(pool),
      states_(states),
      order_(order),
      device_(&order->device()),
      step_(step),
      copy_uploads_(*device_),
      move_uploads_(*device_),
      moves_(spec_->groups.size()) {
  if (spec_->clears_pages) make_zeros();
}

// ----------------------------------------------------------------------------------------------
// rows

void CudaMoves::gather(const RowSource& source, const kernels::GatherParams& params,
                       int64_t key_begin, int64_t key_end, DeviceUploads& uploads,
                       cuda::Stream stream) const {
  const int64_t num_pages = ceil_div(key_end, int64_t{params.page_size});
  kernels::GatherParams placed = params;
  placed.pages = reinterpret_cast<const int32_t*>(
      uploads.put(params.pages, num_pages * static_cast<int64_t>(sizeof(int32_t)), stream));
  const cuda::RowStorage storage = source.is_v ? v_storage(*plan_, *pool_, source.local_layer)
                                               : k_storage(*plan_, *pool_, source.local_layer);
  device_->call("gather", device_->table->gather, placed, storage, key_begin, key_end, stream);
}

void CudaMoves::read_rows(const RowSource& source, const kernels::GatherParams& params,
                          int64_t key_begin, int64_t key_end, cuda::Stream stream) const {
  order_->require_alive();
  const OutOfBandCall call(*order_, stream);
  gather(source, params, key_begin, key_end, call.uploads(), call.stream());
  device_->synchronize(call.stream());
}

void CudaMoves::prepare_writes(int64_t num_layers, int64_t num_rows) {
  order_->require_alive();
  const int64_t slots = DeviceUploads::room_of(num_rows * static_cast<int64_t>(sizeof(int64_t)));
  if (num_layers * slots > 0) move_uploads_.reserve(num_layers * slots);
}

void CudaMoves::write_rows(int32_t local_layer, const kernels::AppendParams& params,
                           int64_t num_rows, cuda::Stream stream) noexcept {
  try {
    const OutOfBandCall call(*order_, stream);
    kernels::AppendParams placed = params;
    placed.slots = reinterpret_cast<const int64_t*>(move_uploads_.put(
        params.slots, num_rows * static_cast<int64_t>(sizeof(int64_t)), call.stream()));
    const cuda::AppendLaunch launch{.params = placed,
                                    .k_storage = k_storage(*plan_, *pool_, local_layer),
                                    .v_storage = v_storage(*plan_, *pool_, local_layer),
                                    .num_rows = num_rows,
                                    .num_rows_at = nullptr};
    device_->call("append", device_->table->append, launch, call.stream());
    device_->synchronize(call.stream());
  } catch (...) {
    order_->lost("writing rows");
  }
}

// Room for the ids of all groups, which may be any part of the pages each.
void CudaMoves::prepare_copies(int64_t num_pages) {
  order_->require_alive();
  if (num_pages == 0) return;
  (void)step_->pages();
  copied_from_.reserve(static_cast<size_t>(num_pages));
  copied_to_.reserve(static_cast<size_t>(num_pages));
  const int64_t ids = DeviceUploads::room_of(num_pages * static_cast<int64_t>(sizeof(PageId)));
  const int64_t groups = std::min(num_pages, static_cast<int64_t>(spec_->groups.size()));
  copy_uploads_.reserve(2 * (ids + groups * DeviceUploads::room_of(1)));
}

void CudaMoves::copy_pages(const std::vector<PageCopy>& copies, cuda::Stream stream) noexcept {
  if (copies.empty() || !pool_->has_storage()) return;
  try {
    const OutOfBandCall call(*order_, stream);
    const cuda::StepPages& pages = step_->pages();
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
      params.from = copy_uploads_.put(copied_from_, call.stream());
      params.to = copy_uploads_.put(copied_to_, call.stream());
      params.num_pairs = static_cast<int64_t>(copied_from_.size());
      params.group = static_cast<int32_t>(group);
      device_->call("copy_pages", device_->table->copy_pages, params, call.stream());
    }
    copy_uploads_.finish(call.stream());
  } catch (...) {
    order_->lost("copying pages");
  }
}

void CudaMoves::make_zeros() {
  const cuda::StepPages& pages = step_->pages();
  std::vector<cuda::PageRegion> parts;
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
  for (cuda::PageRegion& part : parts) part.base = zeros_.data();
  const auto bytes = static_cast<int64_t>(parts.size() * sizeof(cuda::PageRegion));
  zero_slots_ = DeviceMemory(*device_, bytes);
  const DeviceStream stream(*device_);
  device_->fill(zeros_.data(), 0, largest, stream.get());
  device_->copy(zero_slots_.data(), parts.data(), bytes, stream.get());
  stream.synchronize();
}

void CudaMoves::clear_taken(const Batch& batch, cuda::Stream stream, DeviceUploads& uploads) {
  if (!spec_->clears_pages) return;
  const std::vector<PageId>& pages = batch.taken_pages();
  if (!pages.empty() && zero_slots_.data() != nullptr) {
    zero_pages_.assign(pages.size(), 0);
    cuda::PageCopyParams params{};
    params.from_layers = reinterpret_cast<const cuda::PageRegion*>(zero_slots_.data());
    params.to_layers = step_->pages().layers;
    params.num_layers = step_->pages().num_layers;
    params.from = uploads.put(zero_pages_, stream);
    params.to = uploads.put(pages, stream);
    params.num_pairs = static_cast<int64_t>(pages.size());
    params.group = -1;
    device_->call("copy_pages", device_->table->copy_pages, params, stream);
    uploads.finish(stream);
  }
  if (!states_->is_used()) return;
  for (const BatchEntry& entry : batch.entries()) states_->memory().clear(entry.new_state, stream);
}

// ----------------------------------------------------------------------------------------------
// moves

// Room for the lists of all groups, and for the slots, cos and sin of every layer whose keys are
// rotated: what follows can't run out of memory.
void CudaMoves::prepare_moves(int64_t num_moves) {
  order_->require_alive();
  const auto count = static_cast<size_t>(num_moves);
  for (MoveList& list : moves_) {
    list.clear();
    list.from.reserve(count), list.to.reserve(count), list.first.reserve(count + 2);
  }
  rotated_slots_.reserve(count);
  const int64_t slots =
      DeviceUploads::room_of((num_moves + 2) * static_cast<int64_t>(sizeof(int64_t)));
  const int64_t cos_sin =
      DeviceUploads::room_of(kMaxLatentDim * static_cast<int64_t>(sizeof(float)));
  const auto groups = static_cast<int64_t>(moves_.size()),
             layers = static_cast<int64_t>(spec_->layers.size());
  move_uploads_.reserve(groups * 3 * slots + layers * (2 * slots + 2 * cos_sin));
}

void CudaMoves::next_sequence() noexcept {
  for (MoveList& list : moves_) {
    const auto size = static_cast<int64_t>(list.from.size());
    if (list.first.empty() || list.first.back() != size) list.first.push_back(size);
  }
}

void CudaMoves::move_token(int32_t group, const TokenPlace& from, const TokenPlace& to) noexcept {
  MoveList& list = moves_[static_cast<size_t>(group)];
  const int64_t page_size = spec_->groups[static_cast<size_t>(group)].page_size;
  if (list.first.empty()) list.first.push_back(0);
  list.from.push_back(from.page * page_size + from.offset);
  list.to.push_back(to.page * page_size + to.offset);
}

void CudaMoves::flush_moves(cuda::Stream stream) {
  for (size_t group = 0; group < moves_.size(); ++group) {
    MoveList& list = moves_[group];
    if (list.from.empty()) continue;
    const auto size = static_cast<int64_t>(list.from.size());
    if (list.first.back() != size) list.first.push_back(size);
    const OutOfBandCall call(*order_, stream);
    cuda::MoveParams params{};
    params.from = move_uploads_.put(list.from, call.stream());
    params.to = move_uploads_.put(list.to, call.stream());
    params.first = move_uploads_.put(list.first, call.stream());
    params.num_lists = static_cast<int32_t>(list.first.size()) - 1;
    params.num_pairs = size;
    for (const int32_t local : spec_->groups[group].layers)
      move_layer(local, params, call.stream());
    list.clear();
  }
}

void CudaMoves::finish_moves(cuda::Stream stream) noexcept {
  cuda::Stream used = stream;
  try {
    flush_moves(stream);
    used = order_->out_of_band_stream(stream);
  } catch (...) {
    order_->lost("moving tokens");
  }
  move_uploads_.finish(used);
}

void CudaMoves::move_layer(int32_t local_layer, cuda::MoveParams params,
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

void CudaMoves::rotate_keys(int32_t local_layer, const kernels::Rotation& rotation,
                            const PageTable& table, int64_t begin, int64_t end,
                            cuda::Stream stream) noexcept {
  if (begin == end) return;
  try {
    flush_moves(stream);
    const int64_t page_size = spec_->layer_page_size(local_layer);
    rotated_slots_.clear();
    for (int64_t token = begin; token < end; ++token) {
      const PageId page = table.pages[static_cast<size_t>(token / page_size)];
      rotated_slots_.push_back(page * page_size + token % page_size);
    }
    const OutOfBandCall call(*order_, stream);
    const int64_t first[] = {0, end - begin};
    const int64_t bytes = rotation.rotary_dim / 2 * static_cast<int64_t>(sizeof(float));
    cuda::MoveParams params{};
    params.from = params.to = move_uploads_.put(rotated_slots_, call.stream());
    params.first =
        reinterpret_cast<const int64_t*>(move_uploads_.put(first, sizeof first, call.stream()));
    params.num_lists = 1;
    params.num_pairs = end - begin;
    params.rotation = rotation;
    params.rotation.cos =
        reinterpret_cast<const float*>(move_uploads_.put(rotation.cos, bytes, call.stream()));
    params.rotation.sin =
        reinterpret_cast<const float*>(move_uploads_.put(rotation.sin, bytes, call.stream()));
    move_layer(local_layer, params, call.stream());
  } catch (...) {
    order_->lost("rotating keys");
  }
}

}  // namespace kvc
