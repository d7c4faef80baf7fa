// Texts that kvc_config_from_hf_json has to turn down: broken, hostile, unknown, too large for the
// caller's array.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "tests/capi/hf_config.h"
#include "tests/model/random.h"
#include "tests/support/environment.h"
#include "tests/support/sanitizers.h"

namespace kvc::test {
namespace {

kvc_error refused(const std::string& json, kvc_status status,
                  std::initializer_list<const char*> parts) {
  kvc_config config{};
  (void)kvc_config_init(&config, sizeof config);
  size_t n = 7;
  const kvc_error error = expect_error(status, parts, [&](kvc_error* err) {
    return kvc_config_from_hf_json(json.c_str(), &config, nullptr, &n, err);
  });
  EXPECT_EQ(n, 7u) << "a failing call writes nothing";
  EXPECT_EQ(config.layers, nullptr);
  return error;
}

std::string llama(const std::string& fields) {
  return R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
      "num_hidden_layers": 2)" +
         (fields.empty() ? "" : ", " + fields) + "}";
}

TEST(HfConfigRefusals, ATextCutAnywhereIsRefusedWithTheByte) {
  for (const char* name : {"gemma-4-31b", "mamba-codestral-7b"}) {
    const std::string whole = hf_text(name);
    // Only the newline behind the last brace can be missed.
    for (size_t length = 0; length + 2 < whole.size(); ++length) {
      HfModel model(whole.substr(0, length));
      ASSERT_EQ(model.status, KVC_E_INVALID_ARGUMENT)
          << name << " cut at " << length << ": " << model.message;
      ASSERT_GE(model.detail, 0);
      ASSERT_LE(model.detail, static_cast<int64_t>(length)) << model.message;
    }
  }
}

TEST(HfConfigRefusals, TextsThatAreNotJsonNameTheByte) {
  EXPECT_EQ(refused("", KVC_E_INVALID_ARGUMENT, {"not JSON at byte 0"}).detail, 0);
  EXPECT_EQ(refused("{\"a\": 1,, }", KVC_E_INVALID_ARGUMENT, {"not JSON at byte 8"}).detail, 8);
  refused("{\"a\": nan}", KVC_E_INVALID_ARGUMENT, {"not JSON"});
  refused("{\"a\": NaN}", KVC_E_INVALID_ARGUMENT, {"not JSON"});
  refused("{\"a\": \"\xff\"}", KVC_E_INVALID_ARGUMENT, {"not JSON"});
  refused("{} {}", KVC_E_INVALID_ARGUMENT, {"not JSON"});
  refused("[]", KVC_E_INVALID_ARGUMENT, {"json is an array, expected an object"});
  refused("3", KVC_E_INVALID_ARGUMENT, {"json is a number, expected an object"});
}

TEST(HfConfigRefusals, KeysThatComeTwiceAreRefused) {
  refused(llama(R"("hidden_size": 512)"), KVC_E_INVALID_ARGUMENT, {"'hidden_size' twice"});
  refused(llama(R"("other": {"x": 1, "y": 2, "x": 3})"), KVC_E_INVALID_ARGUMENT, {"'x' twice"});
}

TEST(HfConfigRefusals, DepthLengthAndNumberOfValuesAreLimited) {
  const auto nested = [](int depth) { return times(depth, "[") + times(depth, "]"); };
  HfModel deep(llama("\"x\": " + nested(63)));
  EXPECT_EQ(deep.status, KVC_OK) << deep.message;
  refused(llama("\"x\": " + nested(64)), KVC_E_OUT_OF_RANGE, {"deeper than 64"});
  refused(times(1000000, "["), KVC_E_OUT_OF_RANGE, {"deeper than 64"});
  refused(times(1000000, "{\"a\":"), KVC_E_OUT_OF_RANGE, {"deeper than 64"});
  refused(std::string((size_t{16} << 20) + 1, ' '), KVC_E_OUT_OF_RANGE,
          {"longer than 16777216 bytes"});
  refused(llama("\"x\": [1" + times(300000, ",1") + "]"), KVC_E_OUT_OF_RANGE,
          {"more than 262144 values"});
}

TEST(HfConfigRefusals, NumbersBeyondReasonAreRefusedByName) {
  const auto with_layers = [](const std::string& value) {
    return R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
        "num_hidden_layers": )" +
           value + "}";
  };
  EXPECT_EQ(
      refused(with_layers("65537"), KVC_E_OUT_OF_RANGE, {"num_hidden_layers = 65537", "1 to 65536"})
          .detail,
      65537);
  refused(with_layers("0"), KVC_E_OUT_OF_RANGE, {"num_hidden_layers = 0"});
  refused(with_layers("-3"), KVC_E_OUT_OF_RANGE, {"num_hidden_layers = -3"});
  refused(with_layers("18446744073709551616"), KVC_E_OUT_OF_RANGE,
          {"num_hidden_layers = 1.84467e+19"});
  refused(with_layers("18446744073709551615"), KVC_E_OUT_OF_RANGE, {"num_hidden_layers"});
  refused(with_layers("1e308"), KVC_E_OUT_OF_RANGE, {"num_hidden_layers = 1e+308"});
  refused(with_layers("1e999"), KVC_E_OUT_OF_RANGE, {"beyond the range of a double"});
  refused(with_layers("2.5"), KVC_E_INVALID_ARGUMENT,
          {"num_hidden_layers = 2.5, expected an integer"});
  EXPECT_EQ(HfModel(with_layers("2.0")).status, KVC_OK) << "a whole number in decimals";
  refused(llama(R"("head_dim": 513)"), KVC_E_OUT_OF_RANGE, {"head_dim = 513", "1 to 512"});
  refused(llama(R"("num_key_value_heads": 3)"), KVC_E_INVALID_ARGUMENT,
          {"num_attention_heads = 4", "num_key_value_heads = 3"});
  refused(llama(R"("max_position_embeddings": 4294967296)"), KVC_E_OUT_OF_RANGE,
          {"max_position_embeddings = 4294967296"});
  // Every state has at most 2^31 - 1 elements.
  refused(
      R"({"model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 1,
          "num_heads": 4096, "head_dim": 65536,
              "state_size": 65536, "n_groups": 1})",
      KVC_E_OUT_OF_RANGE, {"state is too large"});
}

