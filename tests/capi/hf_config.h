// A Hugging Face configuration read through the C interface, into an array full of bytes that
// nobody may rely on.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/capi/fixture.h"
#include "tests/support/source_tree.h"

namespace kvc::test {

inline std::filesystem::path hf_config_folder() { return source_path("tests/capi/hf_configs"); }

// "llama-3.1-8b"
inline std::string hf_text(const std::string& name) {
  std::ifstream file(source_path("tests/capi/hf_configs/" + name + ".json"));
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string times(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// What the library says while this lives.
class Lines {
 public:
  Lines() { (void)kvc_set_logger(add, &lines_, KVC_LOG_WARNING, nullptr); }
  ~Lines() { (void)kvc_set_logger(nullptr, nullptr, KVC_LOG_WARNING, nullptr); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  const std::vector<std::string>& all() const { return lines_; }

 private:
  static void add(void* user, kvc_log_level, const char* message) {
    static_cast<std::vector<std::string>*>(user)->emplace_back(message);
  }
  std::vector<std::string> lines_;
};

class HfModel {
 public:
  static constexpr unsigned char kPoison = 0xA5;

  // `stride`: size of the caller's kvc_layer.
  explicit HfModel(const std::string& json, size_t stride = sizeof(kvc_layer),
                   const kvc_hf_options* opt = nullptr)
      : stride_(stride) {
    (void)kvc_config_init(&config, sizeof config);
    kvc_error error{};
    size_t count = 0;
    const auto read = [&](kvc_layer* out) {
      return opt == nullptr ? kvc_config_from_hf_json(json.c_str(), &config, out, &count, &error)
                            : kvc_config_from_hf(json.c_str(), opt, &config, out, &count, &error);
    };
    status = read(nullptr);
    message = error.message;
    detail = error.detail;
    if (status != KVC_OK) return;
    EXPECT_EQ(config.num_layers, 0) << "asking for the count writes nothing";
    for (bool fits = false; !fits;) {
      words_.assign(count * stride / sizeof(uint64_t) + kGuardWords, 0);
      std::memset(words_.data(), kPoison, words_.size() * sizeof(uint64_t));
      layers()->struct_size = stride;
      const size_t capacity = count;
      status = read(layers());
      message = error.message;
      fits = status != KVC_E_BUFFER_TOO_SMALL;
      EXPECT_TRUE(fits || count > capacity) << "a call that asks for more has to say how much";
    }
    num_elements = count;
    for (size_t i = 0; i < kGuardWords * sizeof(uint64_t); ++i) {
      EXPECT_EQ(bytes()[count * stride + i], kPoison)
          << "byte " << i << " behind the array was written";
    }
  }

  kvc_layer* layers() { return reinterpret_cast<kvc_layer*>(words_.data()); }
  unsigned char* bytes() { return reinterpret_cast<unsigned char*>(words_.data()); }
  size_t num_layers() const { return static_cast<size_t>(config.num_layers); }
  const kvc_layer& layer(size_t i) {
    static const kvc_layer none{};
    EXPECT_LT(i, num_layers());
    return i < num_layers() ? *reinterpret_cast<const kvc_layer*>(bytes() + i * stride_) : none;
  }
  const kvc_rope& rope(size_t i) {
    static const kvc_rope none{};
    EXPECT_NE(layer(i).rope, nullptr) << "layer " << i;
    return layer(i).rope == nullptr ? none : *layer(i).rope;
  }

  // One letter per layer: A attention, W with a window, K in chunks, L latent, C cross, S state, R
  // reads another layer, - none.
  std::string kinds() {
    std::string out;
    for (size_t i = 0; i < num_layers(); ++i) {
      const kvc_layer& one = layer(i);
      if (one.kind == KVC_LAYER_ATTENTION)
        out += one.window != 0 ? 'W' : one.chunk != 0 ? 'K' : 'A';
      else
        out += "ALCSR-"[one.kind];
    }
    return out;
  }

  // "32/8 heads of 128/128 bfloat16"
  std::string heads(size_t i) {
    const kvc_layer& one = layer(i);
    const char* dtype = one.k_dtype.code == kDLBfloat ? "bfloat16"
                        : one.k_dtype.bits == 16      ? "float16"
                                                      : "float32";
    EXPECT_EQ(one.k_dtype.bits, one.v_dtype.bits);
    return std::to_string(one.num_q_heads) + "/" + std::to_string(one.num_kv_heads) + " heads of " +
           std::to_string(one.k_dim) + "/" + std::to_string(one.v_dim) + " " + dtype;
  }

  // "[12288, 3] bfloat16, [32, 128, 128] float32"
  std::string states(size_t i) {
    std::string out;
    const kvc_layer& one = layer(i);
    for (int32_t k = 0; k < one.num_states; ++k) {
      const kvc_state_spec& state = one.states[k];
      out += k == 0 ? "[" : ", [";
      for (int32_t d = 0; d < state.ndim; ++d)
        out += (d == 0 ? "" : ", ") + std::to_string(state.shape[d]);
      out += state.dtype.bits == 32          ? "] float32"
             : state.dtype.code == kDLBfloat ? "] bfloat16"
                                             : "] float16";
    }
    return out;
  }

  // A plan of these layers with the model's own lengths; pages enough for one request are not asked
  // for.
  kvc_plan* plan(kvc_error* err) {
    kvc_plan* out = nullptr;
    const kvc_status result = kvc_plan_create(&config, &out, err);
    EXPECT_EQ(out != nullptr, result == KVC_OK);
    return out;
  }

  kvc_config config{};
  kvc_status status = KVC_OK;
  std::string message;
  int64_t detail = 0;
  size_t num_elements = 0;

 private:
  static constexpr size_t kGuardWords = 8;
  size_t stride_;
  std::vector<uint64_t> words_;
};

// A file of the folder that is read.
struct Loaded : HfModel {
  explicit Loaded(const std::string& name) : HfModel(hf_text(name)) {
    EXPECT_EQ(status, KVC_OK) << name << ": " << message;
  }
};

}  // namespace kvc::test
