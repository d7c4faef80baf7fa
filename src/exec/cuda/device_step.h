// Page tables and batches on a device: owns the StepState of kernels/cuda/step.h and sends each
// forward there.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/step.h"
#include "src/device/gpu.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"
#include "src/step/batch.h"

namespace kvc {

// Where the pages of a pool lie, as kernels on a device read it.
class DevicePages {
 public:
  // Borrows all; the pool may be resized while the device is idle. Throws NO_MEMORY, DEVICE.
  DevicePages(const Plan& plan, const PagePool* pool, const Gpu* gpu);

  // The present regions of the pool, on the device. Throws DEVICE.
  const cuda::StepPages& get() {
    if (!is_current()) upload();
    return pages_;
  }
  bool is_current() const;
  // Counts the moves of the pool.
  uint64_t generation() const { return generation_; }

 private:
  void upload();

  const Plan* plan_;
  const PagePool* pool_;
  const Gpu* gpu_;
  DeviceStream stream_;
  DeviceMemory memory_;
  cuda::StepPages pages_{};
  std::vector<LayerPages> regions_;      // As uploaded.
  std::vector<cuda::PageRegion> parts_;  // Contents of memory_: layers by layer group.
  uint64_t generation_ = 0;
};

// RoPE specs that a step can mark as using long factors.
constexpr size_t kMaxDeviceRopes = 31;

class DeviceStep {
 public:
  // Borrows all. Throws UNSUPPORTED for more layer groups or RoPE specs than a step can name,
  // NO_MEMORY.
  DeviceStep(const Plan& plan, DevicePages* pages, const Gpu* device);

  // All slots of the upload ring hold steps that the device has not read. Another step can be
  // written when it has read one.
  bool is_full() const;
  // Makes room for the batch and enqueues the kernel that reads it. Not while is_full(). Throws;
  // the device has not got the batch then (Batch::forget_sent).
  void send(const Batch& batch, cuda::Stream stream);
  // The last send() was captured and its graph will not run. The next send() takes its slot.
  void unsend() noexcept;
  // Sending this prepared batch would leave generation() as it is.
  bool keeps_addresses(const Batch& batch) const;
  // Throws INVALID_STATE when sending a prepared batch would move the page tables, which is
  // impossible while the stream is captured.
  void require_capturable(const Batch& batch) const;
  // Writes a batch whose kernels are in a captured graph to the upload ring, and enqueues nothing.
  // Not while is_full().
  void write_for_replay(const Batch& batch, cuda::Stream stream);

  // The ring and what lies beside it, pinned.
  int64_t host_bytes() const;
  const cuda::StepState& state() const { return state_; }
  int32_t max_sequences() const { return static_cast<int32_t>(max_sequences_); }
  int64_t max_rows() const { return max_rows_; }
  int64_t max_words() const { return max_words_; }
  // Counts the changes of addresses that outlive a step. A graph that was captured under another
  // number refers to freed memory. Arrays that each step rebuilds keep working at the addresses in
  // a graph.
  uint64_t generation() const { return generation_ + pages_->generation(); }

 private:
  struct Needs {
    int64_t sequences, rows, cross_rows, words, slots;
    std::vector<int64_t> table_entries;  // [layer group]
  };

  Needs needs_of(const Batch& batch) const;
  bool fits(const Needs& needs) const;
  void grow(const Needs& needs, cuda::Stream stream);
  void grow_arrays(const Needs& needs, cuda::Stream stream);
  void grow_tables(const Needs& needs, cuda::Stream stream);
  bool keeps_tables(const Batch& batch) const;
  [[noreturn]] void refuse_moving_tables() const;
  int64_t reserved_slots(int64_t stride) const;
  void write(const Batch& batch);

  const Plan* plan_;
  DevicePages* pages_;
  const Gpu* device_;
  cuda::StepState state_{};

  int64_t max_sequences_ = 0;
  int64_t max_rows_ = 0;
  int64_t max_cross_rows_ = 0;
  int64_t max_words_ = 0;
  int64_t num_slots_ = 0;  // Rows of the tables that have memory.
  uint64_t generation_ = 0;
  DeviceBuffer arrays_;
  std::vector<DeviceReservation> tables_;  // [layer group]
  DeviceMemory control_;                   // next_entry, ctas_done.
  PinnedMemory ring_;
  PinnedMemory progress_;
  std::vector<PinnedMemory> long_steps_;  // [slot of the ring] Steps that are too long for it.
  uint32_t num_written_ = 0;
};

}  // namespace kvc