TEST(HfConfigRefusals, TwoEntriesPerLayerKeepWithinTheLimitOfLayers) {
  refused(R"({"model_type": "t5", "d_kv": 64, "num_heads": 2, "num_layers": 40000})",
          KVC_E_OUT_OF_RANGE, {"80000 layers", "65536"});
}

TEST(HfConfigRefusals, FieldsOfTheWrongTypeAreNamedByTheirPath) {
  const auto text = [](const std::string& fields) {
    return R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
        "sliding_window": 512, )" +
           fields + "}}";
  };
  refused(text(R"("num_hidden_layers": "62")"), KVC_E_INVALID_ARGUMENT,
          {"text_config.num_hidden_layers is a string, expected a number"});
  refused(text(R"("num_hidden_layers": {})"), KVC_E_INVALID_ARGUMENT,
          {"text_config.num_hidden_layers is an object, expected a number"});
  refused(text(R"("layer_types": ["full_attention", 3])"), KVC_E_INVALID_ARGUMENT,
          {"text_config.layer_types[1] is a number, expected a string"});
  refused(text(R"("layer_types": "all")"), KVC_E_INVALID_ARGUMENT,
          {"text_config.layer_types is a string, expected an array"});
  refused(text(R"("layer_types": ["full_attention"])"), KVC_E_INVALID_ARGUMENT,
          {"text_config.layer_types has 1 entries, expected one per layer: 26"});
  refused(R"({"model_type": 7})", KVC_E_INVALID_ARGUMENT,
          {"model_type is a number, expected a string"});
  refused(R"({"model_type": "llama", "torch_dtype": 16})", KVC_E_INVALID_ARGUMENT,
          {"torch_dtype is a number"});
  refused(
      R"({"model_type": "llama4", "text_config": {"model_type": "llama4_text",
          "no_rope_layers": [1, 2]}})",
      KVC_E_OUT_OF_RANGE, {"text_config.no_rope_layers[1] = 2"});
}

