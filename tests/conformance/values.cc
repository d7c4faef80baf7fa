#include "tests/conformance/values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace kvc::conformance {

double value(Kind kind, int32_t layer, int64_t id, int64_t head, int64_t element) {
  uint32_t x = static_cast<uint32_t>(id) * 0x9E3779B1u + static_cast<uint32_t>(layer) * 0x85EBCA77u +
               static_cast<uint32_t>(head) * 0xC2B2AE3Du + static_cast<uint32_t>(element) * 0x27D4EB2Fu +
               static_cast<uint32_t>(kind) * 0x165667B1u;
  x ^= x >> 15;
  x *= 0x2C1B3C6Du;
  x ^= x >> 12;
  x *= 0x297A2D39u;
  x ^= x >> 15;
  return (static_cast<double>(x & 127u) - 64) / 64;
}

Vector values(Kind kind, int32_t layer, int64_t id, int64_t head, int64_t size) {
  Vector x(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) x[static_cast<size_t>(i)] = value(kind, layer, id, head, i);
  return x;
}

namespace {

int64_t parse_number(const std::string& text, const int64_t* own) {
  if (text.empty()) throw std::runtime_error("a number is missing in a list of ids");
  size_t used = 0;
  if (text[0] != '@') {
    const int64_t number = std::stoll(text, &used);
    if (used != text.size()) throw std::runtime_error("'" + text + "' is no number");
    return number;
  }
  if (own == nullptr) throw std::runtime_error("'@' has no meaning in this list");
  if (text.size() == 1) return *own;
  const int64_t offset = std::stoll(text.substr(1), &used);
  if (used + 1 != text.size()) throw std::runtime_error("'" + text + "' is no number");
  return *own + offset;
}

}  // namespace

Ids parse_ids(const std::string& text, const int64_t* own) {
  Ids ids;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, comma - begin);
    const size_t dots = part.find("..");
    const int64_t first = parse_number(part.substr(0, dots), own);
    const int64_t last = dots == std::string::npos ? first : parse_number(part.substr(dots + 2), own);
    if (last < first) throw std::runtime_error("'" + part + "' is an empty range");
    for (int64_t id = first; id <= last; ++id)
      if (own == nullptr || id >= 0) ids.push_back(id);
    begin = comma + 1;
  }
  return ids;
}

void rotate(const Rope& rope, const Vector& position, bool use_long, Vector& x) {
  if (!rope.on) return;
  const Vector& frequencies =
      use_long && !rope.long_frequencies.empty() ? rope.long_frequencies : rope.frequencies;
  const size_t half = static_cast<size_t>(rope.rotary_dim) / 2;
  const size_t n = rope.sections.size();
  size_t section = 0, pairs_left = n == 0 ? half : static_cast<size_t>(rope.sections[0]);
  for (size_t i = 0; i < half; ++i) {
    if (n > 1 && !rope.sections_interleaved) {
      while (pairs_left == 0) pairs_left = static_cast<size_t>(rope.sections[++section]);
      --pairs_left;
    } else if (n > 1) {
      section = static_cast<int32_t>(i / n) < rope.sections[i % n] ? i % n : 0;
    }
    const double p = position.size() == 1 ? position[0] : position.at(section);
    const double angle = p * rope.scale * frequencies.at(i);
    const size_t first = static_cast<size_t>(rope.offset) + (rope.interleaved ? 2 * i : i);
    const size_t second = rope.interleaved ? first + 1 : first + half;
    const double a = x.at(first), b = x.at(second);
    x[first] = rope.magnitude * (a * std::cos(angle) - b * std::sin(angle));
    x[second] = rope.magnitude * (b * std::cos(angle) + a * std::sin(angle));
  }
}

Attended attend(const Softmax& softmax, const Vector& q, const std::vector<Key>& keys, size_t v_dim) {
  Vector scores;
  for (const Key& key : keys) {
    double s = softmax.scale * std::inner_product(q.begin(), q.end(), key.k->begin(), 0.0);
    if (softmax.soft_cap > 0) s = softmax.soft_cap * std::tanh(s / softmax.soft_cap);
    scores.push_back(s + key.bias);
  }
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const double top = scores.empty() ? kNone : *std::max_element(scores.begin(), scores.end());
  Attended result{Vector(v_dim, 0.0), kNone};
  if (top == kNone) return result;
  double sum = 0;
  for (size_t j = 0; j < keys.size(); ++j) {
    const double weight = std::exp(scores[j] - top);
    sum += weight;
    for (size_t d = 0; d < v_dim; ++d) result.out[d] += weight * (*keys[j].v)[d];
  }
  result.lse = top + std::log(sum);
  const double denominator = softmax.has_sink ? sum + std::exp(softmax.sink - top) : sum;
  for (double& x : result.out) x /= denominator;
  return result;
}

Vector linear_step(const LinearToken& token, std::vector<Vector>& state) {
  const size_t rows = token.k.size(), columns = token.v.size();
  for (size_t i = 0; i < rows; ++i)
    for (double& s : state[i]) s *= std::exp(token.decay[i]);
  Vector u = token.v;
  for (size_t j = 0; j < columns; ++j) {
    if (token.delta)
      for (size_t i = 0; i < rows; ++i) u[j] -= state[i][j] * token.k[i];
    u[j] *= token.beta;
  }
  Vector out(columns, 0.0);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      state[i][j] += token.k[i] * u[j];
      out[j] += state[i][j] * token.q[i];
    }
  }
  for (size_t j = 0; j < columns; ++j) out[j] = token.scale * out[j] + token.skip * token.v[j];
  return out;
}

}  // namespace kvc::conformance
