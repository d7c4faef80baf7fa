// The bytes of a cache on a GPU. Every call is out of band (StreamOrder).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/device/device.h"
#include "src/exec/cuda/device_step.h"
#include "src/exec/cuda/page_copies.h"
#include "src/exec/cuda/stream_order.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

class CudaDevice final : public Device {
 public:
  // Borrows all; `host` is pinned. Throws NO_MEMORY, DEVICE.
  CudaDevice(const Plan& plan, const PagePool* pool, const PagePool* host, const Gpu* gpu);

  StreamOrder& order() { return order_; }
  DevicePages& pages() { return pages_; }
  // read_rows() without waiting, in the order of `stream`. Page ids go through `uploads`.
  void gather(const RowSource& source, const kernels::GatherParams& params, int64_t key_begin,
              int64_t key_end, DeviceUploads& uploads, cuda::Stream stream) const;

  const char* name() const override { return name_.c_str(); }
  int32_t num_threads() const override { return 0; }
  int64_t host_bytes() const override;
  uint64_t num_copy_runs() const override { return copies_.num_runs(); }
  void copy_pages(CopyDirection direction, const PageId* from, const PageId* to, int64_t count,
                  CallStream stream) noexcept override;
  void copy_group_pages(const std::vector<PageCopy>& copies, CallStream stream) noexcept override;
  void copy_bytes(void* to, const void* from, int64_t bytes, CallStream stream) noexcept override;
  void read_pages(const PageId* pages, int64_t count, int64_t bytes, std::byte* to,
                  CallStream stream) const override;
  void write_pages(const PageId* pages, int64_t count, int64_t bytes, const std::byte* from,
                   CallStream stream) override;
  void read_bytes(std::byte* to, const std::byte* from, int64_t bytes,
                  CallStream stream) const override;
  void write_bytes(std::byte* to, const std::byte* from, int64_t bytes, CallStream stream) override;
  void move_tokens(int32_t group, const TokenMoves& moves, CallStream stream) noexcept override;
  void rotate_keys(int32_t local_layer, const kernels::Rotation& rotation,
                   const std::vector<int64_t>& slots, CallStream stream) noexcept override;
  uint64_t write_rows(int32_t local_layer, const kernels::AppendParams& params, int64_t num_rows,
                      CallStream stream) noexcept override;
  void read_rows(const RowSource& source, const kernels::GatherParams& params, int64_t key_begin,
                 int64_t key_end, CallStream stream) const override;
  void convert(const Elements& to, const Elements& from, int64_t count,
               CallStream stream) const override;

 private:
  // A call whose work is done when it returns.
  template <typename Run>
  void run_and_wait(CallStream stream, Run&& run) const;
  template <typename Run>
  void enqueue(const char* what, CallStream stream, Run&& run) noexcept;
  void copy_in_group(const std::vector<PageCopy>& copies, int32_t group, cuda::Stream stream);
  void move_layer(int32_t local_layer, cuda::MoveParams params, cuda::Stream stream) const;

  const Plan* plan_;
  const Spec* spec_;
  const PagePool* pool_;
  const Gpu* gpu_;
  std::string name_;
  StreamOrder order_;
  DevicePages pages_;
  CudaPageCopies copies_;
  DeviceUploads staging_;             // For calls that cannot fail, in parts that fit.
  std::vector<int64_t> list_begins_;  // Lists in one part of a move.
  std::vector<PageId> copied_from_, copied_to_;
};

}  // namespace kvc
