// The sequences of a cache, as callers name them: by their ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/step/batch.h"

namespace kvc {

struct CacheCore;

// Every function throws Error or std::bad_alloc; nothing has changed then.
class CacheSequences {
 public:
  explicit CacheSequences(CacheCore& core) : core_(core) {}

  void add(kvc_seq id);
  void remove(kvc_seq id);
  // The child has the parent's tokens before `position`; -1: all of them.
  void fork(kvc_seq parent, kvc_seq child, int64_t position);
  void pop(kvc_seq id, int64_t num_tokens);
  // See context_shift.h.
  void shift(kvc_seq id, int64_t begin, int64_t end, int64_t delta);
  void set_window(kvc_seq id, int64_t window, int64_t sink);
  // Keeps the state at the sequence's length. At the end of a block that the sequence has published
  // the prefix index gets the state too.
  void checkpoint(kvc_seq id);
  void release_checkpoint(kvc_seq id, int64_t position);
  // See tree_commit.h.
  void commit_trees(size_t num_seqs, const kvc_seq* seqs, const int32_t* leaves, CallStream stream);

  int64_t length(kvc_seq id) const;
  int64_t total_length() const;
  kvc_seq_info info(kvc_seq id) const;
  std::vector<kvc_seq> sorted_ids() const;
  // Pages that a forward of this request would lack now.
  int64_t missing_pages(const BatchRequest& request) const;
  // The positions around `position` at which `op` is possible.
  Neighbours positions(kvc_seq id, kvc_seq_op op, int64_t position) const;

 private:
  CacheCore& core_;
};

}  // namespace kvc
