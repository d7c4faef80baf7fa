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

// Host memory that copies labels and may refuse at any time.
class FakeHost final : public HostTier {
 public:
  FakeHost(int64_t pages, std::vector<Label>* device)
      : device_(device), pages_(static_cast<size_t>(pages), kPoison) {
    for (PageId page = 0; page < pages; ++page) free_.push_back(page);
  }

  int64_t num_available() const noexcept override { return static_cast<int64_t>(free_.size()); }
  PageId demote(PageId page) noexcept override {
    if (free_.empty() || (refuse_every != 0 && ++num_demotes % refuse_every == 0)) return kNoPage;
    const PageId host = free_.back();
    free_.pop_back();
    pages_[static_cast<size_t>(host)] = (*device_)[static_cast<size_t>(page)];
    return host;
  }
  void promote(PageId host, PageId page) noexcept override {
    (*device_)[static_cast<size_t>(page)] = pages_[static_cast<size_t>(host)];
  }
  void release(PageId host) noexcept override {
    EXPECT_NE(pages_[static_cast<size_t>(host)], kPoison) << "released twice";
    pages_[static_cast<size_t>(host)] = kPoison;
    free_.push_back(host);
  }
  Label label(PageId host) const { return pages_[static_cast<size_t>(host)]; }
  int64_t num_used() const { return static_cast<int64_t>(pages_.size() - free_.size()); }

  int64_t refuse_every = 0;  // 0: never
  int64_t num_demotes = 0;

 private:
  std::vector<Label>* device_;
  std::vector<Label> pages_;
  std::vector<PageId> free_;
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
        contents(static_cast<size_t>(num_pages), kPoison),
        host(host_pages, &contents),
        index(*plan, &allocator, &states, host_pages == 0 ? nullptr : &host, event_capacity) {}

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
  std::vector<Label> contents;
  FakeHost host;
  PrefixIndex index;
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
