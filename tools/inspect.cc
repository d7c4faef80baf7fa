#include "tools/inspect.h"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "kvcache.h"
#include "tools/gguf/describe.h"

namespace {

using Json = nlohmann::ordered_json;

struct InspectOptions {
  std::string path;
  bool as_json = false;
  bool with_layout = false;
};

std::string described(const std::string& path, kvc_error& error) {
  kvc_load_desc desc{};
  desc.struct_size = sizeof desc;
  desc.path = path.c_str();
  size_t len = 0;
  if (kvc_state_file_describe(&desc, nullptr, &len, &error) != KVC_OK) return {};
  std::string text(len, '\0');
  if (kvc_state_file_describe(&desc, text.data(), &len, &error) != KVC_OK) return {};
  text.pop_back();
  return text;
}

bool is_gguf(const std::string& path) {
  // Opening a FIFO would wait for a writer.
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  char magic[4] = {};
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return false;
  const bool is_whole = std::fread(magic, 1, sizeof magic, file) == sizeof magic;
  std::fclose(file);
  return is_whole && std::string_view(magic, sizeof magic) == "GGUF";
}

std::string grouped(const Json& value) {
  std::string digits = std::to_string(value.get<int64_t>());
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string plural(const Json& count, const char* noun) {
  return grouped(count) + " " + noun + (count.get<int64_t>() == 1 ? "" : "s");
}

void print_text(const InspectOptions& options, const Json& file) {
  const auto line = [](const char* label, const std::string& text) {
    std::printf("%-10s %s\n", label, text.c_str());
  };
  line("file", options.path + ": " + plural(file["bytes"], "byte") + ", format " +
                   grouped(file["format"]) + ", every digest matches");
  const auto model = file["model_id"].get<std::string>();
  line("model", model.empty() ? "no name given" : model);
  line("layout", file["fingerprint"].get<std::string>());
  line("contents", plural(file["sequences"].size(), "sequence") + ", " +
                       plural(file["num_pages"], "page") + ", " +
                       plural(file["num_states"], "recurrent state"));
  std::printf("\n%20s %12s %12s %10s %12s %10s %6s  %s\n", "sequence", "tokens", "known ids",
              "encoder", "checkpoints", "window", "sink", "namespace");
  for (const Json& sequence : file["sequences"]) {
    std::printf(
        "%20s %12s %12s %10s %12s %10s %6s  %.12s...\n",
        std::to_string(sequence["id"].get<int64_t>()).c_str(), grouped(sequence["length"]).c_str(),
        grouped(sequence["num_known_tokens"]).c_str(), grouped(sequence["cross_length"]).c_str(),
        grouped(sequence["num_checkpoints"]).c_str(), grouped(sequence["window"]).c_str(),
        grouped(sequence["sink"]).c_str(), sequence["namespace"].get<std::string>().c_str());
  }
  if (!options.with_layout) return;
  std::printf("\n");
  for (const auto& [name, value] : file["layout"].items())
    std::printf("%s = %s\n", name.c_str(), value.get<std::string>().c_str());
}

void print_gguf(const InspectOptions& options, const Json& file) {
  const auto line = [](const char* label, const std::string& text) {
    std::printf("%-10s %s\n", label, text.c_str());
  };
  const auto text_of = [&](const char* key) {
    return file[key].is_null() ? std::string("not given") : file[key].get<std::string>();
  };
  const auto count_of = [&](const char* key) {
    return file[key].is_null() ? std::string("?") : grouped(file[key]);
  };
  line("file", options.path + ": " + plural(file["bytes"], "byte") + ", GGUF version " +
                   grouped(file["version"]));
  line("model", text_of("name") + ", architecture " + text_of("architecture"));
  line("shape", (file["layers"].is_null() ? "?" : plural(file["layers"], "layer")) + " of width " +
                    count_of("width") + ", " + count_of("q_heads") + " query heads on " +
                    count_of("kv_heads") + " KV heads, context " + count_of("context"));
  line("tokens", count_of("vocabulary") + ", tokeniser " + text_of("tokeniser"));
  line("contents", plural(file["tensors"], "tensor") + ", " + plural(file["elements"], "element"));
  std::printf("\n%-8s %10s %18s %18s\n", "type", "tensors", "elements", "bytes");
  for (const auto& [name, type] : file["types"].items())
    std::printf("%-8s %10s %18s %18s\n", name.c_str(), grouped(type["tensors"]).c_str(),
                grouped(type["elements"]).c_str(), grouped(type["bytes"]).c_str());
  if (!options.with_layout) return;
  std::printf("\n");
  for (const Json& tensor : file["layout"])
    std::printf("%s %s %s\n", tensor["name"].get<std::string>().c_str(),
                tensor["type"].get<std::string>().c_str(), tensor["shape"].dump().c_str());
}

int inspect_gguf(const InspectOptions& options) {
  try {
    const kvc::gguf::File model(options.path);
    const Json file = kvc::gguf::describe(model, options.with_layout);
    if (options.as_json) {
      std::printf("%s\n", file.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    } else {
      print_gguf(options, file);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvcache inspect: %s\n", error.what());
    return 1;
  }
}

int inspect(const InspectOptions& options) {
  if (is_gguf(options.path)) return inspect_gguf(options);
  kvc_error error{};
  const std::string text = described(options.path, error);
  if (text.empty()) {
    std::fprintf(stderr, "kvcache inspect: %s\n", error.message);
    return 1;
  }
  if (options.as_json) {
    std::printf("%s\n", text.c_str());
  } else {
    print_text(options, Json::parse(text));
  }
  return 0;
}

}  // namespace

void register_inspect(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "Check a state file or a model in GGUF and show what it holds");
  command->add_option("FILE", options->path, "What kvc_seq_save has written, or a .gguf file")
      ->required();
  command->add_flag("--layout", options->with_layout,
                    "Print every field of the layout too; of a model, every tensor");
  command->add_flag("--json", options->as_json, "Print JSON");
  command->callback([options, &exit_code] { exit_code = inspect(*options); });
}
