// State files: saving and loading one long sequence, against writing and reading as many bytes as a
// plain file of the same folder, as durably.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPortionBytes = int64_t{1} << 20;  // As the chunks of a state file.

[[noreturn]] void fail_with_errno(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

class File {
 public:
  File(const std::string& path, int flags) : file_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    if (file_ < 0) fail_with_errno(path);
  }
  ~File() { close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

// The folder of one run, gone with it.
class Folder {
 public:
  explicit Folder(const std::string& parent)
      : path_((parent.empty() ? fs::temp_directory_path() : fs::path(parent)) /
              ("kvcache-bench-" + std::to_string(getpid()))) {
    fs::create_directory(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

// What a careful program does without the library: write beside, synchronise, rename.
void write_plainly(const std::string& path, const Buffer& buffer, int64_t bytes) {
  const std::string beside = path + ".tmp";
  {
    const File file(beside, O_WRONLY | O_CREAT | O_TRUNC);
    for (int64_t at = 0; at < bytes; at += kPortionBytes) {
      const auto size = static_cast<size_t>(std::min(kPortionBytes, bytes - at));
      if (write(file.get(), buffer.data() + at, size) != static_cast<ssize_t>(size))
        fail_with_errno(beside);
    }
    if (fdatasync(file.get()) != 0) fail_with_errno(beside);
  }
  fs::rename(beside, path);
}

void read_plainly(const std::string& path, Buffer& buffer, int64_t bytes) {
  const File file(path, O_RDONLY);
  for (int64_t at = 0; at < bytes; at += kPortionBytes) {
    const auto size = static_cast<size_t>(std::min(kPortionBytes, bytes - at));
    if (read(file.get(), buffer.data() + at, size) != static_cast<ssize_t>(size))
      fail_with_errno(path);
  }
}

void save(const Cache& cache, const std::string& path) {
  kvc_save_desc desc{};
  desc.struct_size = sizeof desc;
  desc.path = path.c_str();
  const kvc_seq seq = 0;
  kvc_error error{};
  check(kvc_seq_save(cache.get(), 1, &seq, &desc, nullptr, nullptr, &error), error);
}

void load(Cache& cache, const std::string& path) {
  kvc_load_desc desc{};
  desc.struct_size = sizeof desc;
  desc.path = path.c_str();
  const kvc_seq seq = 1;
  kvc_error error{};
  check(kvc_seq_load(cache.get(), &desc, 1, &seq, nullptr, &error), error);
  cache.remove(seq);
}

}  // namespace

Report run_files(const FilesOptions& options) {
  Report report = model_report("files", options.model, options.common);
  CacheShape shape = shape_of(options.model, options.common);
  shape.layers = options.layers;
  shape.page_first = options.layout == "page-first";
  const int64_t page_bytes = shape.layers * shape.page_layer_bytes();
  const int64_t pages = (options.tokens + shape.page_size - 1) / shape.page_size;
  shape.num_pages = 2 * pages;
  if (shape.num_pages * page_bytes > kLargestPoolBytes)
    throw std::runtime_error("the pool would be too large: fewer --tokens or --layers");
  Cache cache(shape);
  cache.add(0);
  SequenceFiller(cache).grow(0, options.tokens);

  const Folder folder(options.folder);
  const std::string state = folder.file("state"), plain = folder.file("plain");
  const int64_t bytes = pages * page_bytes;
  Buffer buffer(static_cast<size_t>(bytes));
  std::memset(buffer.data(), 1, static_cast<size_t>(bytes));
  save(cache, state);
  write_plainly(plain, buffer, bytes);
  load(cache, state);
  report["layers"] = shape.layers;
  report["layout"] = options.layout;
  report["tokens"] = options.tokens;
  report["bytes"] = bytes;
  report["file_bytes"] = fs::file_size(state);

  const auto add = [&](const char* name, const Side& limit, const Side& subject) {
    Report part;
    add_pairs(part, measure_pairs(1, options.common.budget, limit, subject), 1e9, "gbps",
              "plain_gbps");
    report[name] = part;
  };
  const auto amount = static_cast<double>(bytes);
  add("save", {amount, [&](int) { write_plainly(plain, buffer, bytes); }},
      {amount, [&](int) { save(cache, state); }});
  add("load", {amount, [&](int) { read_plainly(plain, buffer, bytes); }},
      {amount, [&](int) { load(cache, state); }});
  return report;
}

}  // namespace kvc::bench
