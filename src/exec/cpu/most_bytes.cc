#include "src/exec/cpu/most_bytes.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/base/math.h"
#include "src/exec/cpu/engine.h"
#include "src/exec/cpu/work_list.h"
#include "src/exec/kv_chunks.h"
#include "src/exec/launch.h"
#include "src/step/cos_sin.h"

namespace kvc {
namespace {

// A vector that grows by pushes has up to twice what it holds.
constexpr double kGrowth = 2;
// Pages of an AlignedBuffer, which also has a quarter more than was asked for.
constexpr double kBufferPage = 4096;
constexpr double kBufferGrowth = 1.25;
// Scopes of keys that a layer's calls may have: all, cached, new.
constexpr double kScopes = 3;
// Chunks of a sequence beside those that its length fills: the last one, sink tokens, and where the
// first key of a window lies inside one.
constexpr double kMoreChunks = 3;
// Keys of a sequence's own table of cos and sin beside those in sight, see KeyCosSin.
constexpr double kMoreKeys = 128;
// Positions that a table by position has at least, see HostCosSin::lies_far.
constexpr double kNearPositions = 4096;

double buffer(double bytes) { return bytes == 0 ? 0 : kBufferGrowth * bytes + kBufferPage; }

template <typename T>
double records(double count) {
  return kGrowth * count * static_cast<double>(sizeof(T));
}

class EngineBounds {
 public:
  EngineBounds(const Plan& plan, const ForwardBounds& bounds)
      : spec_(plan.spec()), bounds_(bounds), kernels_(kernels_of(spec_.cpu_isa)) {}

  double sum() {
    for (const LayerSpec& layer : spec_.layers) {
      if (layer.attends_tokens() || layer.kind == KVC_LAYER_CROSS) add_layer(layer);
      for (const StateSpec& state : layer.states) add_state(state);
    }
    const double workers =
        spec_.num_threads > 0 ? spec_.num_threads : static_cast<double>(available_cores());
    const double tables = kScopes * static_cast<double>(selections_.size());
    // A work list with shared prefixes and one without.
    const double lists = 2 * tables * static_cast<double>(shapes_.size());
    return static_cast<double>(sizeof(CpuEngine)) + cos_sin() + tables * table_bytes() +
           lists * list_bytes_ + workers * (buffer(scratch_) + buffer(state_scratch_)) +
           buffer(partials_) + finished_ + new_rows_ +
           records<int64_t>(bounds_.rows) +  // identity_slots_
           records<PrefixCandidate>(bounds_.sequences) + 2 * kBufferPage * workers;
  }

 private:
  static const kernels::cpu::KernelTable* kernels_of(kvc_cpu_isa isa) {
    const auto* table = kernels::cpu::kernel_table(static_cast<kernels::cpu::Isa>(isa));
    return table != nullptr ? table : kernels::cpu::kernel_table(kernels::cpu::Isa::kScalar);
  }

  // One SequenceSet.
  double table_bytes() const {
    constexpr double kPerRow = 2 * sizeof(int32_t) + sizeof(uint64_t);  // Visible keys and a mask.
    return 512 + records<kernels::AttnSequence>((has_kept_ ? 2 : 1) * bounds_.sequences) +
           kGrowth * bounds_.rows * kPerRow +
           kGrowth * bounds_.sequences * (sizeof(int32_t) + 2 * sizeof(int64_t)) +
           records<int32_t>(bounds_.keys + bounds_.rows);  // Positions of keys.
  }

  void add_layer(const LayerSpec& layer) {
    const LayerSpec& source = spec_.layers[layer.source];
    const int32_t kept = source.kept_rows < 0 ? -1 : spec_.layers[source.kept_rows].group;
    has_kept_ |= kept >= 0;
    // Kept rows are read by the calls of their layer. The ragged form of MLA reads none.
    const int32_t rope = spec_.rotates_on_read(layer.rope) ? layer.rope : -1;
    if (!layer.is_kept_rows()) selections_.insert({source.group, rope, kept});
    if (kept >= 0 && layer.self_k_dim != 0) selections_.insert({source.group, rope, -1});
    add_shape(layer, layer.num_q_heads, layer.num_kv_heads, layer.k_dim, layer.v_dim);
    // The ragged form of MLA has K and V per head.
    if (layer.self_k_dim != 0)
      add_shape(layer, layer.num_q_heads, layer.num_q_heads, layer.self_k_dim, layer.self_v_dim);
  }

