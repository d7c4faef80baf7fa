// Windows in the page model: what is kept, which positions can be gone back to, shifts.
#include <algorithm>
#include <cstdlib>
#include <set>

#include "tests/model/page_model.h"

namespace kvc::test {

KeyRule PageModel::rule(const ModelSequence& sequence, const ModelGroup& group) const {
  if (group.keep > 0) return {};  // Every layer's, whatever its window; none drops them.
  return {group.window, group.chunk, sequence.window, sequence.sink, 0};
}

// Behind a hole everything is there, before it the sinks alone: what else lies on their pages does
// not count.
bool PageModel::keeps(const ModelSequence& sequence, size_t group, const KeyRange& range) const {
  const ModelGroup& spec = limits_.groups[group];
  if (range.empty() || spec.is_cross || range.begin >= sequence.tables[group].gone_end) return true;
  return spec.window == 0 && spec.chunk == 0 && range.end <= sequence.sink;
}

bool PageModel::has_dropped(const ModelSequence& sequence) const {
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    if (!limits_.groups[g].is_cross && sequence.tables[g].gone_end > 0) return true;
  }
  return false;
}

// Row by row: what the next query sees once tokens [begin, end) are out.
bool PageModel::can_shift(const ModelSequence& sequence, int64_t begin, int64_t end) const {
  const int64_t gap = end - begin, length = sequence.length - gap;
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    if (limits_.groups[g].is_cross || limits_.groups[g].keep > 0) continue;
    const SeenKeys seen = seen_before(rule(sequence, limits_.groups[g]), length);
    for (const KeyRange& range : {seen.sinks, seen.recent}) {
      for (int64_t key = range.begin; key < range.end; ++key) {
        const int64_t token = key < begin ? key : key + gap;
        if (!keeps(sequence, g, {token, token + 1})) return false;
      }
    }
  }
  return true;
}

bool PageModel::possible(const ModelSequence& sequence, int64_t pos) const {
  if (pos < 0 || pos > sequence.length) return false;
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    if (limits_.groups[g].is_cross || limits_.groups[g].keep > 0) continue;
    const int64_t page = pos / page_size(g);
    if (pos % page_size(g) != 0 && sequence.tables[g].pages.count(page) == 0) return false;
    const SeenKeys seen = seen_before(rule(sequence, limits_.groups[g]), pos);
    if (!keeps(sequence, g, seen.sinks) || !keeps(sequence, g, seen.recent)) return false;
  }
  return !limits_.has_states || pos == 0 || pos == sequence.length ||
         sequence.checkpoints.count(pos) != 0;
}

int64_t PageModel::possible_below(const ModelSequence& sequence, int64_t pos) const {
  pos = std::min(pos, sequence.length);
  while (pos >= 0 && !possible(sequence, pos)) --pos;
  return pos;
}

// What a query at `index` sees in the layer's window, and the next one in the sequence's.
int64_t PageModel::first_kept(const ModelSequence& sequence, size_t group, int64_t index) const {
  KeyRule of_layer = rule(sequence, limits_.groups[group]), of_sequence = of_layer;
  of_layer.seq_window = of_layer.seq_sink = 0;
  of_sequence.window = of_sequence.chunk = 0;
  const SeenKeys seen = seen_before(of_sequence, sequence.length);
  return std::max(seen_before(of_layer, std::max<int64_t>(0, index)).recent.begin,
                  seen.recent.begin > seen.sinks.end ? seen.recent.begin : 0);
}

std::vector<int64_t> PageModel::spare(const ModelSequence& sequence, size_t group,
                                      int64_t slots) const {
  const ModelGroup& spec = limits_.groups[group];
  std::vector<int64_t> result;
  if (limits_.window_reserve == 0 || spec.is_cross || (spec.window == 0 && spec.chunk == 0))
    return result;
  const int64_t index = std::min(slots - limits_.window_reserve, sequence.length);
  const SeenKeys seen = seen_before(rule(sequence, spec), sequence.length);
  for (const auto& [page, handle] : sequence.tables[group].pages) {
    const int64_t begin = page * page_size(group), end = begin + page_size(group);
    const bool sink = !seen.sinks.empty() && begin < seen.sinks.end && end > seen.sinks.begin;
    if (!sink && end <= first_kept(sequence, group, index)) result.push_back(page);
  }
  return result;
}

