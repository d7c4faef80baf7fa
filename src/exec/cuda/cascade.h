// Shared prefixes on a device: whether one launch that reads them once beats a schedule without
// them, and what the scheduler takes for it (kernels/cuda/schedule/README.md). Pure functions of
// page tables, lengths and shapes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/table.h"
#include "src/exec/cascade.h"

namespace kvc {

// Rates of attention, per second of one multiprocessor: published figures of others' kernels and
// data sheets. Mostly their proportions matter. Nothing here has been measured with this library's
// kernels yet.
struct DeviceCosts {
  // Data sheets: 3.35 TB/s over 132 multiprocessors (H100), 4.8 (H200), 2.04 over 108 (A100).
  double memory_bytes = 3e10;
  // Keys that another tile has just read: somewhat below 5,120 bytes a clock over 108
  // multiprocessors (A100 whitepaper). Assumed for every second reader, which is the best case of
  // the schedule without sharing.
  double cache_bytes = 5e10;
  // By AttnKernel. FlashAttention-2 on an H100 for mma.sync and FlashAttention-3 for wgmma
  // (arXiv:2407.08608, figure 5: 350 and 640 TFLOP/s), FlashMLA for latents (its README: 660);
  // float32 without matrix instructions: a third of the data sheet's 67 TFLOP/s.
  double flops[cuda::kNumAttnKernels] = {0.17e12, 2.6e12, 2.6e12, 4.8e12, 5e12};
  // What a call with sharing adds on any device: its upload and a longer list. An estimate.
  double seconds_per_call = 2e-6;
  double smallest_gain = 0.05;  // Share of the flat time; a smaller gain is noise.
};

// One attention call, the same for all layers of equal shape.
struct CascadeCall {
  int32_t num_kv_heads;
  int32_t group_size;  // Query heads per kv head.
  int32_t k_dim, v_dim;
  int64_t key_bytes;  // K and V of one kv head.
  // Kernels of the schedule without sharing: for sequences of up to small_rows packed rows, and for
  // longer ones.
  cuda::AttnKernel small, large;
  int32_t small_rows;
  uint32_t kernels;  // Bit k: AttnKernel k may serve the whole call.
  cuda::AttnGeometry geometry[cuda::kNumAttnKernels];

  // Compares all but the geometry, which follows from the rest.
  bool same_as(const CascadeCall& other) const;
};

// A sequence of the batch.
struct CascadeSequence {
  const int32_t* pages;         // Page table on the host; null: the sequence shares nothing.
  const int32_t* device_pages;  // Page table on the device.
  int64_t row_begin;
  int64_t num_rows;
  int64_t num_keys;  // Keys visible to its first row.
  int64_t position;  // Position of its first row.
};

// Entries of shared prefixes, which the scheduler takes behind those of the batch.
class DeviceCascade {
 public:
  // Chooses prefixes, and the kernel for the whole launch. Afterwards empty where the schedule
  // without sharing is as good. Throws std::bad_alloc.
  void choose(std::span<const CascadeSequence> sequences, const CascadeCall& call,
              int32_t page_size, int32_t num_sms, const DeviceCosts& costs = {});

  bool empty() const { return entries.empty(); }
  void clear();
  int64_t host_bytes() const;

  cuda::AttnKernel kernel = cuda::AttnKernel::kSimt;
  std::vector<kernels::AttnSequence> entries;  // Without row_map and row_positions.
  std::vector<cuda::PrefixShare> shares;       // First the batch's sequences, then the entries.
  // Packed rows and their positions, of one entry after the other.
  std::vector<int32_t> row_map, row_positions;

 private:
  void build(std::span<const CascadeSequence> sequences, const std::vector<CommonPrefix>& prefixes,
             int64_t group_size, int64_t tile_rows);
  bool any_pages_are_shared(std::span<const CascadeSequence> sequences);

  std::vector<int32_t> first_pages_;
  std::vector<PrefixCandidate> candidates_;
  std::vector<CommonPrefix> prefixes_;
};

}  // namespace kvc
