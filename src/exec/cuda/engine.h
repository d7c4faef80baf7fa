// The engine of a CUDA device: enqueues kernels, with parameters that lie there. It decides nothing
// on the host that a replayed graph would have to decide anew: masks and the work list are computed
// on the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "src/exec/cuda/attn_kernels.h"
#include "src/exec/cuda/batch_metadata.h"
#include "src/exec/cuda/forward.h"
#include "src/exec/cuda/moves.h"
#include "src/exec/cuda/new_keys.h"
#include "src/exec/cuda/states.h"
#include "src/exec/cuda/stream_order.h"
#include "src/exec/engine.h"

namespace kvc {

class CudaEngine final : public Engine, public DeviceQueue {
 public:
  // All are borrowed. Throws UNSUPPORTED, NO_MEMORY, DEVICE.
  CudaEngine(const Plan& plan, const PagePool* pool, const StatePool* states, const Device* device);
  ~CudaEngine() override;

  const char* name() const override { return name_.c_str(); }
  int32_t num_threads() const override { return 0; }
  uint64_t num_cascades() const override { return num_cascades_.load(std::memory_order_relaxed); }
  void set_stream(const kvc_stream* stream) override {
    stream_ = stream == nullptr ? order_.own_stream() : *stream;
  }
  void require_alive() const override { order_.require_alive(); }
  void drain() override { order_.drain(); }
  DeviceEvent make_event() const override { return order_.make_event(); }
  void record(const DeviceEvent& event) noexcept override { order_.record(event, stream_); }

  void await_begin() override { open_.await_begin(stream_); }
  void check_begin(const Batch& batch, bool has_positions, bool is_replay,
                   bool needs_rows) const override {
    open_.check_begin(batch, stream_, has_positions, is_replay, needs_rows);
  }
  void begin(Forward& forward, bool is_replay) override;
  void check_end() const override { open_.check_end(); }
  void check_abort() const override { open_.check_abort(); }
  void closed(Forward& forward, bool aborted) noexcept override {
    open_.close(forward, aborted, [&] { states_.carry_on(forward); });
  }
  void carry_states_on(Forward& forward) noexcept override { states_.carry_on(forward); }
  void attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
              const AttnTensors& tensors) override;
  void append(Forward& forward, int32_t local_layer, const kernels::TokenRows& k,
              const kernels::TokenRows& v) override;
  void merge(const kernels::MergeParams& params, int64_t num_rows) override;
  void linear(Forward& forward, const StateRef& state, kernels::LinearParams params) override {
    open_.require_enqueues();
    states_.linear(forward, state, params);
  }
  void conv(Forward& forward, const StateRef& state, kernels::ConvParams params) override {
    open_.require_enqueues();
    states_.conv(forward, state, params);
  }
  void get_states(Forward& forward, const StateRef& state, const StateRows& out) override {
    open_.require_enqueues();
    states_.get(forward, state, out);
  }
  void set_states(Forward& forward, const StateRef& state, const StateRows& value) override {
    open_.require_enqueues();
    states_.set(forward, state, value);
  }
  void write_positions(const Forward& forward, const I32Matrix& out) const override;

  void gather(const RowSource& source, const kernels::GatherParams& params,
              int64_t num_keys) override;
  void read_rows(const RowSource& source, const kernels::GatherParams& params, int64_t key_begin,
                 int64_t key_end, kvc_stream stream) const override {
    moves_.read_rows(source, params, key_begin, key_end, stream);
  }
  void read_state(const std::byte* state, const StateSpec& spec, const StateRows& out,
                  kvc_stream stream) const override {
    states_.read(state, spec, out, stream);
  }
  void write_state(std::byte* state, const StateSpec& spec, const StateRows& value) override {
    states_.write(state, spec, value, stream_);
  }
  bool reads_quantised() const override { return true; }
  void copy_bytes(void* to, const void* from, int64_t bytes) noexcept override;

  void enqueue(const char* what, void (*run)(void* arg, cuda::Stream stream),
               void* arg) noexcept override;

  void prepare_copies(int64_t num_pages) override { moves_.prepare_copies(num_pages); }
  void copy_pages(const std::vector<PageCopy>& copies) noexcept override {
    moves_.copy_pages(copies, stream_);
  }
  void prepare_writes(int64_t num_layers, int64_t num_rows) override {
    moves_.prepare_writes(num_layers, num_rows);
  }
  void write_rows(int32_t local_layer, const kernels::AppendParams& params,
                  int64_t num_rows) noexcept override {
    moves_.write_rows(local_layer, params, num_rows, stream_);
  }
  void prepare_moves(int64_t num_moves) override { moves_.prepare_moves(num_moves); }
  void next_sequence() noexcept override { moves_.next_sequence(); }
  void move_token(int32_t group, const TokenPlace& from, const TokenPlace& to) noexcept override {
    moves_.move_token(group, from, to);
  }
  void finish_moves() noexcept override { moves_.finish_moves(stream_); }
  void turn_keys(int32_t local_layer, const kernels::Rotation& angles, const PageTable& table,
                 int64_t begin, int64_t end) noexcept override {
    moves_.rotate_keys(local_layer, angles, table, begin, end, stream_);
  }

 private:
  // Sequences that one kernel serves.
  struct RowClass {
    cuda::AttnKernel kernel;
    RowRange rows;
    const Schedule* plan = nullptr;
  };

  void append_rows(const kernels::AppendParams& params, const cuda::RowStorage& k_storage,
                   const cuda::RowStorage& v_storage, int64_t num_rows, const int32_t* num_rows_at);
  std::vector<RowClass> row_classes(const Forward& forward, const cuda::AttnLaunch& launch,
                                    bool is_invariant) const;
  bool may_cascade(const AttnCall& call, const AttnOptions& options, const GroupSpec& group) const;
  bool may_have_sinks(const Forward& forward, const KeyView& key, const GroupSpec& group) const;
  const SharedPrefixes* find_sharing(const Forward& forward, BatchMetadata& view,
                                     const LayerSpec& source, const cuda::AttnLaunch& launch);
  float* partials_of(const Schedule& plan, int32_t v_dim);
  void run(const Schedule& plan, cuda::AttnKernel kernel, float* partials, cuda::AttnLaunch launch);

  const Plan* plan_;
  const Spec* spec_;
  const PagePool* pool_;
  const Device* device_;
  std::string name_;
  ScratchTrim scratch_trim_;  // Before all that has scratch.
  StreamOrder order_;
  CudaForward open_;
  CudaStates states_;
  CudaMoves moves_;
  BatchMetadataCache metadata_;
  NewKeys new_keys_;
  cuda::Stream stream_ = nullptr;
  std::atomic<uint64_t> num_cascades_{0};  // Read by kvc_stats beside an attention.
};

}  // namespace kvc
