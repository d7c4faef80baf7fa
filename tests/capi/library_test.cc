// kvcache.h, section "Library", and the function table of kvcache_api.h.
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "kvcache_api.h"
#include "tests/capi/fixture.h"
#include "tests/support/folder.h"

namespace kvc::test {
namespace {

TEST(Library, SaysItsVersion) {
  EXPECT_EQ(kvc_abi_version(), KVC_ABI_VERSION);
  EXPECT_EQ(std::string(kvc_version_string()).rfind("0.1", 0), 0u) << kvc_version_string();
  EXPECT_NE(std::string(kvc_version_string()).find("cpu"), std::string::npos);
}

TEST(Library, NamesEveryStatus) {
  EXPECT_STREQ(kvc_status_name(KVC_OK), "KVC_OK");
  EXPECT_STREQ(kvc_status_name(KVC_E_INVALID_ARGUMENT), "KVC_E_INVALID_ARGUMENT");
  EXPECT_STREQ(kvc_status_name(KVC_E_NO_PAGES), "KVC_E_NO_PAGES");
  EXPECT_STREQ(kvc_status_name(KVC_E_NEVER_FITS), "KVC_E_NEVER_FITS");
  EXPECT_STREQ(kvc_status_name(KVC_E_BUFFER_TOO_SMALL), "KVC_E_BUFFER_TOO_SMALL");
  EXPECT_STREQ(kvc_status_name(KVC_E_INTERNAL), "KVC_E_INTERNAL");
  std::vector<std::string> names;
  for (kvc_status status = KVC_OK; status <= KVC_E_INTERNAL; ++status) {
    for (const std::string& other : names) EXPECT_NE(other, kvc_status_name(status));
    names.push_back(kvc_status_name(status));
    EXPECT_NE(names.back(), "KVC_E_UNKNOWN");
  }
  for (const kvc_status unknown : {-1, KVC_E_INTERNAL + 1, INT32_MAX, INT32_MIN})
    EXPECT_STREQ(kvc_status_name(unknown), "KVC_E_UNKNOWN");
}

TEST(Library, KnowsItsFeaturesAndNoOthers) {
  for (const char* name : {"cpu",          "f32",
                           "f16",          "bf16",
                           "rope.half",    "rope.interleaved",
                           "rope.on_read", "rope.llama3",
                           "rope.yarn",    "rope.longrope",
                           "rope.mrope",   "softcap",
                           "sink_logits",  "alibi",
                           "bias",         "spans",
                           "window",       "window.sink",
                           "chunk",        "tree",
                           "mla",          "cross",
                           "shared",       "v_is_k",
                           "state",        "linear",
                           "cascade",      "shift",
                           "ops",          "storage.borrowed",
                           "storage.none", "layout.page_first",
                           "resize",       "export",
                           "plan.quant",   "plan.hf_json",
                           "prefix",       "prefix.tail",
                           "prefix.quota", "prefix.host",
                           "swap",         "events"}) {
    EXPECT_EQ(kvc_has_feature(name), 1) << name;
  }
  EXPECT_EQ(kvc_has_feature("cuda"), 0);
  EXPECT_EQ(kvc_has_feature("cp"), 0);
  EXPECT_EQ(kvc_has_feature("cpux"), 0);
  EXPECT_EQ(kvc_has_feature(""), 0);
  EXPECT_EQ(kvc_has_feature(nullptr), 0);
}

TEST(Library, DescribesTheCpu) {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  expect_ok([&](kvc_error* err) { return kvc_device_query({kDLCPU, 0}, &caps, err); });
  EXPECT_EQ(caps.struct_size, sizeof caps);
  EXPECT_EQ(caps.backend_present, 1);
  EXPECT_GE(caps.arch, KVC_CPU_ISA_SCALAR);
  EXPECT_LE(caps.arch, KVC_CPU_ISA_AVX512_BF16);
  EXPECT_NE(caps.isas & uint64_t{1} << caps.arch, 0u);
  EXPECT_NE(caps.isas & 1u << KVC_CPU_ISA_REFERENCE, 0u);
  EXPECT_NE(caps.isas & 1u << KVC_CPU_ISA_SCALAR, 0u);
  EXPECT_EQ(caps.dtypes,
            static_cast<uint64_t>(KVC_DTYPE_F32 | KVC_DTYPE_F16 | KVC_DTYPE_BF16 |
                                  KVC_DTYPE_F8_E4M3 | KVC_DTYPE_F8_E5M2 | KVC_DTYPE_INT8));
  EXPECT_GE(caps.num_cores, 1);
  EXPECT_GE(caps.page_granularity, 4096);
  std::string huge_pages;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), huge_pages);
  const bool has_huge_pages = huge_pages.find("[always]") != std::string::npos ||
                              huge_pages.find("[madvise]") != std::string::npos;
  EXPECT_EQ(caps.page_granularity == 2 << 20, has_huge_pages) << huge_pages;
  EXPECT_GT(caps.memory_bytes, 0u);
  EXPECT_LE(caps.memory_free_bytes, caps.memory_bytes);
  EXPECT_STRNE(caps.name, "");
}

