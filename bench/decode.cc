// Decode: one new token per sequence attends to its whole context. Bound by memory: compared with
// reading the same pages.
#include <algorithm>
#include <stdexcept>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

// Layers are measured in runs of at least this many bytes, long enough for the clock and for the
// threads to meet.
constexpr int64_t kRunBytes = int64_t{48} << 20;

}  // namespace

Report run_decode(const DecodeOptions& options) {
  Report report = model_report("decode", options.model, options.common);
  const bool scattered = options.placement == "scattered";
  CacheShape shape = shape_of(options.model, options.common);
  const int64_t pages_each = (options.context + shape.page_size - 1) / shape.page_size;
  const int64_t context =
      pages_each * shape.page_size;  // Whole pages, so that both sides read the same bytes.
  const double layer_bytes =
      static_cast<double>(options.batch * pages_each * shape.page_layer_bytes());
  shape.num_pages = options.batch * pages_each;
  shape.layers = layers_for_footprint(static_cast<int64_t>(layer_bytes));

  Cache cache(shape);
  fill(cache, options.batch, context, scattered ? Placement::kScattered : Placement::kAdjacent);
  // The last token of each context is the one that the measured step appends.
  std::vector<kvc_seq> seqs;
  for (int seq = 0; seq < options.batch; ++seq) {
    cache.pop(seq, 1);
    seqs.push_back(seq);
  }
  kvc_forward* forward = cache.begin(seqs, std::vector<int64_t>(seqs.size(), 1));
  const std::vector<int32_t> page_ids = page_ids_of(forward);

  constexpr int64_t kKeysPerTask = 512;
  ReadWalk walk{{}, shape.page_layer_bytes(), std::max<int64_t>(1, kKeysPerTask / shape.page_size)};
  for (int layer = 0; layer < shape.layers; ++layer) {
    const auto pages = page_addresses(cache, layer, page_ids);
    walk.portions.insert(walk.portions.end(), pages.begin(), pages.end());
  }

  Activations q(shape.storage, options.batch, shape.q_heads, shape.head_dim, 1);
  Activations k(shape.storage, options.batch, shape.kv_heads, shape.head_dim, 2);
  Activations v(shape.storage, options.batch, shape.kv_heads, shape.head_dim, 3);
  Activations out(shape.storage, options.batch, shape.q_heads, shape.head_dim, 4);
  ThreadTeam team(shape.threads);
  // The limit reads each page from front to back, as it lies in memory. Parts of a page side by
  // side can be faster still where hardware follows more streams; that is reported beside it.
  const ReadWay way = fastest_read_way(team, walk, Inside::kInOrder);
  const ReadWay any_way = fastest_read_way(team, walk, Inside::kAnyOrder);
  // What a plain read of the same bytes reaches, one address after the other.
  ReadWalk sequential = walk;
  for (int layer = 0; layer < shape.layers; ++layer) {
    const auto begin = sequential.portions.begin() + layer * static_cast<int64_t>(page_ids.size());
    std::sort(begin, begin + static_cast<int64_t>(page_ids.size()));
  }
  const ReadWay sequential_way = fastest_read_way(team, sequential, Inside::kInOrder);

  // A pair reads one run of layers and attends over another half a footprint away: neither finds
  // what the other left in the cache.
  const int run_layers = static_cast<int>(std::clamp<int64_t>(
      kRunBytes / static_cast<int64_t>(layer_bytes), 1, std::max(1, shape.layers / 2)));
  const int runs = shape.layers / run_layers;
  const auto layer_pages = static_cast<int64_t>(page_ids.size());
  const double run_bytes = layer_bytes * run_layers;
  const auto reading = [&](const ReadWalk& of, const ReadWay& by) {
    return Side{run_bytes, [&](int pair) {
                  const int64_t first = int64_t{pair % runs} * run_layers;
                  read_portions(team, of, by, first * layer_pages,
                                (first + run_layers) * layer_pages);
                }};
  };
  const Side attend{run_bytes, [&](int pair) {
                      const int first = (pair + runs / 2) % runs * run_layers;
                      for (int layer = first; layer < first + run_layers; ++layer) {
                        cache.attend(forward, layer, q.tensor(), k.tensor(), v.tensor(),
                                     out.tensor());
                      }
                    }};
  const PairedResult result =
      measure_pairs(shape.threads, options.common.budget, reading(walk, way), attend);
  Budget short_budget = options.common.budget;
  short_budget.repetitions = (short_budget.repetitions + 2) / 3;
  short_budget.seconds /= 3;
  const PairedResult any_order =
      measure_pairs(shape.threads, short_budget, reading(walk, any_way), attend);
  const PairedResult in_address_order =
      measure_pairs(shape.threads, short_budget, reading(sequential, sequential_way), attend);
  cache.abort(forward);

  report["context"] = context;
  report["batch"] = options.batch;
  report["placement"] = options.placement;
  report["adjacent_share"] = rounded(adjacent_share(page_ids));
  report["layers"] = shape.layers;
  report["footprint_bytes"] = shape.layers * static_cast<int64_t>(layer_bytes);
  report["appends_one_token"] = true;
  add_pairs(report, result, 1e9, "gbps", "pattern_read_gbps");
  report["layer_microseconds"] = rounded(layer_bytes / result.subject_rate.median * 1e6);
  report["pattern_read_ahead_bytes"] = way.ahead;
  report["side_by_side_read_gbps"] = rounded(any_order.limit_rate.median / 1e9);
  report["side_by_side_share"] = rounded(any_order.share.median);
  report["side_by_side_streams"] = any_way.streams;
  report["sequential_read_gbps"] = rounded(in_address_order.limit_rate.median / 1e9);
  report["sequential_share"] = rounded(in_address_order.share.median);
  return report;
}

}  // namespace kvc::bench
