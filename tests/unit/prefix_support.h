// A prefix index with pools of pages whose contents are labels, for tests of the index.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "src/prefix/index.h"
#include "tests/model/random.h"
#include "tests/unit/spec_support.h"

namespace kvc::test {

using Label = uint64_t;
constexpr Label kPoison = ~Label{0};

// What page `index` of the block has to hold.
inline Label label_of(const BlockKey& key, int32_t index) {
  Label label;
  std::memcpy(&label, key.bytes.data() + 8, sizeof(label));
  return label + static_cast<Label>(index) * 0x9E3779B97F4A7C15ull;
}

// Pages that hold a label each, on the device and on the host.
class LabelDevice final : public Device {
 public:
  int64_t host_bytes() const override { return 0; }
  LabelDevice(int64_t device_pages, int64_t host_pages)
      : device(static_cast<size_t>(device_pages), kPoison),
        host(static_cast<size_t>(host_pages), kPoison) {}

  const char* name() const override { return "labels"; }
  int32_t num_threads() const override { return 1; }
  uint64_t num_copy_runs() const override { return 0; }
  void copy_pages(CopyDirection direction, const PageId* from, const PageId* to, int64_t count,
                  CallStream) noexcept override {
    const auto& source = direction == CopyDirection::kHostToDevice ? host : device;
    auto& target = direction == CopyDirection::kDeviceToHost ? host : device;
    for (int64_t i = 0; i < count; ++i)
      target[static_cast<size_t>(to[i])] = source[static_cast<size_t>(from[i])];
  }
  void copy_group_pages(const std::vector<PageCopy>&, CallStream) noexcept override { unused(); }
  void copy_bytes(void*, const void*, int64_t, CallStream) noexcept override { unused(); }
  void read_pages(const PageId*, int64_t, int64_t, std::byte*, CallStream) const override {
    unused();
  }
  void write_pages(const PageId*, int64_t, int64_t, const std::byte*, CallStream) override {
    unused();
  }
  void read_bytes(std::byte*, const std::byte*, int64_t, CallStream) const override { unused(); }
  void write_bytes(std::byte*, const std::byte*, int64_t, CallStream) override { unused(); }
  void move_tokens(int32_t, const TokenMoves&, CallStream) noexcept override { unused(); }
  void rotate_keys(int32_t, const kernels::Rotation&, const std::vector<int64_t>&,
                   CallStream) noexcept override {
    unused();
  }
  uint64_t write_rows(int32_t, const kernels::AppendParams&, int64_t,
                      CallStream) noexcept override {
    unused();
    return 0;
  }
  void read_rows(const RowSource&, const kernels::GatherParams&, int64_t, int64_t,
                 CallStream) const override {
    unused();
  }
  void convert(const Elements&, const Elements&, int64_t, CallStream) const override { unused(); }

  std::vector<Label> device, host;

 private:
  static void unused() { ADD_FAILURE() << "the index copies whole pages only"; }
};

// A window of this many tokens (0: none) or a chunk, and the tokens of a page.
struct GroupShape {
  int64_t window = 0;
  int64_t chunk = 0;
  int32_t page_size = 4;
};

inline Spec prefix_spec(const std::vector<GroupShape>& groups, bool has_states,
                        int64_t state_slots = 0) {
  std::vector<LayerSpec> layers;
  for (const GroupShape& group : groups) {
    LayerSpec layer = attention_layer(1, 1, 4, 4);
    layer.window = group.window;
    layer.chunk = group.chunk;
    layers.push_back(layer);
  }
  if (has_states) layers.push_back(state_layer({2}));
  Spec spec = spec_of(std::move(layers), 4);
  spec.groups.clear();  // one per shape, also where two are of one kind
  for (size_t g = 0; g < groups.size(); ++g) {
    GroupSpec group;
    group.layers = {static_cast<int32_t>(g)};
    group.window = groups[g].window;
    group.chunk = groups[g].chunk;
    group.page_size = groups[g].page_size;
    spec.layers[g].group = static_cast<int32_t>(g);
    spec.layers[g].region = 0;
    spec.groups.push_back(group);
  }
  spec.storage = KVC_STORAGE_NONE;
  spec.num_state_slots = state_slots;
  return spec;
}

struct PrefixWorld {
  PrefixWorld(Spec spec, int64_t num_pages, int64_t host_pages, int64_t event_capacity)
      : plan(std::make_shared<Plan>(std::move(spec))),
        allocator(num_pages),
        states(plan, &allocator, 0, plan->spec().num_state_slots),
        host(plan, host_pages),
        device(num_pages, host_pages),
        tier(&host, &device),
        index(*plan, &allocator, &states, host_pages == 0 ? nullptr : &tier, event_capacity) {}

  // Pages of the host pool that somebody else uses, so many if they are free.
  void occupy_host(int64_t pages) {
    for (const PageId page : occupied_) host.allocator().drop_ref(page);
    occupied_.clear();
    while (static_cast<int64_t>(occupied_.size()) < pages && host.allocator().num_available() > 0)
      occupied_.push_back(host.allocator().take(kNoPage, 0));
  }
  int64_t num_host_pages() const {
    return host.allocator().num_used() - static_cast<int64_t>(occupied_.size());
  }
  int32_t block() const { return index.block_tokens(); }
  uint64_t page_bytes() const { return static_cast<uint64_t>(plan->layout().page_bytes); }

  void check() const {
    std::vector<int32_t> pages(static_cast<size_t>(allocator.num_pages()), 0);
    std::vector<int32_t> slots(static_cast<size_t>(states.num_slots()), 0);
    index.check(&pages, &slots);
  }

  std::shared_ptr<const Plan> plan;
  PageAllocator allocator;
  StatePool states;
  HostPool host;
  LabelDevice device;
  HostTier tier;
  PrefixIndex index;

 private:
  std::vector<PageId> occupied_;
};

// Query and key chain over tokens of its own.
struct Prompt {
  Prompt(std::vector<int32_t> ids, int32_t block, const char* salt = "")
      : tokens(std::move(ids)), block_tokens(block) {
    query.root = namespace_root(salt, std::strlen(salt));
    renew();
  }
  Prompt(const Prompt&) = delete;
  Prompt& operator=(const Prompt&) = delete;

  // After a change of tokens or extra keys.
  void renew() {
    query.tokens = tokens.data();
    query.num_tokens = static_cast<int64_t>(tokens.size());
    chain = std::make_unique<KeyChain>(query, block_tokens);
  }
  PrefixMatch match(const PrefixIndex& index, int64_t max_tokens = INT64_MAX, bool whole = false,
                    bool host = true) {
    return index.match(*chain, max_tokens, whole, {.all = host, .some = nullptr});
  }

  std::vector<int32_t> tokens;
  int32_t block_tokens;
  PrefixQuery query;
  std::unique_ptr<KeyChain> chain;
};

inline std::vector<int32_t> ramp(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<int32_t>(i));
  return tokens;
}

}  // namespace kvc::test
