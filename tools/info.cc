#include "tools/info.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tools/isa_names.h"

namespace {

using Json = nlohmann::ordered_json;
using kvc::isa_name;

constexpr const char* kFeatures[] = {"cpu",
                                     "cuda",
                                     "f32",
                                     "f16",
                                     "bf16",
                                     "rope.half",
                                     "rope.interleaved",
                                     "rope.on_read",
                                     "rope.llama3",
                                     "rope.yarn",
                                     "rope.longrope",
                                     "rope.mrope",
                                     "softcap",
                                     "sink_logits",
                                     "alibi",
                                     "bias",
                                     "spans",
                                     "window",
                                     "window.sink",
                                     "chunk",
                                     "tree",
                                     "mla",
                                     "cross",
                                     "shared",
                                     "v_is_k",
                                     "state",
                                     "linear",
                                     "cascade",
                                     "shift",
                                     "ops",
                                     "storage.borrowed",
                                     "storage.none",
                                     "layout.page_first",
                                     "resize",
                                     "export",
                                     "plan.quant",
                                     "plan.hf_json",
                                     "prefix",
                                     "prefix.tail",
                                     "prefix.quota",
                                     "prefix.host",
                                     "swap",
                                     "events"};

Json collect(const kvc_device_caps& caps) {
  Json isas = Json::array(), dtypes = Json::array(), features = Json::array();
  for (int isa = KVC_CPU_ISA_REFERENCE; isa <= KVC_CPU_ISA_AVX512_BF16; ++isa) {
    if (caps.isas >> isa & 1) isas.push_back(isa_name(isa));
  }
  if (caps.dtypes & KVC_DTYPE_F32) dtypes.push_back("float32");
  if (caps.dtypes & KVC_DTYPE_F16) dtypes.push_back("float16");
  if (caps.dtypes & KVC_DTYPE_BF16) dtypes.push_back("bfloat16");
  for (const char* feature : kFeatures) {
    if (kvc_has_feature(feature)) features.push_back(feature);
  }
  const uint32_t abi = kvc_abi_version();
  return {{"version", kvc_version_string()},
          {"abi", std::to_string(abi >> 16) + "." + std::to_string(abi & 0xFFFF)},
          {"device", caps.name},
          {"isa", isa_name(caps.arch)},
          {"isas", isas},
          {"threads_by_default", caps.num_cores},
          {"cores", caps.num_cores},
          {"page_granularity_bytes", caps.page_granularity},
          {"memory_bytes", caps.memory_bytes},
          {"memory_free_bytes", caps.memory_free_bytes},
          {"dtypes", dtypes},
          {"features", features},
          {"limits", {{"page_size", {1, 65536}}, {"head_dim", {1, 512}}}}};
}

std::string joined(const Json& words) {
  std::string out;
  for (const Json& word : words) out += (out.empty() ? "" : " ") + word.get<std::string>();
  return out;
}

std::string gibibytes(const Json& bytes) {
  const auto value = bytes.get<uint64_t>();
  if (value == 0) return "unknown";
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%.1f GiB", static_cast<double>(value) / (1u << 30));
  return buffer;
}

int show(bool as_json) {
  kvc_device_caps caps{};
  caps.struct_size = sizeof(caps);
  kvc_error error{};
  if (kvc_device_query({kDLCPU, 0}, &caps, &error) != KVC_OK) {
    std::fprintf(stderr, "kvcache info: %s\n", error.message);
    return 1;
  }
  const Json info = collect(caps);
  if (as_json) {
    std::printf("%s\n", info.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return 0;
  }
  const auto line = [](const char* label, const std::string& text) {
    std::printf("%-17s %s\n", label, text.c_str());
  };
  line("library", info["version"].get<std::string>() + ", ABI " + info["abi"].get<std::string>());
  line("device", info["device"]);
  line("instruction set",
       info["isa"].get<std::string>() + " (available: " + joined(info["isas"]) + ")");
  line("cores", std::to_string(caps.num_cores) + ", as many threads by default");
  line("memory", gibibytes(info["memory_bytes"]) + ", " + gibibytes(info["memory_free_bytes"]) +
                     " free, in pages of " + std::to_string(caps.page_granularity) + " bytes");
  line("storage types", joined(info["dtypes"]));
  line("limits", "page size 1..65536 tokens, head dim 1..512");
  line("features", joined(info["features"]));
  return 0;
}

}  // namespace

void register_info(CLI::App& app, int& exit_code) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* info =
      app.add_subcommand("info", "Show the library's version and what it finds on this machine");
  info->add_flag("--json", *as_json, "Print JSON");
  info->callback([as_json, &exit_code] { exit_code = show(*as_json); });
}
