// Names in a plan, for people and for JSON.
#pragma once

#include <string>

#include "src/base/print.h"
#include "src/plan/spec.h"

namespace kvc {

// Element type in the pages, such as "int8".
std::string k_type_name(const LayerSpec& layer);
std::string v_type_name(const LayerSpec& layer);
const char* storage_name(kvc_storage storage);
const char* pool_layout_name(kvc_pool_layout layout);
// "full", "window", "chunk", "cross"
const char* group_kind_name(const GroupSpec& group);

}  // namespace kvc
