// Where a row of the demo keeps its keys and values: what differs between the rows. Model,
// scheduler and sampler are the same for all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/llm/network.h"

namespace kvc::demo {

// One sequence's part of a step: `count` new tokens after the `begin` that are cached.
struct BatchItem {
  int sequence;
  int64_t begin;
  int64_t count;
};

struct MemoryUse {
  uint64_t reserved_bytes = 0;  // memory that others cannot have
  uint64_t used_bytes = 0;      // reserved bytes that hold a token's key or value
};

// One page of a pool at some moment. Without references the page is free.
struct PageUse {
  int refs = 0;
  int first_sequence = -1;    // lowest sequence with a reference
  uint64_t filled_bytes = 0;  // K and V of the tokens in it.
};

// attend() keeps the new keys and values of the step's tokens, then attends.
class KvStore : public llm::Attention {
 public:
  // False: no memory for another sequence now.
  virtual bool add(int sequence) = 0;
  // `child` starts with the first `length` tokens of `parent`; only where can_fork().
  virtual void fork(int parent, int child, int64_t length) = 0;
  virtual bool can_fork() const = 0;
  virtual void remove(int sequence) = 0;

  // Opens a step. False: the memory is full now and nothing has changed.
  virtual bool begin(std::span<const BatchItem> batch) = 0;
  virtual void end() = 0;

  virtual MemoryUse memory() const = 0;
  virtual std::vector<PageUse> pages() const { return {}; }
};

}  // namespace kvc::demo
