#include "src/exec/cuda/cascade.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <tuple>
#include <utility>

#include "src/base/math.h"
#include "src/base/memory.h"
#include "src/exec/cuda/batch_metadata.h"

namespace kvc {

// BatchMetadataCache: prefixes that the sequences of an eager forward share. The host finds them in
// its page tables, for it alone knows which pages are the same; a captured plan could not change
// with the batch.

namespace {

using cuda::PrefixShare;
using kernels::AttnSequence;

template <typename T>
int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T));
}

template <typename T>
void write(std::byte* to, const std::vector<T>& values) {
  std::memcpy(to, values.data(), values.size() * sizeof(T));
}

// Equal pages must hold equal keys: all of them visible, all at their places where positions
// matter, and all rotated alike.
bool takes_part(const Forward& forward, const KeySelection& key, const BatchEntry& entry) {
  const Sequence& sequence = *entry.sequence;
  if (entry.append_length == 0 || entry.is_tree || entry.old_nodes != 0 || sequence.window != 0)
    return false;
  if (key.needs_positions && !sequence.segments.empty()) return false;
  return key.rope < 0 || !forward.uses_long(key.rope, entry);
}

}  // namespace

void BatchMetadataCache::list_sequences(const Forward& forward, const KeySelection& key) {
  const auto group = static_cast<size_t>(key.group);
  const cuda::StepState::LayerGroup& tables = step_->state().groups[group];
  cascade_sequences_.clear();
  for (const BatchEntry& entry : forward.batch().entries()) {
    const Sequence& sequence = *entry.sequence;
    const PageList& pages = sequence.tables[group].pages;
    const bool shares = takes_part(forward, key, entry) && pages.num_dropped() == 0;
    const int64_t stored = entry.old_stored(false);
    cascade_sequences_.push_back(
        {.pages = shares ? pages.data() : nullptr,
         .device_pages = tables.table + sequence.slot * tables.table_stride,
         .row_begin = entry.row_begin,
         .num_rows = entry.append_length,
         .num_keys = sequence.window == 0 ? stored + 1 : std::min(stored + 1, sequence.window),
         .position = stored});
  }
}

const SharedPrefixes* BatchMetadataCache::shared_prefixes_of(const Forward& forward,
                                                             BatchMetadata& metadata,
                                                             const CascadeCall& call,
                                                             DeviceUploads& uploads,
                                                             cuda::Stream stream) {
  SharedPrefixes* sharing = nullptr;
  for (const std::unique_ptr<SharedPrefixes>& known : metadata.sharings_) {
    if (known->call.same_as(call)) sharing = known.get();
  }
  if (sharing == nullptr) {
    metadata.sharings_.push_back(std::make_unique<SharedPrefixes>());
    sharing = metadata.sharings_.back().get();
    sharing->call = call;
    sharing->schedule.memory = DeviceBuffer(*device_);
  }
  DeviceCascade& cascade = sharing->cascade;
  if (sharing->step != forward.step()) {
    sharing->step = 0;  // Stays stale when making it throws.
    list_sequences(forward, metadata.key());
    const GroupSpec& group = spec_->groups[metadata.key().group];
    cascade.choose(cascade_sequences_, call, group.page_size, num_sms_);
    if (!cascade.empty()) {
      sharing->schedule.shape = {.num_kv_heads = call.num_kv_heads,
                                 .group_size = call.group_size,
                                 .causal = 1,
                                 .split_sinks = 0,
                                 .fixed_keys = 0,
                                 .min_rows = 0,
                                 .max_rows = INT_MAX,
                                 .geometry = call.geometry[static_cast<size_t>(cascade.kernel)]};
      ScheduleInput input = upload_sharing(metadata, cascade, uploads, stream);
      input.limits.max_keys = limits_of(forward, metadata).max_keys;
      input.limits.max_rows =
          forward.batch().num_rows() + static_cast<int64_t>(cascade.row_map.size());
      make_schedule(input, sharing->schedule, stream);
      sharing->sequences = input.sequences;
    }
    sharing->step = forward.step();
  }
  return cascade.empty() ? nullptr : sharing;
}

