#include "tests/model/page_model.h"

#include <algorithm>

namespace kvc::test {

Expected PageModel::check_changeable(kvc_seq seq) const {
  Expected expected;
  expected.also(!exists(seq), KVC_E_NOT_FOUND);
  expected.also(in_forward(seq), KVC_E_BUSY);
  if (exists(seq)) expected.also(!at(seq).parents.empty(), KVC_E_INVALID_STATE);
  return expected;
}

Expected PageModel::add(kvc_seq seq) {
  Expected expected;
  expected.also(seq < 0, KVC_E_INVALID_ARGUMENT);
  expected.also(exists(seq), KVC_E_ALREADY_EXISTS);
  if (expected.ok()) sequences_[seq].tables.resize(limits_.groups.size());
  return expected;
}

Expected PageModel::remove(kvc_seq seq) {
  Expected expected;
  expected.also(!exists(seq), KVC_E_NOT_FOUND);
  expected.also(in_forward(seq), KVC_E_BUSY);
  if (!expected.ok()) return expected;
  for (const ModelTable& table : at(seq).tables) {
    for (const auto& [index, page] : table.pages) drop(page);
  }
  drop_state(at(seq).state);
  for (const auto& [position, slot] : at(seq).checkpoints) drop_state(slot);
  sequences_.erase(seq);
  return expected;
}

Expected PageModel::fork(kvc_seq parent, kvc_seq child, int64_t pos) {
  Expected expected = check_changeable(parent);
  expected.also(child < 0, KVC_E_INVALID_ARGUMENT);
  expected.also(exists(child), KVC_E_ALREADY_EXISTS);
  expected.also(pos < -1 || (exists(parent) && pos > at(parent).length), KVC_E_OUT_OF_RANGE);
  if (expected.ok() && pos != -1 && !possible(at(parent), pos)) {
    expected.errors.insert(KVC_E_OUT_OF_RANGE);
    expected.detail = possible_below(at(parent), pos);
  }
  if (!expected.ok()) return expected;
  ModelSequence to = at(parent);
  for (const ModelTable& table : to.tables) {
    for (const auto& [index, page] : table.pages) hold(page);
  }
  hold_state(to.state);
  for (const auto& [position, slot] : to.checkpoints) hold_state(slot);
  truncate(&to, pos == -1 ? to.length : pos);
  sequences_[child] = std::move(to);
  return expected;
}

Expected PageModel::pop(kvc_seq seq, int64_t n) {
  Expected expected = check_changeable(seq);
  expected.also(n < 0 || (exists(seq) && n > at(seq).length), KVC_E_OUT_OF_RANGE);
  if (expected.ok() && !possible(at(seq), at(seq).length - n)) {
    expected.errors.insert(KVC_E_OUT_OF_RANGE);
    expected.detail = possible_below(at(seq), at(seq).length - n);
  }
  if (!expected.ok()) return expected;
  ModelSequence& sequence = sequences_[seq];
  truncate(&sequence, sequence.length - n);
  release(&sequence);
  return expected;
}

void PageModel::truncate(ModelSequence* sequence, int64_t length) {
  if (length < sequence->length) {
    while (!sequence->checkpoints.empty() && sequence->checkpoints.rbegin()->first > length) {
      drop_state(sequence->checkpoints.rbegin()->second);
      sequence->checkpoints.erase(std::prev(sequence->checkpoints.end()));
    }
    drop_state(sequence->state);
    const auto kept = sequence->checkpoints.find(length);
    sequence->state = kept == sequence->checkpoints.end() ? -1 : kept->second;
    hold_state(sequence->state);
  }
  sequence->length = length;
  if (sequence->has_gaps()) {
    sequence->positions.resize(static_cast<size_t>(length));
    if (length == 0 || sequence->positions.back() == length - 1) sequence->positions.clear();
  }
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    if (limits_.groups[g].is_cross) continue;
    std::map<int64_t, int>& pages = sequence->tables[g].pages;
    while (!pages.empty() && pages.rbegin()->first >= pages_for(g, tokens_of(g, length))) {
      drop(pages.rbegin()->second);
      pages.erase(std::prev(pages.end()));
    }
    const bool shows_sinks = limits_.groups[g].window == 0 && limits_.groups[g].chunk == 0;
    int64_t& gone_end = sequence->tables[g].gone_end;
    gone_end = length <= (shows_sinks ? sequence->sink : 0) ? 0 : std::min(gone_end, length);
  }
}

Expected PageModel::clear() {
  Expected expected;
  expected.also(open_, KVC_E_BUSY);
  if (expected.ok()) {
    sequences_.clear();
    holders_.clear();
    state_holders_.clear();
  }
  return expected;
}

