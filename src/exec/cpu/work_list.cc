#include "src/exec/cpu/work_list.h"

#include <algorithm>

#include "src/base/math.h"

namespace kvc {
namespace {

using kernels::AttnItem;
using kernels::AttnSequence;

// A decode item's accumulators (rows x heads x v_dim floats) should stay in the first-level cache
// beside the streamed K and V.
constexpr int64_t kAccumulatorBytes = 16 * 1024;
// Rows of a tile over all query heads of a group: enough to pay for packing K and V, small enough
// for the second-level cache.
constexpr int64_t kTileRows = 512;
constexpr int64_t kMaxTileTokens = 128;
// Up to this many query rows per kv head the decode kernel, which packs nothing, is faster.
constexpr int64_t kDecodeRows = 8;
// Query rows that the kernel for latents takes in one pass over the keys.
constexpr int64_t kLatentRows = 128;

// Rough rates of one thread, to tell small calls from large ones.
constexpr double kBytesPerSecond = 20e9;
constexpr double kFlopsPerSecond = 100e9;

class Planner {
 public:
  Planner(const AttnSequence* sequences, int64_t num_sequences, const WorkShape& shape,
          std::span<const SharedPrefix> prefixes, WorkList* list)
      : sequences_(sequences),
        num_sequences_(num_sequences),
        shape_(shape),
        prefixes_(prefixes),
        list_(*list) {}

  void run() {
    list_.items.clear();
    list_.groups.clear();
    list_.split_offsets.clear();
    list_.partial_floats = list_.max_tile_rows = list_.max_decode_rows = 0;
    list_.seconds = 0;
    if (!prefixes_.empty()) enter_members();
    heads_per_item_ = decode_heads_per_item();
    if (!prefixes_.empty()) add_prefixes();
    for (int64_t i = 0; i < num_sequences_; ++i) {
      if (!decodes(i) && !is_shared_entry(i)) add_tiles(static_cast<int32_t>(i));
    }
    list_.num_tile_items = static_cast<int64_t>(list_.items.size());
    sort_tiles();
    for (int64_t i = 0; i < num_sequences_; ++i) {
      if (decodes(i) && !is_shared_entry(i)) add_splits(static_cast<int32_t>(i));
    }
  }

 private:
  // What a sequence has to do with shared prefixes.
  struct Sharing {
    bool shared_entry = false;
    int32_t member = -1;        // Number of the member, over all prefixes; -1: none.
    int64_t first_key = 0;      // Keys before it come out of the prefixes.
    int32_t prefix_splits = 0;  // Chunks of the prefixes that feed it.
  };

  bool decodes(int64_t index) const { return runs_on_decode(shape_, sequences_[index].num_rows); }
  bool is_shared_entry(int64_t index) const {
    return !sharing_.empty() && sharing_[index].shared_entry;
  }
  int64_t first_key(int64_t index) const {
    return sharing_.empty() ? 0 : sharing_[index].first_key;
  }

  int64_t row_floats(int64_t heads) const {
    return heads * shape_.group_size() * (2 + int64_t{shape_.v_dim});
  }
  int64_t take_partial(int64_t rows, int64_t heads) {
    const int64_t begin = list_.partial_floats;
    list_.partial_floats += align_up(rows * row_floats(heads), 16);
    return begin;
  }
  int32_t add_group(int32_t sequence, int64_t row_begin, int64_t row_end, int64_t head_begin,
                    int64_t head_end, int64_t num_splits) {
    list_.groups.push_back({.sequence = sequence,
                            .head_begin = static_cast<int32_t>(head_begin),
                            .head_end = static_cast<int32_t>(head_end),
                            .num_splits = static_cast<int32_t>(num_splits),
                            .row_begin = row_begin,
                            .row_end = row_end,
                            .first_split = static_cast<int64_t>(list_.split_offsets.size())});
    list_.split_offsets.resize(list_.split_offsets.size() + static_cast<size_t>(num_splits));
    return static_cast<int32_t>(list_.groups.size() - 1);
  }
  double flop_seconds(int64_t rows, int64_t keys, int64_t kv_heads) const {
    return 2.0 * static_cast<double>(rows * keys * kv_heads) * shape_.group_size() *
           (shape_.k_dim + shape_.v_dim) / kFlopsPerSecond;
  }

