// Tests wait for what has to happen. How long that takes is the machine's affair.
#pragma once

#include <chrono>
#include <thread>

namespace kvc::test {

// Far more than a machine needs whose cores are busy with other programs.
constexpr std::chrono::seconds kPatience{120};

// Asks again and again. False: the condition has not come true, and something is broken.
template <typename Condition>
bool comes_true(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

}  // namespace kvc::test