  void add_shape(const LayerSpec& layer, int32_t q_heads, int32_t kv_heads, int32_t k_dim,
                 int32_t v_dim) {
    LayerSpec shaped = layer;
    shaped.num_q_heads = q_heads;
    shaped.num_kv_heads = kv_heads;
    shaped.k_dim = k_dim;
    shaped.v_dim = v_dim;
    kernels::AttnParams params = attn_params(
        shaped, static_cast<int32_t>(spec_.layer_page_size(layer.source)), true, {}, {});
    params.k.dtype = layer.k_dtype;
    params.v.dtype = layer.v_dtype;
    params.k.page_stride = params.v.page_stride = 1;
    if (spec_.rotates_on_read(layer.rope))
      params.k_rotations[0].rotary_dim = spec_.ropes[layer.rope].rotary_dim;
    shapes_.insert({q_heads, kv_heads, k_dim, v_dim});
    const double rows = bounds_.rows;
    const WorkShape shape = work_shape(*kernels_, params, false, 1);
    const auto decode_rows = static_cast<double>(most_decode_rows(shape));
    const auto tile_rows = static_cast<double>(tile_tokens(shape));
    for (const double most : {tile_rows, decode_rows}) {
      const auto count = static_cast<int64_t>(std::min(most, std::max(1.0, rows)));
      scratch_ =
          std::max({scratch_, static_cast<double>(kernels_->attn_tile_scratch_bytes(params, count)),
                    static_cast<double>(kernels_->attn_decode_scratch_bytes(params, count))});
    }
    const double chunks =
        bounds_.keys / static_cast<double>(split_keys(shape)) + kMoreChunks * bounds_.sequences;
    const double tiles = rows / tile_rows + bounds_.sequences;
    // Kept rows are one more item, of tiles and of decode.
    const double kept = shaped.keep_tokens != 0 ? 1 : 0;
    const double items = ((2 + kept) * tiles + chunks + 2 * kept * bounds_.sequences) * kv_heads;
    const double groups = (tiles + bounds_.sequences) * kv_heads;
    list_bytes_ = std::max(list_bytes_, 512 + records<kernels::AttnItem>(items) +
                                            records<kernels::AttnMergeGroup>(groups) +
                                            records<int64_t>(items) +
                                            records<kernels::AttnSequence>(bounds_.sequences));
    finished_ = std::max(finished_, records<std::atomic<int32_t>>(groups));
    // Rows with their chunks: so many rows have all chunks of their sequence each.
    const double row_chunks =
        std::min(decode_rows, rows) * (chunks + 2 * kept * bounds_.sequences) +
        (spec_.has_rope_mode(KVC_ROPE_ON_READ) ? (2 + kept) * rows : 2 * kept * rows);
    partials_ = std::max(partials_, static_cast<double>(sizeof(float)) *
                                        (row_chunks * q_heads * (2 + v_dim) + 16 * items));
    const double row_bytes = static_cast<double>(sizeof(float)) * kv_heads;
    new_rows_ = std::max(new_rows_, (1 + kept) * (buffer(rows * row_bytes * (1 + k_dim)) +
                                                  buffer(rows * row_bytes * (1 + v_dim))));
  }

  // A state of three dimensions may be one of kvc_attn_linear, of two one of kvc_state_conv.
  void add_state(const StateSpec& state) {
    if (state.shape.size() == 3) {
      kernels::LinearParams params{};
      params.num_heads = params.num_k_heads = static_cast<int32_t>(state.shape[0]);
      params.k_dim = static_cast<int32_t>(state.shape[1]);
      params.v_dim = static_cast<int32_t>(state.shape[2]);
      params.state_dtype = state.dtype;
      const double bytes = static_cast<double>(kernels_->linear_scratch_bytes(params, 2));
      state_scratch_ = std::max(state_scratch_, bytes);
    } else if (state.shape.size() == 2) {
      kernels::ConvParams params{};
      params.channels = static_cast<int32_t>(state.shape[0]);
      params.width = static_cast<int32_t>(std::max(state.shape[0], state.shape[1])) + 1;
      const double bytes = static_cast<double>(kernels_->conv_scratch_bytes(params));
      state_scratch_ = std::max(state_scratch_, bytes);
    }
  }

  double cos_sin() const {
    constexpr double kTokenTables = 3;  // Plain, for heads before a lead, for sink tokens.
    const double rows = bounds_.rows;
    double bytes = kGrowth * rows * (sizeof(int64_t) + sizeof(uint8_t) + sizeof(int32_t)) +
                   records<int32_t>(bounds_.keys);
    for (size_t rope = 0; rope < spec_.ropes.size(); ++rope) {
      const double row_bytes =
          static_cast<double>(num_pairs(spec_.ropes[rope])) * static_cast<double>(sizeof(float));
      bytes += 512 + kTokenTables * 2 * buffer(rows * row_bytes);
      if (!spec_.rotates_on_read(static_cast<int32_t>(rope))) continue;
      const double variants = spec_.ropes[rope].long_inverse_frequencies.empty() ? 1 : 2;
      bytes +=
          variants * 2 * row_bytes * kGrowth * std::max(kNearPositions, 2 * bounds_.keys + rows);
      // Every row of a sequence's own stands twice.
      bytes += 2 * (2 * row_bytes + sizeof(int32_t)) * kBufferGrowth * kBufferGrowth *
                   (bounds_.keys + kMoreKeys * bounds_.sequences) +
               bounds_.sequences * (2 * kBufferPage + 256);
    }
    return bytes;
  }

  const Spec& spec_;
  const ForwardBounds& bounds_;
  const kernels::cpu::KernelTable* kernels_;
  // Layer group, RoPE on read, layer group of the kept rows.
  std::set<std::tuple<int32_t, int32_t, int32_t>> selections_;
  bool has_kept_ = false;
  std::set<std::tuple<int32_t, int32_t, int32_t, int32_t>> shapes_;
  double list_bytes_ = 0;
  double scratch_ = 0, state_scratch_ = 0;  // One worker's.
  double partials_ = 0, finished_ = 0, new_rows_ = 0;
};

}  // namespace

double most_engine_bytes(const Plan& plan, const ForwardBounds& bounds) {
  return EngineBounds(plan, bounds).sum();
}

}  // namespace kvc
