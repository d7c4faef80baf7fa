#include "tools/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "tools/refusal.h"

namespace kvc {

std::string read_text_file(const std::string& path) {
  constexpr size_t kPart = 1 << 16, kMost = size_t{1} << 30;
  const auto refuse = [&](const char* why) { throw Refusal(path + ": " + why); };
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) refuse(std::strerror(errno));
  std::string text;
  for (size_t count = kPart; count == kPart;) {
    const size_t before = text.size();
    text.resize(before + kPart);
    count = std::fread(text.data() + before, 1, kPart, file.get());
    text.resize(before + count);
    if (std::ferror(file.get()) != 0) refuse(std::strerror(errno));
    if (text.size() > kMost) refuse("it is larger than 1 GiB");
  }
  return text;
}

}  // namespace kvc
