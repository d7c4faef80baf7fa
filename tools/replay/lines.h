// Lines of a text file, plain or gzip.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvc::replay {

// A file that cannot be read or understood; the message is for the user and names the file.
struct TraceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class LineReader {
 public:
  // "-": standard input. Throws TraceError.
  explicit LineReader(const std::string& path);

  // The next line without its end (LF or CR LF), valid until the next call; false at the end of the
  // file. Throws TraceError where the file cannot be read any further, a gzip file that has been
  // cut off among them.
  bool next(std::string_view* line);
  // Number of the line that next() gave, from 1.
  int64_t number() const { return number_; }
  // Share of the file that has been read, 0..1; 0 when its size is unknown.
  double fraction() const;

 private:
  struct CloseGz {
    void operator()(void* file) const;
  };

  bool fill();  // false: end of the file

  std::string path_;
  std::unique_ptr<void, CloseGz> file_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  std::string joined_;  // a line that lies across two fillings
  int64_t number_ = 0;
  double size_ = 0;  // bytes of the file as it is stored
};

}  // namespace kvc::replay
