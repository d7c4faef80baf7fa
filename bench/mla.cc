// Absorbed MLA decode: one new token per sequence attends to the latent rows of its context, which
// serve all heads. Few heads are bound by memory, many by arithmetic: compared with both, and the
// larger floor is the one that counts.
#include <algorithm>
#include <string>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

// A measured side is at least this many bytes of layers, or this long.
constexpr int64_t kRunBytes = int64_t{48} << 20;
constexpr int64_t kKeysPerTask = 512;

CacheShape latent_shape(const MlaOptions& options) {
  CacheShape shape;
  shape.storage = storage_named(options.dtype);
  shape.q_heads = options.heads;
  shape.kv_heads = 1;
  shape.latent_rank = options.rank;
  shape.latent_rope_dim = options.rope_dim;
  shape.page_size = options.page_size;
  shape.threads = threads_of(options.common);
  shape.isa = isa_named(options.isa);
  return shape;
}

// Half of what the whole bench may take: there are two limits to compare with.
Budget half(Budget budget) {
  budget.repetitions = (budget.repetitions + 1) / 2;
  budget.seconds /= 2;
  return budget;
}

// A decode step of all layers, open for measuring.
class Step {
 public:
  Step(const CacheShape& shape, int batch, int64_t context)
      : cache_(shape),
        q_(shape.storage, batch, shape.q_heads, shape.latent_dim(), 1),
        latents_(shape.storage, batch, 1, shape.latent_dim(), 2),
        out_(shape.storage, batch, shape.q_heads, shape.latent_rank, 3) {
    fill(cache_, batch, context, Placement::kAdjacent);
    // The last token of each context is the one that the measured step appends.
    std::vector<kvc_seq> seqs;
    for (int seq = 0; seq < batch; ++seq) {
      cache_.pop(seq, 1);
      seqs.push_back(seq);
    }
    forward_ = cache_.begin(seqs, std::vector<int64_t>(seqs.size(), 1));
  }
  ~Step() { cache_.abort(forward_); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  void attend(int64_t layer) {
    cache_.attend_latents(forward_, static_cast<int>(layer % cache_.shape().layers), q_.tensor(),
                          latents_.tensor(), out_.tensor());
  }
  // All pages of all layers, in the order in which the layers are walked.
  ReadWalk walk() {
    const CacheShape& shape = cache_.shape();
    const std::vector<int32_t> page_ids = page_ids_of(forward_);
    ReadWalk walk{
        {}, shape.page_layer_bytes(), std::max<int64_t>(1, kKeysPerTask / shape.page_size)};
    for (int layer = 0; layer < shape.layers; ++layer) {
      const auto pages = page_addresses(cache_, layer, page_ids);
      walk.portions.insert(walk.portions.end(), pages.begin(), pages.end());
    }
    return walk;
  }

 private:
  Cache cache_;
  Activations q_, latents_, out_;
  kvc_forward* forward_ = nullptr;
};

// Runs of layers in turn: a pair reads one run and attends over another half a footprint away, so
// that neither finds what the other left in the cache.
PairedResult against_memory(Step& step, const CacheShape& shape, double layer_bytes,
                            ThreadTeam& team, const Budget& budget) {
  const ReadWalk walk = step.walk();
  const ReadWay way = fastest_read_way(team, walk, Inside::kInOrder);
  const int64_t layers = shape.layers,
                layer_pages = static_cast<int64_t>(walk.portions.size()) / layers;
  const int64_t run_layers = std::clamp<int64_t>(kRunBytes / static_cast<int64_t>(layer_bytes), 1,
                                                 std::max<int64_t>(1, layers / 2));
  const int64_t runs = layers / run_layers;
  const double run_bytes = layer_bytes * static_cast<double>(run_layers);
  const Side read{run_bytes, [&](int pair) {
                    const int64_t first = pair % runs * run_layers;
                    read_portions(team, walk, way, first * layer_pages,
                                  (first + run_layers) * layer_pages);
                  }};
  const Side attend{run_bytes, [&](int pair) {
                      const int64_t first = (pair + runs / 2) % runs * run_layers;
                      for (int64_t layer = first; layer < first + run_layers; ++layer)
                        step.attend(layer);
                    }};
  return measure_pairs(shape.threads, budget, read, attend);
}

PairedResult against_arithmetic(Step& step, const CacheShape& shape, double layer_flops,
                                ThreadTeam& team, const Budget& budget) {
  const Arithmetic arithmetic = bounding_arithmetic(shape.isa, shape.storage);
  const double call_seconds = timed(shape.threads, [&] { step.attend(1); }).seconds;
  const int calls = std::max(1, static_cast<int>(kShortestPortion / call_seconds));
  const Side peak = arithmetic_side(team, arithmetic);
  const Side attend{layer_flops * calls, [&](int pair) {
                      for (int call = 0; call < calls; ++call)
                        step.attend(int64_t{pair} * calls + call);
                    }};
  return measure_pairs(shape.threads, budget, peak, attend);
}

}  // namespace

