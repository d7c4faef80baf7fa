// Batches whose sequences share prefixes, one inside another, and the entries that a plan wants for
// them.
#pragma once

#include <map>

#include "tests/cuda/schedule_support.h"

namespace kvc::cuda::test {

// Which of `sequences` share which keys. Inner prefixes lie inside one outer one, behind its keys.
struct PrefixOfBatch {
  int64_t key_begin, key_end;
  std::vector<int32_t> members;
};

// Random prefixes of sequences that all see their first `common` keys: some of all share the first,
// some of those a second one.
inline std::vector<PrefixOfBatch> random_prefixes(Dice& dice, int32_t num_sequences, int64_t common,
                                                  int64_t key_block) {
  std::vector<PrefixOfBatch> prefixes;
  const int64_t blocks = common / key_block;
  if (blocks < 1 || num_sequences < 2) return prefixes;
  PrefixOfBatch outer{0, dice.between(1, blocks) * key_block, {}};
  for (int32_t s = 0; s < num_sequences; ++s)
    if (dice.chance(0.8)) outer.members.push_back(s);
  if (outer.members.empty()) return prefixes;
  PrefixOfBatch inner{outer.key_end, common / key_block * key_block, {}};
  for (const int32_t s : outer.members)
    if (dice.chance(0.5)) inner.members.push_back(s);
  prefixes.push_back(outer);
  if (inner.key_begin < inner.key_end && !inner.members.empty()) prefixes.push_back(inner);
  return prefixes;
}

// Adds entries for prefixes to a list of sequences, and says how all share.
struct SharedBatch {
  std::vector<kernels::AttnSequence> sequences;
  std::vector<PrefixShare> shares;
  std::deque<std::vector<int32_t>> numbers;
  int32_t max_prefixes = 0;

  SharedBatch(const std::vector<kernels::AttnSequence>& members,
              const std::vector<PrefixOfBatch>& prefixes, const ScheduleShape& shape)
      : sequences(members), shares(members.size()) {
    for (const PrefixOfBatch& prefix : prefixes) add(prefix, shape);
  }
  SharedBatch(SharedBatch&&) = default;

  ScheduleLimits limits() const {
    ScheduleLimits limits = limits_of(sequences);
    limits.max_prefixes = max_prefixes;
    return limits;
  }

 private:
  void add(const PrefixOfBatch& prefix, const ScheduleShape& shape) {
    kernels::AttnSequence entry = sequences[static_cast<size_t>(prefix.members[0])];
    std::vector<int32_t> tokens, positions;
    const auto push = [&](const kernels::AttnSequence& member, int64_t row) {
      tokens.push_back(member.row_map != nullptr ? member.row_map[row]
                                                 : static_cast<int32_t>(member.row_begin + row));
      positions.push_back(member.row_positions != nullptr
                              ? member.row_positions[row]
                              : static_cast<int32_t>(member.position + row));
    };
    for (const int32_t s : prefix.members) {
      const kernels::AttnSequence& member = sequences[static_cast<size_t>(s)];
      PrefixShare& share = shares[static_cast<size_t>(s)];
      // Copies of its first row fill up until its tiles lie in one tile of the entry each.
      while (straddles(shape, static_cast<int64_t>(tokens.size()), member.num_rows))
        push(member, 0);
      share.prefix[share.num_prefixes] = static_cast<int32_t>(sequences.size());
      share.prefix_row[share.num_prefixes] = static_cast<int32_t>(tokens.size());
      max_prefixes = std::max(max_prefixes, ++share.num_prefixes);
      share.key_begin = static_cast<int32_t>(prefix.key_end);
      for (int64_t row = 0; row < member.num_rows; ++row) push(member, row);
    }
    entry.num_rows = static_cast<int64_t>(tokens.size());
    entry.row_begin = -1000000;
    entry.first_key_end = prefix.key_end;
    numbers.push_back(std::move(tokens));
    entry.row_map = numbers.back().data();
    numbers.push_back(std::move(positions));
    entry.row_positions = numbers.back().data();
    sequences.push_back(entry);
    shares.push_back(
        {static_cast<int32_t>(prefix.key_begin), static_cast<int32_t>(prefix.key_end), 0, {}, {}});
  }

  static bool straddles(const ScheduleShape& shape, int64_t token_row, int64_t rows) {
    const int64_t tile = shape.geometry.tile_rows, begin = token_row * shape.group_size;
    for (int64_t row = 0; row < rows * shape.group_size; row += tile) {
      const int64_t last = std::min(row + tile, rows * shape.group_size) - 1;
      if ((begin + row) / tile != (begin + last) / tile) return true;
    }
    return false;
  }
};

}  // namespace kvc::cuda::test
