// The pages of a pool at one moment, as a picture of cells: who holds what. The terminal and the
// SVG draw the same cells.
#pragma once

#include <string>
#include <vector>

#include "tools/demo/kv_store.h"

namespace kvc::demo {

struct MapCell {
  enum Kind { kFree, kShared, kOwn } kind = kFree;
  int owner = -1;  // kOwn: the conversation
  bool operator==(const MapCell&) const = default;
};

// `root`: the sequence that keeps the system prompt; what it holds is shared whoever else does.
std::vector<MapCell> map_cells(const std::vector<PageUse>& pages, int root);

struct MapCounts {
  int64_t shared = 0, own = 0, free = 0;
};
MapCounts count_cells(const std::vector<MapCell>& cells);

// '#' shared, a letter per conversation, '.' free.
char cell_letter(const MapCell& cell);
constexpr int kOwnerColours = 16;           // Conversations that no other shares its colour with.
int cell_palette(const MapCell& cell);      // 256-colour terminal palette
std::string cell_rgb(const MapCell& cell);  // "#rrggbb"

// Lines of `width` cells up to the last used page, at most `max_lines`; `drawn` is the number of
// pages they show.
std::vector<std::string> draw_map(const std::vector<MapCell>& cells, int width, int max_lines,
                                  bool colours, int64_t* drawn);

}  // namespace kvc::demo