  // ---- Long appends ----

  void add_tiles(int32_t index) {
    const AttnSequence& sequence = sequences_[index];
    for (int64_t row = 0, row_end; row < sequence.num_rows; row = row_end) {
      row_end = std::min(row + tile_tokens(), sequence.num_rows);
      const VisibleKeys keys = visible_keys(sequence, row, row_end, shape_.causal);
      tile_chunks(keys, &chunks_);
      list_.max_tile_rows = std::max(list_.max_tile_rows, row_end - row);
      for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        const auto splits = static_cast<int64_t>(chunks_.size());
        const int32_t group =
            splits == 1 ? -1 : add_group(index, row, row_end, head, head + 1, splits);
        for (int64_t split = 0; split < splits; ++split) {
          const int64_t partial = splits == 1 ? -1 : take_partial(row_end - row, 1);
          if (group >= 0) split_offset(group, split) = partial;
          add_item(index, chunks_[split], row, row_end, head, head + 1, group, partial);
        }
      }
      list_.seconds += flop_seconds(row_end - row, keys.count(), shape_.num_kv_heads);
    }
  }

  int64_t tile_tokens() const { return kvc::tile_tokens(shape_); }

  int64_t& split_offset(int32_t group, int64_t split) {
    return list_.split_offsets[list_.groups[group].first_split + split];
  }

  void add_item(int32_t sequence, const KvChunk& keys, int64_t row_begin, int64_t row_end,
                int64_t head_begin, int64_t head_end, int32_t group, int64_t partial,
                int32_t num_groups = 1) {
    list_.items.push_back({.sequence = sequence,
                           .head_begin = static_cast<int32_t>(head_begin),
                           .head_end = static_cast<int32_t>(head_end),
                           .sink_part = keys.sink_part ? 1 : 0,
                           .merge_group = group,
                           .num_merge_groups = group < 0 ? 0 : num_groups,
                           .row_begin = row_begin,
                           .row_end = row_end,
                           .key_begin = keys.begin,
                           .key_end = keys.end,
                           .partial = partial,
                           .kept_part = keys.kept_part ? 1 : 0});
  }

  void sort_tiles() {
    const auto cost = [](const AttnItem& item) {
      return (item.row_end - item.row_begin) * (item.key_end - item.key_begin) *
             (item.head_end - item.head_begin);
    };
    std::sort(list_.items.begin(), list_.items.end(), [&](const AttnItem& a, const AttnItem& b) {
      if (cost(a) != cost(b)) return cost(a) > cost(b);
      if (a.sequence != b.sequence) return a.sequence < b.sequence;
      if (a.row_begin != b.row_begin) return a.row_begin < b.row_begin;
      return a.head_begin != b.head_begin ? a.head_begin < b.head_begin : a.key_begin < b.key_begin;
    });
  }

  // ---- Decode steps ----

  // All heads of a page in one item read it as one burst, unless the accumulators get too large or
  // there is too little work for the threads.
  int64_t decode_heads_per_item() {
    int64_t most_rows = 1;
    int64_t splits = 0;
    for (int64_t i = 0; i < num_sequences_; ++i) {
      if (!decodes(i) || is_shared_entry(i)) continue;
      most_rows = std::max(most_rows, sequences_[i].num_rows);
      cut_decode(i);
      splits += std::max<int64_t>(1, static_cast<int64_t>(chunks_.size()));
    }
    // Where prefixes are shared they are most of the work.
    if (!prefixes_.empty()) splits = 0;
    for (const SharedPrefix& prefix : prefixes_) {
      splits += num_chunks(prefix) * ceil_div(sequences_[prefix.sequence].num_rows, tile_tokens());
    }
    const int64_t head_bytes =
        most_rows * shape_.group_size() * shape_.v_dim * static_cast<int64_t>(sizeof(float));
    const int64_t by_cache = std::max<int64_t>(
        1, ceil_div(shape_.num_kv_heads,
                    ceil_div(head_bytes * shape_.num_kv_heads, kAccumulatorBytes)));
    const int64_t parts_wanted =
        splits == 0 ? 1 : ceil_div(2 * int64_t{shape_.concurrency}, splits);
    const int64_t by_threads =
        shape_.concurrency == 1 ? shape_.num_kv_heads : ceil_div(shape_.num_kv_heads, parts_wanted);
    return std::max<int64_t>(1, std::min(by_cache, by_threads));
  }