// One copy from the host: shares, how many sequences there are, the rows of the prefixes, and the
// prefixes themselves behind the room for the metadata's sequences, which come from the metadata.
BatchMetadataCache::ScheduleInput BatchMetadataCache::upload_sharing(const BatchMetadata& metadata,
                                                                     const DeviceCascade& cascade,
                                                                     DeviceUploads& uploads,
                                                                     cuda::Stream stream) const {
  const std::vector<AttnSequence>& entries = cascade.entries;
  const auto count = static_cast<int32_t>(cascade.shares.size());
  const int64_t own_bytes =
      static_cast<int64_t>(cascade.shares.size() * sizeof(AttnSequence)) - bytes_of(entries);
  const bool has_positions = metadata.key().needs_positions;
  const int64_t shares_at = own_bytes + bytes_of(entries);
  const int64_t rows_at = shares_at + bytes_of(cascade.shares);
  const int64_t positions_at = rows_at + bytes_of(cascade.row_map);
  const int64_t count_at = positions_at + (has_positions ? bytes_of(cascade.row_positions) : 0);
  const auto fill = [&](std::byte* host, std::byte* device) {
    int64_t row = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      AttnSequence entry = entries[i];
      entry.row_map = reinterpret_cast<const int32_t*>(device + rows_at) + row;
      if (has_positions)
        entry.row_positions = reinterpret_cast<const int32_t*>(device + positions_at) + row;
      row += entry.num_rows;
      std::memcpy(host + own_bytes + i * sizeof entry, &entry, sizeof entry);
    }
    write(host + shares_at, cascade.shares);
    write(host + rows_at, cascade.row_map);
    if (has_positions) write(host + positions_at, cascade.row_positions);
    std::memcpy(host + count_at, &count, sizeof count);
  };
  std::byte* device = uploads.put_filled(count_at + int64_t{sizeof count}, own_bytes, stream, fill);
  device_->copy(device, metadata.sequences(), own_bytes, stream);
  return {.sequences = reinterpret_cast<const AttnSequence*>(device),
          .num_sequences_at = reinterpret_cast<const int32_t*>(device + count_at),
          .shares = reinterpret_cast<const PrefixShare*>(device + shares_at),
          .limits = {
              .max_sequences = count, .max_rows = 0, .max_keys = 0, .max_prefixes = kPrefixLevels}};
}

namespace {

using cuda::AttnGeometry;
using cuda::AttnKernel;

double real(int64_t value) { return static_cast<double>(value); }

// What launches of a call cost. A tile is walked through its keys; tiles that go over the same keys
// read them from memory once and from the cache after that.
class LaunchPrice final : public SharingPrice {
 public:
  // `kernel`: that does everything where prefixes are shared.
  LaunchPrice(const CascadeCall& call, AttnKernel kernel, int32_t num_sms, const DeviceCosts& costs)
      : call_(call),
        kernel_(kernel),
        costs_(costs),
        heads_per_sm_(real(call.num_kv_heads) / num_sms) {}

  AttnKernel flat_kernel(int64_t num_rows) const {
    return num_rows * call_.group_size <= call_.small_rows ? call_.small : call_.large;
  }
  int64_t tiles(AttnKernel kernel, int64_t num_rows) const {
    return ceil_div(num_rows * call_.group_size, int64_t{geometry(kernel).tile_rows});
  }
  // Whether sequences of so many rows leave room for others in their tiles.
  bool may_share(int64_t num_rows) const {
    return 2 * num_rows * call_.group_size <= geometry(kernel_).tile_rows;
  }

