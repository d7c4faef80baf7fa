// The engine of a CUDA device: fills kernels' parameters with what lies there and enqueues them. It
// computes nothing on the host that a replayed graph would have to compute anew: which keys are
// seen and how work is cut is decided on the device.
//
// Calls inside a forward go to the forward's stream; others to the stream that was set, else to the
// library's own. DeviceOrder makes one wait for the other. Others beside a capture (Outside) go to
// the library's own and are waited for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/device/device.h"
#include "src/device/uploads.h"
#include "src/exec/cuda/angles.h"
#include "src/exec/cuda/views.h"
#include "src/exec/engine.h"
#include "src/pages/pool.h"
#include "src/pages/state_pool.h"
#include "src/step/device_step.h"

namespace kvc {

class CudaEngine final : public Engine, public DeviceQueue {
 public:
  // All are borrowed. Throws UNSUPPORTED, NO_MEMORY, DEVICE.
  CudaEngine(const Plan& plan, const PagePool* pool, const StatePool* states, const Device* device);
  ~CudaEngine() override;

  const char* name() const override { return name_.c_str(); }
  int32_t num_threads() const override { return 0; }
  uint64_t num_cascades() const override { return num_cascades_.load(std::memory_order_relaxed); }
  void set_stream(const kvc_stream* stream) override;
  void require_alive() const override;
  void drain() override;
  DeviceEvent make_event() const override;
  void record(const DeviceEvent& event) noexcept override;

  void await_begin() override;
  void check_begin(const Batch& batch, bool has_positions, bool is_replay,
                   bool needs_rows) const override;
  void begin(Forward& forward, bool is_replay) override;
  void check_end() const override;
  void check_abort() const override;
  void closed(Forward& forward, bool aborted) noexcept override;
  void carry_states_on(Forward& forward) noexcept override;
  void attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
              const AttnTensors& tensors) override;
  void append(Forward& forward, int32_t local_layer, const kernels::TokenRows& k,
              const kernels::TokenRows& v) override;
  void merge(const kernels::MergeParams& params, int64_t num_rows) override;
  void linear(Forward& forward, const StateRef& state, kernels::LinearParams params) override;
  void conv(Forward& forward, const StateRef& state, kernels::ConvParams params) override;
  void get_states(Forward& forward, const StateRef& state, const StateRows& out) override;
  void set_states(Forward& forward, const StateRef& state, const StateRows& value) override;
  void write_positions(const Forward& forward, const I32Matrix& out) const override;

  void gather(const RowSource& source, const kernels::GatherParams& params,
              int64_t num_keys) override;
  void read_rows(const RowSource& source, const kernels::GatherParams& params, int64_t key_begin,
                 int64_t key_end, kvc_stream stream) const override;
  void read_state(const std::byte* state, const StateSpec& spec, const StateRows& out,
                  kvc_stream stream) const override;
  void write_state(std::byte* state, const StateSpec& spec, const StateRows& value) override;
  bool reads_quantised() const override { return true; }
  void copy_bytes(void* to, const void* from, int64_t bytes) noexcept override;

  void enqueue(const char* what, void (*run)(void* arg, cuda::Stream stream),
               void* arg) noexcept override;

  void prepare_copies(int64_t num_pages) override;
  void copy_pages(const std::vector<PageCopy>& copies) noexcept override;
  void prepare_writes(int64_t num_layers, int64_t num_rows) override;
  void write_rows(int32_t local_layer, const kernels::AppendParams& params,
                  int64_t num_rows) noexcept override;
  void prepare_moves(int64_t num_moves) override;
  void next_sequence() noexcept override;
  void move_token(int32_t group, const TokenPlace& from, const TokenPlace& to) noexcept override;
  void finish_moves() noexcept override;
  void turn_keys(int32_t local_layer, const kernels::Rotation& angles, const PageTable& table,
                 int64_t begin, int64_t end) noexcept override;

 private:
  // Rows that one kernel takes: those of its size, in packed rows per kv head.
  struct RowClass {
    cuda::AttnKernel kernel;
    int32_t min_rows, max_rows;
    const DevicePlan* plan = nullptr;
  };
  // That can do a call: short sequences, long ones (the same where one does both), and as a set
  // every one that may do all of it at once.
  struct Fitting {
    cuda::AttnKernel small, large;
    uint32_t all;  // bit k: AttnKernel k
  };
  // What a graph was captured for.
  struct CapturedShape {
    std::vector<int64_t> lengths;  // new tokens per sequence
    uint64_t generation;           // of the addresses that it names
    int64_t max_words;             // of a step
    int64_t max_length;            // of a sequence
    int64_t max_cross_length;      // of its encoder
    int64_t call_window;           // widest of the calls; 0: none
    // A call goes by positions of keys, which have no room where they were moved
    bool needs_positions;
    bool sets_states;
    std::vector<uint8_t> appended;  // Per local layer: it got its rows.
  };
  struct MoveList {  // of a group
    std::vector<int64_t> from, to, first;
  };
  class Outside;
  friend class Outside;

