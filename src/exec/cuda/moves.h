// Pages and rows that move on a CUDA device without attention: copies, zeros, single tokens, rows
// of the host program. All of it is out of band (StreamOrder).
#pragma once

#include <cstdint>
#include <vector>

#include "src/exec/cuda/stream_order.h"
#include "src/exec/engine.h"
#include "src/pages/pool.h"
#include "src/pages/state_pool.h"
#include "src/step/device_step.h"

namespace kvc {

// Functions as Engine says. `stream`: where a call runs.
class CudaMoves {
 public:
  // All are borrowed. Throws NO_MEMORY, DEVICE.
  CudaMoves(const Plan& plan, const PagePool* pool, const StatePool* states, StreamOrder* order,
            DeviceStep* step);

  // Zeros in the pages and state slots that a forward has taken (KVC_CONFIG_CLEAR_PAGES), before
  // anything else is enqueued for it.
  void clear_taken(const Batch& batch, cuda::Stream stream, DeviceUploads& uploads);
  // Pages of the parameters lie on the host.
  void gather(const RowSource& source, const kernels::GatherParams& params, int64_t key_begin,
              int64_t key_end, DeviceUploads& uploads, cuda::Stream stream) const;
  void read_rows(const RowSource& source, const kernels::GatherParams& params, int64_t key_begin,
                 int64_t key_end, cuda::Stream stream) const;

  void prepare_copies(int64_t num_pages);
  void copy_pages(const std::vector<PageCopy>& copies, cuda::Stream stream) noexcept;

  void prepare_writes(int64_t num_layers, int64_t num_rows);
  void write_rows(int32_t local_layer, const kernels::AppendParams& params, int64_t num_rows,
                  cuda::Stream stream) noexcept;

  void prepare_moves(int64_t num_moves);
  void next_sequence() noexcept;
  void move_token(int32_t group, const TokenPlace& from, const TokenPlace& to) noexcept;
  void rotate_keys(int32_t local_layer, const kernels::Rotation& rotation, const PageTable& table,
                   int64_t begin, int64_t end, cuda::Stream stream) noexcept;
  void finish_moves(cuda::Stream stream) noexcept;

 private:
  struct MoveList {  // Tokens of a layer group that move, as slots.
    std::vector<int64_t> from, to;
    std::vector<int64_t> first;  // Where each sequence begins.

    void clear() { from.clear(), to.clear(), first.clear(); }
  };

  void make_zeros();
  void flush_moves(cuda::Stream stream);
  void move_layer(int32_t local_layer, cuda::MoveParams params, cuda::Stream stream) const;

  const Plan* plan_;
  const Spec* spec_;
  const PagePool* pool_;
  const StatePool* states_;
  StreamOrder* order_;
  const Device* device_;
  DeviceStep* step_;
  DeviceUploads copy_uploads_;  // Between prepare_copies and copy_pages.
  DeviceUploads move_uploads_;  // Between prepare_moves or prepare_writes and finish_moves.
  // The largest part of a page in zeros, and a table of parts that all lie there.
  DeviceMemory zeros_, zero_slots_;
  std::vector<PageId> zero_pages_;
  std::vector<MoveList> moves_;  // Per layer group.
  std::vector<int64_t> rotated_slots_;
  std::vector<PageId> copied_from_, copied_to_;  // Of one layer group.
};

}  // namespace kvc