TEST(Library, ADeviceWithoutABackEndIsNotAnError) {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  expect_ok([&](kvc_error* err) { return kvc_device_query({kDLCUDA, 0}, &caps, err); });
  EXPECT_EQ(caps.backend_present, 0);
  EXPECT_EQ(caps.isas, 0u);
}

TEST(Library, DeviceQueryRefusesBadArguments) {
  kvc_device_caps caps{};
  expect_error(KVC_E_INVALID_ARGUMENT, {"out"}, [](kvc_error* err) {
    return kvc_device_query({kDLCPU, 0}, nullptr, err);
  });
  for (const size_t size : {0u, 4u}) {
    caps.struct_size = size;
    expect_error(KVC_E_INVALID_ARGUMENT, {"out", "struct_size", std::to_string(size).c_str()},
                 [&](kvc_error* err) {
                   return kvc_device_query({kDLCPU, 0}, &caps, err);
                 });
  }
  caps.struct_size = sizeof caps;
  expect_error(KVC_E_OUT_OF_RANGE, {"device", "7"}, [&](kvc_error* err) {
    return kvc_device_query({kDLCPU, 7}, &caps, err);
  });
  expect_error(KVC_E_OUT_OF_RANGE, {"device", "-1"}, [&](kvc_error* err) {
    return kvc_device_query({kDLCPU, -1}, &caps, err);
  });
}

TEST(Library, AShorterOutputStructGetsWhatFits) {
  kvc_device_caps caps;
  std::memset(static_cast<void*>(&caps), 0xEE, sizeof caps);
  caps.struct_size = offsetof(kvc_device_caps, num_cores);
  ASSERT_EQ(kvc_device_query({kDLCPU, 0}, &caps, nullptr), KVC_OK);
  EXPECT_EQ(caps.struct_size, offsetof(kvc_device_caps, num_cores));
  EXPECT_EQ(caps.backend_present, 1);
  EXPECT_EQ(static_cast<uint32_t>(caps.num_cores), 0xEEEEEEEEu) << "written past struct_size";
  struct {
    kvc_device_caps caps;
    unsigned char tail[24];
  } longer{};
  std::memset(longer.tail, 0xEE, sizeof longer.tail);
  longer.caps.struct_size = sizeof longer;
  ASSERT_EQ(kvc_device_query({kDLCPU, 0}, &longer.caps, nullptr), KVC_OK);
  EXPECT_EQ(longer.caps.struct_size, sizeof(kvc_device_caps))
      << "the number of bytes that were filled";
  for (const unsigned char byte : longer.tail) EXPECT_EQ(byte, 0xEE);
}

