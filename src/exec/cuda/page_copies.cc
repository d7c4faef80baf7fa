#include "src/exec/cuda/page_copies.h"

#include "src/exec/cuda/copy_batch.h"
#include "src/exec/page_pairs.h"

namespace kvc {

void CudaPageCopies::enqueue(CopyDirection direction, const PageId* from, const PageId* to,
                             int64_t count, cuda::Stream stream) {
  const PagePool* source_pool =
      direction == CopyDirection::kHostToDevice ? host_pool_ : device_pool_;
  const PagePool* target_pool =
      direction == CopyDirection::kDeviceToHost ? host_pool_ : device_pool_;
  CopyBatch batch(gpu_, stream);
  for (int64_t index = 0; index < device_pool_->num_pieces(); ++index) {
    const PagePool::Piece source = source_pool->piece(index), target = target_pool->piece(index);
    const bool is_dense = source.stride == source.bytes && target.stride == target.bytes;
    for (int64_t i = 0; i < count;) {
      const PageRun run = run_at(from, to, i, is_dense ? count : i + 1);
      i += run.count;
      if (source_pool == target_pool && run.from == run.to) continue;
      if (index == 0) ++num_runs_;
      batch.add(target.base + run.to * target.stride, source.base + run.from * source.stride,
                source.bytes * run.count);
    }
  }
  batch.flush();
}

}  // namespace kvc
