// What the bytes of a plan's pages and states mean, as text: equal exactly where pages can move
// between two caches without a change.
#pragma once

#include <string>
#include <string_view>

#include "src/plan/spec.h"

namespace kvc {

// One field a line, "layers[3].num_kv_heads = 8". It has what gives a byte its place or its
// meaning: layers, dims, element types, rotations, windows, layer groups. It has nothing of amounts
// (pages, limits), of places (device, pool layout) and of query heads.
std::string layout_text(const Spec& spec);

// "kvcache-layout-1:" and the SHA-256 of layout_text() in hexadecimal.
std::string layout_fingerprint(std::string_view text);

// Names the first field in which two texts differ and both values, for a message; empty: none.
// `mine` and `theirs` say whose values they are, as in "the cache" and "the file".
std::string layout_difference(std::string_view my_text, const char* mine,
                              std::string_view their_text, const char* theirs);

}  // namespace kvc