TEST(Library, AShorterErrorStructGetsWhatFits) {
  struct {
    kvc_error error;
  } box;
  std::memset(static_cast<void*>(&box), 0xEE, sizeof box);
  box.error.struct_size = offsetof(kvc_error, message) + 8;
  EXPECT_EQ(kvc_device_query({kDLCPU, 0}, nullptr, &box.error), KVC_E_INVALID_ARGUMENT);
  EXPECT_EQ(box.error.status, KVC_E_INVALID_ARGUMENT);
  EXPECT_LT(strnlen(box.error.message, 8), 8u) << "the message ends inside the struct";
  EXPECT_EQ(static_cast<unsigned char>(box.error.message[8]), 0xEE);
}

// A cache on a GPU, which needs the CUDA back end.
kvc_status create_on_gpu(kvc_error* err) {
  Model model;
  model.config.device = {kDLCUDA, 0};
  model.config.max_seqs = 1, model.config.max_seq_len = 16, model.config.max_tokens_per_forward = 8;
  kvc_plan* plan = nullptr;
  kvc_cache* cache = nullptr;
  kvc_status status = kvc_plan_create(&model.config, &plan, err);
  if (status == KVC_OK) status = kvc_cache_create(plan, &cache, err);
  kvc_plan_destroy(plan);
  kvc_cache_destroy(cache);
  return status;
}

TEST(Modules, PathsThatAreNoneAreRefused) {
  for (const char* path : {"", "relative", "./here", "../here"}) {
    expect_error(KVC_E_INVALID_ARGUMENT, {"path = \"", path, "absolute"},
                 [&](kvc_error* err) { return kvc_module_path_set(path, err); });
  }
  expect_error(KVC_E_INVALID_ARGUMENT, {"/opt/$ORIGIN", "'$'"},
               [&](kvc_error* err) { return kvc_module_path_set("/opt/$ORIGIN", err); });
}

TEST(Modules, AFailedSearchIsRememberedUntilAPathIsSet) {
  if (kvc_has_feature("cuda") != 0) GTEST_SKIP() << "a back end lies beside the library";
  const Folder parent;
  const std::filesystem::path folder = parent.file("modules");
  const std::string file = (folder / "libkvcache_cuda.so").string();
  if (kvc_module_path_set(folder.c_str(), nullptr) == KVC_E_INVALID_STATE) {
    // Another test has loaded a module: this one takes a process of its own.
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string again = "'" + self + "' --gtest_brief=1 --gtest_filter=Modules.AFailed*";
    ASSERT_EQ(std::system(again.c_str()), 0);
    return;
  }
  expect_ok([&](kvc_error* err) { return kvc_module_path_set(folder.c_str(), err); });
  const kvc_error missing = expect_error(
      KVC_E_UNSUPPORTED, {file.c_str(), "No such file", "kvc_module_path_set"}, create_on_gpu);
  ASSERT_TRUE(std::filesystem::create_directories(folder));
  std::ofstream(file) << "no library";
  const kvc_error again = expect_error(KVC_E_UNSUPPORTED, {}, create_on_gpu);
  EXPECT_STREQ(again.message, missing.message) << "it was looked for again";
  EXPECT_EQ(kvc_has_feature("cuda"), 0);
  expect_ok([&](kvc_error* err) { return kvc_module_path_set(folder.c_str(), err); });
  const kvc_error broken = expect_error(KVC_E_UNSUPPORTED, {file.c_str()}, create_on_gpu);
  EXPECT_STRNE(broken.message, missing.message);
  expect_ok([&](kvc_error* err) { return kvc_module_path_set(nullptr, err); });
  expect_error(KVC_E_UNSUPPORTED, {"libkvcache_cuda.so", "No such file"}, create_on_gpu);
}

struct Log {
  std::vector<std::string> lines;
  std::vector<kvc_log_level> levels;
};