  // Of tiles that all go over the same keys.
  double walk(AttnKernel kernel, int64_t num_tiles, int64_t num_keys) const {
    if (num_tiles == 0 || num_keys <= 0) return 0;
    const double key_bytes = real(call_.key_bytes), keys = real(num_keys);
    const double reading =
        keys * key_bytes * (1 / costs_.memory_bytes + real(num_tiles - 1) / costs_.cache_bytes);
    const double flops =
        2.0 * keys * real(num_tiles) * geometry(kernel).tile_rows * (call_.k_dim + call_.v_dim);
    return heads_per_sm_ * std::max(reading, flops / costs_.flops[static_cast<size_t>(kernel)]);
  }
  // What items cost beside their keys.
  double begin(AttnKernel kernel, int64_t num_tiles) const {
    const double keys = real(int64_t{geometry(kernel).item_cost} * geometry(kernel).key_block);
    return heads_per_sm_ * real(num_tiles) * keys * real(call_.key_bytes) / costs_.memory_bytes;
  }
  // Writing and reading partial results of so many token rows.
  double merge(int64_t num_rows) const {
    const double floats = real(num_rows * call_.group_size) * (2.0 + call_.v_dim);
    return heads_per_sm_ * 2 * floats * sizeof(float) / costs_.cache_bytes;
  }
  // A prefix, once and by each member; `num_rows`: with padding.
  double together(int64_t num_rows, int64_t num_keys) const {
    const int64_t num_tiles = tiles(kernel_, num_rows);
    return walk(kernel_, num_tiles, num_keys) + begin(kernel_, num_tiles) + 2 * merge(num_rows);
  }
  // The tiles of sequences that do without sharing.
  struct FlatTiles {
    int64_t small = 0, large = 0;

    FlatTiles& operator+=(const FlatTiles& other) {
      small += other.small;
      large += other.large;
      return *this;
    }
  };
  FlatTiles flat_tiles(int64_t num_rows) const {
    const AttnKernel kernel = flat_kernel(num_rows);
    const int64_t number = tiles(kernel, num_rows);
    return kernel == call_.small ? FlatTiles{number, 0} : FlatTiles{0, number};
  }
  double apart(const FlatTiles& flat, int64_t num_keys) const {
    return walk(call_.small, flat.small, num_keys) + walk(call_.large, flat.large, num_keys);
  }

  // Tiles of either kernel: whole numbers, exact in a double.
  MemberWork work(const PrefixCandidate& member) const override {
    const FlatTiles flat = flat_tiles(member.num_rows);
    return {real(flat.small), real(flat.large)};
  }
  bool pays(const PrefixMembers& members, int64_t num_keys) const override {
    const FlatTiles flat{static_cast<int64_t>(members.work[0]),
                         static_cast<int64_t>(members.work[1])};
    return together(members.num_rows, num_keys) < apart(flat, num_keys);
  }

 private:
  const AttnGeometry& geometry(AttnKernel kernel) const {
    return call_.geometry[static_cast<size_t>(kernel)];
  }

  const CascadeCall& call_;
  const AttnKernel kernel_;
  const DeviceCosts& costs_;
  const double heads_per_sm_;
};

}  // namespace

bool CascadeCall::same_as(const CascadeCall& other) const {
  const auto all = [](const CascadeCall& c) {
    return std::tie(c.num_kv_heads, c.group_size, c.k_dim, c.v_dim, c.key_bytes, c.small, c.large,
                    c.small_rows, c.kernels);
  };
  return all(*this) == all(other);
}

int64_t DeviceCascade::host_bytes() const {
  int64_t bytes = kvc::host_bytes(entries) + kvc::host_bytes(shares) + kvc::host_bytes(row_map) +
                  kvc::host_bytes(row_positions) + kvc::host_bytes(first_pages_) +
                  kvc::host_bytes(candidates_) + kvc::host_bytes(prefixes_);
  for (const CommonPrefix& prefix : prefixes_) bytes += kvc::host_bytes(prefix.sequences);
  return bytes;
}

void DeviceCascade::clear() {
  entries.clear();
  shares.clear();
  row_map.clear();
  row_positions.clear();
}

// One look at the first page of each before anything else: most batches end here.
bool DeviceCascade::any_pages_are_shared(std::span<const CascadeSequence> sequences) {
  first_pages_.clear();
  for (const CascadeSequence& sequence : sequences) {
    if (sequence.pages != nullptr) first_pages_.push_back(sequence.pages[0]);
  }
  std::sort(first_pages_.begin(), first_pages_.end());
  return std::adjacent_find(first_pages_.begin(), first_pages_.end()) != first_pages_.end();
}

