#include "tools/replay/lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kvc::replay {
namespace {

constexpr size_t kBufferBytes = 256 * 1024;
// Longer than any request; a file without line ends is not read into memory whole.
constexpr size_t kLongestLine = size_t{64} << 20;

gzFile gz(const auto& file) { return static_cast<gzFile>(file.get()); }

}  // namespace

void LineReader::CloseGz::operator()(void* file) const { gzclose_r(static_cast<gzFile>(file)); }

LineReader::LineReader(const std::string& path)
    : path_(path == "-" ? "standard input" : path), buffer_(kBufferBytes) {
  const int descriptor = path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw TraceError(path_ + ": cannot be opened: " + std::strerror(errno));
  struct stat status {};
  if (fstat(descriptor, &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      close(descriptor);
      throw TraceError(path_ + ": is a directory");
    }
    if (S_ISREG(status.st_mode)) size_ = static_cast<double>(status.st_size);
  }
  file_.reset(gzdopen(descriptor, "rb"));
  if (!file_) {
    close(descriptor);
    throw std::bad_alloc();
  }
  gzbuffer(gz(file_), 128 * 1024);
}

bool LineReader::fill() {
  const int count = gzread(gz(file_), buffer_.data(), static_cast<unsigned>(buffer_.size()));
  int code = Z_OK;
  const char* message = gzerror(gz(file_), &code);
  const std::string behind = " (after line " + std::to_string(number_) + ")";
  if (code == Z_BUF_ERROR)
    throw TraceError(path_ + ": ends in the middle of its gzip data" + behind);
  if (code == Z_ERRNO)
    throw TraceError(path_ + ": cannot be read: " + std::strerror(errno) + behind);
  if (count < 0 || (code != Z_OK && code != Z_STREAM_END)) {
    throw TraceError(path_ + ": broken gzip data: " + message + behind);
  }
  begin_ = 0;
  end_ = static_cast<size_t>(count);
  return count > 0;
}

bool LineReader::next(std::string_view* line) {
  joined_.clear();
  bool found = false;
  while (!found) {
    if (begin_ == end_ && !fill()) {
      if (joined_.empty()) return false;
      break;
    }
    const char* first = buffer_.data() + begin_;
    const auto* stop = static_cast<const char*>(std::memchr(first, '\n', end_ - begin_));
    const size_t length = stop == nullptr ? end_ - begin_ : static_cast<size_t>(stop - first);
    found = stop != nullptr;
    begin_ += length + (found ? 1 : 0);
    if (found && joined_.empty()) {
      *line = {first, length};
    } else {
      joined_.append(first, length);
      *line = joined_;
    }
    if (line->size() > kLongestLine) {
      throw TraceError(path_ + ":" + std::to_string(number_ + 1) + ": longer than " +
                       std::to_string(kLongestLine >> 20) + " MiB");
    }
  }
  ++number_;
  // A byte order mark
  if (number_ == 1 && line->substr(0, 3) == "\xEF\xBB\xBF") line->remove_prefix(3);
  if (!line->empty() && line->back() == '\r') line->remove_suffix(1);
  return true;
}

double LineReader::fraction() const {
  if (size_ <= 0) return 0;
  return std::min(1.0, static_cast<double>(gzoffset(gz(file_))) / size_);
}

}  // namespace kvc::replay
