// A capacity as a picture.
#pragma once

#include <string>

#include "tools/plan/capacity.h"

namespace kvc::plan_tool {

// An SVG figure: the pages of one request by the kind of layer group, and the requests that fit at
// once, both over the tokens of a request.
std::string svg_figure(const Capacity& capacity);

}  // namespace kvc::plan_tool
