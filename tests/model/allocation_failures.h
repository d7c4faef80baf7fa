// Makes the n-th allocation of a stretch of code fail: operator new of the whole program, and host
// allocators that ask should_fail().
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc::test {

// From now on the n-th allocation (1: the next one; 0: none) fails, once.
void arm_allocation_failure(int64_t n);
// Back to normal; true when the failure happened.
bool disarm_allocation_failure();
// Counts one allocation; true: it has to fail. For allocators of the test's own.
bool should_fail();
// Allocations counted since the last arming.
int64_t counted_allocations();
// Bytes of the largest one that operator new was asked for since the last arming, on one thread.
std::size_t largest_allocation();

}  // namespace kvc::test