TEST(HfConfigRefusals, MissingFieldsAreNamed) {
  refused("{}", KVC_E_INVALID_ARGUMENT, {"model_type is missing"});
  refused(R"({"model_type": "llama"})", KVC_E_INVALID_ARGUMENT, {"num_hidden_layers is missing"});
  refused(R"({"model_type": "llama", "num_hidden_layers": null})", KVC_E_INVALID_ARGUMENT,
          {"num_hidden_layers is missing"});
  refused(R"({"model_type": "deepseek_v3", "num_hidden_layers": 1, "num_attention_heads": 2})",
          KVC_E_INVALID_ARGUMENT, {"kv_lora_rank is missing"});
  refused(R"({"model_type": "mistral", "num_hidden_layers": 1, "num_attention_heads": 2})",
          KVC_E_INVALID_ARGUMENT, {"hidden_size is missing"});
  refused(
      R"({"model_type": "kimi_linear", "num_hidden_layers": 3, "num_attention_heads": 2,
          "kv_lora_rank": 8,
              "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
              "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [3], "num_heads": 2,
                  "head_dim": 8}})",
      KVC_E_INVALID_ARGUMENT, {"layer 2 neither in kda_layers nor in full_attn_layers"});
}

TEST(HfConfigRefusals, UnknownModelsAndFeaturesAreNamed) {
  refused(R"({"model_type": "perceptron"})", KVC_E_UNSUPPORTED,
          {"model_type = 'perceptron' is not supported"});
  refused(R"({"model_type": "deepseek_v32"})", KVC_E_UNSUPPORTED, {"deepseek_v32", "indexer keys"});
  refused(R"({"model_type": "deepseek_v4"})", KVC_E_UNSUPPORTED,
          {"deepseek_v4", "compressed tokens"});
  refused(R"({"model_type": "deepseek_v3", "index_topk": 2048})", KVC_E_UNSUPPORTED,
          {"index_topk", "indexer keys"});
  refused(llama(R"("torch_dtype": "float8_e4m3fn")"), KVC_E_UNSUPPORTED,
          {"torch_dtype = 'float8_e4m3fn'"});
  refused(
      R"({"model_type": "gemma3_text", "use_bidirectional_attention": true,
          "num_attention_heads": 1})",
      KVC_E_UNSUPPORTED, {"use_bidirectional_attention"});
  refused(
      R"({"model_type": "gemma2", "num_hidden_layers": 1, "num_attention_heads": 1,
          "layer_types": ["banded"]})",
      KVC_E_UNSUPPORTED, {"layer_types[0] = 'banded'"});
  // Text of the caller's never reaches a message as it is.
  refused("{\"model_type\": \"\\u0007\xc3\xa4" + times(100, "x") + "\"}", KVC_E_UNSUPPORTED,
          {"'???xxxx", "xxx...'"});
}

