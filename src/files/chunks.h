// The frame of a state file: a header, chunks with digests, and an index of the chunks at the end.
//
//   header   64 bytes (FileHeader)
//   chunk    48 bytes (ChunkHead), then ChunkHead::bytes bytes of payload; any number
//   end      a chunk of tag kEndTag, whose payload is one ChunkPlace for each chunk before it
//   trailer  16 bytes (Trailer), so that a reader finds the index from the end of the file
//
// Numbers have the byte order of the machine that wrote the file; FileHeader::byte_order tells it.
// Digests are XXH3, 64 bits, without secret; that of a chunk is over its payload, seeded with the
// digest of its head. So every bit of a file is covered by a digest or compared with a value that
// the reader knows. Digests find accidents; they do not authenticate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/digest.h"
#include "src/base/memory.h"
#include "src/files/byte_sink.h"
#include "src/files/byte_source.h"

namespace kvc {

constexpr uint32_t kStateFileVersion = 1;

struct FileHeader {
  char magic[8];
  uint32_t byte_order;   // kByteOrder
  uint32_t version;      // The format that the file was written in.
  uint32_t min_version;  // The oldest reader that understands it.
  uint32_t reserved[9];
  uint64_t digest;  // Covers the bytes before.
};
static_assert(sizeof(FileHeader) == 64);

struct ChunkHead {
  uint32_t tag;
  uint32_t reserved;
  uint64_t index;  // Chunks before it.
  uint64_t bytes;  // Length of the payload.
  uint64_t first;  // Items of this tag before it.
  uint64_t count;  // Items in it.
  uint64_t digest;
};
static_assert(sizeof(ChunkHead) == 48);

struct ChunkPlace {
  uint64_t offset;  // Offset of the head in the file.
  uint64_t digest;
};

struct Trailer {
  uint64_t end_offset;  // Offset of the head of the end chunk.
  char magic[8];
};

constexpr uint32_t chunk_tag(const char (&name)[5]) {
  return static_cast<uint32_t>(name[0]) | static_cast<uint32_t>(name[1]) << 8 |
         static_cast<uint32_t>(name[2]) << 16 | static_cast<uint32_t>(name[3]) << 24;
}
constexpr uint32_t kEndTag = chunk_tag("END ");

class ChunkWriter {
 public:
  // Borrows; writes the header. Throws IO.
  explicit ChunkWriter(ByteSink* sink);

  void write(uint32_t tag, uint64_t first, uint64_t count, std::span<const std::byte> payload);
  void finish();

  // Bytes of a file whose chunks have so many bytes of payload together.
  static uint64_t file_bytes(uint64_t num_chunks, uint64_t payload_bytes) {
    return sizeof(FileHeader) + (num_chunks + 1) * sizeof(ChunkHead) + payload_bytes +
           num_chunks * sizeof(ChunkPlace) + sizeof(Trailer);
  }

 private:
  void put(const ChunkHead& head, std::span<const std::byte> payload);

  ByteSink* sink_;
  std::vector<ChunkPlace> places_;
  uint64_t offset_ = 0;
};

// Reads chunks in order. Every deviation throws CORRUPT that names the chunk, a file of another
// kind INVALID_ARGUMENT, a newer format or another byte order VERSION.
class ChunkReader {
 public:
  // Borrows; reads the header.
  explicit ChunkReader(ByteSource* source);

  // The next chunk's head; null after the last one. The end chunk, the index and the trailer have
  // been checked then.
  const ChunkHead* next();
  // The payload of the present chunk, checked; valid until the next call. Allocates as the bytes
  // come, whatever the head says.
  std::span<const std::byte> payload();
  [[noreturn]] void fail_chunk(const char* reason) const;

  const ByteSource& source() const { return *source_; }
  const FileHeader& header() const { return header_; }
  uint64_t offset() const { return offset_; }

 private:
  void read_exactly(void* data, size_t size);
  void check_end();

  ByteSource* source_;
  FileHeader header_{};
  ChunkHead head_{};
  std::vector<ChunkPlace> places_;
  std::vector<std::byte> buffer_;
  uint64_t number_ = 0;  // Number of the present chunk.
  uint64_t offset_ = 0;
};

}  // namespace kvc
