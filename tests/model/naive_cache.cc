#include "tests/model/naive_cache.h"

#include <algorithm>

#include "tests/model/visibility.h"

namespace kvc::test {

void NaiveCache::add(kvc_seq seq) {
  NaiveSequence& sequence = sequences_[seq];
  sequence.layers.resize(layers_.size());
  LayerStates& initial = sequence.states[0];
  for (const NaiveLayer& layer : layers_) {
    initial.emplace_back();
    for (const NaiveState& state : layer.states) initial.back().push_back(state.init);
  }
}

void NaiveCache::fork(kvc_seq parent, kvc_seq child, int64_t length) {
  sequences_[child] = sequences_.at(parent);
  truncate(child, length);
}

void NaiveCache::truncate(kvc_seq seq, int64_t length) {
  extend(seq, length);
  std::map<int64_t, LayerStates>& states = sequences_.at(seq).states;
  states.erase(states.upper_bound(length), states.end());
}

void NaiveCache::extend(kvc_seq seq, int64_t length) {
  NaiveSequence& sequence = sequences_.at(seq);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].has_tokens()) continue;
    sequence.layers[i].k.resize(static_cast<size_t>(length));
    sequence.layers[i].v.resize(static_cast<size_t>(length));
  }
}

void NaiveCache::resize_cross(kvc_seq seq, int64_t length) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].kind != KVC_LAYER_CROSS) continue;
    sequences_.at(seq).layers[i].k.resize(static_cast<size_t>(length));
    sequences_.at(seq).layers[i].v.resize(static_cast<size_t>(length));
  }
}

void NaiveCache::keep_path(kvc_seq seq, int64_t length, const std::vector<int32_t>& parents,
                           int64_t leaf) {
  std::vector<size_t> path;
  for (int64_t node = leaf; node >= 0; node = parents[static_cast<size_t>(node)])
    path.insert(path.begin(), static_cast<size_t>(length + node));
  const auto keep = [&](auto& rows) {
    auto kept = rows;
    kept.resize(static_cast<size_t>(length));
    for (const size_t token : path) kept.push_back(rows[token]);
    rows = std::move(kept);
  };
  NaiveSequence& sequence = sequences_.at(seq);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].has_tokens()) continue;
    keep(sequence.layers[i].k);
    keep(sequence.layers[i].v);
  }
}

void NaiveCache::erase(kvc_seq seq, int64_t begin, int64_t end) {
  const auto drop = [&](auto& rows) { rows.erase(rows.begin() + begin, rows.begin() + end); };
  NaiveSequence& sequence = sequences_.at(seq);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].has_tokens()) continue;
    drop(sequence.layers[i].k);
    drop(sequence.layers[i].v);
  }
}

}  // namespace kvc::test