void PageModel::release_spare(ModelSequence* sequence, int64_t slots) {
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    for (const int64_t page : spare(*sequence, g, slots)) {
      drop(sequence->tables[g].pages.at(page));
      sequence->tables[g].pages.erase(page);
      sequence->tables[g].gone_end =
          std::max(sequence->tables[g].gone_end, (page + 1) * page_size(g));
    }
  }
}

void PageModel::release(ModelSequence* sequence) {
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    if (limits_.groups[g].is_cross) continue;
    const SeenKeys seen = seen_before(rule(*sequence, limits_.groups[g]), sequence->length);
    std::map<int64_t, int>& pages = sequence->tables[g].pages;
    for (auto page = pages.begin(); page != pages.end();) {
      const int64_t begin = page->first * page_size(g), end = begin + page_size(g);
      const bool sink = !seen.sinks.empty() && begin < seen.sinks.end && end > seen.sinks.begin;
      if (sink || end > first_kept(*sequence, g, sequence->length - limits_.window_reserve)) {
        ++page;
        continue;
      }
      drop(page->second);
      sequence->tables[g].gone_end =
          std::max(sequence->tables[g].gone_end, std::min(end, sequence->length));
      page = pages.erase(page);
    }
  }
}

Expected PageModel::set_window(kvc_seq seq, int64_t window, int64_t sink) {
  Expected expected = check_changeable(seq);
  expected.also(window < 1 || sink < 0 || sink >= window, KVC_E_INVALID_ARGUMENT);
  expected.also(!limits_.has_attention || limits_.has_chunk, KVC_E_UNSUPPORTED);
  if (!expected.ok()) return expected;
  const ModelSequence& now = at(seq);
  expected.also(now.has_gaps(), KVC_E_UNSUPPORTED);
  ModelSequence changed = now;
  changed.window = window;
  changed.sink = sink;
  for (size_t g = 0; g < changed.tables.size(); ++g) {
    const ModelGroup& group = limits_.groups[g];
    if (group.is_cross) continue;
    // Sinks that the layer's window would show beside a gap of the sequence's.
    expected.also(sink > 0 && group.window > window - sink, KVC_E_UNSUPPORTED);
    const SeenKeys seen = seen_before(rule(changed, group), changed.length);
    expected.also(!keeps(now, g, seen.sinks) || !keeps(now, g, seen.recent), KVC_E_OUT_OF_RANGE);
  }
  if (!expected.ok()) return expected;
  release(&changed);
  sequences_[seq] = std::move(changed);
  return expected;
}

Expected PageModel::check_shift(kvc_seq seq, int64_t begin, int64_t end, int64_t delta) const {
  Expected expected = check_changeable(seq);
  expected.also(limits_.has_states, KVC_E_UNSUPPORTED);
  expected.also(begin < 0 || end < begin, KVC_E_OUT_OF_RANGE);
  if (!exists(seq)) return expected;
  const ModelSequence& sequence = at(seq);
  expected.also(end > sequence.length, KVC_E_OUT_OF_RANGE);
  const bool closes = delta == begin - end;
  const bool windows = limits_.has_window || limits_.has_chunk || sequence.window != 0;
  expected.also(!closes && windows, KVC_E_UNSUPPORTED);
  if (!expected.ok()) return expected;
  if (end < sequence.length) {
    const int64_t moved = sequence.position_of(end) + delta;
    expected.also(moved < 0 || (begin > 0 && moved <= sequence.position_of(begin - 1)),
                  KVC_E_OUT_OF_RANGE);
    expected.also(sequence.next_position() - 1 + delta >= INT32_MAX, KVC_E_OUT_OF_RANGE);
  }
  expected.also(!can_shift(sequence, begin, end), KVC_E_OUT_OF_RANGE);
  expected.also(fills_kept(sequence, begin, end), KVC_E_UNSUPPORTED);
  // Rows that move by less than a page may need one more.
  if (has_dropped(sequence)) expected.tolerated.insert(KVC_E_NO_PAGES);
  for (size_t g = 0; g < sequence.tables.size() && expected.ok(); ++g) {
    for (const auto& [index, page] : sequence.tables[g].pages) {
      if (index >= begin / page_size(g) && holders(page) > 1)
        expected.tolerated.insert(KVC_E_NO_PAGES);
    }
  }
  return expected;
}

