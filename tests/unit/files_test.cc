// The parts of state files: sources that read ahead, the frame of chunks, tagged records.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>

#include "src/base/error.h"
#include "src/base/wire.h"
#include "src/files/byte_sink.h"
#include "src/files/byte_source.h"
#include "src/files/chunks.h"
#include "tests/support/folder.h"

namespace kvc {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& random, size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const Bytes& content) : path_(folder_.file("bytes")) {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
  }
  const char* path() const { return path_.c_str(); }

 private:
  const test::Folder folder_;
  const std::string path_;
};

kvc_status status_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  return KVC_OK;
}

TEST(ReadAhead, GivesTheBytesOfTheFileWhereverItIsRead) {
  std::mt19937_64 random(3);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{1} << 20, (size_t{1} << 20) + 1, (size_t{9} << 20) + 12345}) {
    SCOPED_TRACE(size);
    const Bytes content = random_bytes(random, size);
    const TemporaryFile file(content);
    ReadAhead source(file.path());
    uint64_t offset = 0;
    Bytes got(3 << 20);
    for (int step = 0; step < 200; ++step) {
      // Mostly forward, as chunks are read; now and then from the beginning, or from anywhere.
      const uint64_t dice = random() % 20;
      if (dice == 0) offset = 0;
      if (dice == 1) offset = random() % (size + 10);
      const size_t wanted = random() % (random() % 4 == 0 ? got.size() : 100000);
      const size_t expected = offset >= size ? 0 : std::min<size_t>(wanted, size - offset);
      const std::byte* seen = source.view(offset, wanted);
      if (seen != nullptr) {
        ASSERT_EQ(wanted, expected) << "a view of bytes that are not there";
        ASSERT_EQ(std::memcmp(seen, content.data() + offset, wanted), 0) << "at " << offset;
      }
      ASSERT_EQ(source.read(offset, got.data(), wanted), expected) << "at " << offset;
      if (expected > 0) {
        ASSERT_EQ(std::memcmp(got.data(), content.data() + offset, expected), 0) << "at " << offset;
      }
      offset += expected;
    }
  }
}

TEST(ReadAhead, SaysWhyAFileCannotBeOpened) {
  EXPECT_EQ(status_of([] { ReadAhead("/nowhere/file"); }), KVC_E_IO);
  EXPECT_EQ(status_of([] { ReadAhead("/"); }), KVC_E_IO);
}

class BytesSink final : public ByteSink {
 public:
  void write(const void* data, size_t size) override {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + size);
  }
  void finish() override { is_finished = true; }

  Bytes bytes;
  bool is_finished = false;
};

TEST(Chunks, ComeBackInTheirOrderAndTheSizeIsKnownBefore) {
  std::mt19937_64 random(4);
  const std::vector<size_t> sizes{0, 1, 47, 5000, 0, 1 << 21};
  std::vector<Bytes> payloads;
  BytesSink sink;
  ChunkWriter writer(&sink);
  uint64_t total = 0;
  for (const size_t size : sizes) {
    payloads.push_back(random_bytes(random, size));
    writer.write(chunk_tag("TEST"), payloads.size(), 2 * payloads.size(), payloads.back());
    total += size;
  }
  EXPECT_FALSE(sink.is_finished);
  writer.finish();
  EXPECT_TRUE(sink.is_finished);
  EXPECT_EQ(sink.bytes.size(), ChunkWriter::file_bytes(sizes.size(), total));
  MemorySource memory(sink.bytes.data(), sink.bytes.size());
  const TemporaryFile file(sink.bytes);
  ReadAhead ahead(file.path());
  for (ByteSource* source : {static_cast<ByteSource*>(&memory), static_cast<ByteSource*>(&ahead)}) {
    ChunkReader reader(source);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const ChunkHead* head = reader.next();
      ASSERT_NE(head, nullptr);
      EXPECT_EQ(head->tag, chunk_tag("TEST"));
      EXPECT_EQ(head->first, i + 1);
      EXPECT_EQ(head->count, 2 * (i + 1));
      const auto payload = reader.payload();
      EXPECT_TRUE(
          std::equal(payload.begin(), payload.end(), payloads[i].begin(), payloads[i].end()));
    }
    EXPECT_EQ(reader.next(), nullptr);
  }
}