Expected PageModel::overwrite(kvc_seq seq, const std::vector<int>& groups, int64_t begin,
                              int64_t n) {
  Expected expected;
  expected.also(!exists(seq), KVC_E_NOT_FOUND);
  expected.also(in_forward(seq), KVC_E_BUSY);
  if (!expected.ok()) return expected;
  ModelSequence& sequence = sequences_[seq];
  int64_t copies = 0;
  std::vector<int*> shared;
  for (const int g : groups) {
    ModelTable& table = sequence.tables[static_cast<size_t>(g)];
    const bool is_cross = limits_.groups[static_cast<size_t>(g)].is_cross;
    const int64_t length = is_cross ? sequence.cross_length : sequence.length;
    expected.also(begin < 0 || n > length - begin, KVC_E_OUT_OF_RANGE);
    if (!expected.ok()) return expected;
    if (n == 0) continue;
    expected.also(!keeps(sequence, static_cast<size_t>(g), {begin, begin + n}), KVC_E_OUT_OF_RANGE);
    for (auto& [index, page] : table.pages) {
      if (index < begin / page_size(static_cast<size_t>(g)) ||
          index > (begin + n - 1) / page_size(static_cast<size_t>(g)))
        continue;
      if (holders(page) > 1) shared.push_back(&page);
    }
    copies = static_cast<int64_t>(shared.size());
  }
  if (!expected.ok()) return expected;
  if (copies > available_pages()) {
    expected.errors.insert(KVC_E_NO_PAGES);
    expected.missing_pages = copies - available_pages();
    expected.detail = expected.missing_pages;
    return expected;
  }
  for (int* page : shared) {
    const int old = *page;
    *page = take_page();
    drop(old);
  }
  copied_ += shared.size();
  touch_peak();
  return expected;
}

Expected PageModel::resize(int64_t num_pages, int64_t highest_used, bool borrowed,
                           int64_t longest_pages) {
  Expected expected;
  expected.also(open_, KVC_E_BUSY);
  expected.also(num_pages < 1 || num_pages > INT32_MAX - 1, KVC_E_OUT_OF_RANGE);
  expected.also(borrowed, KVC_E_UNSUPPORTED);
  if (num_pages >= 1) {
    expected.also(num_pages <= highest_used, KVC_E_BUSY);
    expected.also(limits_.max_seq_len != 0 && longest_pages > num_pages, KVC_E_NEVER_FITS);
  }
  if (expected.ok()) limits_.num_pages = num_pages;
  return expected;
}

const ModelEntry* PageModel::entry_of(kvc_seq seq) const {
  for (const ModelEntry& entry : entries_) {
    if (entry.seq == seq) return &entry;
  }
  return nullptr;
}

int64_t PageModel::num_rows() const {
  int64_t rows = 0;
  for (const ModelEntry& entry : entries_) rows += entry.append;
  return rows;
}

int64_t PageModel::num_cross_rows() const {
  int64_t rows = 0;
  for (const ModelEntry& entry : entries_) rows += entry.cross;
  return rows;
}

std::vector<int> PageModel::committed_pages(kvc_seq seq, size_t group) const {
  const ModelSequence& sequence = at(seq);
  const int64_t tokens =
      limits_.groups[group].is_cross ? sequence.cross_length : tokens_of(group, sequence.slots());
  std::vector<int> result;
  for (const auto& [index, page] : sequence.tables[group].pages) {
    if (index < pages_for(group, tokens)) result.push_back(page);
  }
  return result;
}

int PageModel::holders(int page) const {
  const auto found = holders_.find(page);
  return found == holders_.end() ? 0 : found->second;
}

int PageModel::take_page() {
  holders_[next_page_] = 1;
  return next_page_++;
}

void PageModel::drop(int page) {
  if (page < 0) return;  // Of a shift that has not been named yet.
  if (--holders_[page] == 0) holders_.erase(page);
}

void PageModel::touch_peak() { peak_ = std::max(peak_, used_pages()); }

int64_t PageModel::shared_pages() const {
  return std::count_if(holders_.begin(), holders_.end(),
                       [](const auto& page) { return page.second > 1; });
}

int64_t PageModel::total_length() const {
  int64_t total = 0;
  for (const auto& [id, sequence] : sequences_) total += sequence.length;
  return total;
}

kvc_stats PageModel::expected_stats() const {
  kvc_stats stats{};
  stats.num_seqs = static_cast<int64_t>(sequences_.size());
  stats.total_length = total_length();
  stats.pages_total = limits_.num_pages;
  stats.pages_available = available_pages();
  stats.pages_used = used_pages();
  stats.pages_shared = shared_pages();
  stats.pages_peak = peak_;
  stats.forwards = forwards_;
  stats.forwards_aborted = aborted_;
  stats.tokens_appended = tokens_;
  stats.pages_copied = copied_;
  stats.no_pages = no_pages_;
  stats.state_slots_used = used_states();
  for (const auto& [id, sequence] : sequences_) stats.tree_tokens += sequence.parents.size();
  return stats;
}

kvc_seq_info PageModel::expected_info(kvc_seq seq) const {
  const ModelSequence& sequence = at(seq);
  kvc_seq_info info{};
  info.length = sequence.length;
  info.first_position = info.last_position = -1;
  if (sequence.length > 0) {
    info.last_position = sequence.position_of(sequence.length - 1);
    int64_t first = 0;
    for (size_t g = 0; g < sequence.tables.size(); ++g) {
      if (limits_.groups[g].is_cross) continue;
      first = std::max(first, sequence.tables[g].gone_end);
    }
    info.first_position = first < sequence.length ? sequence.position_of(first) : -1;
  }
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    for (const int page : committed_pages(seq, g)) {
      ++info.num_pages;
      info.num_shared_pages += holders(page) > 1 ? 1 : 0;
    }
  }
  info.window = sequence.window;
  info.sink = sequence.sink;
  info.in_forward = in_forward(seq) ? 1 : 0;
  for (const auto& [position, slot] : sequence.checkpoints)
    info.num_checkpoints += position < sequence.length ? 1 : 0;
  info.tree_nodes = static_cast<int64_t>(sequence.parents.size());
  info.cross_length = sequence.cross_length;
  return info;
}

}  // namespace kvc::test