std::vector<size_t> PageModel::shift(kvc_seq seq, int64_t begin, int64_t end, int64_t delta) {
  ModelSequence& sequence = sequences_.at(seq);
  const int64_t length = sequence.length - (end - begin);
  std::vector<int64_t> positions;
  for (int64_t token = 0; token < sequence.length; ++token) {
    if (token < begin) positions.push_back(sequence.position_of(token));
    if (token >= end) positions.push_back(sequence.position_of(token) + delta);
  }
  std::vector<size_t> result;
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    ModelTable& table = sequence.tables[g];
    std::map<int64_t, int>& pages = table.pages;
    for (const auto& [index, page] : pages) drop(page);
    std::set<int64_t> held;
    for (const auto& [index, page] : pages) {
      if (limits_.groups[g].is_cross) held.insert(index);
    }
    const int64_t tokens = tokens_of(g, length);
    for (int64_t token = 0; !limits_.groups[g].is_cross && token < tokens; ++token) {
      const int64_t old = token < begin ? token : token + (end - begin);
      if (keeps(sequence, g, {old, old + 1})) held.insert(token / page_size(g));
    }
    if (!limits_.groups[g].is_cross && tokens % page_size(g) != 0)
      held.insert(tokens / page_size(g));  // The next token goes there.
    pages.clear();
    for (const int64_t index : held) pages[index] = -1;
    const auto moved = [&](int64_t token) {
      return token <= begin ? token : std::max(begin, token - (end - begin));
    };
    const bool shows_sinks = limits_.groups[g].window == 0 && limits_.groups[g].chunk == 0;
    table.gone_end = moved(table.gone_end);
    if (table.gone_end <= (shows_sinks ? moved(sequence.sink) : 0)) table.gone_end = 0;
  }
  sequence.length = length;
  sequence.is_moved |= delta != 0;
  sequence.positions = std::move(positions);
  if (length == 0 || sequence.positions.back() == length - 1) sequence.positions.clear();
  release(&sequence);
  for (const ModelTable& table : sequence.tables) result.push_back(table.pages.size());
  return result;
}

void PageModel::adopt_tables(kvc_seq seq, const std::vector<std::vector<int>>& handles,
                             const kvc_stats& stats) {
  ModelSequence& sequence = sequences_.at(seq);
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    size_t i = 0;
    for (auto& [index, page] : sequence.tables[g].pages) {
      page = handles[g][i++];
      if (page < 0) {
        page = take_page();
      } else {
        hold(page);
      }
    }
  }
  copied_ = stats.pages_copied;
  touch_peak();
  peak_ = std::max(peak_, stats.pages_peak);
}

Expected PageModel::can(kvc_seq seq, kvc_seq_op op, int64_t pos, int64_t* below,
                        int64_t* above) const {
  Expected expected = check_changeable(seq);
  expected.also(pos < -1, KVC_E_OUT_OF_RANGE);
  expected.also(op < KVC_SEQ_FORK || op > KVC_SEQ_SHIFT, KVC_E_UNSUPPORTED);
  if (!expected.ok()) return expected;
  const ModelSequence& sequence = at(seq);
  const int64_t last = op == KVC_SEQ_SHIFT ? sequence.length - 1 : sequence.length;
  pos = pos == -1 ? last : std::min(pos, last);
  *below = *above = -1;
  for (int64_t token = last; token >= 0; --token) {
    if (op == KVC_SEQ_SHIFT ? limits_.has_states || !can_shift(sequence, token, token + 1) ||
                                  fills_kept(sequence, token, token + 1)
                            : !possible(sequence, token))
      continue;
    if (token >= pos) *above = token;
    if (token <= pos && *below == -1) *below = token;
  }
  return expected;
}

}  // namespace kvc::test
