#include "tests/model/page_model.h"

#include <algorithm>

namespace kvc::test {

Expected PageModel::add(kvc_seq seq) {
  Expected expected;
  expected.also(seq < 0, KVC_E_INVALID_ARGUMENT);
  expected.also(exists(seq), KVC_E_ALREADY_EXISTS);
  if (expected.ok()) sequences_[seq] = {};
  return expected;
}

Expected PageModel::remove(kvc_seq seq) {
  Expected expected;
  expected.also(!exists(seq), KVC_E_NOT_FOUND);
  expected.also(in_forward(seq), KVC_E_BUSY);
  if (expected.ok()) {
    for (const int page : sequences_[seq].pages) drop(page);
    sequences_.erase(seq);
  }
  return expected;
}

Expected PageModel::fork(kvc_seq parent, kvc_seq child, int64_t pos) {
  Expected expected;
  expected.also(!exists(parent), KVC_E_NOT_FOUND);
  expected.also(in_forward(parent), KVC_E_BUSY);
  expected.also(child < 0, KVC_E_INVALID_ARGUMENT);
  expected.also(exists(child), KVC_E_ALREADY_EXISTS);
  expected.also(pos < -1 || (exists(parent) && pos > at(parent).length), KVC_E_OUT_OF_RANGE);
  if (!expected.ok()) return expected;
  const ModelSequence& from = at(parent);
  ModelSequence to;
  to.length = pos == -1 ? from.length : pos;
  for (int64_t i = 0; i < pages_for(to.length); ++i) {
    to.pages.push_back(from.pages[static_cast<size_t>(i)]);
    hold(to.pages.back());
  }
  sequences_[child] = std::move(to);
  return expected;
}

Expected PageModel::pop(kvc_seq seq, int64_t n) {
  Expected expected;
  expected.also(!exists(seq), KVC_E_NOT_FOUND);
  expected.also(in_forward(seq), KVC_E_BUSY);
  expected.also(n < 0 || (exists(seq) && n > at(seq).length), KVC_E_OUT_OF_RANGE);
  if (!expected.ok()) return expected;
  ModelSequence& sequence = sequences_[seq];
  sequence.length -= n;
  while (static_cast<int64_t>(sequence.pages.size()) > pages_for(sequence.length)) {
    drop(sequence.pages.back());
    sequence.pages.pop_back();
  }
  return expected;
}

Expected PageModel::clear() {
  Expected expected;
  expected.also(open_, KVC_E_BUSY);
  if (expected.ok()) {
    sequences_.clear();
    holders_.clear();
  }
  return expected;
}

int64_t PageModel::longest_possible() const {
  const int64_t by_pages = limits_.num_pages * limits_.page_size;
  return limits_.max_seq_len == 0 ? by_pages : std::min(by_pages, limits_.max_seq_len);
}

std::set<kvc_seq> PageModel::copiers(const std::vector<kvc_seq>& seqs) const {
  // Sequences of the batch by the shared partial page they append to.
  std::map<int, std::vector<kvc_seq>> sharers;
  for (const kvc_seq seq : seqs) {
    const ModelSequence& sequence = at(seq);
    if (sequence.length % limits_.page_size == 0) continue;
    const int last = sequence.pages[static_cast<size_t>(sequence.length / limits_.page_size)];
    if (holders(last) > 1) sharers[last].push_back(seq);
  }
  std::set<kvc_seq> result;
  for (auto& [page, batch] : sharers) {
    // Nobody outside the batch holds the page: one of the batch may keep it, and it must be one with the most tokens, because
    // the others' tokens in that page have to survive an abort.
    const bool one_keeps = holders(page) == static_cast<int>(batch.size());
    std::stable_sort(batch.begin(), batch.end(),
                     [&](kvc_seq a, kvc_seq b) { return at(a).length < at(b).length; });
    if (one_keeps) batch.pop_back();
    result.insert(batch.begin(), batch.end());
  }
  return result;
}

Expected PageModel::check_batch(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) const {
  Expected expected;
  expected.also(seqs.empty(), KVC_E_INVALID_ARGUMENT);
  expected.also(limits_.max_seqs != 0 && static_cast<int64_t>(seqs.size()) > limits_.max_seqs,
                KVC_E_OUT_OF_RANGE);
  int64_t tokens = 0;
  for (size_t i = 0; i < seqs.size(); ++i) {
    expected.also(!exists(seqs[i]), KVC_E_NOT_FOUND);
    expected.also(std::count(seqs.begin(), seqs.end(), seqs[i]) != 1, KVC_E_INVALID_ARGUMENT);
    expected.also(lengths[i] < 1, KVC_E_INVALID_ARGUMENT);
    if (exists(seqs[i]))
      expected.also(lengths[i] > longest_possible() - at(seqs[i]).length, KVC_E_NEVER_FITS);
    tokens += std::clamp<int64_t>(lengths[i], 0, INT32_MAX);
  }
  expected.also(limits_.max_tokens != 0 && tokens > limits_.max_tokens, KVC_E_OUT_OF_RANGE);
  if (!expected.ok()) return expected;
  int64_t needed = static_cast<int64_t>(copiers(seqs).size());
  for (size_t i = 0; i < seqs.size(); ++i) {
    needed += pages_for(at(seqs[i]).length + lengths[i]) - static_cast<int64_t>(at(seqs[i]).pages.size());
  }
  expected.missing_pages = std::max<int64_t>(0, needed - free_pages());
  return expected;
}

Expected PageModel::can_append(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) const {
  return check_batch(seqs, lengths);
}

Expected PageModel::begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) {
  Expected expected = open_ ? Expected{} : check_batch(seqs, lengths);
  expected.also(open_, KVC_E_BUSY);
  if (expected.ok() && expected.missing_pages > 0) {
    expected.errors.insert(KVC_E_NO_PAGES);
    ++no_pages_;
  }
  if (!expected.ok()) return expected;
  const std::set<kvc_seq> copying = copiers(seqs);
  entries_.clear();
  last_copies_.clear();
  int64_t row = 0;
  for (size_t i = 0; i < seqs.size(); ++i) {
    ModelSequence& sequence = sequences_[seqs[i]];
    ModelEntry entry{seqs[i], sequence.length, lengths[i], row, sequence.pages, -1};
    if (copying.count(seqs[i]) != 0) {
      entry.replaced_page = sequence.pages.back();
      sequence.pages.back() = take_page();
      last_copies_.push_back({entry.replaced_page, sequence.pages.back()});
    }
    while (static_cast<int64_t>(sequence.pages.size()) < pages_for(entry.old_length + entry.append)) {
      sequence.pages.push_back(take_page());
    }
    row += lengths[i];
    entries_.push_back(std::move(entry));
  }
  copied_ += last_copies_.size();
  open_ = true;
  touch_peak();
  return expected;
}