TEST(HfConfigRefusals, ArraysAndStructsOfTheCaller) {
  const std::string json = hf_text("llama-3.1-8b");
  HfModel model(json);
  size_t n = model.num_elements;
  kvc_config& config = model.config;
  const auto call = [&](const char* text, kvc_config* c, kvc_layer* layers, size_t* count) {
    return [=](kvc_error* err) { return kvc_config_from_hf_json(text, c, layers, count, err); };
  };
  expect_error(KVC_E_INVALID_ARGUMENT, {"json is NULL"}, call(nullptr, &config, nullptr, &n));
  expect_error(KVC_E_INVALID_ARGUMENT, {"config is NULL"},
               call(json.c_str(), nullptr, nullptr, &n));
  expect_error(KVC_E_INVALID_ARGUMENT, {"n is NULL"},
               call(json.c_str(), &config, nullptr, nullptr));
  size_t none = 0;
  expect_error(KVC_E_INVALID_ARGUMENT, {"*n = 0"},
               call(json.c_str(), &config, model.layers(), &none));
  kvc_config unsized{};
  expect_error(KVC_E_INVALID_ARGUMENT, {"config->struct_size = 0"},
               call(json.c_str(), &unsized, nullptr, &n));
  kvc_config short_config{};
  short_config.struct_size = offsetof(kvc_config, max_seq_len);
  expect_error(KVC_E_INVALID_ARGUMENT, {"max_seq_len"},
               call(json.c_str(), &short_config, nullptr, &n));
  for (const size_t stride :
       {size_t{0}, size_t{4}, sizeof(kvc_layer) + 4, size_t{1} << 40, size_t{8}}) {
    model.layers()->struct_size = stride;
    kvc_error error{};
    EXPECT_NE(kvc_config_from_hf_json(json.c_str(), &config, model.layers(), &n, &error), KVC_OK)
        << stride;
    EXPECT_NE(std::string(error.message).find(std::to_string(stride)), std::string::npos)
        << error.message;
  }
}

TEST(HfConfigRefusals, ATooSmallArrayIsLeftAloneAndTheCountIsGiven) {
  const std::string json = hf_text("qwen3-next-80b");
  HfModel whole(json);
  std::vector<kvc_layer> layers(whole.num_elements);
  for (size_t capacity = 1; capacity < whole.num_elements; ++capacity) {
    std::memset(static_cast<void*>(layers.data()), 0x77, layers.size() * sizeof(kvc_layer));
    layers[0].struct_size = sizeof(kvc_layer);
    const std::vector<unsigned char> before(
        reinterpret_cast<unsigned char*>(layers.data()),
        reinterpret_cast<unsigned char*>(layers.data() + layers.size()));
    kvc_config config{};
    config.struct_size = sizeof config;
    size_t n = capacity;
    kvc_error error{};
    EXPECT_EQ(kvc_config_from_hf_json(json.c_str(), &config, layers.data(), &n, &error),
              KVC_E_BUFFER_TOO_SMALL);
    EXPECT_EQ(n, whole.num_elements);
    EXPECT_EQ(error.detail, static_cast<int64_t>(whole.num_elements));
    EXPECT_EQ(config.layers, nullptr);
    EXPECT_EQ(std::memcmp(before.data(), layers.data(), before.size()), 0) << capacity;
  }
}

// What is accepted can be planned, whatever was done to the text.
TEST(HfConfigRefusals, RandomlyChangedTextsGiveAStatusAndWhatIsAcceptedCanBePlanned) {
  std::vector<std::string> names, texts;
  for (const auto& entry : std::filesystem::directory_iterator(hf_config_folder()))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());  // a seed means the same text on every machine
  for (const std::string& name : names) texts.push_back(hf_text(name));
  const std::vector<std::string> pieces = {"0",  "-1",  "1e9",   "null", "true", "\"x\"", "[]",
                                           "{}", "512", "65536", "3",    "0.5",  "[1, 2]"};
  int accepted = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::string text = random.pick(texts);
    for (int64_t change = random.range(1, 3); change > 0; --change) {
      const size_t colon = text.find(
          ": ", static_cast<size_t>(random.range(0, static_cast<int64_t>(text.size()) - 1)));
      if (colon == std::string::npos) continue;
      const size_t end = text.find_first_of(",\n", colon);
      text.replace(colon + 2, end - colon - 2, random.pick(pieces));
    }
    HfModel model(text);
    if (model.status != KVC_OK) continue;
    ++accepted;
    kvc_error error{};
    kvc_plan* plan = model.plan(&error);
    ASSERT_NE(plan, nullptr) << error.message << "\n" << text;
    kvc_plan_destroy(plan);
  }
  EXPECT_GT(accepted, 200);
}

