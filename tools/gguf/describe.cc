#include "tools/gguf/describe.h"

#include <string>

namespace kvc::gguf {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

Json describe(const File& file, bool with_tensors) {
  const std::optional<std::string_view> architecture = file.text("general.architecture");
  const auto of_model = [&](const char* key) {
    return file.integer(std::string(architecture.value_or("")) + "." + key);
  };
  Json out;
  out["bytes"] = file.bytes();
  out["version"] = file.version();
  out["name"] = or_null(file.text("general.name"));
  out["architecture"] = or_null(architecture);
  out["layers"] = or_null(of_model("block_count"));
  out["width"] = or_null(of_model("embedding_length"));
  const std::optional<int64_t> q_heads = of_model("attention.head_count");
  out["q_heads"] = or_null(q_heads);
  const std::optional<int64_t> kv_heads = of_model("attention.head_count_kv");
  out["kv_heads"] = or_null(kv_heads ? kv_heads : q_heads);
  out["context"] = or_null(of_model("context_length"));
  out["tokeniser"] = or_null(file.text("tokenizer.ggml.model"));
  out["vocabulary"] = or_null(file.length("tokenizer.ggml.tokens"));
  out["values"] = file.num_values();
  out["tensors"] = file.tensors().size();
  int64_t elements = 0;
  Json types = Json::object(), layout = Json::array();
  for (const Tensor& tensor : file.tensors()) {
    elements += tensor.elements();
    Json& type = types[type_name(tensor.type)];
    if (type.is_null()) type = {{"tensors", 0}, {"elements", 0}, {"bytes", 0}};
    type["tensors"] = type["tensors"].get<int64_t>() + 1;
    type["elements"] = type["elements"].get<int64_t>() + tensor.elements();
    type["bytes"] = type["bytes"].get<int64_t>() + tensor.bytes();
    if (with_tensors)
      layout.push_back(
          {{"name", tensor.name}, {"type", type_name(tensor.type)}, {"shape", tensor.shape}});
  }
  out["elements"] = elements;
  out["types"] = types;
  if (with_tensors) out["layout"] = layout;
  return out;
}

}  // namespace kvc::gguf
