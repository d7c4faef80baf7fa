// Options of attention calls drawn for the open forward.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/model/random_inputs.h"

namespace kvc::test {

std::unique_ptr<RandomRun::Options> RandomRun::draw_options(const NaiveLayer& spec, int q_heads,
                                                            bool allow_sinks) {
  auto options = std::make_unique<Options>();
  options->naive.scale = 1.0 / std::sqrt(spec.k_dim);
  options->opt.struct_size = sizeof options->opt;
  const bool is_cross = spec.kind == KVC_LAYER_CROSS;
  if (!spec.is_latent && random_.chance(0.3)) return options;
  options->pointer = &options->opt;
  if (random_.chance(0.3)) options->opt.flags = KVC_ATTN_BATCH_INVARIANT;
  if (random_.chance(0.1)) options->opt.flags |= KVC_ATTN_NO_CASCADE;
  // The absorbed form has no head size to take a default from
  if (spec.is_latent || random_.chance(0.3)) {
    options->opt.scale = static_cast<float>(0.05 + 0.4 * random_.unit());
    options->naive.scale = static_cast<double>(options->opt.scale);
  }
  if (random_.chance(0.3)) {
    options->opt.soft_cap = static_cast<float>(0.5 + 10 * random_.unit());
    options->naive.soft_cap = static_cast<double>(options->opt.soft_cap);
  }
  if (allow_sinks && random_.chance(0.3)) {
    options->sinks.emplace(Elem::kF32, std::vector<int64_t>{q_heads});
    for (int h = 0; h < q_heads; ++h)
      options->naive.sinks.push_back(options->sinks->set(3 * random_.symmetric(), h));
    options->opt.sink_logits = options->sinks->dl();
  }
  if (is_cross) return options;  // no positions, no order
  if (random_.chance(0.3)) {
    options->alibi.emplace(Elem::kF32, std::vector<int64_t>{q_heads});
    for (int h = 0; h < q_heads; ++h)
      options->naive.alibi.push_back(options->alibi->set(0.05 * random_.unit(), h));
    options->opt.alibi_slopes = options->alibi->dl();
  }
  if (random_.chance(0.3)) draw_bias(q_heads, options.get());
  const bool gaps =
      std::any_of(model_.entries().begin(), model_.entries().end(),
                  [&](const ModelEntry& entry) { return model_.at(entry.seq).has_gaps(); });
  if (gaps) return options;
  if (random_.chance(0.2)) {
    int64_t most = spec.window == 0 ? 40 : spec.window;
    for (const ModelEntry& entry : model_.entries()) {
      const ModelSequence& sequence = model_.at(entry.seq);
      // Refused beyond
      if (sequence.sink > 0) most = std::min(most, sequence.window - sequence.sink);
    }
    options->naive.window = options->opt.window = random_.range(1, most);
  }
  const bool trees = std::any_of(model_.entries().begin(), model_.entries().end(),
                                 [](const ModelEntry& entry) { return entry.is_tree; });
  if (!trees && random_.chance(0.25)) draw_spans(options.get());
  return options;
}

void RandomRun::draw_bias(int q_heads, Options* options) {
  int64_t longest = 0;
  for (const ModelEntry& entry : model_.entries())
    longest = std::max(longest, entry.old_slots + entry.append);
  NaiveOptions& naive = options->naive;
  naive.bias_heads = random_.chance(0.5) ? 1 : q_heads;
  naive.bias_rows = model_.num_rows();
  naive.bias_columns = longest + random_.range(0, 3);
  std::vector<int64_t> shape{naive.bias_rows, naive.bias_columns};
  if (naive.bias_heads != 1 || random_.chance(0.3)) shape.insert(shape.begin(), q_heads);
  if (shape.size() == 3) naive.bias_heads = q_heads;
  options->bias.emplace(Elem::kF32, shape);
  const double masked = random_.chance(0.1) ? 0.9 : 0.2;
  for (int64_t h = 0; h < naive.bias_heads; ++h) {
    for (int64_t t = 0; t < naive.bias_rows; ++t) {
      for (int64_t j = 0; j < naive.bias_columns; ++j) {
        const double value =
            random_.chance(masked) ? -std::numeric_limits<double>::infinity() : random_.symmetric();
        naive.bias.push_back(shape.size() == 3 ? options->bias->set(value, h, t, j)
                                               : options->bias->set(value, t, j));
      }
    }
  }
  options->opt.bias = options->bias->dl();
}

void RandomRun::draw_spans(Options* options) {
  std::vector<NaiveOptions::Span>& spans = options->naive.spans;
  for (size_t b = 0; b < model_.entries().size(); ++b) {
    const ModelEntry& entry = model_.entries()[b];
    const int64_t end = entry.old_slots + entry.append;
    int64_t begin = random_.chance(0.5) ? entry.old_slots : 0;
    while (random_.chance(0.6) && begin < end) {
      begin = random_.range(begin, end - 1);
      const int64_t span_end = random_.range(begin + 1, end + 2);
      spans.push_back({static_cast<int64_t>(b), begin, span_end});
      begin = span_end;
    }
  }
  if (spans.empty()) return;
  options->spans.emplace(Elem::kI32, std::vector<int64_t>{static_cast<int64_t>(spans.size()), 3});
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    options->spans->set(static_cast<double>(spans[i].entry), row, 0);
    options->spans->set(static_cast<double>(spans[i].begin), row, 1);
    options->spans->set(static_cast<double>(spans[i].end), row, 2);
  }
  options->opt.spans = options->spans->on_host();
}

}  // namespace kvc::test
