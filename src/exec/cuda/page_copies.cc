#include "src/exec/cuda/page_copies.h"

#include "src/exec/page_pairs.h"

namespace kvc {

void CudaPageCopies::flush(cuda::Stream stream) {
  if (num_pieces_ == 0) return;
  const auto count = static_cast<int64_t>(num_pieces_);
  num_pieces_ = 0;
  gpu_->call("copy_many", gpu_->table->copy_many, targets_, sources_, sizes_, count, stream);
}

void CudaPageCopies::enqueue(CopyDirection direction, const PageId* from, const PageId* to,
                             int64_t count, cuda::Stream stream) {
  const PagePool* source_pool =
      direction == CopyDirection::kHostToDevice ? host_pool_ : device_pool_;
  const PagePool* target_pool =
      direction == CopyDirection::kDeviceToHost ? host_pool_ : device_pool_;
  num_pieces_ = 0;
  for (int64_t index = 0; index < device_pool_->num_pieces(); ++index) {
    const PagePool::Piece source = source_pool->piece(index), target = target_pool->piece(index);
    const bool is_dense = source.stride == source.bytes && target.stride == target.bytes;
    for (int64_t i = 0; i < count;) {
      const PageRun run = run_at(from, to, i, is_dense ? count : i + 1);
      i += run.count;
      if (source_pool == target_pool && run.from == run.to) continue;
      if (index == 0) ++num_runs_;
      if (num_pieces_ == kMostPieces) flush(stream);
      targets_[num_pieces_] = target.base + run.to * target.stride;
      sources_[num_pieces_] = source.base + run.from * source.stride;
      sizes_[num_pieces_++] = static_cast<size_t>(source.bytes * run.count);
    }
  }
  flush(stream);
}

}  // namespace kvc
