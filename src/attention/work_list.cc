#include "src/attention/work_list.h"

#include <algorithm>

#include "src/base/math.h"

namespace kvc {
namespace {

using kernels::AttnItem;
using kernels::AttnSequence;

// A decode item's accumulators (rows x heads x v_dim floats) should stay in the first-level cache beside the streamed K and V.
constexpr int64_t kAccumulatorBytes = 16 * 1024;
// Rows of a tile over all query heads of a group: enough to pay for packing K and V, small enough for the second-level cache.
constexpr int64_t kTileRows = 512;
constexpr int64_t kMaxTileTokens = 128;
// Up to this many query rows per kv head the decode kernel, which packs nothing, is faster.
constexpr int64_t kDecodeRows = 8;

// Rough rates of one thread, to tell small calls from large ones.
constexpr double kBytesPerSecond = 20e9;
constexpr double kFlopsPerSecond = 100e9;

int64_t visible_keys(const AttnSequence& sequence, int64_t row, bool causal) {
  return sequence.first_key_end + (causal ? row : 0);
}

class Planner {
 public:
  Planner(const AttnSequence* sequences, int64_t num_sequences, const WorkShape& shape, WorkList* list)
      : sequences_(sequences), num_sequences_(num_sequences), shape_(shape), list_(*list) {}

  void run() {
    list_.items.clear();
    list_.groups.clear();
    list_.partial_floats = list_.max_tile_rows = list_.max_decode_rows = 0;
    list_.seconds = 0;
    for (int64_t i = 0; i < num_sequences_; ++i) {
      if (!decodes(sequences_[i])) add_tiles(static_cast<int32_t>(i));
    }
    list_.num_tile_items = static_cast<int64_t>(list_.items.size());
    sort_tiles();
    const int64_t heads = decode_heads_per_item();
    for (int64_t i = 0; i < num_sequences_; ++i) {
      if (decodes(sequences_[i])) add_splits(static_cast<int32_t>(i), heads);
    }
  }

 private:
  bool decodes(const AttnSequence& sequence) const {
    return !shape_.tiles_only &&
           (sequence.num_rows == 1 || sequence.num_rows * shape_.group_size() <= kDecodeRows);
  }

  void add_tiles(int32_t index) {
    const AttnSequence& sequence = sequences_[index];
    const int64_t tokens = std::clamp<int64_t>(kTileRows / shape_.group_size(), 1, kMaxTileTokens);
    for (int64_t row = 0; row < sequence.num_rows; row += tokens) {
      const int64_t row_end = std::min(row + tokens, sequence.num_rows);
      const int64_t key_end = visible_keys(sequence, row_end - 1, shape_.causal);
      list_.max_tile_rows = std::max(list_.max_tile_rows, row_end - row);
      for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        list_.items.push_back({.sequence = index,
                               .head_begin = head,
                               .head_end = head + 1,
                               .merge_group = -1,
                               .row_begin = row,
                               .row_end = row_end,
                               .key_begin = 0,
                               .key_end = key_end,
                               .partial = -1});
      }
      list_.seconds += 2.0 * static_cast<double>((row_end - row) * key_end) * shape_.num_q_heads *
                       (shape_.k_dim + shape_.v_dim) / kFlopsPerSecond;
    }
  }

  void sort_tiles() {
    const auto cost = [](const AttnItem& item) {
      return (item.row_end - item.row_begin) * (item.key_end - item.key_begin);
    };
    std::sort(list_.items.begin(), list_.items.end(), [&](const AttnItem& a, const AttnItem& b) {
      if (cost(a) != cost(b)) return cost(a) > cost(b);
      if (a.sequence != b.sequence) return a.sequence < b.sequence;
      return a.row_begin != b.row_begin ? a.row_begin < b.row_begin : a.head_begin < b.head_begin;
    });
  }

  // All heads of a page in one item read it as one burst, unless the accumulators get too large or there is too little work for the threads.
  int64_t decode_heads_per_item() const {
    int64_t most_rows = 1;
    int64_t splits = 0;
    for (int64_t i = 0; i < num_sequences_; ++i) {
      if (!decodes(sequences_[i])) continue;
      const int64_t key_end = visible_keys(sequences_[i], sequences_[i].num_rows - 1, shape_.causal);
      most_rows = std::max(most_rows, sequences_[i].num_rows);
      splits += std::max<int64_t>(1, ceil_div(key_end, kSplitKeys));
    }
    const int64_t head_bytes =
        most_rows * shape_.group_size() * shape_.v_dim * static_cast<int64_t>(sizeof(float));
    const int64_t by_cache = std::max<int64_t>(
        1, ceil_div(shape_.num_kv_heads, ceil_div(head_bytes * shape_.num_kv_heads, kAccumulatorBytes)));
    const int64_t parts_wanted = splits == 0 ? 1 : ceil_div(2 * int64_t{shape_.concurrency}, splits);
    const int64_t by_threads =
        shape_.concurrency == 1 ? shape_.num_kv_heads : ceil_div(shape_.num_kv_heads, parts_wanted);
    return std::max<int64_t>(1, std::min(by_cache, by_threads));
  }

  void add_splits(int32_t index, int64_t heads_per_item) {
    const AttnSequence& sequence = sequences_[index];
    const int64_t rows = sequence.num_rows;
    const int64_t key_end = visible_keys(sequence, rows - 1, shape_.causal);
    const int64_t splits = std::max<int64_t>(1, ceil_div(key_end, kSplitKeys));
    list_.max_decode_rows = std::max(list_.max_decode_rows, rows);
    list_.seconds += static_cast<double>(key_end) * shape_.num_kv_heads * (shape_.k_dim + shape_.v_dim) * 2 /
                     kBytesPerSecond;
    for (int64_t head = 0; head < shape_.num_kv_heads; head += heads_per_item) {
      const int64_t head_end = std::min<int64_t>(head + heads_per_item, shape_.num_kv_heads);
      const int64_t stride =
          align_up(rows * (head_end - head) * shape_.group_size() * (2 + int64_t{shape_.v_dim}), 16);
      const auto group = static_cast<int32_t>(list_.groups.size());
      const int64_t first_partial = list_.partial_floats;
      for (int64_t split = 0; split < splits; ++split) {
        list_.items.push_back({.sequence = index,
                               .head_begin = static_cast<int32_t>(head),
                               .head_end = static_cast<int32_t>(head_end),
                               .merge_group = splits == 1 ? -1 : group,
                               .row_begin = 0,
                               .row_end = rows,
                               .key_begin = split * kSplitKeys,
                               .key_end = std::min((split + 1) * kSplitKeys, key_end),
                               .partial = splits == 1 ? -1 : first_partial + split * stride});
      }
      if (splits == 1) continue;
      list_.groups.push_back({.sequence = index,
                              .head_begin = static_cast<int32_t>(head),
                              .head_end = static_cast<int32_t>(head_end),
                              .num_splits = static_cast<int32_t>(splits),
                              .row_begin = 0,
                              .row_end = rows,
                              .first_partial = first_partial,
                              .partial_stride = stride});
      list_.partial_floats += splits * stride;
    }
  }

  const AttnSequence* sequences_;
  int64_t num_sequences_;
  const WorkShape& shape_;
  WorkList& list_;
};

}  // namespace

void plan_work(const AttnSequence* sequences, int64_t num_sequences, const WorkShape& shape, WorkList* list) {
  Planner(sequences, num_sequences, shape, list).run();
}

}  // namespace kvc
