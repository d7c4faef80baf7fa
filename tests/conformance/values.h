// The numbers of the scenarios: every value is a function of what it is, which layer, which token, which head and which element, so
// that a runner in any language computes them anew. All values are multiples of 1/64 in [-1, 1): exact in every storage type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvc::conformance {

using Ids = std::vector<int64_t>;
using Vector = std::vector<double>;

enum class Kind : uint32_t {
  kQuery = 1,
  kKey = 2,
  kValue = 3,
  kState = 4,
  kInput = 5,
  kWeight = 6,
  kDecay = 7,
  kBeta = 8
};

double value(Kind kind, int32_t layer, int64_t id, int64_t head, int64_t element);

// value() of `size` elements of a head.
Vector values(Kind kind, int32_t layer, int64_t id, int64_t head, int64_t size);

// "0..3,7,@-1..@": inclusive ranges and numbers; '@' is `own`. Numbers below zero are left out when `own` is given.
Ids parse_ids(const std::string& text, const int64_t* own = nullptr);

// Angles of the rotary embedding of one layer, as a scenario states them.
struct Rope {
  bool on = false;
  bool interleaved = false;
  int32_t offset = 0;       // first element that turns
  int32_t rotary_dim = 0;   // elements that turn
  double scale = 1;         // factor on the position
  double magnitude = 1;     // factor on the turned vector
  Vector frequencies;       // [rotary_dim/2]
  Vector long_frequencies;  // [rotary_dim/2] when they differ by length, else empty
  std::vector<int32_t> sections;
  bool sections_interleaved = false;
};

// Turn a vector in place at `position` (one number, or one of each section).
void rotate(const Rope& rope, const Vector& position, bool use_long, Vector& x);

// One query head over the keys it sees.
struct Softmax {
  double scale = 1, soft_cap = 0;
  bool has_sink = false;
  double sink = 0;
};
struct Key {
  const Vector* k;
  const Vector* v;
  double bias;  // added to the score; -inf masks the key
};
struct Attended {
  Vector out;
  double lse;
};
Attended attend(const Softmax& softmax, const Vector& q, const std::vector<Key>& keys, size_t v_dim);

// One token of a linear attention head: state [Dk][Dv], see kvc_decay in kvcache.h.
struct LinearToken {
  Vector q, k, v;
  Vector decay;  // ln(decay) of each row of the state: [Dk]
  double beta = 1;
  double skip = 0, scale = 1;
  bool delta = false;
};
Vector linear_step(const LinearToken& token, std::vector<Vector>& state);

}  // namespace kvc::conformance