TEST(Chunks, AHeadThatPromisesMoreThanThereIsAllocatesOnlyWhatComes) {
  BytesSink sink;
  ChunkWriter writer(&sink);
  writer.write(chunk_tag("TEST"), 0, 0, {});
  writer.finish();
  auto* head = reinterpret_cast<ChunkHead*>(sink.bytes.data() + sizeof(FileHeader));
  head->bytes = uint64_t{1} << 60;
  const TemporaryFile file(sink.bytes);
  FileSource source(file.path());
  ChunkReader reader(&source);
  ASSERT_NE(reader.next(), nullptr);
  EXPECT_EQ(status_of([&] { reader.payload(); }), KVC_E_CORRUPT);
}

TEST(FileSource, AFifoIsRefusedAtOnceWithOrWithoutAWriter) {
  const test::Folder folder;
  const std::string path = folder.file("fifo");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  for (const bool has_writer : {false, true}) {
    const int fd = has_writer ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
    ASSERT_EQ(fd >= 0, has_writer);
    try {
      const FileSource source(path.c_str());
      ADD_FAILURE() << "opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_E_IO);
      EXPECT_EQ(error.sys_code(), ESPIPE);
      EXPECT_NE(std::string(error.what()).find("/fifo\": it is a FIFO"), std::string::npos)
          << error.what();
    }
    if (has_writer) ::close(fd);
  }
}

// ---- Records

TEST(Wire, FieldsComeBackAndUnknownOnesAreSkippedUnlessTheyAreMandatory) {
  WireWriter inner;
  inner.text(1, "inner");
  WireWriter writer;
  writer.integer(1, -5);
  writer.array<int32_t>(2, {1, 2, 3});
  writer.text(77, "of a newer version");
  writer.record(3, inner);
  writer.array<int64_t>(4, {});
  int64_t integer = 0;
  std::vector<int32_t> array;
  std::string text;
  int others = 0;
  WireReader reader(writer.data(), "the record");
  while (reader.next()) {
    switch (reader.tag()) {
      case 1: integer = reader.integer(-5, 5); break;
      case 2: array = reader.array<int32_t>(); break;
      case 3: {
        WireReader fields = reader.record("the inner record");
        while (fields.next()) text = fields.text();
        break;
      }
      case 4: EXPECT_TRUE(reader.array<int64_t>().empty()); break;
      default: reader.skip(); ++others;
    }
  }
  EXPECT_EQ(integer, -5);
  EXPECT_EQ(array, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(text, "inner");
  EXPECT_EQ(others, 1);

  WireWriter newer;
  newer.integer(kMandatoryTag | 9, 1);
  WireReader refuses(newer.data(), "the record");
  ASSERT_TRUE(refuses.next());
  EXPECT_EQ(status_of([&] { refuses.skip(); }), KVC_E_VERSION);
}

TEST(Wire, EveryTruncationAndEveryWrongSizeIsCorrupt) {
  WireWriter writer;
  writer.integer(1, 3);
  writer.array<int32_t>(2, {1, 2, 3});
  const auto read_all = [](std::span<const std::byte> record) {
    WireReader reader(record, "the record");
    int fields = 0;
    while (reader.next()) {
      if (reader.tag() == 1) (void)reader.integer(3, 3);
      if (reader.tag() == 2) (void)reader.array<int32_t>();
      ++fields;
    }
    if (fields != 2) fail(KVC_E_CORRUPT, "a field is missing");
  };
  const std::span<const std::byte> whole(writer.data());
  EXPECT_EQ(status_of([&] { read_all(whole); }), KVC_OK);
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(status_of([&] { read_all(whole.first(size)); }), KVC_E_CORRUPT) << size;
  WireReader reader(whole, "the record");
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(status_of([&] { (void)reader.integer(4, 9); }), KVC_E_CORRUPT);
  EXPECT_EQ(status_of([&] { (void)reader.value<int32_t>(); }), KVC_E_CORRUPT);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(status_of([&] { (void)reader.array<int64_t>(); }), KVC_E_CORRUPT);
}

}  // namespace
}  // namespace kvc