void record(void* user, kvc_log_level level, const char* message) {
  static_cast<Log*>(user)->lines.emplace_back(message);
  static_cast<Log*>(user)->levels.push_back(level);
}

TEST(Library, TheLoggerGetsMessagesFromItsLevelOn) {
  Model model;
  Log everything, warnings, none;
  expect_ok(
      [&](kvc_error* err) { return kvc_set_logger(record, &everything, KVC_LOG_DEBUG, err); });
  { Cache cache(model.config); }
  EXPECT_FALSE(everything.lines.empty()) << "creating a cache says what was chosen";
  for (const std::string& line : everything.lines) EXPECT_FALSE(line.empty());
  ASSERT_EQ(kvc_set_logger(record, &warnings, KVC_LOG_ERROR, nullptr), KVC_OK);
  const size_t before = everything.lines.size();
  { Cache cache(model.config); }
  EXPECT_EQ(everything.lines.size(), before) << "a replaced logger is silent";
  EXPECT_TRUE(warnings.lines.empty());
  for (const kvc_log_level level : {-1, 4}) {
    expect_error(KVC_E_INVALID_ARGUMENT, {"level", std::to_string(level).c_str()},
                 [&](kvc_error* err) { return kvc_set_logger(record, &none, level, err); });
  }
  ASSERT_EQ(kvc_set_logger(nullptr, nullptr, KVC_LOG_DEBUG, nullptr), KVC_OK);
  { Cache cache(model.config); }
  EXPECT_TRUE(none.lines.empty());
}

