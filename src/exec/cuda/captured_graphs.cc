#include "src/exec/cuda/captured_graphs.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"

namespace kvc {

void CapturedGraphs::require_capturable(const Batch& batch, bool has_positions) const {
  const auto refuse = [](const char* what) {
    fail(KVC_E_UNSUPPORTED, "desc->stream is captured, and the forward has %s: a graph has none",
         what);
  };
  if (batch.has_trees()) refuse("token trees");
  if (batch.num_cross_rows() != 0) refuse("encoder tokens");
  if (has_positions) refuse("positions");
  // What the end publishes may be copied at once, before the graph has run.
  if (batch.has_tokens()) refuse("tokens, which replayed ones may have");
  step_->require_capturable(batch);
}

void CapturedGraphs::require_replayable(const Batch& batch, bool has_positions,
                                        bool needs_rows) const {
  if (batch.has_trees() || batch.num_cross_rows() != 0 || has_positions) {
    fail(KVC_E_UNSUPPORTED, "desc->flags has KVC_FORWARD_REPLAY with %s: a graph has none",
         batch.has_trees()             ? "token trees"
         : batch.num_cross_rows() != 0 ? "encoder tokens"
                                       : "positions");
  }
  const CapturedGraph* graph = find(batch);
  if (graph == nullptr) {
    fail(KVC_E_INVALID_STATE,
         "desc->flags has KVC_FORWARD_REPLAY, but no forward of %zu sequences with these lengths "
         "was captured",
         batch.entries().size());
  }
  if (graph->needs_positions) require_unmoved(batch);
  // The end would be too late to refuse: the graph has run by then.
  if (needs_rows) WrittenLayers::require_rows(*spec_, graph->appended, batch);
  const char* reason = reason_against(*graph, batch);
  if (reason == nullptr) return;
  fail(KVC_E_INVALID_STATE,
       "desc->flags has KVC_FORWARD_REPLAY, but the graph of %zu sequences does not serve this "
       "step: %s",
       batch.entries().size(), reason);
}

const char* CapturedGraphs::reason_against(const CapturedGraph& graph, const Batch& batch) const {
  for (const BatchEntry& entry : batch.entries()) {
    const Sequence& sequence = *entry.sequence;
    if (sequence.sink != 0 && graph.call_window > sequence.window - sequence.sink)
      return "a call's window reaches beyond the sinks of a sequence";
  }
  if (batch.num_delta_words() > graph.max_words) return "set config.max_tokens_per_forward";
  if (batch.longest(true) > graph.max_cross_length) return "set config.max_cross_len";
  if (batch.longest(false) > graph.max_length) return "set config.max_seq_len";
  if (graph.generation != step_->generation() || !step_->keeps_addresses(batch))
    return "the pool or the page tables have moved; set config.max_seq_len";
  return nullptr;
}

void CapturedGraphs::require_unmoved(const Batch& batch) {
  for (const BatchEntry& entry : batch.entries()) {
    if (entry.sequence->segments.empty()) continue;
    fail_with(KVC_E_UNSUPPORTED, entry.sequence->id,
              "desc->seqs has sequence %lld, whose positions were moved (kvc_seq_shift): a graph "
              "with ALiBi or keys rotated on read has none",
              static_cast<long long>(entry.sequence->id));
  }
}

CapturedGraph& CapturedGraphs::add(const Forward& forward) {
  const Batch& batch = forward.batch();
  CapturedGraph graph{.lengths = {},
                      .generation = step_->generation(),
                      .max_words = step_->max_words(),
                      .max_length = std::max(spec_->max_seq_len, batch.longest(false)),
                      .max_cross_length = std::max(spec_->max_cross_len, batch.longest(true)),
                      .appended = forward.written().appended()};
  for (const BatchEntry& entry : batch.entries()) graph.lengths.push_back(entry.append_length);
  std::erase_if(graphs_,
                [&](const CapturedGraph& known) { return known.lengths == graph.lengths; });
  graphs_.push_back(std::move(graph));
  return graphs_.back();
}

const CapturedGraph* CapturedGraphs::find(const Batch& batch) const {
  const auto serves = [&](const CapturedGraph& graph) {
    return std::equal(
        graph.lengths.begin(), graph.lengths.end(), batch.entries().begin(), batch.entries().end(),
        [](int64_t length, const BatchEntry& entry) { return length == entry.append_length; });
  };
  const auto known = std::find_if(graphs_.begin(), graphs_.end(), serves);
  return known == graphs_.end() ? nullptr : &*known;
}

}  // namespace kvc
