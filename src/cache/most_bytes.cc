#include "src/cache/most_bytes.h"

#include <algorithm>
#include <cmath>

#include "src/cache/cache.h"
#include "src/cache/cache_core.h"
#include "src/exec/cpu/most_bytes.h"

namespace kvc {
namespace {

// A vector that grows by pushes has up to twice what it holds.
constexpr double kVectorGrowth = 2;
// Objects of a cache that do not grow: itself, small tables, least capacities.
constexpr double kFixedBytes = 64 << 10;
// Nodes of a token tree that a sequence may have beside those of the largest forward.
constexpr double kSmallTree = 64;
// Segments of positions, which kvc_seq_shift makes.
constexpr double kMoves = 4;
// Dropped places that a page table keeps before they become a gap, see PageList::close_up.
constexpr double kDroppedPlaces = 16;

template <typename T>
double grown(double count) {
  return kVectorGrowth * count * static_cast<double>(sizeof(T));
}

// What a full cache holds.
class CacheBounds {
 public:
  explicit CacheBounds(const Plan& plan)
      : plan_(plan),
        spec_(plan.spec()),
        pages_(static_cast<double>(plan.num_pages())),
        host_pages_(static_cast<double>(plan.num_host_pages())),
        groups_(static_cast<double>(spec_.groups.size())),
        tokens_(static_cast<double>(plan.max_tokens(plan.num_pages())) +
                static_cast<double>(plan.max_tokens(plan.num_host_pages()))),
        sequences_(spec_.max_seqs > 0 ? spec_.max_seqs
                                      : std::max({1.0, pages_ + host_pages_,
                                                  static_cast<double>(spec_.num_state_slots)})),
        rows_(spec_.max_tokens_per_forward > 0 ? static_cast<double>(spec_.max_tokens_per_forward)
                                               : std::max(1.0, tokens_)) {}

  double sum() const {
    const bool is_on_host = spec_.storage == KVC_STORAGE_OWNED && !spec_.is_on_gpu();
    const double page_bytes = static_cast<double>(plan_.layout().page_bytes);
    const bool has_host_pool = spec_.storage != KVC_STORAGE_NONE;
    const double pools =
        (is_on_host ? pages_ * page_bytes : 0) + (has_host_pool ? host_pages_ * page_bytes : 0);
    return kFixedBytes + pools + allocators() + states() + tables() + histories() + index() +
           events() + forward() + engine();
  }

 private:
  double allocators() const {
    // References, marks, and the bitmaps of free and freed pages with their summaries.
    constexpr double kPerPage = sizeof(int32_t) + sizeof(uint8_t) + 2.0 * (1 + 1.0 / 64) / 8;
    return (pages_ + host_pages_) * kPerPage;
  }

  // State slots that the device, or the host, keeps: before and after a forward, and checkpoints.
  double slots_of(double pages, double withheld, double configured) const {
    if (configured > 0) return configured;
    if (withheld > 0) return pages / withheld;
    return 2 * sequences_ +
           (spec_.state_stride > 0 ? tokens_ / static_cast<double>(spec_.state_stride) : 0);
  }
  double num_slots() const {
    if (!spec_.has_states()) return 0;
    const auto withheld = static_cast<double>(plan_.state_slot_pages());
    return slots_of(pages_, withheld, static_cast<double>(spec_.num_state_slots)) +
           (host_pages_ > 0 ? slots_of(host_pages_, withheld, 0) : 0);
  }
  double states() const {
    if (!spec_.has_states()) return 0;
    constexpr double kBufferPage = 4096;
    constexpr double kPerSlot =
        sizeof(AlignedBuffer) + sizeof(PinnedMemory) + 2 * sizeof(int32_t) + sizeof(uint8_t);
    const bool has_memory = spec_.storage != KVC_STORAGE_NONE;
    const double bytes =
        has_memory ? 1.25 * static_cast<double>(plan_.layout().state_slot_bytes) + kBufferPage : 0;
    return num_slots() * (bytes + kVectorGrowth * kPerSlot) + 2 * bytes;
  }