  // Fills chunks_; returns the number of keys.
  int64_t cut_decode(int64_t index) {
    const AttnSequence& sequence = sequences_[index];
    const VisibleKeys keys = visible_keys(sequence, 0, sequence.num_rows, shape_.causal);
    decode_chunks(keys, first_key(index), split_keys(shape_), &chunks_);
    return std::max<int64_t>(0, keys.count() - first_key(index));
  }

  void add_splits(int32_t index) {
    const int64_t rows = sequences_[index].num_rows;
    const int64_t num_keys = cut_decode(index);
    const Sharing sharing = sharing_.empty() ? Sharing{} : sharing_[index];
    // Rows that see nothing need an item too: it writes zeros.
    if (chunks_.empty() && sharing.member < 0) chunks_.push_back({0, 0, false});
    const auto splits = static_cast<int64_t>(chunks_.size());
    list_.max_decode_rows = std::max(list_.max_decode_rows, rows);
    list_.seconds += static_cast<double>(num_keys) * shape_.num_kv_heads *
                     (shape_.k_dim + shape_.v_dim) * 2 / kBytesPerSecond;
    for (int64_t head = 0, part = 0; head < shape_.num_kv_heads; head += heads_per_item_, ++part) {
      const int64_t head_end = std::min<int64_t>(head + heads_per_item_, shape_.num_kv_heads);
      int32_t group = -1;
      if (sharing.member >= 0) {
        group = member_group(part, sharing.member);
      } else if (splits > 1) {
        group = add_group(index, 0, rows, head, head_end, splits);
      }
      for (int64_t split = 0; split < splits; ++split) {
        const int64_t partial = group < 0 ? -1 : take_partial(rows, head_end - head);
        if (group >= 0) split_offset(group, sharing.prefix_splits + split) = partial;
        add_item(index, chunks_[split], 0, rows, head, head_end, group, partial);
      }
    }
  }

  // ---- Shared prefixes ----

  // Kept rows are the members' own.
  int64_t begin_of(const SharedPrefix& prefix) const {
    const int64_t kept_end = sequences_[prefix.members.front().sequence].kept_end;
    return std::min(std::max(prefix.key_begin, kept_end), prefix.key_end);
  }
  int64_t num_chunks(const SharedPrefix& prefix) const {
    return ceil_div(prefix.key_end - begin_of(prefix), kPrefixKeys);
  }

  // Members are numbered so that those of every prefix, and of its row cuts, follow each other.
  void enter_members() {
    sharing_.resize(num_sequences_);
    for (const SharedPrefix& prefix : prefixes_) {
      sharing_[prefix.sequence].shared_entry = true;
      const int64_t chunks = num_chunks(prefix);
      for (const SharedPrefix::Member& member : prefix.members) {
        Sharing& sharing = sharing_[member.sequence];
        if (sharing.member < 0) sharing.member = num_members_++;
        sharing.first_key = prefix.key_end;
        sharing.prefix_splits += static_cast<int32_t>(chunks);
      }
    }
  }

  int32_t member_group(int64_t part, int64_t member) const {
    return static_cast<int32_t>(first_member_group_ + part * num_members_ + member);
  }

