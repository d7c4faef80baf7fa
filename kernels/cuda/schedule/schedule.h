// The scheduler of all attention kernels: a pure function of the sequences' visible ranges. Every
// step is a function of one index (a sequence, a q tile, a CTA or a work item), with prefix sums in
// between. So host.h runs it as loops and kernel.cuh as one CTA, with the same bits.
//
// Terms:
// - q tile: up to tile_rows packed rows of one sequence.
// - head tile: one q tile with one KV head.
// - KV chunk: the keys of a head tile form one or more chunks, and no work item spans two. There is
//   one chunk per head tile, two when sink tokens are separate, or one per fixed_keys keys.
// - cost: a chunk costs item_cost plus the number of its visible key blocks.
// - CTA boundary: chunks are ordered by q tile, KV head and keys. CTA c runs the work between
//   boundaries c and c + 1 in the prefix sum of the cost.
//
// Boundaries divide the cost evenly. Each one moves back to the begin of a key block, or of the
// chunk when it lies before the chunk's second block. With fixed_keys it moves on to the begin of a
// chunk.
//
// A head tile of one work item writes the output. Otherwise every work item of it writes a split.
// Splits are numbered in the same order, so those of one head tile are consecutive.
#pragma once

#include "kernels/cuda/schedule/keys.h"

