// The positions that a sequence can be cut at: the next query must find its visible range.
#pragma once

#include <cstdint>

#include "src/plan/spec.h"
#include "src/sequences/sequence.h"

namespace kvc {

class ResumePoints {
 public:
  // Borrows `spec`. `has_states`: some layer is of kind STATE.
  ResumePoints(const Spec& spec, bool has_states) : spec_(&spec), has_states_(has_states) {}

  // The sequence can go on from its first `position` tokens.
  bool allows(const Sequence& sequence, int64_t position) const;
  // The allowed position next to `position` (at most the length); of two the lower one. The end of
  // the sequence is always allowed. `looks`, for tests: counts the positions and checkpoints that
  // were looked at.
  int64_t nearest(const Sequence& sequence, int64_t position, int64_t* looks = nullptr) const;
  // Throws OUT_OF_RANGE, with the nearest position as detail, when `position` is not allowed.
  // `argument` = `value` is what the caller was given.
  void check(const Sequence& sequence, int64_t position, const char* argument, int64_t value) const;

 private:
  int64_t lower(const Sequence& sequence, int64_t position, int64_t* looks) const;
  int64_t higher(const Sequence& sequence, int64_t position, int64_t* looks) const;

  const Spec* spec_;
  bool has_states_;
};

}  // namespace kvc
