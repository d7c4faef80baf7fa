// Bytes that operator new of the whole program has handed out and not got back, as they were asked
// for.
#pragma once

#include <cstdint>

namespace kvc::test {

int64_t allocated_bytes();

}  // namespace kvc::test
