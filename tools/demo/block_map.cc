#include "tools/demo/block_map.h"

#include <algorithm>
#include <array>

#include "tools/demo/terminal.h"

namespace kvc::demo {
namespace {

struct Colour {
  int palette;  // the nearest of the terminal's 256
  const char* rgb;
};

// As many as the demo has conversations. The terminal's own colours, chosen as far from each other,
// from the shared pages and from the free ones as its palette allows, light enough for black
// letters. More conversations take them in turn.
constexpr std::array<Colour, kOwnerColours> kOwners = {{{39, "#00afff"},
                                                        {179, "#d7af5f"},
                                                        {78, "#5fd787"},
                                                        {212, "#ff87d7"},
                                                        {45, "#00d7ff"},
                                                        {185, "#d7d75f"},
                                                        {140, "#af87d7"},
                                                        {150, "#afd787"},
                                                        {216, "#ffaf87"},
                                                        {43, "#00d7af"},
                                                        {218, "#ffafd7"},
                                                        {73, "#5fafaf"},
                                                        {144, "#afaf87"},
                                                        {210, "#ff8787"},
                                                        {146, "#afafd7"},
                                                        {72, "#5faf87"}}};
constexpr Colour kSharedColour = {208, "#e8743b"};
constexpr Colour kFreeColour = {0, "#eceff3"};

Colour colour_of(const MapCell& cell) {
  if (cell.kind == MapCell::kFree) return kFreeColour;
  if (cell.kind == MapCell::kShared) return kSharedColour;
  return kOwners[static_cast<size_t>(cell.owner) % kOwners.size()];
}

}  // namespace

std::vector<MapCell> map_cells(const std::vector<PageUse>& pages, int root) {
  std::vector<MapCell> cells;
  for (const PageUse& page : pages) {
    MapCell cell;
    if (page.refs == 1 && page.first_sequence != root) {
      cell = {MapCell::kOwn, page.first_sequence};
    } else if (page.refs > 0) {
      cell.kind = MapCell::kShared;
    }
    cells.push_back(cell);
  }
  return cells;
}

MapCounts count_cells(const std::vector<MapCell>& cells) {
  MapCounts counts;
  for (const MapCell& cell : cells) {
    ++(cell.kind == MapCell::kFree     ? counts.free
       : cell.kind == MapCell::kShared ? counts.shared
                                       : counts.own);
  }
  return counts;
}

char cell_letter(const MapCell& cell) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  if (cell.kind == MapCell::kFree) return '.';
  if (cell.kind == MapCell::kShared) return '#';
  return kLetters[static_cast<size_t>(cell.owner) % kLetters.size()];
}

int cell_palette(const MapCell& cell) { return colour_of(cell).palette; }

std::string cell_rgb(const MapCell& cell) { return colour_of(cell).rgb; }

std::vector<std::string> draw_map(const std::vector<MapCell>& cells, int width, int max_lines,
                                  bool colours, int64_t* drawn) {
  const auto last_used = std::find_if(cells.rbegin(), cells.rend(), [](const MapCell& cell) {
    return cell.kind != MapCell::kFree;
  });
  const auto used = static_cast<int64_t>(cells.rend() - last_used);
  const int64_t lines = std::clamp<int64_t>((used + width - 1) / width, 1, max_lines);
  *drawn = std::min(lines * width, static_cast<int64_t>(cells.size()));
  std::vector<std::string> result;
  for (int64_t begin = 0; begin < *drawn; begin += width) {
    const int64_t end = std::min(begin + width, *drawn);
    std::string line;
    // Runs of one kind are painted together, which keeps the escape sequences few.
    for (int64_t i = begin; i < end;) {
      const MapCell& cell = cells[static_cast<size_t>(i)];
      std::string run;
      for (; i < end && cells[static_cast<size_t>(i)] == cell; ++i) run += cell_letter(cell);
      line += cell.kind == MapCell::kFree ? painted(run, Paint::kDim, colours)
                                          : with_background(run, cell_palette(cell), colours);
    }
    result.push_back(std::move(line));
  }
  return result;
}

}  // namespace kvc::demo
