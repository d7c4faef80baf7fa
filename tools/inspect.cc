#include "tools/inspect.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kvcache.h"

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

int inspect(const InspectOptions& options) {
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
      app.add_subcommand("inspect", "Check a state file and show what it holds, without a cache");
  command->add_option("FILE", options->path, "What kvc_seq_save has written")->required();
  command->add_flag("--layout", options->with_layout, "Print every field of the layout too");
  command->add_flag("--json", options->as_json, "Print JSON");
  command->callback([options, &exit_code] { exit_code = inspect(*options); });
}