// Configurations as trees, changed where their keys are: other types, nulls, huge numbers, missing,
// doubled and renamed keys, nesting.
class Mutator {
 public:
  Mutator(std::string text, Random& random) : text_(std::move(text)), random_(random) {}

  // The members of all objects, as ranges of the text: "key": value.
  void change() {
    find_members();
    if (members_.empty()) return;
    const Place place = random_.pick(members_);
    const std::string key = text_.substr(place.begin, place.colon - place.begin);
    const std::string value = text_.substr(place.colon, place.end - place.colon);
    static const std::vector<std::string> kValues = {"null",
                                                     "true",
                                                     "false",
                                                     "0",
                                                     "-1",
                                                     "1",
                                                     "3",
                                                     "7",
                                                     "64",
                                                     "65536",
                                                     "2147483648",
                                                     "1e300",
                                                     "9223372036854775807",
                                                     "0.5",
                                                     "\"\"",
                                                     "\"full_attention\"",
                                                     "\"x\"",
                                                     "[]",
                                                     "{}",
                                                     "[1, 2]",
                                                     "[null]",
                                                     "[\"full_attention\"]",
                                                     "[\"mamba\", \"conv\"]",
                                                     "{\"1\": {\"head_dim\": 64}}",
                                                     "{\"rope_type\": \"yarn\", \"factor\": 4}"};
    static const std::vector<std::string> kKeys = {
        "num_hidden_layers", "num_attention_heads",  "num_key_value_heads",
        "head_dim",          "hidden_size",          "sliding_window",
        "layer_types",       "kv_lora_rank",         "model_type",
        "per_layer_config",  "num_kv_shared_layers", "is_encoder_decoder",
        "text_config",       "quantization_config",  "linear_num_value_heads",
        "mamba_n_heads",     "conv_L_cache",         "rope_parameters",
        "kv_things",         "add_cross_attention",  "attention_chunk_size",
        "kv_source_layers"};
    const std::string other = "\"" + random_.pick(kKeys) + "\"";
    std::string out;
    switch (random_.range(0, 6)) {
      case 0: out = key + ": " + random_.pick(kValues); break;
      case 1: out = key + value + ", " + other + ": " + random_.pick(kValues); break;
      case 2: out = other + value; break;
      case 3: out = "\"unread\": 1"; break;  // The key is missing.
      case 4: out = key + value + ", " + key + value; break;
      case 5: out = key + ": {" + key + value + "}"; break;
      default: out = key + ": [" + value.substr(1) + "]";
    }
    text_.replace(place.begin, place.end - place.begin, out);
  }

  const std::string& text() const { return text_; }
  std::vector<std::string> keys() {
    find_members();
    std::vector<std::string> out;
    for (const Place& place : members_)
      out.push_back(text_.substr(place.begin + 1, place.colon - place.begin - 2));
    return out;
  }

 private:
  struct Place {
    size_t begin, colon, end;
  };

  size_t skip_string(size_t at) const {
    for (++at; at < text_.size() && text_[at] != '"'; ++at) at += text_[at] == '\\' ? 1 : 0;
    return std::min(at + 1, text_.size());
  }

