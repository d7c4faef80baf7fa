// What a run looks like: for people, for programs, as a figure.
#pragma once

#include <string>

#include "tools/demo/demo_run.h"

namespace kvc::demo {

std::string text_report(const DemoRun& run, bool colours);
std::string json_report(const DemoRun& run);
std::string svg_report(const DemoRun& run);

}  // namespace kvc::demo
