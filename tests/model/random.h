// A small seeded generator: the same sequence on every platform and standard library, so that a
// printed seed is a reproducer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace kvc::test {

// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x1234567) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Uniform in [least, most].
  int64_t range(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(next() % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(double probability) { return unit() < probability; }
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  double symmetric() { return 2 * unit() - 1; }  // [-1, 1)

  template <typename T>
  const T& pick(const std::vector<T>& values) {
    return values[static_cast<size_t>(range(0, static_cast<int64_t>(values.size()) - 1))];
  }
  template <typename T>
  T pick_of(std::initializer_list<T> values) {
    return *(values.begin() + range(0, static_cast<int64_t>(values.size()) - 1));
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1], values[static_cast<size_t>(next() % i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace kvc::test