  void add_prefixes() {
    std::vector<int32_t> sequence_of(static_cast<size_t>(num_members_));
    for (int64_t i = 0; i < num_sequences_; ++i) {
      const int32_t member = sharing_[i].member;
      if (member >= 0) sequence_of[member] = static_cast<int32_t>(i);
    }
    first_member_group_ = static_cast<int64_t>(list_.groups.size());
    for (int64_t head = 0; head < shape_.num_kv_heads; head += heads_per_item_) {
      const int64_t head_end = std::min<int64_t>(head + heads_per_item_, shape_.num_kv_heads);
      for (const int32_t index : sequence_of) {
        cut_decode(index);
        add_group(index, 0, sequences_[index].num_rows, head, head_end,
                  sharing_[index].prefix_splits + static_cast<int64_t>(chunks_.size()));
      }
    }
    // Splits of each member so far.
    std::vector<int32_t> filled(static_cast<size_t>(num_members_), 0);
    for (const SharedPrefix& prefix : prefixes_) add_prefix(prefix, &filled);
  }

  void add_prefix(const SharedPrefix& prefix, std::vector<int32_t>* filled) {
    const auto num_members = prefix.members.size();
    for (int64_t key = begin_of(prefix); key < prefix.key_end;) {
      const int64_t key_end = std::min(key + kPrefixKeys, prefix.key_end);
      for (size_t first = 0, next = 0; first < num_members; first = next) {
        const int64_t row = prefix.members[first].first_row;
        int64_t row_end = row;
        for (; next < num_members; ++next) {  // A member's rows stay together.
          const SharedPrefix::Member& member = prefix.members[next];
          const int64_t end = member.first_row + sequences_[member.sequence].num_rows;
          if (next > first && end - row > tile_tokens()) break;
          row_end = end;
        }
        add_prefix_items(prefix, {key, key_end, false}, row, row_end, first, next, *filled);
      }
      for (const SharedPrefix::Member& member : prefix.members)
        ++(*filled)[sharing_[member.sequence].member];
      key = key_end;
    }
  }

  void add_prefix_items(const SharedPrefix& prefix, const KvChunk& keys, int64_t row,
                        int64_t row_end, size_t first, size_t next,
                        const std::vector<int32_t>& filled) {
    list_.max_tile_rows = std::max(list_.max_tile_rows, row_end - row);
    list_.seconds += flop_seconds(row_end - row, keys.end - keys.begin, shape_.num_kv_heads);
    for (int64_t head = 0, part = 0; head < shape_.num_kv_heads; head += heads_per_item_, ++part) {
      const int64_t head_end = std::min<int64_t>(head + heads_per_item_, shape_.num_kv_heads);
      const int64_t partial = take_partial(row_end - row, head_end - head);
      const int32_t first_member = sharing_[prefix.members[first].sequence].member;
      for (size_t i = first; i < next; ++i) {
        const SharedPrefix::Member& member = prefix.members[i];
        const int32_t number = sharing_[member.sequence].member;
        split_offset(member_group(part, number), filled[number]) =
            partial + (member.first_row - row) * row_floats(head_end - head);
      }
      add_item(prefix.sequence, keys, row, row_end, head, head_end,
               member_group(part, first_member), partial, static_cast<int32_t>(next - first));
    }
  }

  const AttnSequence* sequences_;
  int64_t num_sequences_;
  const WorkShape& shape_;
  std::span<const SharedPrefix> prefixes_;
  WorkList& list_;
  std::vector<KvChunk> chunks_;
  std::vector<Sharing> sharing_;  // Per sequence; empty when nothing is shared.
  int32_t num_members_ = 0;
  int64_t first_member_group_ = 0;
  int64_t heads_per_item_ = 1;
};

}  // namespace

int64_t split_keys(const WorkShape& shape) {
  return shape.is_latent ? kLatentSplitKeys : kSplitKeys;
}

int64_t tile_tokens(const WorkShape& shape) {
  if (shape.is_latent) return std::max<int64_t>(1, kLatentRows / shape.group_size());
  return std::clamp<int64_t>(kTileRows / shape.group_size(), 1, kMaxTileTokens);
}

int64_t most_decode_rows(const WorkShape& shape) {
  // Splits of a latent layer's keys keep every thread busy up to some query rows; both kernels
  // compute the same.
  if (shape.is_latent) return 2 * kLatentRows / shape.group_size();
  return shape.tiles_only ? 0 : std::max<int64_t>(1, kDecodeRows / shape.group_size());
}

