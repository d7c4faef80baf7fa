#include "src/exec/cuda/page_copies.h"

#include <algorithm>

#include "src/exec/cuda/copy_batch.h"
#include "src/exec/page_pairs.h"

namespace kvc {
namespace {

// Page ids and pieces go to the device in parts of so many.
constexpr int64_t kPairs = 2048, kPieces = 64;
static_assert(2 * DeviceUploads::room_of(kPairs * sizeof(PageId)) +
                  DeviceUploads::room_of(kPieces * sizeof(cuda::PageRegion)) <=
              CudaPageCopies::kUploadBytes);

int64_t count_runs(const PageId* from, const PageId* to, int64_t count, bool is_inside) {
  int64_t runs = 0;
  for (int64_t i = 0; i < count;) {
    const PageRun run = run_at(from, to, i, count);
    i += run.count;
    if (!is_inside || run.from != run.to) ++runs;
  }
  return runs;
}

}  // namespace

void CudaPageCopies::enqueue(CopyDirection direction, const PageId* from, const PageId* to,
                             int64_t count, DeviceUploads& uploads, cuda::Stream stream) {
  const bool is_inside = direction == CopyDirection::kInsideDevice;
  const PagePool& source = direction == CopyDirection::kHostToDevice ? *host_pool_ : *device_pool_;
  const PagePool& target = direction == CopyDirection::kDeviceToHost ? *host_pool_ : *device_pool_;
  const int64_t runs = count_runs(from, to, count, is_inside);
  num_runs_ += static_cast<uint64_t>(runs);
  if (runs == 0) return;
  if (is_inside)
    copy_by_kernel(from, to, count, uploads, stream);
  else
    copy_by_driver(source, target, from, to, count, stream);
}

void CudaPageCopies::copy_by_driver(const PagePool& source_pool, const PagePool& target_pool,
                                    const PageId* from, const PageId* to, int64_t count,
                                    cuda::Stream stream) {
  CopyBatch batch(gpu_, stream);
  for (int64_t index = 0; index < device_pool_->num_pieces(); ++index) {
    const PagePool::Piece source = source_pool.piece(index), target = target_pool.piece(index);
    const bool is_dense = source.stride == source.bytes && target.stride == target.bytes;
    for (int64_t i = 0; i < count;) {
      const PageRun run = run_at(from, to, i, is_dense ? count : i + 1);
      i += run.count;
      batch.add(target.base + run.to * target.stride, source.base + run.from * source.stride,
                source.bytes * run.count);
    }
  }
  batch.flush();
}

void CudaPageCopies::copy_by_kernel(const PageId* from, const PageId* to, int64_t count,
                                    DeviceUploads& uploads, cuda::Stream stream) {
  const auto put_ids = [&](const PageId* ids, int64_t number) {
    const std::byte* at = uploads.put(ids, number * static_cast<int64_t>(sizeof(PageId)), stream);
    return reinterpret_cast<const PageId*>(at);
  };
  const auto put_pieces = [&](int64_t begin, int64_t number) {
    cuda::PageRegion pieces[kPieces];
    for (int64_t i = 0; i < number; ++i) {
      const PagePool::Piece piece = device_pool_->piece(begin + i);
      pieces[i] = {piece.base, piece.stride, piece.bytes, -1, 0};
    }
    const std::byte* at =
        uploads.put(pieces, number * static_cast<int64_t>(sizeof(cuda::PageRegion)), stream);
    return reinterpret_cast<const cuda::PageRegion*>(at);
  };
  const int64_t num_pieces = device_pool_->num_pieces();
  for (int64_t piece = 0; piece < num_pieces; piece += kPieces) {
    const int64_t number = std::min(kPieces, num_pieces - piece);
    for (int64_t first = 0; first < count; first += kPairs) {
      cuda::PageCopyParams params{};
      params.num_layers = static_cast<int32_t>(number);
      params.from_layers = params.to_layers = put_pieces(piece, number);
      params.num_pairs = std::min(kPairs, count - first);
      params.from = put_ids(from + first, params.num_pairs);
      params.to = put_ids(to + first, params.num_pairs);
      params.group = -1;
      gpu_->call("copy_pages", gpu_->table->copy_pages, params, stream);
      uploads.finish(stream);
    }
  }
}

}  // namespace kvc