void PageModel::end() {
  for (const ModelEntry& entry : entries_) {
    sequences_[entry.seq].length = entry.old_length + entry.append;
    if (entry.replaced_page >= 0) drop(entry.replaced_page);
    tokens_ += static_cast<uint64_t>(entry.append);
  }
  ++forwards_;
  open_ = false;
  entries_.clear();
}

void PageModel::abort() {
  for (const ModelEntry& entry : entries_) {
    ModelSequence& sequence = sequences_[entry.seq];
    for (size_t i = 0; i < sequence.pages.size(); ++i) {
      const bool replaced = entry.replaced_page >= 0 && i + 1 == entry.old_pages.size();
      if (i >= entry.old_pages.size() || replaced) drop(sequence.pages[i]);
    }
    sequence.pages = entry.old_pages;
  }
  ++aborted_;
  open_ = false;
  entries_.clear();
}

Expected PageModel::overwrite(kvc_seq seq, int64_t begin, int64_t n) {
  Expected expected;
  expected.also(!exists(seq), KVC_E_NOT_FOUND);
  expected.also(in_forward(seq), KVC_E_BUSY);
  if (exists(seq)) expected.also(begin < 0 || n > at(seq).length - begin, KVC_E_OUT_OF_RANGE);
  if (!expected.ok()) return expected;
  last_copies_.clear();
  if (n == 0) return expected;
  ModelSequence& sequence = sequences_[seq];
  const auto first = static_cast<size_t>(begin / limits_.page_size);
  const auto last = static_cast<size_t>((begin + n - 1) / limits_.page_size);
  int64_t copies = 0;
  for (size_t i = first; i <= last; ++i) copies += holders(sequence.pages[i]) > 1 ? 1 : 0;
  if (copies > free_pages()) {
    expected.errors.insert(KVC_E_NO_PAGES);
    expected.missing_pages = copies - free_pages();
    return expected;
  }
  for (size_t i = first; i <= last; ++i) {
    const int page = sequence.pages[i];
    if (holders(page) == 1) continue;
    sequence.pages[i] = take_page();
    last_copies_.push_back({page, sequence.pages[i]});
    drop(page);
  }
  copied_ += last_copies_.size();
  touch_peak();
  return expected;
}

Expected PageModel::resize(int64_t num_pages, int64_t highest_used, bool borrowed) {
  Expected expected;
  expected.also(open_, KVC_E_BUSY);
  expected.also(num_pages < 1 || num_pages > INT32_MAX - 1, KVC_E_OUT_OF_RANGE);
  expected.also(borrowed, KVC_E_UNSUPPORTED);
  if (num_pages >= 1) {
    expected.also(num_pages <= highest_used, KVC_E_BUSY);
    expected.also(limits_.max_seq_len != 0 && pages_for(limits_.max_seq_len) > num_pages, KVC_E_NEVER_FITS);
  }
  if (expected.ok()) limits_.num_pages = num_pages;
  return expected;
}

Expected PageModel::can(kvc_seq seq, int64_t pos, int64_t* nearest) const {
  Expected expected;
  expected.also(!exists(seq), KVC_E_NOT_FOUND);
  expected.also(in_forward(seq), KVC_E_BUSY);
  expected.also(pos < -1, KVC_E_OUT_OF_RANGE);
  if (expected.ok()) *nearest = pos == -1 ? at(seq).length : std::min(pos, at(seq).length);
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

int PageModel::holders(int page) const {
  const auto found = holders_.find(page);
  return found == holders_.end() ? 0 : found->second;
}

int PageModel::take_page() {
  holders_[next_page_] = 1;
  return next_page_++;
}

void PageModel::drop(int page) {
  if (--holders_[page] == 0) holders_.erase(page);
}

void PageModel::touch_peak() { peak_ = std::max(peak_, used_pages()); }

int64_t PageModel::shared_pages() const {
  return std::count_if(holders_.begin(), holders_.end(), [](const auto& page) { return page.second > 1; });
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
  stats.pages_free = free_pages();
  stats.pages_used = used_pages();
  stats.pages_shared = shared_pages();
  stats.pages_peak = peak_;
  stats.forwards = forwards_;
  stats.forwards_aborted = aborted_;
  stats.tokens_appended = tokens_;
  stats.pages_copied = copied_;
  stats.no_pages = no_pages_;
  return stats;
}

}  // namespace kvc::test
