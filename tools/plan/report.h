// A capacity for people and for programs.
#pragma once

#include <string>

#include "tools/plan/capacity.h"

namespace kvc::plan_tool {

// The library's table and a summary in plain words. Why the plan is shorter than what was asked
// for, a sentence with what would help; empty where it is not.
std::string warning_of(const Capacity& capacity);
std::string text_report(const Capacity& capacity);
// One object: the library's JSON of the plan (of the rank with the fewest pages), and what the
// summary says.
std::string json_report(const Capacity& capacity);

}  // namespace kvc::plan_tool
