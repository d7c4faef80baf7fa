#include "src/exec/cuda/page_copies.h"

#include "src/exec/page_pairs.h"

namespace kvc {

struct CudaPageCopier::Job {
  CudaPageCopier* self;
  const PagePool* source;
  const PagePool* target;
  const PageId* from;
  const PageId* to;
  int64_t count;
};

void CudaPageCopier::flush(cuda::Stream stream) {
  if (num_pieces_ == 0) return;
  const auto count = static_cast<int64_t>(num_pieces_);
  num_pieces_ = 0;
  device_->call("copy_many", device_->table->copy_many, targets_, sources_, sizes_, count, stream);
}

void CudaPageCopier::enqueue(const Job& job, cuda::Stream stream) {
  const bool is_whole = plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST;
  const size_t num_regions = is_whole ? 1 : plan_->layout().regions.size();
  num_pieces_ = 0;
  for (size_t region = 0; region < num_regions; ++region) {
    const LayerPages& source = job.source->regions()[region];
    const LayerPages& target = job.target->regions()[region];
    const int64_t bytes =
        is_whole ? plan_->layout().page_bytes : plan_->layout().regions[region].bytes;
    const bool is_dense = source.page_stride == bytes && target.page_stride == bytes;
    for (int64_t i = 0; i < job.count;) {
      const PageRun run = run_at(job.from, job.to, i, is_dense ? job.count : i + 1);
      i += run.count;
      if (job.source == job.target && run.from == run.to) continue;
      if (region == 0) ++num_runs_;
      if (num_pieces_ == kMostPieces) flush(stream);
      targets_[num_pieces_] = target.base + run.to * target.page_stride;
      sources_[num_pieces_] = source.base + run.from * source.page_stride;
      sizes_[num_pieces_++] = static_cast<size_t>(bytes * run.count);
    }
  }
  flush(stream);
}

void CudaPageCopier::copy(CopyDirection direction, const PageId* from, const PageId* to,
                          int64_t count) noexcept {
  if (count == 0 || plan_->layout().regions.empty() || !device_pool_->has_storage()) return;
  Job job{.self = this,
          .source = direction == CopyDirection::kHostToDevice ? host_pool_ : device_pool_,
          .target = direction == CopyDirection::kDeviceToHost ? host_pool_ : device_pool_,
          .from = from,
          .to = to,
          .count = count};
  queue_->enqueue(
      "copying pages",
      [](void* arg, cuda::Stream stream) {
        const Job& todo = *static_cast<const Job*>(arg);
        todo.self->enqueue(todo, stream);
      },
      &job);
}

}  // namespace kvc
