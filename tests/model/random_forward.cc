// Opening and closing forwards in random runs: plain batches, token trees, encoder tokens, given
// positions.
#include <algorithm>
#include <numeric>

#include "tests/model/random_run.h"

namespace kvc::test {

ModelBatch RandomRun::draw_batch() {
  ModelBatch batch;
  std::vector<kvc_seq>& seqs = batch.seqs;
  for (const auto& [seq, sequence] : model_.sequences()) seqs.push_back(seq);
  random_.shuffle(seqs);
  const int64_t most = random_.chance(0.3) ? 12 : 4;
  if (!seqs.empty())
    seqs.resize(static_cast<size_t>(
        random_.range(1, std::min<int64_t>(most, static_cast<int64_t>(seqs.size())))));
  if (random_.chance(0.03)) seqs.push_back(any_seq());
  if (random_.chance(0.02) && !seqs.empty()) seqs.push_back(seqs.front());
  if (random_.chance(0.01)) seqs.clear();
  const bool decode = random_.chance(0.4);
  bool absurd = false;
  for (size_t i = 0; i < seqs.size(); ++i) {
    int64_t length =
        decode || random_.chance(0.3)
            ? 1
            : random_.range(1, random_.chance(0.5) ? 5 : 2 * model_.limits().page_size + 1);
    if (model_.limits().num_pages * model_.limits().page_size > 2500 && random_.chance(0.1)) {
      length = random_.range(300, 800);
    }
    if (random_.chance(0.01)) {
      length = random_.pick_of<int64_t>({0, -1, INT64_MIN, INT64_MAX, 100000});
      absurd = true;
    }
    batch.lengths.push_back(length);
  }
  if (!absurd) draw_parents(&batch);
  if (model_.limits().has_cross ? random_.chance(0.9) : random_.chance(0.01)) {
    for (const kvc_seq seq : seqs) {
      const bool wants = model_.exists(seq) &&
                         (model_.at(seq).cross_length == 0 || model_.at(seq).slots() == 0) &&
                         random_.chance(0.6);
      const int64_t limit = model_.limits().max_cross_len;
      int64_t length =
          wants ? random_.range(1, limit == 0 ? 2 * model_.limits().page_size : limit) : 0;
      if (random_.chance(0.01)) length = random_.pick_of<int64_t>({-1, 1, 100000});
      batch.cross.push_back(length);
    }
  }
  batch.has_positions = !absurd && random_.chance(model_.limits().has_on_read ? 0.01 : 0.3);
  return batch;
}

void RandomRun::draw_parents(ModelBatch* batch) {
  const bool any_tree = std::any_of(batch->seqs.begin(), batch->seqs.end(), [&](kvc_seq seq) {
    return model_.exists(seq) && !model_.at(seq).parents.empty();
  });
  const double chance = model_.limits().has_states ? 0.01 : any_tree ? 0.97 : 0.25;
  if (!random_.chance(chance)) return;
  for (size_t i = 0; i < batch->seqs.size(); ++i) {
    const kvc_seq seq = batch->seqs[i];
    const int64_t nodes =
        model_.exists(seq) ? static_cast<int64_t>(model_.at(seq).parents.size()) : 0;
    const bool is_tree = nodes > 0 ? random_.chance(0.98) : random_.chance(0.6);
    const double chain = random_.unit();
    for (int64_t r = 0; r < batch->lengths[i]; ++r) {
      int64_t parent = random_.chance(chain) ? nodes + r - 1 : random_.range(-1, nodes + r - 1);
      if (random_.chance(0.002)) parent = random_.pick_of<int64_t>({-3, nodes + r, KVC_TREE_NONE});
      batch->parents.push_back(is_tree ? static_cast<int32_t>(parent) : KVC_TREE_NONE);
    }
  }
}

void RandomRun::op_begin() {
  const ModelBatch batch = draw_batch();
  // What a scheduler asks first must be what begin then does.
  int64_t missing = -7;
  const Expected can = model_.can_append(batch.seqs, batch.lengths);
  const auto ask = [&](kvc_error* err) {
    return kvc_seq_can_append(setup_.cache(), batch.seqs.size(), batch.seqs.data(),
                              batch.lengths.data(), &missing, err);
  };
  trace("can_append, begin of %zu, first %lld by %lld%s%s%s", batch.seqs.size(),
        ll(batch.seqs.empty() ? -1 : batch.seqs[0]),
        ll(batch.lengths.empty() ? -1 : batch.lengths[0]), batch.parents.empty() ? "" : ", trees",
        batch.cross.empty() ? "" : ", cross", batch.has_positions ? ", positions" : "");
  if (agree("kvc_seq_can_append", can, ask) && missing != can.missing_pages) {
    mismatch("kvc_seq_can_append: %lld pages missing, expected %lld", ll(missing),
             ll(can.missing_pages));
  }

  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = batch.seqs.size();
  desc.seqs = batch.seqs.data();
  desc.append_lengths = batch.lengths.data();
  desc.tree_parents = batch.parents.empty() ? nullptr : batch.parents.data();
  desc.cross_lengths = batch.cross.empty() ? nullptr : batch.cross.data();
  const int64_t rows =
      std::accumulate(batch.lengths.begin(), batch.lengths.end(), int64_t{0},
                      [](auto a, auto b) { return a + std::clamp<int64_t>(b, 0, 100000); });
  std::unique_ptr<HostTensor> positions;
  if (batch.has_positions) {
    const bool all_rows = random_.chance(0.7);
    const std::vector<int64_t> shape =
        all_rows ? std::vector<int64_t>{setup_.num_sections(), rows} : std::vector<int64_t>{rows};
    Placement placement;
    if (all_rows && random_.chance(0.3)) placement.row_gap = random_.range(1, 5);
    positions = std::make_unique<HostTensor>(Elem::kI32, shape, placement);
    positions->for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
      positions->set(static_cast<double>(random_.range(0, 90)), i, j, k, l);
    });
    desc.positions = positions->on_host();
  }
  kvc_forward* opened = nullptr;
  const bool was_open = model_.is_open();
  const bool ok = agree("kvc_forward_begin", model_.begin(batch), [&](kvc_error* err) {
    return kvc_forward_begin(setup_.cache(), &desc, &opened, err);
  });
  if (!ok) {
    if (opened != nullptr && !was_open) mismatch("a failing begin wrote its handle");
    return;
  }
  forward_ = opened;
  written_.assign(setup_.layers().size(), false);
  pending_states_.clear();
  for (const ModelEntry& entry : model_.entries()) {
    naive_.extend(entry.seq, entry.old_slots + entry.append);
    if (entry.cross > 0) naive_.resize_cross(entry.seq, entry.cross);
  }
  note_rows(positions.get());
}

