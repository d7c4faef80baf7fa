#include "tools/llm/model_files.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace kvc::llm {
namespace {

constexpr const char* kFile = "SmolLM2-135M-Instruct.Q4_1.gguf";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string model_folder() {
  if (const std::string folder = variable("KVCACHE_MODEL_DIR"); !folder.empty()) return folder;
  std::string caches = variable("XDG_CACHE_HOME");
  if (caches.empty()) caches = variable("HOME") + "/.cache";
  return caches + "/libkvcache/models";
}

}  // namespace

std::string find_default_model() {
  const std::string path = model_folder() + "/" + kFile;
  return access(path.c_str(), R_OK) == 0 ? path : std::string();
}

std::string default_model() {
  if (const std::string path = find_default_model(); !path.empty()) return path;
  throw std::runtime_error("there is no " + model_folder() + "/" + kFile +
                           ": `make demo` fetches it (python3 tools/demo/fetch_model.py alone "
                           "too), and --model FILE.gguf takes another");
}

// FNV-1a over names, types and places of tensors, which hardly agree by chance.
std::string model_id(const gguf::File& file) {
  uint64_t digest = 0xcbf29ce484222325;
  const auto add = [&](std::string_view bytes) {
    for (const char byte : bytes)
      digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  };
  for (const gguf::Tensor& tensor : file.tensors()) {
    add(tensor.name);
    add(gguf::type_name(tensor.type));
    const auto bytes = std::min<int64_t>(tensor.bytes(), 64);
    add({reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(bytes)});
  }
  char text[64];
  std::snprintf(text, sizeof text, "/%lld/%016llx", static_cast<long long>(file.bytes()),
                static_cast<unsigned long long>(digest));
  return std::string(file.text("general.name").value_or("model").substr(0, 150)) + text;
}

}  // namespace kvc::llm
