#include "src/files/chunks.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "src/base/error.h"

namespace kvc {
namespace {

constexpr char kMagic[8] = {'K', 'V', 'C', 'S', 'T', 'A', 'T', 'E'};
constexpr char kEndMagic[8] = {'K', 'V', 'C', 'S', 'T', 'E', 'N', 'D'};
constexpr uint32_t kByteOrder = 0x01020304;
constexpr uint32_t kSwappedByteOrder = 0x04030201;

uint64_t head_digest(const ChunkHead& head, std::span<const std::byte> payload) {
  return digest_of(payload.data(), payload.size(), digest_of(&head, offsetof(ChunkHead, digest)));
}

}  // namespace

// ---- Writing

ChunkWriter::ChunkWriter(ByteSink* sink) : sink_(sink) {
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.byte_order = kByteOrder;
  header.version = header.min_version = kStateFileVersion;
  header.digest = digest_of(&header, offsetof(FileHeader, digest));
  sink_->write(&header, sizeof header);
  offset_ = sizeof header;
}

void ChunkWriter::put(const ChunkHead& head, std::span<const std::byte> payload) {
  sink_->write(&head, sizeof head);
  sink_->write(payload.data(), payload.size());
  offset_ += sizeof head + payload.size();
}

void ChunkWriter::write(uint32_t tag, uint64_t first, uint64_t count,
                        std::span<const std::byte> payload) {
  ChunkHead head{tag, 0, places_.size(), payload.size(), first, count, 0};
  head.digest = head_digest(head, payload);
  places_.push_back({offset_, head.digest});
  put(head, payload);
}

void ChunkWriter::finish() {
  const Trailer trailer = [&] {
    Trailer made{offset_, {}};
    std::memcpy(made.magic, kEndMagic, sizeof kEndMagic);
    return made;
  }();
  const auto index = std::as_bytes(std::span(places_));
  ChunkHead head{kEndTag, 0, places_.size(), index.size(), 0, places_.size(), 0};
  head.digest = head_digest(head, index);
  put(head, index);
  sink_->write(&trailer, sizeof trailer);
  sink_->finish();
}

// ---- Reading

ChunkReader::ChunkReader(ByteSource* source) : source_(source) {
  const size_t count = source_->read(0, &header_, sizeof header_);
  if (count < sizeof header_.magic || std::memcmp(header_.magic, kMagic, sizeof kMagic) != 0) {
    fail(KVC_E_INVALID_ARGUMENT, "%s is no state file: it does not begin with \"%.8s\"",
         source_->name(), kMagic);
  }
  if (count < sizeof header_) {
    fail(KVC_E_CORRUPT, "%s ends inside its header: %zu bytes, expected %zu", source_->name(),
         count, sizeof header_);
  }
  offset_ = sizeof header_;
  if (header_.byte_order == kSwappedByteOrder) {
    fail(KVC_E_VERSION, "%s was written on a machine of the other byte order", source_->name());
  }
  if (header_.digest != digest_of(&header_, offsetof(FileHeader, digest)) ||
      header_.byte_order != kByteOrder) {
    fail(KVC_E_CORRUPT, "the header of %s does not match its digest", source_->name());
  }
  if (header_.min_version > kStateFileVersion) {
    fail_with(KVC_E_VERSION, header_.min_version,
              "%s has format %u and needs a reader of format %u, this library reads %u",
              source_->name(), header_.version, header_.min_version, kStateFileVersion);
  }
}

void ChunkReader::fail_chunk(const char* reason) const {
  fail_with(KVC_E_CORRUPT, static_cast<int64_t>(number_), "%s: chunk %llu, before offset %llu, %s",
            source_->name(), static_cast<unsigned long long>(number_),
            static_cast<unsigned long long>(offset_), reason);
}

void ChunkReader::read_exactly(void* data, size_t size) {
  const size_t count = source_->read(offset_, data, size);
  offset_ += count;
  if (count == size) return;
  fail_with(KVC_E_CORRUPT, static_cast<int64_t>(offset_),
            "%s ends at offset %llu, inside chunk %llu: %zu bytes are missing", source_->name(),
            static_cast<unsigned long long>(offset_), static_cast<unsigned long long>(number_),
            size - count);
}

const ChunkHead* ChunkReader::next() {
  const uint64_t begin = offset_;
  number_ = places_.size();
  read_exactly(&head_, sizeof head_);
  if (head_.index != places_.size()) fail_chunk("has another number");
  if (head_.reserved != 0) fail_chunk("has reserved bits");
  if (head_.tag == kEndTag) {
    check_end();
    return nullptr;
  }
  places_.push_back({begin, head_.digest});
  return &head_;
}

std::span<const std::byte> ChunkReader::payload() {
  std::span<const std::byte> found;
  const std::byte* in_memory = source_->view(offset_, head_.bytes);
  if (in_memory != nullptr) {
    found = {in_memory, head_.bytes};
    offset_ += head_.bytes;
  } else {
    constexpr uint64_t kStep = uint64_t{4} << 20;
    for (uint64_t done = 0; done < head_.bytes;) {
      const uint64_t more = std::min(head_.bytes - done, kStep);
      if (buffer_.size() < done + more) buffer_.resize(done + more);
      read_exactly(buffer_.data() + done, more);
      done += more;
    }
    found = {buffer_.data(), head_.bytes};
  }
  if (head_digest(head_, found) != head_.digest) fail_chunk("does not match its digest");
  return found;
}

void ChunkReader::check_end() {
  const uint64_t begin = offset_ - sizeof head_;
  if (head_.bytes != places_.size() * sizeof(ChunkPlace))
    fail_chunk("has an index of another size");
  const auto index = payload();
  if (!places_.empty() && std::memcmp(index.data(), places_.data(), index.size()) != 0)
    fail_chunk("has an index of other chunks");
  Trailer trailer;
  read_exactly(&trailer, sizeof trailer);
  if (trailer.end_offset != begin || std::memcmp(trailer.magic, kEndMagic, sizeof kEndMagic) != 0)
    fail_chunk("has a damaged trailer");
  std::byte more;
  if (source_->read(offset_, &more, 1) != 0) fail_chunk("is not the end: bytes follow");
}

}  // namespace kvc