void RandomRun::note_rows(HostTensor* positions) {
  row_position_.clear();
  given_positions_.clear();
  given_sections_ = positions != nullptr && positions->shape().size() == 2 ? positions->size(0) : 1;
  for (const ModelEntry& entry : model_.entries()) {
    for (int64_t i = 0; i < entry.append; ++i)
      row_position_.push_back(token_position(entry, entry.old_slots + i));
  }
  for (int64_t row = 0; row < model_.num_rows() && positions != nullptr; ++row) {
    std::array<double, 4> given{};
    for (size_t s = 0; s < 4; ++s) {
      const bool has_rows = positions->shape().size() == 2;
      const auto section = std::min(static_cast<int64_t>(s), positions->size(0) - 1);
      given[s] = has_rows ? positions->get(section, row) : positions->get(row);
    }
    given_positions_.push_back(given);
  }
}

int64_t RandomRun::token_position(const ModelEntry& entry, int64_t token) const {
  const ModelSequence& sequence = model_.at(entry.seq);
  if (token < entry.old_length) return sequence.position_of(token);
  const int64_t later = token - entry.old_length;
  return sequence.next_position() + (entry.is_tree ? depth_of(entry.parents, later) : later);
}

int64_t RandomRun::longest_path(const ModelEntry& entry) {
  if (!entry.is_tree) return entry.old_length + entry.append;
  int64_t deepest = 0;
  for (size_t node = 0; node < entry.parents.size(); ++node)
    deepest = std::max(deepest, depth_of(entry.parents, static_cast<int64_t>(node)));
  return entry.old_length + deepest + 1;
}

void RandomRun::op_close() {
  const bool keep = random_.chance(0.8);
  if (keep && setup_.has_data()) append_missing_layers();
  trace("%s", keep ? "end" : "abort");
  const std::vector<ModelEntry> entries = model_.entries();
  if (keep) {
    expect_ok("kvc_forward_end", [&](kvc_error* err) { return kvc_forward_end(forward_, err); });
    model_.end(!setup_.has_data() || !pending_states_.empty());
    for (size_t i = 0; i < entries.size(); ++i) close_states(entries[i], i);
  } else {
    expect_ok("kvc_forward_abort",
              [&](kvc_error* err) { return kvc_forward_abort(forward_, err); });
    model_.abort();
    for (const ModelEntry& entry : entries) {
      naive_.extend(entry.seq, entry.old_slots);
      if (entry.cross > 0) naive_.resize_cross(entry.seq, 0);
    }
  }
  dead_ = forward_;
  forward_ = nullptr;
}

void RandomRun::op_dead_handle() {
  if (dead_ == nullptr || dead_ == forward_) return;
  trace("dead handle");
  refuse("kvc_forward_end", KVC_E_INVALID_STATE,
         [&](kvc_error* err) { return kvc_forward_end(dead_, err); });
  refuse("kvc_forward_abort", KVC_E_INVALID_STATE,
         [&](kvc_error* err) { return kvc_forward_abort(dead_, err); });
}

void RandomRun::op_positions() {
  trace("positions");
  const int64_t rows = model_.num_rows();
  const bool two = random_.chance(0.5);
  const int64_t sections = given_sections_;
  const std::vector<int64_t> shape =
      two ? std::vector<int64_t>{sections, rows} : std::vector<int64_t>{rows};
  HostTensor positions(Elem::kI32, shape,
                       two ? Placement{} : random_placement(random_, Elem::kI32));
  expect_ok("kvc_forward_positions",
            [&](kvc_error* err) { return kvc_forward_positions(forward_, positions.dl(), err); },
            {&positions});
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t s = 0; s < (two ? sections : 1); ++s) {
      const auto r = static_cast<size_t>(row);
      const double want = given_positions_.empty() ? static_cast<double>(row_position_[r])
                                                   : given_positions_[r][static_cast<size_t>(s)];
      const double got = two ? positions.get(s, row) : positions.get(row);
      if (got != want)
        mismatch("position %lld of row %lld is %g, expected %g", ll(s), ll(row), got, want);
    }
  }
  if (!positions.padding_untouched()) mismatch("kvc_forward_positions wrote padding");
}

}  // namespace kvc::test