  // The end of the value that begins at `at`.
  size_t value_end(size_t at) const {
    int depth = 0;
    while (at < text_.size()) {
      const char c = text_[at];
      if (c == '"') {
        at = skip_string(at);
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      ++at;
    }
    return at;
  }

  void find_members() {
    members_.clear();
    for (size_t at = 0; at < text_.size();) {
      if (text_[at] != '"') {
        ++at;
        continue;
      }
      const size_t end = skip_string(at);
      if (end < text_.size() && text_[end] == ':')
        members_.push_back({at, end, value_end(end + 1)});
      at = end;
    }
  }

  std::string text_;
  Random& random_;
  std::vector<Place> members_;
};

// A message that names no key speaks of the text, or of what its numbers make together.
bool names_a_key(const std::string& message, Mutator& mutator) {
  for (const char* other : {"not JSON", "twice", "too large", "deeper than", "makes", "rope",
                            "json is", "is missing", "could change", "its keys do not say"}) {
    if (message.find(other) != std::string::npos) return true;
  }
  const std::vector<std::string> keys = mutator.keys();
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
    return !key.empty() && message.find(key) != std::string::npos;
  });
}

TEST(HfConfigRefusals, MutatedTreesGiveAPlanOrARefusalThatNamesAKeyInTime) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(hf_config_folder()))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  std::vector<std::string> texts;
  for (const std::string& name : names) texts.push_back(hf_text(name));
  const size_t known = texts.size();
  for (size_t i = 0; i < known; ++i) {  // The same by their keys alone.
    std::string text = texts[i];
    for (size_t at = 0; (at = text.find("\"model_type\": \"", at)) != std::string::npos; ++at)
      text.insert(at + 15, "novel_");
    texts.push_back(std::move(text));
  }
  const char* asked = std::getenv("KVC_MUTATED_CONFIGS");
  const uint64_t count = asked == nullptr ? rounds(10000) : std::strtoull(asked, nullptr, 10);
  uint64_t accepted = 0, slowest = 0;
  double most_seconds = 0;
#if defined(NDEBUG) && !defined(KVC_UNDER_ASAN) && !defined(KVC_UNDER_TSAN)
  constexpr double kMostSeconds = 0.05;  // Time of the process.
#else
  constexpr double kMostSeconds = 2;
#endif
  for (uint64_t seed = 0; seed < count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Mutator mutator(random.pick(texts), random);
    for (int64_t change = random.range(1, 4); change > 0; --change) mutator.change();
    kvc_config config{};
    (void)kvc_config_init(&config, sizeof config);
    size_t n = 0;
    kvc_error error{};
    kvc_status status = KVC_OK;
    double seconds = 1e9;
    // Another program on the core can make a call look slow, but hardly every time.
    for (int attempt = 0; attempt < 5 && seconds > kMostSeconds; ++attempt) {
      const std::clock_t begin = std::clock();
      status = kvc_config_from_hf_json(mutator.text().c_str(), &config, nullptr, &n, &error);
      seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    }
    EXPECT_LE(seconds, kMostSeconds) << mutator.text();
    if (seconds > most_seconds) {
      most_seconds = seconds;
      slowest = seed;
    }
    kvc_hf_options options{};
    options.struct_size = sizeof options;
    options.assume = seed % 2 == 0 ? "llama" : nullptr;
    options.mtp_layers = 1;
    kvc_error other{};
    const kvc_status with_options =
        kvc_config_from_hf(mutator.text().c_str(), &options, &config, nullptr, &n, &other);
    ASSERT_EQ(with_options == KVC_OK, other.message[0] == '\0') << other.message;
    if (status != KVC_OK) {
      ASSERT_TRUE(names_a_key(error.message, mutator)) << error.message << "\n" << mutator.text();
      continue;
    }
    ++accepted;
    HfModel model(mutator.text());
    ASSERT_EQ(model.status, KVC_OK) << model.message;
    kvc_plan* plan = model.plan(&error);
    ASSERT_NE(plan, nullptr) << error.message << "\n" << mutator.text();
    kvc_plan_destroy(plan);
  }
  EXPECT_GT(accepted, count / 20);
  EXPECT_LT(accepted, count);
  if (asked != nullptr) {
    std::printf("%llu of %llu are read, the slowest in %.1f ms: seed %llu\n",
                static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(count),
                1e3 * most_seconds, static_cast<unsigned long long>(slowest));
  }
}

}  // namespace
}  // namespace kvc::test
