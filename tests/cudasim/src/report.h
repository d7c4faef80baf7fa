// What an error says: kernel, CTA, who waits for what.
#pragma once

#include <string>

#include "cudasim/engine.h"

namespace cudasim {

[[noreturn]] void report_deadlock(const Cta& cta);
// From now on a crash inside a kernel names its place first.
void report_crashes();
// A kernel's name without parameters, from the symbols of the program or library that holds it.
std::string kernel_name(const void* kernel);

}  // namespace cudasim