namespace kvc::cuda::scheduling {

struct QTile {
  int64_t cost_before;  // Cost of all tiles before this one, for one KV head.
  // Tiles before this one that have two or more chunks, or belong to shared prefixes or their
  // members.
  int32_t split_tiles_before;
  int32_t split_chunks_before;  // The chunks of those tiles.
  int32_t sequence;
  TileKeys keys;
};
static_assert(sizeof(QTile) == 32);

// The place where CTA c begins. `block` counts along HeadTileKeys::split_blocks.
struct CtaBoundary {
  int32_t tile;
  int32_t kv_head;
  int32_t chunk;
  int32_t block;
  int32_t inside_chunks;   // Boundaries inside chunks up to this one, included.
  int32_t boundary_tiles;  // Head tiles that are split by these boundaries alone.
  // First work item of the CTA. A copy of cta_begin that the kernel reads fast.
  int32_t first_item;
};

// Everything that the steps of the scheduler read and write.
struct Scheduler {
  ScheduleShape shape;
  const kernels::AttnSequence* sequences;
  const PrefixShare* shares;
  WorkSchedule schedule;
  int32_t num_sequences;
  int32_t num_tiles;
  int32_t* first_tile;      // [num_sequences + 1]
  QTile* tiles;             // [num_tiles + 1]
  CtaBoundary* boundaries;  // [num_ctas + 1]
};

// ---- keys of a head tile

struct HeadTileKeys {
  KeyBlocks blocks;
  // The units of which chunks consist: key blocks, or fixed_keys keys each.
  KeyBlocks split_blocks;
  int32_t num_chunks;
};

KVC_HD int32_t item_cost(const ScheduleShape& shape) {
  return shape.geometry.item_cost > 0 ? shape.geometry.item_cost : 1;
}

KVC_HD HeadTileKeys head_tile_keys(const ScheduleShape& shape, const TileKeys& keys) {
  HeadTileKeys head_tile{key_blocks(shape, keys, shape.geometry.key_block), {}, 1};
  head_tile.split_blocks = head_tile.blocks;
  if (shape.fixed_keys > 0) {
    head_tile.split_blocks = key_blocks(shape, keys, shape.fixed_keys);
    head_tile.num_chunks = static_cast<int32_t>(max_of(1, head_tile.split_blocks.count()));
  } else if (shape.split_sinks != 0 && head_tile.blocks.sink_blocks > 0 &&
             head_tile.blocks.rest_blocks > 0) {
    head_tile.num_chunks = 2;
  }
  return head_tile;
}

KVC_HD int32_t chunk_begin(const ScheduleShape& shape, const HeadTileKeys& head_tile,
                           int32_t chunk) {
  if (shape.fixed_keys > 0) return chunk;
  return chunk == 0 ? 0 : head_tile.split_blocks.sink_blocks;
}
KVC_HD int32_t chunk_end(const ScheduleShape& shape, const HeadTileKeys& head_tile, int32_t chunk) {
  return chunk + 1 < head_tile.num_chunks ? chunk_begin(shape, head_tile, chunk + 1)
                                          : head_tile.split_blocks.count();
}

KVC_HD int64_t head_tile_cost(const ScheduleShape& shape, const HeadTileKeys& head_tile) {
  return int64_t{head_tile.num_chunks} * item_cost(shape) + head_tile.blocks.count();
}

// Cost of the chunks before this one in its head tile. Chunks of fixed_keys have a closed form.
KVC_HD int64_t chunk_cost_before(const ScheduleShape& shape, const HeadTileKeys& head_tile,
                                 int32_t chunk) {
  if (chunk == 0) return 0;
  int64_t blocks = head_tile.blocks.sink_blocks;
  if (shape.fixed_keys > 0) {
    const auto key = static_cast<int32_t>(head_tile.split_blocks.at(chunk) * shape.fixed_keys);
    const int32_t block = key / shape.geometry.key_block;
    if (shape.split_sinks == 0 || chunk < head_tile.split_blocks.sink_blocks)
      blocks = head_tile.blocks.sinks_before(block);
    if (chunk >= head_tile.split_blocks.sink_blocks) blocks += head_tile.blocks.rest_before(block);
  }
  return int64_t{chunk} * item_cost(shape) + blocks;
}

// ---- q tiles

KVC_HD int32_t num_tiles_of(const Scheduler& work, int32_t sequence) {
  return divide_up(scheduled_rows(work.shape, work.sequences[sequence].num_rows),
                   work.shape.geometry.tile_rows);
}

// Binary search: the last index in [begin, end) with key(index) <= value. `key` never decreases,
// and key(begin) <= value.
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

// The packed rows of a tile in its sequence.
struct TileRows {
  int32_t begin;
  int32_t count;
};
KVC_HD TileRows tile_rows(const Scheduler& work, int32_t tile, int32_t sequence) {
  const int32_t max_rows = work.shape.geometry.tile_rows;
  const int32_t begin = (tile - work.first_tile[sequence]) * max_rows;
  const int32_t left = scheduled_rows(work.shape, work.sequences[sequence].num_rows) - begin;
  return {begin, left < max_rows ? left : max_rows};
}

// Entries of shared prefixes and their members: all their work items write splits.
KVC_HD bool is_prefix(const Scheduler& work, int32_t sequence) {
  return work.shares != nullptr && work.shares[sequence].key_end > 0;
}
KVC_HD bool is_member(const Scheduler& work, int32_t sequence) {
  return work.shares != nullptr && work.shares[sequence].num_prefixes > 0;
}

struct TileSums {
  int64_t cost;
  int32_t split_tiles;
  int32_t split_chunks;
};

// Fills the sequence and keys of a tile. The caller accumulates the returned sums.
KVC_HD TileSums describe_tile(const Scheduler& work, int32_t index) {
  const ScheduleShape& shape = work.shape;
  QTile& tile = work.tiles[index];
  const int32_t* first_tile = work.first_tile;
  tile.sequence =
      last_not_above(0, work.num_sequences, index, [=](int32_t i) { return first_tile[i]; });
  const kernels::AttnSequence& sequence = work.sequences[tile.sequence];
  const TileRows rows = tile_rows(work, index, tile.sequence);
  const int32_t last = rows.begin + rows.count - 1;
  tile.keys =
      tile_keys(shape, sequence, rows.begin / shape.group_size, last / shape.group_size + 1);
  if (work.shares != nullptr) {
    const PrefixShare& share = work.shares[tile.sequence];
    if (share.key_end > 0)
      tile.keys.end = static_cast<int32_t>(min_of(tile.keys.end, share.key_end));
    tile.keys.begin = static_cast<int32_t>(clamp(share.key_begin, tile.keys.begin, tile.keys.end));
  }
  const HeadTileKeys head_tile = head_tile_keys(shape, tile.keys);
  const bool is_split =
      head_tile.num_chunks > 1 || is_prefix(work, tile.sequence) || is_member(work, tile.sequence);
  return {head_tile_cost(shape, head_tile), is_split ? 1 : 0, is_split ? head_tile.num_chunks : 0};
}

KVC_HD void set_sums(const Scheduler& work, int32_t index, const TileSums& before) {
  work.tiles[index].cost_before = before.cost;
  work.tiles[index].split_tiles_before = before.split_tiles;
  work.tiles[index].split_chunks_before = before.split_chunks;
}

// Chunks of all KV heads before a tile.
KVC_HD int32_t chunks_before(const Scheduler& work, int32_t tile) {
  const QTile& q_tile = work.tiles[tile];
  return work.shape.num_kv_heads * (tile - q_tile.split_tiles_before + q_tile.split_chunks_before);
}
// Whether the tile's head tiles are split without any boundary.
KVC_HD bool is_split(const Scheduler& work, int32_t tile) {
  return work.tiles[tile + 1].split_tiles_before > work.tiles[tile].split_tiles_before;
}
KVC_HD int32_t chunks_of(const Scheduler& work, int32_t tile) {
  return is_split(work, tile)
             ? work.tiles[tile + 1].split_chunks_before - work.tiles[tile].split_chunks_before
             : 1;
}

// ---- CTA boundaries

// The ideal cost before boundary `index`. A share is at least twice item_cost: more CTAs would only
// make more splits to reduce.
KVC_HD int64_t cost_before_boundary(const ScheduleShape& shape, int64_t total, int32_t index) {
  const int32_t num_ctas = shape.geometry.num_ctas;
  const int64_t least = shape.fixed_keys > 0 ? 1 : 2 * int64_t{item_cost(shape)};
  if (total < num_ctas * least) return min_of(total, index * least);
  const int64_t share = total / num_ctas;
  const auto rest = static_cast<uint32_t>(total - share * num_ctas);
  return share * index + rest * static_cast<uint32_t>(index) / static_cast<uint32_t>(num_ctas);
}

KVC_HD CtaBoundary find_boundary(const Scheduler& work, int32_t index) {
  const ScheduleShape& shape = work.shape;
  const QTile* tiles = work.tiles;
  const int64_t heads = shape.num_kv_heads;
  const int64_t total = heads * tiles[work.num_tiles].cost_before;
  const int64_t place = cost_before_boundary(shape, total, index);
  CtaBoundary boundary{work.num_tiles, 0, 0, 0, 0, 0, 0};
  if (place >= total) return boundary;
  boundary.tile = last_not_above(0, work.num_tiles, place,
                                 [=](int32_t i) { return heads * tiles[i].cost_before; });
  const QTile& tile = tiles[boundary.tile];
  const int64_t cost = tiles[boundary.tile + 1].cost_before - tile.cost_before;
  const int64_t inside = place - heads * tile.cost_before;
  boundary.kv_head = static_cast<int32_t>(inside / cost);
  const int64_t rest = inside - boundary.kv_head * cost;
  const HeadTileKeys head_tile = head_tile_keys(shape, tile.keys);
  const auto before = [&](int32_t chunk) { return chunk_cost_before(shape, head_tile, chunk); };
  boundary.chunk = last_not_above(0, head_tile.num_chunks, rest, before);
  const int64_t in_chunk = rest - before(boundary.chunk);
  if (shape.fixed_keys <= 0) {
    boundary.block = chunk_begin(shape, head_tile, boundary.chunk) +
                     static_cast<int32_t>(max_of(0, in_chunk - item_cost(shape)));
    return boundary;
  }
  if (in_chunk > 0) ++boundary.chunk;
  if (boundary.chunk == head_tile.num_chunks) {
    boundary.chunk = 0;
    if (++boundary.kv_head == shape.num_kv_heads) {
      boundary.kv_head = 0;
      ++boundary.tile;
    }
  }
  boundary.block = boundary.chunk;
  return boundary;
}

KVC_HD bool is_end(const Scheduler& work, const CtaBoundary& boundary) {
  return boundary.tile == work.num_tiles;
}
KVC_HD bool same_head_tile(const CtaBoundary& a, const CtaBoundary& b) {
  return a.tile == b.tile && a.kv_head == b.kv_head;
}

// Whether the boundary divides a chunk.
KVC_HD bool is_inside_chunk(const Scheduler& work, const CtaBoundary& boundary) {
  if (work.shape.fixed_keys > 0 || is_end(work, boundary)) return false;
  if (boundary.chunk == 0) return boundary.block > 0;
  return boundary.block >
         head_tile_keys(work.shape, work.tiles[boundary.tile].keys).split_blocks.sink_blocks;
}

struct BoundarySums {
  int32_t inside_chunks;
  int32_t boundary_tiles;
};
// Contribution of boundary `index` to the sums. Reads the places of boundaries alone.
KVC_HD BoundarySums count_boundary(const Scheduler& work, int32_t index) {
  const CtaBoundary& boundary = work.boundaries[index];
  if (!is_inside_chunk(work, boundary)) return {0, 0};
  const bool is_first = index == 0 || !same_head_tile(boundary, work.boundaries[index - 1]) ||
                        !is_inside_chunk(work, work.boundaries[index - 1]);
  return {1, is_first && !is_split(work, boundary.tile) ? 1 : 0};
}

KVC_HD int32_t chunk_index(const Scheduler& work, const CtaBoundary& boundary) {
  const int32_t before = chunks_before(work, boundary.tile);
  return is_end(work, boundary)
             ? before
             : before + boundary.kv_head * chunks_of(work, boundary.tile) + boundary.chunk;
}

// Every boundary inside a chunk adds one work item.
KVC_HD void finish_boundary(const Scheduler& work, int32_t index, const BoundarySums& up_to) {
  CtaBoundary& boundary = work.boundaries[index];
  boundary.inside_chunks = up_to.inside_chunks;
  boundary.boundary_tiles = up_to.boundary_tiles;
  boundary.first_item = chunk_index(work, boundary) + up_to.inside_chunks;
  work.schedule.cta_begin[index] = boundary.first_item;
}

// ---- output

KVC_HD int32_t num_items(const Scheduler& work) {
  return chunks_before(work, work.num_tiles) +
         work.boundaries[work.schedule.num_ctas].inside_chunks;
}

KVC_HD void write_counts(const Scheduler& work) {
  const CtaBoundary& end = work.boundaries[work.schedule.num_ctas];
  const QTile& tiles = work.tiles[work.num_tiles];
  const int32_t heads = work.shape.num_kv_heads;
  const int32_t splits = heads * tiles.split_chunks_before + end.inside_chunks + end.boundary_tiles;
  work.schedule.counts[0] = num_items(work);
  work.schedule.counts[1] = heads * tiles.split_tiles_before + end.boundary_tiles;
  work.schedule.counts[2] = splits;
  work.schedule.counts[3] = splits;
}

// Writes work item `index` and its source. The first work item of a split head tile also writes the
// reduction of that head tile.
KVC_HD void write_item(const Scheduler& work, int32_t index) {
  const ScheduleShape& shape = work.shape;
  const CtaBoundary* boundaries = work.boundaries;
  const int32_t cta = last_not_above(0, work.schedule.num_ctas, index,
                                     [=](int32_t i) { return boundaries[i].first_item; });
  const CtaBoundary& begin = boundaries[cta];
  const CtaBoundary& end = boundaries[cta + 1];
  const bool is_first = index == begin.first_item;

  CtaBoundary at = begin;
  if (!is_first) {
    const int32_t number = chunk_index(work, begin) + index - begin.first_item;
    at.tile = last_not_above(begin.tile,
                             static_cast<int32_t>(min_of(end.tile + int64_t{1}, work.num_tiles)),
                             number, [&](int32_t i) { return chunks_before(work, i); });
    const int32_t inside = number - chunks_before(work, at.tile), chunks = chunks_of(work, at.tile);
    at.kv_head = inside / chunks;
    at.chunk = inside % chunks;
  }
  const QTile& tile = work.tiles[at.tile];
  const HeadTileKeys head_tile = head_tile_keys(shape, tile.keys);
  const int32_t first_block = chunk_begin(shape, head_tile, at.chunk),
                last_block = chunk_end(shape, head_tile, at.chunk);
  if (!is_first) at.block = first_block;
  const bool is_divided = same_head_tile(at, end) && at.chunk == end.chunk &&
                          end.block > at.block && !is_end(work, end);
  const int32_t block_end = is_divided ? end.block : last_block;

  const TileRows rows = tile_rows(work, at.tile, tile.sequence);
  WorkItem item{};
  item.sequence = tile.sequence;
  item.kv_head = at.kv_head;
  item.row_begin = rows.begin;
  item.num_rows = rows.count;
  item.split = -1;
  if (at.block < block_end) {
    const KeyRange range = key_range(shape, tile.keys, head_tile.split_blocks, at.block, block_end);
    item.key_begin = range.begin;
    item.key_end = range.end;
    item.sink_part =
        shape.split_sinks != 0 && at.block < head_tile.split_blocks.sink_blocks ? 1 : 0;
  }

  const bool has_chunks = is_split(work, at.tile), continues = at.block > first_block;
  if (has_chunks || continues || block_end < last_block) {
    // The split's index counts the splits of head tiles before this one, and the splits of this
    // head tile before this work item.
    const int32_t boundary_tiles = begin.boundary_tiles - (!has_chunks && continues ? 1 : 0);
    const int32_t head_tiles = has_chunks ? at.kv_head : 0;
    item.split = shape.num_kv_heads * tile.split_chunks_before + head_tiles * head_tile.num_chunks +
                 (has_chunks ? at.chunk : 0) + begin.inside_chunks + boundary_tiles;
    work.schedule.sources[item.split] = {item.split, 0};
    // The reductions of members are written by shared_prefixes.h, once all splits are known.
    if (at.chunk == 0 && !continues && !is_member(work, item.sequence)) {
      // The boundaries of this head tile are those up to here. The last boundary lies behind every
      // head tile.
      const auto is_behind = [&](int32_t i) {
        return boundaries[i].tile > at.tile ||
                       (boundaries[i].tile == at.tile && boundaries[i].kv_head > at.kv_head)
                   ? 1
                   : 0;
      };
      const int32_t last = last_not_above(cta, work.schedule.num_ctas, 0, is_behind);
      const int32_t reduction =
          shape.num_kv_heads * tile.split_tiles_before + head_tiles + boundary_tiles;
      // The head tiles of a prefix are reduced together with those of its members, so this
      // reduction has no rows.
      work.schedule.reductions[reduction] = {
          item.sequence,
          item.kv_head,
          item.row_begin,
          is_prefix(work, item.sequence) ? 0 : item.num_rows,
          item.split,
          head_tile.num_chunks + boundaries[last].inside_chunks - begin.inside_chunks};
    }
  }
  work.schedule.items[index] = item;
}

}  // namespace kvc::cuda::scheduling
