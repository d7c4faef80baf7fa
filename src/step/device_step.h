// Page tables and batches on a device: owns the StepState of kernels/cuda/step.h and sends each
// forward there.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/step.h"
#include "src/device/device.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"
#include "src/step/batch.h"

namespace kvc {

// Rotations that a step can say long factors of.
constexpr size_t kMaxDeviceRopes = 31;

class DeviceStep {
 public:
  // Throws UNSUPPORTED for more groups or rotations than a step can name, NO_MEMORY. All are
  // borrowed; the pool may be resized while the device is idle.
  DeviceStep(const Plan& plan, const PagePool* pool, const Device* device);

  // The device is so many steps behind that another one can't be written: not before it reads one
  // more.
  bool is_full() const;
  // Not while it is full, as write_for_replay. Makes room for the batch and enqueues the kernel
  // that reads it. Throws; the device has not seen the batch then (Batch::forget_sent).
  void send(const Batch& batch, cuda::Stream stream);
  // The last send was captured and the graph will not run for it: the next one takes its place.
  void unsend() noexcept;
  // Of a prepared batch: does sending it leave generation() as it is?
  bool keeps_addresses(const Batch& batch) const;
  // Throws INVALID_STATE where sending a prepared batch would move the page tables, which a
  // captured stream cannot.
  void require_capturable(const Batch& batch) const;
  // Of a batch whose kernels lie in a graph that was captured before: into the ring, nothing is
  // enqueued.
  void write_for_replay(const Batch& batch, cuda::Stream stream);

  const cuda::StepState& state() const { return state_; }
  // Parts of a page where the pool has them now, on the device. Throws.
  const cuda::StepPages& pages() {
    upload_pages();
    return pages_;
  }
  int32_t max_sequences() const { return static_cast<int32_t>(max_sequences_); }
  int64_t max_rows() const { return max_rows_; }
  int64_t max_words() const { return max_words_; }
  // Counts the changes of addresses that outlive a step: a graph that was captured under another
  // number names memory that is gone. What is made anew by each step keeps working at the addresses
  // that a graph has.
  uint64_t generation() const { return generation_; }

 private:
  struct Needs {
    int64_t sequences, rows, cross_rows, words, slots;
    std::vector<int64_t> table_entries;  // per group
  };

  Needs needs_of(const Batch& batch) const;
  bool fits(const Needs& needs) const;
  void grow(const Needs& needs, cuda::Stream stream);
  void grow_arrays(const Needs& needs, cuda::Stream stream);
  void grow_tables(const Needs& needs, cuda::Stream stream);
  bool keeps_tables(const Batch& batch) const;
  [[noreturn]] void refuse_moving_tables() const;
  bool has_uploaded_pages() const;
  void upload_pages();
  int64_t reserved_slots(int64_t stride) const;
  void write(const Batch& batch);

  const Plan* plan_;
  const PagePool* pool_;
  const Device* device_;
  cuda::StepState state_{};
  cuda::StepPages pages_{};

  int64_t max_sequences_ = 0;
  int64_t max_rows_ = 0;
  int64_t max_cross_rows_ = 0;
  int64_t max_words_ = 0;
  int64_t num_slots_ = 0;  // rows of the tables that have memory
  uint64_t generation_ = 0;
  DeviceBuffer arrays_;
  std::vector<DeviceReservation> tables_;  // per group
  DeviceMemory control_;                   // next_entry, ctas_done
  DeviceMemory page_slots_;
  std::vector<LayerPages> uploaded_regions_;  // that page_slots_ says
  PinnedMemory ring_;
  PinnedMemory progress_;
  std::vector<PinnedMemory> long_steps_;  // per entry of the ring; empty where none was needed
  uint32_t num_written_ = 0;
};

}  // namespace kvc