  cuda::Stream stream_beside_captures(cuda::Stream stream) const;
  void require_stream() const;
  const CapturedShape* find_captured(const Batch& batch) const;
  void begin_replay(Forward& forward);
  void make_zeros();
  void clear_taken(const Forward& forward, cuda::Stream stream);
  void require_replayable(const Batch& batch, bool has_positions, bool is_captured,
                          bool needs_rows) const;
  void require_capturable(const Batch& batch, bool has_positions) const;
  void secure_carried_states();
  void note_captured(const Forward& forward);
  void require_unmoved(const Batch& batch) const;
  void mark_states_set(Forward& forward) const;
  void lost(const char* what) const noexcept;
  cuda::Stream stream() const { return stream_; }
  kernels::AppendParams append_params(Forward& forward, const LayerSpec& layer,
                                      const kernels::TokenRows& k, const kernels::TokenRows& v);
  void set_rotations(Forward& forward, const AttnCall& call, bool may_have_sinks,
                     kernels::AttnParams* params);
  void secure_new_keys(const AttnCall& call, const AttnTensors& tensors,
                       kernels::AttnParams* params);
  void stage_new_keys(Forward& forward, const AttnCall& call, const AttnTensors& tensors,
                      const kernels::AttnParams& params);
  void append_rows(const kernels::AppendParams& params, const cuda::RowStorage& k_storage,
                   const cuda::RowStorage& v_storage, int64_t num_rows, const int32_t* num_rows_at);
  Fitting fitting_kernels(const cuda::AttnLaunch& launch) const;
  std::vector<RowClass> row_classes(const Forward& forward, const cuda::AttnLaunch& launch,
                                    bool is_invariant) const;
  bool fits(cuda::AttnKernel kernel, cuda::AttnLaunch launch) const;
  bool may_cascade(const AttnCall& call, const AttnOptions& options, const GroupSpec& group) const;
  const DeviceSharing* find_sharing(const Forward& forward, DeviceView& view,
                                    const LayerSpec& source, const cuda::AttnLaunch& launch);
  const DevicePlan& plan_class(const Forward& forward, DeviceView& view, const RowClass& rows,
                               bool is_invariant, bool splits_sinks,
                               const kernels::AttnParams& params);
  float* partials_of(const DevicePlan& plan, int32_t v_dim);
  void run(const DevicePlan& plan, cuda::AttnKernel kernel, float* partials,
           cuda::AttnLaunch launch);
  DeviceUploads& uploads_of(const Outside&) const;
  static int32_t num_sequences(const Forward& forward);
  cuda::ConvertParams state_rows(const Forward& forward, const StateRef& state) const;
  void copy_states_out(const Forward& forward, const StateRef& state, const StateRows& out);
  void copy_states_in(const Forward& forward, const StateRef& state, const StateRows& value);
  template <typename Params>
  Params with_states(const Forward& forward, const StateRef& state, Params params,
                     int64_t sequence_bytes);
  void gather_on(const RowSource& source, const kernels::GatherParams& params, int64_t key_begin,
                 int64_t key_end, DeviceUploads& uploads, cuda::Stream stream) const;
  void flush_moves();
  void move_layer(int32_t local_layer, cuda::MoveParams params, cuda::Stream stream) const;

  const Plan* plan_;
  const Spec* spec_;
  const PagePool* pool_;
  const StatePool* states_;
  const Device* device_;
  std::string name_;
  ScratchTrim scratch_trim_;  // before all that has scratch
  mutable DeviceStream own_stream_;
  mutable DeviceOrder order_;
  DeviceUploads uploads_;                  // of the open forward
  mutable DeviceUploads outside_uploads_;  // of calls beside it
  DeviceUploads copy_uploads_;             // between prepare_copies and copy_pages
  // Between prepare_moves or prepare_writes and finish_moves
  DeviceUploads move_uploads_;
  DeviceStep step_;
  DeviceAngles angles_;
  DeviceViews views_;
  DeviceBuffer new_k_, new_v_, identity_slots_, state_sequences_, carried_states_;
  int64_t num_identity_slots_ = 0;
  // Where pages are cleared (KVC_CONFIG_CLEAR_PAGES): the largest part of a page in zeros, and a
  // table of parts that all lie there.
  DeviceMemory zeros_, zero_regions_;
  std::vector<PageId> zero_pages_;
  std::vector<MoveList> moves_;  // per group
  std::vector<int64_t> turned_slots_;
  std::vector<PageId> copied_from_, copied_to_;  // of a group
  cuda::Stream stream_ = nullptr;
  bool in_forward_ = false;
  cuda::Stream forward_stream_ = nullptr;
  bool is_captured_ = false;  // the open forward is part of a capture
  bool is_replay_ = false;    // the open forward runs in a graph
  std::vector<CapturedShape> captured_;
  mutable std::mutex outside_;             // const calls may come from several threads
  std::atomic<uint64_t> num_cascades_{0};  // statistics are read beside an attention
  mutable std::mutex telling_;             // who says first that the device is lost
  mutable std::atomic<bool> is_lost_{false};
  mutable std::string lost_why_;
};

}  // namespace kvc
