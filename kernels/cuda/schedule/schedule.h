// The planner of all attention kernels: a pure function of what the sequences see. Every step is a
// function of one index (a sequence, a tile, a CTA, an item) with prefix sums in between, so that
// host.h runs it as loops and kernel.cuh as one CTA, bit for bit the same.
//
// A planned sequence is cut into tiles of rows. A tile of one kv head is a unit; a unit consists of
// parts, which are never one item together: one, or two when sinks are apart, or one per fixed_keys
// keys. A part costs item_cost and its visible key blocks. All parts, by tile, kv head and keys,
// make a line; CTA c does what lies between cut c and cut c + 1. Cuts lie at equal distances, moved
// back to the begin of a block, or of a part when in front of its second block (with fixed_keys: on
// to the begin of a part). The items of a unit that is one item write the output; the others, of
// split units, a slot each. Slots are numbered along the line: those of a unit follow each other.
#pragma once

#include "kernels/cuda/schedule/keys.h"

namespace kvc::cuda::planning {

struct TilePlan {
  int64_t cost_before;  // of one kv head, of all tiles in front of it
  // Tiles of two parts and more, and those of shared prefixes and members
  int32_t split_tiles_before;
  int32_t split_parts_before;  // their parts
  int32_t sequence;
  TileKeys keys;
};
static_assert(sizeof(TilePlan) == 32);

// Where CTA c begins. `piece` counts along the part's KeyLine, see UnitKeys.
struct PlanCut {
  int32_t tile;
  int32_t kv_head;
  int32_t part;
  int32_t piece;
  int32_t middles;     // cuts inside parts, up to and with this one
  int32_t splits;      // units that only these divide
  int32_t first_item;  // of the CTA: cta_begin, where the kernel finds it fast
};

// Everything a step of the planner reads and writes.
struct PlanWork {
  PlanShape shape;
  const kernels::AttnSequence* sequences;
  const PlanShare* shares;
  WorkPlan plan;
  int32_t num_sequences;
  int32_t num_tiles;
  int32_t* first_tile;  // [num_sequences + 1]
  TilePlan* tiles;      // [num_tiles + 1]
  PlanCut* cuts;        // [num_ctas + 1]
};

// ---- keys of a unit

struct UnitKeys {
  KeyLine blocks;
  KeyLine pieces;  // that parts consist of: blocks, or fixed_keys keys each
  int32_t num_parts;
};

KVC_HD int32_t item_cost(const PlanShape& shape) {
  return shape.geometry.item_cost > 0 ? shape.geometry.item_cost : 1;
}

KVC_HD UnitKeys unit_keys(const PlanShape& shape, const TileKeys& keys) {
  UnitKeys unit{key_line(shape, keys, shape.geometry.key_block), {}, 1};
  unit.pieces = unit.blocks;
  if (shape.fixed_keys > 0) {
    unit.pieces = key_line(shape, keys, shape.fixed_keys);
    unit.num_parts = static_cast<int32_t>(at_least(1, unit.pieces.count()));
  } else if (shape.split_sinks != 0 && unit.blocks.sink_pieces > 0 && unit.blocks.pieces > 0) {
    unit.num_parts = 2;
  }
  return unit;
}

KVC_HD int32_t part_begin(const PlanShape& shape, const UnitKeys& unit, int32_t part) {
  if (shape.fixed_keys > 0) return part;
  return part == 0 ? 0 : unit.pieces.sink_pieces;
}
KVC_HD int32_t part_end(const PlanShape& shape, const UnitKeys& unit, int32_t part) {
  return part + 1 < unit.num_parts ? part_begin(shape, unit, part + 1) : unit.pieces.count();
}

KVC_HD int64_t unit_cost(const PlanShape& shape, const UnitKeys& unit) {
  return int64_t{unit.num_parts} * item_cost(shape) + unit.blocks.count();
}

// What lies in front of a part inside its unit. Parts that fixed_keys made have closed forms.
KVC_HD int64_t part_cost_before(const PlanShape& shape, const UnitKeys& unit, int32_t part) {
  if (part == 0) return 0;
  int64_t blocks = unit.blocks.sink_pieces;
  if (shape.fixed_keys > 0) {
    const auto key = static_cast<int32_t>(unit.pieces.at(part) * shape.fixed_keys);
    const int32_t block = key / shape.geometry.key_block;
    if (shape.split_sinks == 0 || part < unit.pieces.sink_pieces)
      blocks = unit.blocks.sinks_before(block);
    if (part >= unit.pieces.sink_pieces) blocks += unit.blocks.rest_before(block);
  }
  return int64_t{part} * item_cost(shape) + blocks;
}

// ---- tiles

KVC_HD int32_t num_tiles_of(const PlanWork& work, int32_t sequence) {
  return divide_up(planned_rows(work.shape, work.sequences[sequence].num_rows),
                   work.shape.geometry.tile_rows);
}

// The last index in [begin, end) for which `key` is not above `value`; `key` never decreases and
// key(begin) <= value.
template <typename Key, typename Value>
KVC_HD int32_t last_not_above(int32_t begin, int32_t end, Value value, Key key) {
  while (end - begin > 1) {
    const int32_t middle = begin + (end - begin) / 2;
    if (key(middle) <= value)
      begin = middle;
    else
      end = middle;
  }
  return begin;
}

// Packed rows of a tile inside its sequence.
struct TileRows {
  int32_t begin;
  int32_t count;
};
KVC_HD TileRows tile_rows(const PlanWork& work, int32_t tile, int32_t sequence) {
  const int32_t most = work.shape.geometry.tile_rows;
  const int32_t begin = (tile - work.first_tile[sequence]) * most;
  const int32_t left = planned_rows(work.shape, work.sequences[sequence].num_rows) - begin;
  return {begin, left < most ? left : most};
}

// Entries of shared prefixes and their members: every item of theirs is a part.
KVC_HD bool is_prefix(const PlanWork& work, int32_t sequence) {
  return work.shares != nullptr && work.shares[sequence].key_end > 0;
}
KVC_HD bool is_member(const PlanWork& work, int32_t sequence) {
  return work.shares != nullptr && work.shares[sequence].num_prefixes > 0;
}

struct TileSums {
  int64_t cost;
  int32_t split_tiles;
  int32_t split_parts;
};

// Fills sequence and keys of a tile; the caller adds up what it returns.
KVC_HD TileSums describe_tile(const PlanWork& work, int32_t index) {
  const PlanShape& shape = work.shape;
  TilePlan& tile = work.tiles[index];
  const int32_t* first_tile = work.first_tile;
  tile.sequence =
      last_not_above(0, work.num_sequences, index, [=](int32_t i) { return first_tile[i]; });
  const kernels::AttnSequence& sequence = work.sequences[tile.sequence];
  const TileRows rows = tile_rows(work, index, tile.sequence);
  const int32_t last = rows.begin + rows.count - 1;
  tile.keys =
      tile_keys(shape, sequence, rows.begin / shape.group_size, last / shape.group_size + 1);
  if (work.shares != nullptr) {
    const PlanShare& share = work.shares[tile.sequence];
    if (share.key_end > 0)
      tile.keys.end = static_cast<int32_t>(at_most(tile.keys.end, share.key_end));
    tile.keys.begin = static_cast<int32_t>(within(share.key_begin, tile.keys.begin, tile.keys.end));
  }
  const UnitKeys unit = unit_keys(shape, tile.keys);
  const bool is_split =
      unit.num_parts > 1 || is_prefix(work, tile.sequence) || is_member(work, tile.sequence);
  return {unit_cost(shape, unit), is_split ? 1 : 0, is_split ? unit.num_parts : 0};
}

KVC_HD void set_sums(const PlanWork& work, int32_t index, const TileSums& before) {
  work.tiles[index].cost_before = before.cost;
  work.tiles[index].split_tiles_before = before.split_tiles;
  work.tiles[index].split_parts_before = before.split_parts;
}

// Parts in front of a tile, of all kv heads.
KVC_HD int32_t parts_before(const PlanWork& work, int32_t tile) {
  const TilePlan& plan = work.tiles[tile];
  return work.shape.num_kv_heads * (tile - plan.split_tiles_before + plan.split_parts_before);
}
// Whether the tile's units are split without any cut.
KVC_HD bool is_split(const PlanWork& work, int32_t tile) {
  return work.tiles[tile + 1].split_tiles_before > work.tiles[tile].split_tiles_before;
}
KVC_HD int32_t parts_of(const PlanWork& work, int32_t tile) {
  return is_split(work, tile)
             ? work.tiles[tile + 1].split_parts_before - work.tiles[tile].split_parts_before
             : 1;
}

// ---- cuts

// Where on the line cut `index` should lie. Less than twice what an item costs beside its keys is
// no share: more CTAs would only make more to merge.
KVC_HD int64_t cut_place(const PlanShape& shape, int64_t total, int32_t index) {
  const int32_t num_ctas = shape.geometry.num_ctas;
  const int64_t least = shape.fixed_keys > 0 ? 1 : 2 * int64_t{item_cost(shape)};
  if (total < num_ctas * least) return at_most(total, index * least);
  const int64_t share = total / num_ctas;
  const auto rest = static_cast<uint32_t>(total - share * num_ctas);
  return share * index + rest * static_cast<uint32_t>(index) / static_cast<uint32_t>(num_ctas);
}

KVC_HD PlanCut find_cut(const PlanWork& work, int32_t index) {
  const PlanShape& shape = work.shape;
  const TilePlan* tiles = work.tiles;
  const int64_t heads = shape.num_kv_heads;
  const int64_t total = heads * tiles[work.num_tiles].cost_before;
  const int64_t place = cut_place(shape, total, index);
  PlanCut cut{work.num_tiles, 0, 0, 0, 0, 0, 0};
  if (place >= total) return cut;
  cut.tile = last_not_above(0, work.num_tiles, place,
                            [=](int32_t i) { return heads * tiles[i].cost_before; });
  const TilePlan& tile = tiles[cut.tile];
  const int64_t cost = tiles[cut.tile + 1].cost_before - tile.cost_before;
  const int64_t inside = place - heads * tile.cost_before;
  cut.kv_head = static_cast<int32_t>(inside / cost);
  const int64_t rest = inside - cut.kv_head * cost;
  const UnitKeys unit = unit_keys(shape, tile.keys);
  const auto before = [&](int32_t part) { return part_cost_before(shape, unit, part); };
  cut.part = last_not_above(0, unit.num_parts, rest, before);
  const int64_t in_part = rest - before(cut.part);
  if (shape.fixed_keys <= 0) {
    cut.piece = part_begin(shape, unit, cut.part) +
                static_cast<int32_t>(at_least(0, in_part - item_cost(shape)));
    return cut;
  }
  if (in_part > 0) ++cut.part;
  if (cut.part == unit.num_parts) {
    cut.part = 0;
    if (++cut.kv_head == shape.num_kv_heads) {
      cut.kv_head = 0;
      ++cut.tile;
    }
  }
  cut.piece = cut.part;
  return cut;
}

KVC_HD bool is_end(const PlanWork& work, const PlanCut& cut) { return cut.tile == work.num_tiles; }
KVC_HD bool same_unit(const PlanCut& a, const PlanCut& b) {
  return a.tile == b.tile && a.kv_head == b.kv_head;
}

// Whether the cut divides a part.
KVC_HD bool is_middle(const PlanWork& work, const PlanCut& cut) {
  if (work.shape.fixed_keys > 0 || is_end(work, cut)) return false;
  if (cut.part == 0) return cut.piece > 0;
  return cut.piece > unit_keys(work.shape, work.tiles[cut.tile].keys).pieces.sink_pieces;
}

struct CutSums {
  int32_t middles;
  int32_t splits;
};
// What cut `index` adds to the sums. Reads places alone.
KVC_HD CutSums count_cut(const PlanWork& work, int32_t index) {
  const PlanCut& cut = work.cuts[index];
  if (!is_middle(work, cut)) return {0, 0};
  const bool is_first =
      index == 0 || !same_unit(cut, work.cuts[index - 1]) || !is_middle(work, work.cuts[index - 1]);
  return {1, is_first && !is_split(work, cut.tile) ? 1 : 0};
}

KVC_HD int32_t part_number(const PlanWork& work, const PlanCut& cut) {
  const int32_t before = parts_before(work, cut.tile);
  return is_end(work, cut) ? before : before + cut.kv_head * parts_of(work, cut.tile) + cut.part;
}

// Every cut inside a part makes one more item of it.
KVC_HD void finish_cut(const PlanWork& work, int32_t index, const CutSums& up_to) {
  PlanCut& cut = work.cuts[index];
  cut.middles = up_to.middles;
  cut.splits = up_to.splits;
  cut.first_item = part_number(work, cut) + up_to.middles;
  work.plan.cta_begin[index] = cut.first_item;
}

// ---- what comes out

KVC_HD int32_t num_items(const PlanWork& work) {
  return parts_before(work, work.num_tiles) + work.cuts[work.plan.num_ctas].middles;
}

KVC_HD void write_counts(const PlanWork& work) {
  const PlanCut& end = work.cuts[work.plan.num_ctas];
  const TilePlan& tiles = work.tiles[work.num_tiles];
  const int32_t heads = work.shape.num_kv_heads;
  const int32_t slots = heads * tiles.split_parts_before + end.middles + end.splits;
  work.plan.counts[0] = num_items(work);
  work.plan.counts[1] = heads * tiles.split_tiles_before + end.splits;
  work.plan.counts[2] = slots;
  work.plan.counts[3] = slots;
}

// Item `index`, its source, and with the first item of a split unit the unit's merge.
KVC_HD void write_item(const PlanWork& work, int32_t index) {
  const PlanShape& shape = work.shape;
  const PlanCut* cuts = work.cuts;
  const int32_t cta =
      last_not_above(0, work.plan.num_ctas, index, [=](int32_t i) { return cuts[i].first_item; });
  const PlanCut& begin = cuts[cta];
  const PlanCut& end = cuts[cta + 1];
  const bool is_first = index == begin.first_item;

  PlanCut at = begin;
  if (!is_first) {
    const int32_t number = part_number(work, begin) + index - begin.first_item;
    at.tile = last_not_above(begin.tile,
                             static_cast<int32_t>(at_most(end.tile + int64_t{1}, work.num_tiles)),
                             number, [&](int32_t i) { return parts_before(work, i); });
    const int32_t inside = number - parts_before(work, at.tile), parts = parts_of(work, at.tile);
    at.kv_head = inside / parts;
    at.part = inside % parts;
  }
  const TilePlan& tile = work.tiles[at.tile];
  const UnitKeys unit = unit_keys(shape, tile.keys);
  const int32_t first_piece = part_begin(shape, unit, at.part),
                last_piece = part_end(shape, unit, at.part);
  if (!is_first) at.piece = first_piece;
  const bool is_cut =
      same_unit(at, end) && at.part == end.part && end.piece > at.piece && !is_end(work, end);
  const int32_t piece_end = is_cut ? end.piece : last_piece;

  const TileRows rows = tile_rows(work, at.tile, tile.sequence);
  WorkItem item{};
  item.sequence = tile.sequence;
  item.kv_head = at.kv_head;
  item.row_begin = rows.begin;
  item.num_rows = rows.count;
  item.slot = -1;
  if (at.piece < piece_end) {
    const KeyRange range = key_range(shape, tile.keys, unit.pieces, at.piece, piece_end);
    item.key_begin = range.begin;
    item.key_end = range.end;
    item.sink_part = shape.split_sinks != 0 && at.piece < unit.pieces.sink_pieces ? 1 : 0;
  }

  const bool has_parts = is_split(work, at.tile), continues = at.piece > first_piece;
  if (has_parts || continues || piece_end < last_piece) {
    // Split units in front of this one, and of the slots those and this one's pieces in front of
    // this piece.
    const int32_t splits = begin.splits - (!has_parts && continues ? 1 : 0);
    const int32_t units = has_parts ? at.kv_head : 0;
    item.slot = shape.num_kv_heads * tile.split_parts_before + units * unit.num_parts +
                (has_parts ? at.part : 0) + begin.middles + splits;
    work.plan.sources[item.slot] = {item.slot, 0};
    // The merges of members are in shared.h, after all slots are known.
    if (at.part == 0 && !continues && !is_member(work, item.sequence)) {
      // The cuts of this unit are those up to here; the last of all lies behind every unit.
      const auto is_behind = [&](int32_t i) {
        return cuts[i].tile > at.tile || (cuts[i].tile == at.tile && cuts[i].kv_head > at.kv_head)
                   ? 1
                   : 0;
      };
      const int32_t last = last_not_above(cta, work.plan.num_ctas, 0, is_behind);
      const int32_t merge = shape.num_kv_heads * tile.split_tiles_before + units + splits;
      // The units of a prefix merge with those of its members, not by themselves: no rows.
      work.plan.merges[merge] = {
          item.sequence,  item.kv_head,
          item.row_begin, is_prefix(work, item.sequence) ? 0 : item.num_rows,
          item.slot,      unit.num_parts + cuts[last].middles - begin.middles};
    }
  }
  work.plan.items[index] = item;
}

}  // namespace kvc::cuda::planning
