#include "src/cache/state_file.h"

namespace kvc {

int64_t largest_chunk(const StateFileImage& image, const Layout& layout) {
  int64_t bytes = items_per_chunk(image.state_bytes) * image.state_bytes;
  bytes = std::max(bytes, layout.state_slot_bytes);
  for (size_t group = 0; group < image.page_bytes.size(); ++group) {
    bytes = std::max(bytes, items_per_chunk(image.page_bytes[group]) *
                                std::max(image.page_bytes[group], layout.group_bytes[group]));
  }
  return std::max<int64_t>(bytes, 1);
}

void expect_chunk(ChunkReader& reader, const ChunkHead* head, uint32_t tag, int64_t first,
                  int64_t count, int64_t bytes) {
  if (head == nullptr) reader.fail_chunk("is the end: pages or states are missing");
  const bool fits = head->tag == tag && head->first == static_cast<uint64_t>(first) &&
                    head->count == static_cast<uint64_t>(count) &&
                    head->bytes == static_cast<uint64_t>(bytes);
  if (!fits) reader.fail_chunk("is not the one that the description announces");
}

StateFileImage read_description(ChunkReader& reader) {
  const ChunkHead* head = reader.next();
  if (head == nullptr || head->tag != kDescription)
    reader.fail_chunk("is not the description of the sequences");
  return decode_state_file(reader.payload());
}

void check_contents(ChunkReader& reader, const StateFileImage& image) {
  read_contents(
      reader, image, [](int64_t, int64_t, size_t, std::span<const std::byte>) {},
      [](int64_t, int64_t, std::span<const std::byte>) {});
}

}  // namespace kvc