bool runs_on_decode(const WorkShape& shape, int64_t num_rows) {
  return num_rows <= most_decode_rows(shape);
}

void schedule_work(const AttnSequence* sequences, int64_t num_sequences, const WorkShape& shape,
                   std::span<const SharedPrefix> prefixes, WorkList* list) {
  Planner(sequences, num_sequences, shape, prefixes, list).run();
}

using kernels::AttnItem;
using kernels::AttnParams;

WorkShape work_shape(const kernels::cpu::KernelTable& kernels, const AttnParams& params,
                     bool tiles_only, int32_t concurrency) {
  return {.num_q_heads = params.num_q_heads,
          .num_kv_heads = params.num_kv_heads,
          .k_dim = params.k_dim,
          .v_dim = params.v_dim,
          .causal = params.causal != 0,
          .tiles_only = tiles_only,
          .is_latent = kernels.reads_latents != nullptr && kernels.reads_latents(params),
          .concurrency = concurrency};
}

ItemRunner::ItemRunner(const kernels::cpu::KernelTable* kernels, Executor* executor)
    : kernels_(kernels),
      executor_(executor),
      scratch_(static_cast<size_t>(executor->concurrency())) {}

void ItemRunner::secure(const WorkList& list, const AttnParams& params, const AttnParams* kept) {
  size_t bytes = 0;
  for (const AttnParams* of : {&params, kept}) {
    if (of == nullptr) continue;
    if (list.num_tile_items > 0)
      bytes = std::max(bytes, kernels_->attn_tile_scratch_bytes(*of, list.max_tile_rows));
    if (list.max_decode_rows > 0)
      bytes = std::max(bytes, kernels_->attn_decode_scratch_bytes(*of, list.max_decode_rows));
  }
  for (AlignedBuffer& scratch : scratch_) scratch.ensure(bytes);
  partials_.ensure(static_cast<size_t>(list.partial_floats) * sizeof(float));
  if (list.groups.size() > finished_capacity_) {
    const size_t capacity = list.groups.size() * 2;
    finished_ = std::make_unique<std::atomic<int32_t>[]>(capacity);
    finished_capacity_ = capacity;
  }
}

void ItemRunner::run_item(const WorkList& list, const AttnParams& params, const AttnParams& kept,
                          int64_t index, int32_t worker) {
  const AttnItem& item = list.items[index];
  const AttnParams& read = item.kept_part != 0 ? kept : params;
  std::byte* scratch = scratch_[worker].data();
  if (index < list.num_tile_items) {
    kernels_->attn_tile(read, item, scratch);
  } else {
    kernels_->attn_decode(read, item, scratch);
  }
  if (item.merge_group < 0) return;
  // The last split of a group to finish merges all of them, in index order: who that is does not
  // matter.
  const auto first = static_cast<size_t>(item.merge_group);
  for (size_t group = first; group < first + static_cast<size_t>(item.num_merge_groups); ++group) {
    const int32_t done = finished_[group].fetch_add(1, std::memory_order_acq_rel) + 1;
    if (done == list.groups[group].num_splits)
      kernels_->attn_merge_splits(params, list.groups[group]);
  }
}

void ItemRunner::run(const WorkList& list, const AttnParams& params,
                     const AttnParams* kept) noexcept {
  for (size_t group = 0; group < list.groups.size(); ++group)
    finished_[group].store(0, std::memory_order_relaxed);
  AttnParams own = params;
  own.partials = reinterpret_cast<float*>(partials_.data());
  own.split_offsets = list.split_offsets.data();
  AttnParams own_kept = kept != nullptr ? *kept : params;
  own_kept.partials = own.partials;
  own_kept.split_offsets = own.split_offsets;
  const auto num_items = static_cast<int64_t>(list.items.size());
  if (list.seconds < kWorthThreads) {
    for (int64_t index = 0; index < num_items; ++index) run_item(list, own, own_kept, index, 0);
  } else {
    executor_->run(num_items, [&](int64_t index, int32_t worker) {
      run_item(list, own, own_kept, index, worker);
    });
  }
}

}  // namespace kvc