  double tables() const {
    // Their objects, the slots and the map of them.
    const double per_sequence = static_cast<double>(sizeof(Sequence)) +
                                groups_ * static_cast<double>(sizeof(PageTable)) +
                                2 * sizeof(void*) + 2 * sizeof(int32_t) + 4 * sizeof(void*) +
                                kMoves * sizeof(PositionSegment);
    constexpr double kPerNode = 3 * sizeof(int32_t) + sizeof(uint8_t);
    return (sequences_ + 1) * per_sequence + 16 * (2 * sizeof(void*) + 4 * sizeof(int64_t)) +
           grown<PageId>(2 * (pages_ + host_pages_) + kDroppedPlaces * sequences_ * groups_) +
           kVectorGrowth * kPerNode * (kSmallTree * sequences_ + rows_) +
           (spec_.has_states() ? grown<Checkpoint>(num_slots() + 4 * sequences_) : 0);
  }

  // Of the sequences, and two that are kept for others.
  double histories() const {
    if (spec_.has_cross()) return 0;
    constexpr double kSpares = 2;
    const auto block = static_cast<double>(std::max(1, plan_.spec().prefix_block()));
    return (1 + kSpares) * kVectorGrowth * tokens_ * (sizeof(int32_t) + sizeof(BlockKey) / block) +
           (1 + kSpares) * (sequences_ + 1) * sizeof(BlockKey);
  }

  double index() const {
    if (spec_.has_cross()) return 0;
    const BlockShape shape(plan_);
    const double per_block = std::max(1, shape.pages_per_block);
    int32_t least_per_block = 0;  // Most blocks have no kept rows.
    for (const BlockGroup& group : shape.groups)
      least_per_block += group.spec->has_kept_rows() ? 0 : group.num_pages;
    // A block that a window or an eviction took pages of may keep a single one.
    const double pages = pages_ + host_pages_;
    const double new_blocks = rows_ / std::max(1, shape.block_tokens) + sequences_ + 64;
    const double blocks = (shape.num_windows > 0 ? pages : pages / std::max(1, least_per_block)) +
                          (shape.has_states ? num_slots() : 0) + new_blocks;
    constexpr double kSlotOfKey = 8 * sizeof(uint64_t);  // See KeyTable::reserve.
    constexpr double kPlace = sizeof(int32_t), kEntry = 2 * sizeof(uint64_t);
    const double orders = 3.0 + shape.num_windows;
    const double per_node = static_cast<double>(sizeof(Node)) + per_block * sizeof(int32_t) +
                            static_cast<double>(shape.block_tokens) * sizeof(int32_t) + kSlotOfKey +
                            orders * (kPlace + kEntry) + kPlace;
    const double spaces = static_cast<double>(sizeof(Namespace)) + kSlotOfKey;
    return kVectorGrowth * (blocks * per_node + new_blocks * spaces) + pages_ * sizeof(NodeId);
  }

  double events() const {
    if (spec_.event_capacity == 0) return 0;
    return 1.25 * static_cast<double>(spec_.event_capacity) * sizeof(Event) + 4096;
  }

  // The batch, and what is computed of it once.
  double forward() const {
    constexpr double kWordsPerEntry = 32;
    const double tables = sequences_ * groups_;
    return grown<BatchEntry>(sequences_) + grown<TableChange>(tables) + grown<PageCopy>(tables) +
           grown<PageId>(spec_.clears_pages ? pages_ : 0) +
           grown<int32_t>(kWordsPerEntry * sequences_ + 4 * tables + 2 * pages_ + rows_) +
           grown<OldState>(spec_.has_states() ? num_slots() + sequences_ : 0) +
           grown<int32_t>(rows_ * (2.0 + spec_.num_position_rows())) +
           grown<int64_t>(rows_ * std::max(1.0, groups_)) +
           static_cast<double>(spec_.layers.size()) * (1 + kMaxStates);
  }

  double engine() const {
    if (spec_.storage == KVC_STORAGE_NONE || spec_.is_on_gpu()) return kFixedBytes;
    return most_engine_bytes(plan_, {sequences_, rows_, std::max(rows_, tokens_)});
  }

  const Plan& plan_;
  const Spec& spec_;
  const double pages_, host_pages_, groups_;
  const double tokens_;     // All that the pages hold.
  const double sequences_;  // Sequences in the cache.
  const double rows_;       // New tokens of a forward.
};

}  // namespace

uint64_t most_host_bytes(const Plan& plan) {
  if (plan.num_pages() == 0 && !plan.spec().groups.empty()) return 0;
  const double bytes = std::ceil(CacheBounds(plan).sum());
  constexpr double kMost = 0x1p63;
  return bytes < kMost ? static_cast<uint64_t>(bytes) : uint64_t{1} << 63;
}

}  // namespace kvc