Report run_mla(const MlaOptions& options) {
  CacheShape shape = latent_shape(options);
  const int64_t pages_each = (options.context + shape.page_size - 1) / shape.page_size;
  const int64_t context =
      pages_each * shape.page_size;  // Whole pages, so that both sides read the same bytes.
  const int64_t tokens = options.batch * context;
  const double layer_bytes = static_cast<double>(tokens * shape.bytes_per_token_layer());
  // A multiply-add per element in Q.K and one in P.V, for every head and latent.
  const double layer_flops =
      2.0 * static_cast<double>(tokens) * shape.q_heads * (shape.latent_dim() + shape.latent_rank);
  shape.num_pages = options.batch * pages_each;
  shape.layers = layers_for_footprint(static_cast<int64_t>(layer_bytes));

  Step step(shape, options.batch, context);
  ThreadTeam team(shape.threads);
  step.attend(0);  // The first call sets up the workspace.
  const Budget budget = half(options.common.budget);
  const PairedResult memory = against_memory(step, shape, layer_bytes, team, budget);
  const PairedResult arithmetic = against_arithmetic(step, shape, layer_flops, team, budget);
  const double memory_seconds = layer_bytes / memory.limit_rate.median;
  const double arithmetic_seconds = layer_flops / arithmetic.limit_rate.median;
  const bool by_arithmetic = arithmetic_seconds > memory_seconds;

  Report report = new_report("mla", isa_name(resolve_isa(shape.isa)), shape.threads);
  report["dtype"] = options.dtype;
  report["heads"] = options.heads;
  report["rank"] = options.rank;
  report["rope_dim"] = options.rope_dim;
  report["page"] = options.page_size;
  report["context"] = context;
  report["batch"] = options.batch;
  report["tokens"] = tokens;  // Latents read per layer.
  report["layers"] = shape.layers;
  report["footprint_bytes"] = shape.layers * static_cast<int64_t>(layer_bytes);
  report["flops_per_byte"] = rounded(layer_flops / layer_bytes);
  report["peak_kind"] = arithmetic_name(bounding_arithmetic(shape.isa, shape.storage));
  report["floor"] = by_arithmetic ? "arithmetic" : "memory";
  if (by_arithmetic) {
    add_pairs(report, arithmetic, 1e9, "gflops", "peak_gflops");
    report["gbps"] = rounded(memory.subject_rate.median / 1e9);
    report["pattern_read_gbps"] = rounded(memory.limit_rate.median / 1e9);
  } else {
    add_pairs(report, memory, 1e9, "gbps", "pattern_read_gbps");
    report["gflops"] = rounded(arithmetic.subject_rate.median / 1e9);
    report["peak_gflops"] = rounded(arithmetic.limit_rate.median / 1e9);
  }
  report["memory_share"] = rounded(memory.share.median);
  report["arithmetic_share"] = rounded(arithmetic.share.median);
  report["memory_floor_microseconds"] = rounded(memory_seconds * 1e6);
  report["arithmetic_floor_microseconds"] = rounded(arithmetic_seconds * 1e6);
  report["layer_microseconds"] = rounded(layer_flops / arithmetic.subject_rate.median * 1e6);
  return report;
}

}  // namespace kvc::bench
