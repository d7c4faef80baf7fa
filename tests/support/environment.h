// Numbers from the environment.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace kvc::test {

inline double environment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

// Of a test that draws its shapes: KVC_TEST_SCALE (sanitizer builds take a fraction) times as many.
inline uint64_t rounds(uint64_t count) {
  const auto scaled =
      static_cast<uint64_t>(static_cast<double>(count) * environment("KVC_TEST_SCALE", 1));
  return scaled < 3 ? 3 : scaled;
}

}  // namespace kvc::test
