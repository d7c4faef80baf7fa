// A router as the header means it: starts from nothing, applies events in order, takes a snapshot
// when some were lost.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "tests/model/random.h"

namespace kvc::test {

class EventConsumer {
 public:
  // What a published block consists of, by key: events have to agree.
  struct Block {
    std::string salt, parent;  // parent empty: the root of the namespace
    std::vector<int32_t> tokens;
  };
  using Held = std::map<std::pair<std::string, int32_t>, kvc_tier>;  // by key and group

  // Polls until nothing waits, or once. Throws Mismatch.
  void poll(kvc_cache* cache, Random& random, const std::map<std::string, Block>& blocks, bool all);
  // Everything polled: equal to a snapshot? Throws Mismatch.
  void compare(const kvc_cache* cache, const std::map<std::string, Block>& blocks) const;
  const Held& held() const { return held_; }
  bool holds(const std::string& key, int32_t group) const { return held_.count({key, group}) != 0; }

 private:
  struct Snapshot {
    Held held;
    uint64_t number;
  };
  static Snapshot take(const kvc_cache* cache, const std::map<std::string, Block>& blocks);
  void apply(const kvc_event& event, const std::map<std::string, Block>& blocks);

  Held held_;
  uint64_t last_ = 0;
};

}  // namespace kvc::test
