#include "src/exec/cuda/device.h"

#include <algorithm>

#include "src/base/math.h"
#include "src/base/memory.h"
#include "src/exec/cuda/page_copies.h"

namespace kvc {
namespace {

// Lists of the host go to the device in parts of so many entries, each of at most three arrays of
// int64.
constexpr int64_t kPart = 2048;
constexpr int64_t kStagingBytes = int64_t{64} << 10;
static_assert(CudaPageCopies::kUploadBytes <= kStagingBytes);
static_assert(3 * DeviceUploads::room_of((kPart + 1) * sizeof(int64_t)) <= kStagingBytes);
static_assert(DeviceUploads::room_of((kPart + 1) * sizeof(int64_t)) +
                  3 * DeviceUploads::room_of(kMaxLatentDim * sizeof(float)) <=
              kStagingBytes);

// Calls run(begin, end) for parts of [0, count).
template <typename Run>
void in_parts(int64_t count, Run&& run) {
  for (int64_t begin = 0; begin < count; begin += kPart) run(begin, std::min(count, begin + kPart));
}

const int64_t* put_slots(DeviceUploads& uploads, const int64_t* slots, int64_t count,
                         cuda::Stream stream) {
  return reinterpret_cast<const int64_t*>(
      uploads.put(slots, count * static_cast<int64_t>(sizeof(int64_t)), stream));
}

}  // namespace

CudaDevice::CudaDevice(const Plan& plan, const PagePool* pool, const PagePool* host, const Gpu* gpu)
    : plan_(&plan),
      spec_(&plan.spec()),
      pool_(pool),
      gpu_(gpu),
      name_(device_info(*gpu).name),
      order_(gpu),
      pages_(plan, pool, gpu),
      copies_(pool, host, gpu),
      staging_(*gpu, kStagingBytes) {
  list_begins_.reserve(kPart + 1);
  copied_from_.reserve(kPart);
  copied_to_.reserve(kPart);
}

int64_t CudaDevice::host_bytes() const {
  return static_cast<int64_t>(sizeof *this) + order_.host_bytes() + staging_.host_bytes() +
         kvc::host_bytes(list_begins_) + kvc::host_bytes(copied_from_) +
         kvc::host_bytes(copied_to_);
}

// Runs a function that enqueues, at its place in the order. One that throws loses the device.
template <typename Run>
void CudaDevice::enqueue(const char* what, CallStream stream, Run&& run) noexcept {
  try {
    const OutOfBandCall call(order_, stream);
    run(call.stream());
    staging_.finish(call.stream());
  } catch (...) {
    order_.lost(what);
  }
}

template <typename Run>
void CudaDevice::run_and_wait(CallStream stream, Run&& run) const {
  order_.require_alive();
  const OutOfBandCall call(order_, stream);
  run(call);
  gpu_->synchronize(call.stream());
}

// ---- Pages and states

void CudaDevice::copy_pages(CopyDirection direction, const PageId* from, const PageId* to,
                            int64_t count, CallStream stream) noexcept {
  if (count == 0 || plan_->layout().regions.empty() || !pool_->has_storage()) return;
  enqueue("copying pages", stream,
          [&](cuda::Stream on) { copies_.enqueue(direction, from, to, count, staging_, on); });
}

void CudaDevice::copy_group_pages(const std::vector<PageCopy>& copies, CallStream stream) noexcept {
  if (copies.empty() || !pool_->has_storage()) return;
  enqueue("copying pages", stream, [&](cuda::Stream on) {
    for (size_t group = 0; group < spec_->groups.size(); ++group)
      copy_in_group(copies, static_cast<int32_t>(group), on);
  });
}

void CudaDevice::copy_in_group(const std::vector<PageCopy>& copies, int32_t group,
                               cuda::Stream stream) {
  const auto flush = [&] {
    if (copied_from_.empty()) return;
    const cuda::StepPages& pages = pages_.get();
    cuda::PageCopyParams params{};
    params.from_layers = params.to_layers = pages.layers;
    params.num_layers = pages.num_layers;
    params.from = staging_.put(copied_from_, stream);
    params.to = staging_.put(copied_to_, stream);
    params.num_pairs = static_cast<int64_t>(copied_from_.size());
    params.group = group;
    gpu_->call("copy_pages", gpu_->table->copy_pages, params, stream);
    staging_.finish(stream);
    copied_from_.clear(), copied_to_.clear();
  };
  copied_from_.clear(), copied_to_.clear();
  for (const PageCopy& copy : copies) {
    if (copy.group != group) continue;
    copied_from_.push_back(copy.from), copied_to_.push_back(copy.to);
    if (copied_from_.size() == static_cast<size_t>(kPart)) flush();
  }
  flush();
}

void CudaDevice::copy_bytes(void* to, const void* from, int64_t bytes, CallStream stream) noexcept {
  enqueue("copying states", stream, [&](cuda::Stream on) { gpu_->copy(to, from, bytes, on); });
}

// Adds the copies of the packed pages' first bytes to the batch: copy(batch, page, packed, bytes).
template <typename Byte, typename Add>
static void add_stripes(const PagePool& pool, const PageId* pages, int64_t count, int64_t bytes,
                        Byte* packed, const Add& add) {
  for (int64_t i = 0; i < count; ++i, packed += bytes) {
    for (int64_t index = 0; index < pool.num_stripes(); ++index) {
      const PagePool::Stripe stripe = pool.stripe(index);
      if (stripe.offset >= bytes) break;
      add(stripe.base + pages[i] * stripe.stride, packed + stripe.offset,
          std::min(stripe.bytes, bytes - stripe.offset));
    }
  }
}

void CudaDevice::read_pages(const PageId* pages, int64_t count, int64_t bytes, std::byte* to,
                            CallStream stream) const {
  run_and_wait(stream, [&](const OutOfBandCall& call) {
    CopyBatch batch(gpu_, call.stream());
    add_stripes(
        *pool_, pages, count, bytes, to,
        [&](const std::byte* page, std::byte* packed, int64_t n) { batch.add(packed, page, n); });
    batch.flush();
  });
}

void CudaDevice::write_pages(const PageId* pages, int64_t count, int64_t bytes,
                             const std::byte* from, CallStream stream) {
  run_and_wait(stream, [&](const OutOfBandCall& call) {
    CopyBatch batch(gpu_, call.stream());
    add_stripes(
        *pool_, pages, count, bytes, from,
        [&](std::byte* page, const std::byte* packed, int64_t n) { batch.add(page, packed, n); });
    batch.flush();
  });
}

void CudaDevice::read_bytes(std::byte* to, const std::byte* from, int64_t bytes,
                            CallStream stream) const {
  run_and_wait(stream,
               [&](const OutOfBandCall& call) { gpu_->copy(to, from, bytes, call.stream()); });
}

void CudaDevice::write_bytes(std::byte* to, const std::byte* from, int64_t bytes,
                             CallStream stream) {
  run_and_wait(stream,
               [&](const OutOfBandCall& call) { gpu_->copy(to, from, bytes, call.stream()); });
}

// ---- Rows

void CudaDevice::gather(const RowSource& source, const kernels::GatherParams& params,
                        int64_t key_begin, int64_t key_end, DeviceUploads& uploads,
                        cuda::Stream stream) const {
  std::vector<int32_t> pages(static_cast<size_t>(ceil_div(key_end, int64_t{params.page_size})));
  for (size_t i = 0; i < pages.size(); ++i)
    pages[i] = static_cast<int32_t>(kernels::page_at(params.pages, params.gap, i));
  kernels::GatherParams placed = params;
  placed.pages = reinterpret_cast<const int32_t*>(
      uploads.put(pages.data(), static_cast<int64_t>(pages.size() * sizeof(int32_t)), stream));
  const cuda::RowStorage storage = source.is_v ? v_storage(*plan_, *pool_, source.local_layer)
                                               : k_storage(*plan_, *pool_, source.local_layer);
  gpu_->call("gather", gpu_->table->gather, placed, storage, key_begin, key_end, stream);
}

void CudaDevice::read_rows(const RowSource& source, const kernels::GatherParams& params,
                           int64_t key_begin, int64_t key_end, CallStream stream) const {
  run_and_wait(stream, [&](const OutOfBandCall& call) {
    gather(source, params, key_begin, key_end, call.uploads(), call.stream());
  });
}

void CudaDevice::convert(const Elements& to, const Elements& from, int64_t count,
                         CallStream stream) const {
  cuda::ConvertParams params{};
  params.in = from.data;
  params.in_type = from.dtype;
  params.out = to.data;
  params.out_type = to.dtype;
  params.num_rows = 1;
  params.num_elements = count;
  run_and_wait(stream, [&](const OutOfBandCall& call) {
    gpu_->call("convert", gpu_->table->convert, params, call.stream());
  });
}

uint64_t CudaDevice::write_rows(int32_t local_layer, const kernels::AppendParams& params,
                                int64_t num_rows, CallStream stream) noexcept {
  enqueue("writing rows", stream, [&](cuda::Stream on) {
    in_parts(num_rows, [&](int64_t begin, int64_t end) {
      kernels::AppendParams part = params;
      if (part.k.base != nullptr) part.k.base += begin * part.k.token_stride;
      if (part.v.base != nullptr) part.v.base += begin * part.v.token_stride;
      part.slots = put_slots(staging_, params.slots + begin, end - begin, on);
      const cuda::AppendLaunch launch{.params = part,
                                      .k_storage = k_storage(*plan_, *pool_, local_layer),
                                      .v_storage = v_storage(*plan_, *pool_, local_layer),
                                      .num_rows = end - begin,
                                      .num_rows_at = nullptr};
      gpu_->call("append", gpu_->table->append, launch, on);
      staging_.finish(on);
    });
    gpu_->synchronize(on);
  });
  return 0;
}

// A list that two parts share goes on in order: the stream runs them one after the other.
void CudaDevice::move_tokens(int32_t group, const TokenMoves& moves, CallStream stream) noexcept {
  if (moves.size() == 0) return;
  enqueue("moving tokens", stream, [&](cuda::Stream on) {
    auto next = moves.list_begins.begin();
    in_parts(moves.size(), [&](int64_t begin, int64_t end) {
      list_begins_.assign(1, 0);
      for (; next != moves.list_begins.end() && *next < end; ++next) {
        if (*next - begin > list_begins_.back()) list_begins_.push_back(*next - begin);
      }
      list_begins_.push_back(end - begin);
      cuda::MoveParams params{};
      params.from = put_slots(staging_, moves.from.data() + begin, end - begin, on);
      params.to = put_slots(staging_, moves.to.data() + begin, end - begin, on);
      params.first = staging_.put(list_begins_, on);
      params.num_lists = static_cast<int32_t>(list_begins_.size()) - 1;
      params.num_pairs = end - begin;
      for (const int32_t layer : spec_->groups[group].layers) move_layer(layer, params, on);
      staging_.finish(on);
    });
  });
}

void CudaDevice::move_layer(int32_t local_layer, cuda::MoveParams params,
                            cuda::Stream stream) const {
  const LayerSpec& layer = spec_->layers[local_layer];
  params.page_size = spec_->layer_page_size(local_layer);
  params.num_heads = layer.num_kv_heads;
  params.rows = pool_->k_rows(local_layer);
  params.storage = k_storage(*plan_, *pool_, local_layer);
  params.dim = layer.k_dim;
  gpu_->call("move_rows", gpu_->table->move_rows, params, stream);
  if (layer.v_in_k || params.rotation.rotary_dim != 0) return;
  params.rows = pool_->v_rows(local_layer);
  params.storage = v_storage(*plan_, *pool_, local_layer);
  params.dim = layer.v_dim;
  gpu_->call("move_rows", gpu_->table->move_rows, params, stream);
}

void CudaDevice::rotate_keys(int32_t local_layer, const kernels::Rotation& rotation,
                             const std::vector<int64_t>& slots, CallStream stream) noexcept {
  if (slots.empty()) return;
  enqueue("rotating keys", stream, [&](cuda::Stream on) {
    in_parts(static_cast<int64_t>(slots.size()), [&](int64_t begin, int64_t end) {
      const int64_t list[] = {0, end - begin};
      const int64_t bytes = rotation.rotary_dim / 2 * static_cast<int64_t>(sizeof(float));
      cuda::MoveParams params{};
      params.from = params.to = put_slots(staging_, slots.data() + begin, end - begin, on);
      params.first = put_slots(staging_, list, 2, on);
      params.num_lists = 1;
      params.num_pairs = end - begin;
      params.rotation = rotation;
      params.rotation.cos = reinterpret_cast<const float*>(staging_.put(rotation.cos, bytes, on));
      params.rotation.sin = reinterpret_cast<const float*>(staging_.put(rotation.sin, bytes, on));
      move_layer(local_layer, params, on);
      staging_.finish(on);
    });
  });
}

}  // namespace kvc