TEST(FunctionTable, EverySlotIsTheFunctionOfItsName) {
  const kvc_api* api = kvc_get_api(KVC_ABI_VERSION);
  ASSERT_NE(api, nullptr);
  EXPECT_EQ(api->struct_size, sizeof(kvc_api));
  EXPECT_EQ(api->abi_version, kvc_abi_version());
  EXPECT_EQ(api->get_abi_version, kvc_abi_version);
#define EXPECT_SLOT(name) EXPECT_EQ(api->name, kvc_##name) << #name
  EXPECT_SLOT(version_string);
  EXPECT_SLOT(status_name);
  EXPECT_SLOT(has_feature);
  EXPECT_SLOT(device_query);
  EXPECT_SLOT(set_logger);
  EXPECT_SLOT(config_init);
  EXPECT_SLOT(plan_create);
  EXPECT_SLOT(plan_destroy);
  EXPECT_SLOT(plan_info_get);
  EXPECT_SLOT(plan_layer_get);
  EXPECT_SLOT(plan_pages_for);
  EXPECT_SLOT(plan_max_tokens);
  EXPECT_SLOT(plan_request_pages);
  EXPECT_SLOT(plan_describe);
  EXPECT_SLOT(plan_to_json);
  EXPECT_SLOT(cache_create);
  EXPECT_SLOT(cache_destroy);
  EXPECT_SLOT(cache_clear);
  EXPECT_SLOT(cache_resize);
  EXPECT_SLOT(cache_stats_get);
  EXPECT_SLOT(cache_available_pages);
  EXPECT_SLOT(cache_total_length);
  EXPECT_SLOT(cache_is_empty);
  EXPECT_SLOT(cache_check);
  EXPECT_SLOT(seq_add);
  EXPECT_SLOT(seq_remove);
  EXPECT_SLOT(seq_fork);
  EXPECT_SLOT(seq_pop);
  EXPECT_SLOT(seq_length);
  EXPECT_SLOT(seq_info_get);
  EXPECT_SLOT(seq_list);
  EXPECT_SLOT(seq_can_append);
  EXPECT_SLOT(seq_can);
  EXPECT_SLOT(forward_begin);
  EXPECT_SLOT(forward_num_tokens);
  EXPECT_SLOT(forward_positions);
  EXPECT_SLOT(forward_end);
  EXPECT_SLOT(forward_abort);
  EXPECT_SLOT(attn);
  EXPECT_SLOT(attn_fused_qkv);
  EXPECT_SLOT(attn_self);
  EXPECT_SLOT(attn_cached);
  EXPECT_SLOT(attn_merge);
  EXPECT_SLOT(kv_append);
  EXPECT_SLOT(kv_gather);
  EXPECT_SLOT(debug_get_kv);
  EXPECT_SLOT(debug_set_kv);
  EXPECT_SLOT(export_pool);
  EXPECT_SLOT(export_page_table);
  EXPECT_SLOT(export_seq_pages);
  EXPECT_SLOT(plan_group_get);
  EXPECT_SLOT(seq_shift);
  EXPECT_SLOT(seq_set_window);
  EXPECT_SLOT(tree_commit);
  EXPECT_SLOT(mla_append);
  EXPECT_SLOT(attn_cross);
  EXPECT_SLOT(attn_shared_kv);
  EXPECT_SLOT(state_get);
  EXPECT_SLOT(state_set);
  EXPECT_SLOT(state_checkpoint);
  EXPECT_SLOT(attn_linear);
  EXPECT_SLOT(state_conv);
  EXPECT_SLOT(debug_get_mla);
  EXPECT_SLOT(debug_set_mla);
  EXPECT_SLOT(debug_get_layer);
  EXPECT_SLOT(debug_set_layer);
  EXPECT_SLOT(debug_get_state);
  EXPECT_SLOT(debug_set_state);
  EXPECT_SLOT(op_append);
  EXPECT_SLOT(op_attention_paged);
  EXPECT_SLOT(op_attention_ragged);
  EXPECT_SLOT(op_mla_paged);
  EXPECT_SLOT(op_merge);
  EXPECT_SLOT(op_gather);
  EXPECT_SLOT(op_copy_pages);
  EXPECT_SLOT(op_rotate);
  EXPECT_SLOT(op_linear_step);
  EXPECT_SLOT(op_quantize);
  EXPECT_SLOT(op_dequantize);
  EXPECT_SLOT(seq_positions);
  EXPECT_SLOT(state_checkpoint_release);
  EXPECT_SLOT(module_path_set);
  EXPECT_SLOT(cache_trim);
#undef EXPECT_SLOT
  // Pointers only behind the head, and none of them NULL: no slot was forgotten above.
  const auto* slots = reinterpret_cast<void* const*>(&api->get_abi_version);
  const size_t count = (sizeof(kvc_api) - offsetof(kvc_api, get_abi_version)) / sizeof(void*);
  for (size_t i = 0; i < count; ++i) EXPECT_NE(slots[i], nullptr) << i;
}

TEST(FunctionTable, OtherVersionsGetNull) {
  EXPECT_EQ(kvc_get_api(uint32_t{KVC_ABI_VERSION_MAJOR + 1} << 16), nullptr);
  EXPECT_EQ(kvc_get_api(KVC_ABI_VERSION + 1), nullptr);
  EXPECT_EQ(kvc_get_api(UINT32_MAX), nullptr);
}

// ---- Messages: UTF-8 without control characters, whatever bytes a path holds, cut between two
// characters, however short the caller's struct is.

std::string encoded(uint32_t code) {
  std::string text;
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) {
    text = {static_cast<char>(0xc0 | code >> 6)};
  } else if (code < 0x10000) {
    text = {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f))};
  } else {
    text = {static_cast<char>(0xf0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3f)),
            static_cast<char>(0x80 | (code >> 6 & 0x3f))};
  }
  return text + static_cast<char>(0x80 | (code & 0x3f));
}

bool is_text(uint32_t code) {
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  return !control && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
}