void DeviceCascade::choose(std::span<const CascadeSequence> sequences, const CascadeCall& call,
                           int32_t page_size, int32_t num_sms, const DeviceCosts& costs) {
  clear();
  if (!any_pages_are_shared(sequences)) return;
  double best_gain = 0;
  std::vector<CommonPrefix> best;
  for (int32_t index = 0; index < cuda::kNumAttnKernels; ++index) {
    if ((call.kernels >> index & 1u) == 0) continue;
    const auto candidate = static_cast<AttnKernel>(index);
    const LaunchPrice price(call, candidate, num_sms, costs);
    candidates_.clear();
    for (size_t i = 0; i < sequences.size(); ++i) {
      const CascadeSequence& sequence = sequences[i];
      if (sequence.pages == nullptr || !price.may_share(sequence.num_rows)) continue;
      candidates_.push_back(
          {static_cast<int32_t>(i), sequence.pages, sequence.num_keys, sequence.num_rows});
    }
    const int64_t tile_rows = call.geometry[index].tile_rows;
    find_shared_prefixes(candidates_, {page_size, call.geometry[index].key_block}, price,
                         &prefixes_);
    if (prefixes_.empty()) continue;
    build(sequences, prefixes_, call.group_size, tile_rows);
    double flat = 0, shared = costs.seconds_per_call;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const CascadeSequence& sequence = sequences[i];
      const AttnKernel alone = price.flat_kernel(sequence.num_rows);
      const int64_t own_keys = sequence.num_keys + sequence.num_rows / 2 - shares[i].key_begin;
      const int64_t flat_tiles = price.tiles(alone, sequence.num_rows);
      const int64_t shared_tiles = price.tiles(candidate, sequence.num_rows);
      flat += price.walk(alone, flat_tiles, own_keys) + price.begin(alone, flat_tiles);
      shared +=
          price.walk(candidate, shared_tiles, own_keys) + price.begin(candidate, shared_tiles);
    }
    for (size_t i = 0; i < prefixes_.size(); ++i) {
      const int64_t num_keys = prefixes_[i].key_end - prefixes_[i].key_begin;
      LaunchPrice::FlatTiles tiles;
      for (const int32_t member : prefixes_[i].sequences)
        tiles += price.flat_tiles(sequences[member].num_rows);
      flat += price.apart(tiles, num_keys);
      shared += price.together(entries[i].num_rows, num_keys);
    }
    const double gain = flat - shared;
    if (gain <= flat * costs.smallest_gain || gain <= best_gain) continue;
    best_gain = gain;
    best = prefixes_;
    kernel = candidate;
  }
  clear();
  if (best.empty()) return;
  build(sequences, best, call.group_size, call.geometry[static_cast<size_t>(kernel)].tile_rows);
}

void DeviceCascade::build(std::span<const CascadeSequence> sequences,
                          const std::vector<CommonPrefix>& prefixes, int64_t group_size,
                          int64_t tile_rows) {
  clear();
  shares.resize(sequences.size() + prefixes.size(), {});
  for (size_t i = 0; i < prefixes.size(); ++i) {
    const CommonPrefix& prefix = prefixes[i];
    const auto number = static_cast<int32_t>(sequences.size() + i);
    const size_t first = row_map.size();
    const auto num_rows = [&] { return static_cast<int64_t>(row_map.size() - first); };
    for (const int32_t member : prefix.sequences) {
      const CascadeSequence& sequence = sequences[member];
      const auto add = [&](int64_t row) {
        row_map.push_back(static_cast<int32_t>(sequence.row_begin + row));
        row_positions.push_back(static_cast<int32_t>(sequence.position + row));
      };
      // Its rows, which fill one tile at most, lie in one tile of the entry: copies of its first
      // row, whose results nobody takes, fill up the one before.
      const int64_t own_rows = sequence.num_rows * group_size;
      while (num_rows() * group_size % tile_rows + own_rows > tile_rows) add(0);
      cuda::PrefixShare& share = shares[member];
      share.prefix[share.num_prefixes] = number;
      share.prefix_row[share.num_prefixes] = static_cast<int32_t>(num_rows());
      share.key_begin = static_cast<int32_t>(prefix.key_end);
      ++share.num_prefixes;
      for (int64_t row = 0; row < sequence.num_rows; ++row) add(row);
    }
    kernels::AttnSequence entry{};
    entry.pages = sequences[prefix.sequences.front()].device_pages;
    entry.num_rows = num_rows();
    entry.first_key_end = prefix.key_end;
    entries.push_back(entry);
    shares[number].key_begin = static_cast<int32_t>(prefix.key_begin);
    shares[number].key_end = static_cast<int32_t>(prefix.key_end);
  }
}

}  // namespace kvc