// The character at the beginning of `text`, found by encoding what its bits could mean, or "".
std::string first_character(const std::string& text) {
  const auto bits = [&](size_t at) { return static_cast<unsigned char>(text[at]) & 0x3fu; };
  const auto lead = static_cast<unsigned char>(text[0]);
  for (size_t length = 1; length <= 4 && length <= text.size(); ++length) {
    uint32_t code = length == 1 ? lead : lead & 0x7fu >> length;
    for (size_t at = 1; at < length; ++at) code = code << 6 | bits(at);
    if (length == 1 && lead >= 0x80) continue;
    if (is_text(code) && encoded(code) == text.substr(0, length)) return encoded(code);
  }
  return {};
}

bool is_clean(std::string text) {
  while (!text.empty()) {
    const std::string first = first_character(text);
    if (first.empty()) return false;
    text.erase(0, first.size());
  }
  return true;
}

std::string escaped(std::string text) {
  std::string result;
  while (!text.empty()) {
    std::string first = first_character(text);
    const size_t taken = first.empty() ? 1 : first.size();
    if (first.empty()) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(text[0]));
      first = hex;
    }
    result += first;
    text.erase(0, taken);
  }
  return result;
}

// What the library says of a file that is not there.
std::string message_of(const std::string& path, size_t struct_size = sizeof(kvc_error)) {
  kvc_load_desc desc{};
  desc.struct_size = sizeof desc;
  desc.path = path.c_str();
  kvc_error err;
  std::memset(&err, 0x5a, sizeof err);
  err.struct_size = struct_size;
  size_t length = 0;
  EXPECT_EQ(kvc_state_file_describe(&desc, nullptr, &length, &err), KVC_E_IO);
  EXPECT_EQ(kvc_state_file_describe(&desc, nullptr, &length, nullptr), KVC_E_IO);
  return struct_size > offsetof(kvc_error, message) ? err.message : "";
}

TEST(Messages, ShowBytesThatAreNoText) {
  EXPECT_NE(message_of("/nowhere/caf\xc3\xa9").find("/nowhere/caf\xc3\xa9"), std::string::npos);
  EXPECT_NE(message_of("/nowhere/\xff\n\x1b[31m").find("/nowhere/\\xff\\x0a\\x1b[31m"),
            std::string::npos);
  for (const char* bytes : {"\x80", "\xc0\xaf", "\xc3(", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                            "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xc2\x9b", "\x7f", "\xe2\x82("}) {
    const std::string message = message_of(std::string("/nowhere/") + bytes + "/file");
    EXPECT_TRUE(is_clean(message)) << message;
    EXPECT_NE(message.find("/nowhere/" + escaped(bytes) + "/file"), std::string::npos) << message;
  }
}

TEST(Messages, AreCleanForRandomPaths) {
  std::mt19937_64 random(20261128);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    std::string path = "/nowhere/";
    for (int64_t left = between(1, 40); left > 0; --left) {
      if (between(0, 1) == 0) {
        path += static_cast<char>(between(1, 255));
      } else {
        path += encoded(static_cast<uint32_t>(between(1, 0x10ffff)));
      }
    }
    const std::string message = message_of(path + "/file");
    ASSERT_TRUE(is_clean(message)) << message;
    ASSERT_NE(message.find(escaped(path) + "/file"), std::string::npos) << message;
  }
}

TEST(Messages, AreCutBetweenCharacters) {
  for (const char* character : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xff"}) {
    std::string path = "/nowhere/";
    while (path.size() < 600) path += character;
    const std::string whole = message_of(path);
    EXPECT_GT(whole.size(), sizeof(kvc_error::message) - 8);
    for (size_t size = offsetof(kvc_error, message) + 1; size <= sizeof(kvc_error); ++size) {
      const std::string message = message_of(path, size);
      ASSERT_TRUE(is_clean(message)) << message;
      ASSERT_EQ(message, whole.substr(0, message.size()));
      const size_t room = size - offsetof(kvc_error, message) - 1;
      ASSERT_LE(message.size(), room);
      ASSERT_LE(std::min(room, whole.size()) - message.size(), 3u);
    }
  }
}

}  // namespace
}  // namespace kvc::test
