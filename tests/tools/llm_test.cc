// Networks of every architecture with random weights, against loops in double that know nothing of
// the cache: logits of whole prompts, in parts, on one thread and on three; and files that are
// refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/tools/gguf_writer.h"
#include "tools/chat/chat_cache.h"
#include "tools/chat/sampler.h"
#include "tools/llm/network.h"

namespace kvc::llm {
namespace {

using Values = std::vector<double>;

struct Case {
  const char* architecture;
  int layers;
  bool ties_head = false;
  bool has_freq_factors = false;
  int64_t rotary_dim = 16;
};

constexpr int64_t kWidth = 48, kQHeads = 6, kKvHeads = 2, kHeadDim = 16, kFfn = 40,
                  kVocabulary = 70, kWindow = 5;

// A file of float32 tensors; what they hold, by name.
class TestModel {
 public:
  explicit TestModel(const Case& of) : case_(of), random_(7) {
    const std::string prefix = std::string(of.architecture) + ".";
    const bool is_gemma = prefix == "gemma3.";
    writer_.text("general.architecture", of.architecture);
    const auto count = [&](const char* key, int64_t value) {
      writer_.value(prefix + key, gguf::ValueType::kU32, static_cast<uint32_t>(value));
    };
    count("block_count", of.layers);
    count("embedding_length", kWidth);
    count("feed_forward_length", kFfn);
    count("attention.head_count", kQHeads);
    count("attention.head_count_kv", kKvHeads);
    count("attention.key_length", kHeadDim);
    count("context_length", 100);
    count("rope.dimension_count", of.rotary_dim);
    if (is_gemma) count("attention.sliding_window", kWindow);
    writer_.value(prefix + "attention.layer_norm_rms_epsilon", gguf::ValueType::kF32, 1e-5f);
    writer_.value(prefix + "rope.freq_base", gguf::ValueType::kF32, 500.0f);
    tensor("token_embd.weight", {kWidth, kVocabulary}, 0, 1);
    for (int i = 0; i < of.layers; ++i) {
      const std::string at = "blk." + std::to_string(i) + ".";
      norm(at + "attn_norm.weight", kWidth);
      norm(at + "ffn_norm.weight", kWidth);
      if (is_gemma) {
        norm(at + "post_attention_norm.weight", kWidth);
        norm(at + "post_ffw_norm.weight", kWidth);
      }
      if (is_gemma || prefix == "qwen3.") {
        norm(at + "attn_q_norm.weight", kHeadDim);
        norm(at + "attn_k_norm.weight", kHeadDim);
      }
      matrix(at + "attn_q", kWidth, kQHeads * kHeadDim);
      matrix(at + "attn_k", kWidth, kKvHeads * kHeadDim);
      matrix(at + "attn_v", kWidth, kKvHeads * kHeadDim);
      if (prefix == "qwen2.") {
        tensor(at + "attn_q.bias", {kQHeads * kHeadDim}, 0, 0.5);
        tensor(at + "attn_k.bias", {kKvHeads * kHeadDim}, 0, 0.5);
        tensor(at + "attn_v.bias", {kKvHeads * kHeadDim}, 0, 0.5);
      }
      matrix(at + "attn_output", kQHeads * kHeadDim, kWidth);
      matrix(at + "ffn_gate", kWidth, kFfn);
      matrix(at + "ffn_up", kWidth, kFfn);
      matrix(at + "ffn_down", kFfn, kWidth);
    }
    norm("output_norm.weight", kWidth);
    if (!of.ties_head) matrix("output", kWidth, kVocabulary);
    if (of.has_freq_factors) {
      gguf::Bytes bytes;
      for (int64_t i = 0; i < of.rotary_dim / 2; ++i) {
        values_["rope_freqs.weight"].push_back(1 + 0.5 * static_cast<double>(i));
        gguf::put(bytes, 1 + 0.5f * static_cast<float>(i));
      }
      writer_.tensor("rope_freqs.weight", gguf::TensorType::kF32,
                     {static_cast<uint64_t>(of.rotary_dim / 2)}, bytes);
    }
  }

  gguf::Writer& writer() { return writer_; }
  const Values& operator[](const std::string& name) const { return values_.at(name); }
  bool has(const std::string& name) const { return values_.count(name) != 0; }
  const Case& of() const { return case_; }

 private:
  void norm(const std::string& name, int64_t count) { tensor(name, {count}, 1, 0.2); }
  void matrix(const std::string& name, int64_t depth, int64_t width) {
    tensor(name + ".weight", {depth, width}, 0, 1.2 / std::sqrt(static_cast<double>(depth)));
  }
  void tensor(const std::string& name, const std::vector<int64_t>& shape, double mean,
              double spread) {
    std::normal_distribution<float> normal(static_cast<float>(mean), static_cast<float>(spread));
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    gguf::Bytes bytes;
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(random_);
      values_[name].push_back(value);
      gguf::put(bytes, value);
    }
    writer_.tensor(name, gguf::TensorType::kF32, {shape.begin(), shape.end()}, bytes);
  }

  Case case_;
  std::mt19937_64 random_;
  gguf::Writer writer_;
  std::map<std::string, Values> values_;
};

class TestFile {
 public:
  explicit TestFile(const gguf::Bytes& bytes)
      : path_(testing::TempDir() + "llm_test_" + std::to_string(getpid()) + ".gguf") {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  ~TestFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// ---- the oracle

Values norm(const Values& x, const Values& weights) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-5f);
  Values out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weights[i];
  return out;
}

Values times(const Values& x, const Values& matrix) {
  Values out(matrix.size() / x.size());
  for (size_t j = 0; j < out.size(); ++j) {
    for (size_t k = 0; k < x.size(); ++k) out[j] += x[k] * matrix[j * x.size() + k];
  }
  return out;
}

void add(Values& x, const Values& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// Logits of every position.
std::vector<Values> oracle(const TestModel& model, const std::vector<int32_t>& tokens) {
  const std::string architecture = model.of().architecture;
  const bool is_gemma = architecture == "gemma3", is_llama = architecture == "llama";
  const auto dim = static_cast<size_t>(kHeadDim);
  std::vector<Values> hidden;
  for (const int32_t token : tokens) {
    const auto first = model["token_embd.weight"].begin() + token * kWidth;
    hidden.emplace_back(first, first + kWidth);
    for (double& value : hidden.back()) value *= is_gemma ? std::sqrt(double{kWidth}) : 1;
  }
  for (int l = 0; l < model.of().layers; ++l) {
    const std::string at = "blk." + std::to_string(l) + ".";
    const bool is_local = is_gemma && l % 6 != 5;
    const double base = is_local ? 10000 : 500;
    const size_t rotary = is_local ? dim : static_cast<size_t>(model.of().rotary_dim);
    std::vector<Values> q, k, v;
    const auto heads_of = [&](const Values& x, const char* part, size_t position, bool rotates) {
      Values out = times(x, model[at + "attn_" + part + ".weight"]);
      if (model.has(at + "attn_" + part + ".bias")) add(out, model[at + "attn_" + part + ".bias"]);
      const std::string norm_name = at + "attn_" + part + "_norm.weight";
      for (size_t head = 0; rotates && head < out.size() / dim; ++head) {
        const auto first = out.begin() + static_cast<int64_t>(head * dim);
        Values row(first, first + kHeadDim);
        if (model.has(norm_name)) row = norm(row, model[norm_name]);
        const Values before = row;
        for (size_t i = 0; i < rotary / 2; ++i) {
          double angle =
              static_cast<double>(position) *
              std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
          if (model.has("rope_freqs.weight") && !is_local) angle /= model["rope_freqs.weight"][i];
          const size_t a = is_llama ? 2 * i : i, b = is_llama ? 2 * i + 1 : i + rotary / 2;
          row[a] = before[a] * std::cos(angle) - before[b] * std::sin(angle);
          row[b] = before[a] * std::sin(angle) + before[b] * std::cos(angle);
        }
        std::copy(row.begin(), row.end(), first);
      }
      return out;
    };
    for (size_t t = 0; t < tokens.size(); ++t) {
      const Values x = norm(hidden[t], model[at + "attn_norm.weight"]);
      q.push_back(heads_of(x, "q", t, true));
      k.push_back(heads_of(x, "k", t, true));
      v.push_back(heads_of(x, "v", t, false));
    }
    for (size_t t = 0; t < tokens.size(); ++t) {
      Values attended(static_cast<size_t>(kQHeads * kHeadDim));
      const size_t first = is_local && t + 1 > static_cast<size_t>(kWindow) ? t + 1 - kWindow : 0;
      for (size_t head = 0; head < static_cast<size_t>(kQHeads); ++head) {
        const size_t kv = head / static_cast<size_t>(kQHeads / kKvHeads) * dim;
        Values weights;
        double total = 0;
        for (size_t key = first; key <= t; ++key) {
          double score = 0;
          for (size_t i = 0; i < dim; ++i) score += q[t][head * dim + i] * k[key][kv + i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
          total += weights.back();
        }
        for (size_t key = first; key <= t; ++key) {
          for (size_t i = 0; i < dim; ++i)
            attended[head * dim + i] += weights[key - first] / total * v[key][kv + i];
        }
      }
      Values added = times(attended, model[at + "attn_output.weight"]);
      if (is_gemma) added = norm(added, model[at + "post_attention_norm.weight"]);
      add(hidden[t], added);
      const Values x = norm(hidden[t], model[at + "ffn_norm.weight"]);
      Values gate = times(x, model[at + "ffn_gate.weight"]);
      const Values up = times(x, model[at + "ffn_up.weight"]);
      for (size_t i = 0; i < gate.size(); ++i) {
        const double g = gate[i];
        const double inner = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
        gate[i] = up[i] * (is_gemma ? 0.5 * g * (1 + std::tanh(inner)) : g / (1 + std::exp(-g)));
      }
      added = times(gate, model[at + "ffn_down.weight"]);
      if (is_gemma) added = norm(added, model[at + "post_ffw_norm.weight"]);
      add(hidden[t], added);
    }
  }
  std::vector<Values> logits;
  for (const Values& row : hidden)
    logits.push_back(times(norm(row, model["output_norm.weight"]),
                           model[model.of().ties_head ? "token_embd.weight" : "output.weight"]));
  return logits;
}

// ---- the tests

std::vector<int32_t> some_tokens(size_t count) {
  std::mt19937 random(3);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(kVocabulary)));
  return tokens;
}

// Last logits of each part of the prompt.
std::vector<std::vector<float>> computed(const std::string& path, int threads, WeightType type,
                                         const std::vector<int32_t>& tokens, size_t part) {
  const gguf::File file(path);
  const Shape shape = read_shape(file);
  WorkerPool pool(threads);
  const Weights weights = load_weights(file, shape, {type, {}}, pool, block_kernels());
  Network network(shape, weights, pool, block_kernels());
  chat::ChatCache cache(shape, {kDLFloat, 32, 1}, 64, pool);
  cache.add(1);
  std::vector<std::vector<float>> out;
  for (size_t at = 0; at < tokens.size(); at += part) {
    out.emplace_back(static_cast<size_t>(shape.vocabulary));
    cache.forward(1, std::span(tokens).subspan(at, std::min(part, tokens.size() - at)), network,
                  out.back().data());
  }
  return out;
}

class ToolLlm : public testing::TestWithParam<Case> {};

TEST_P(ToolLlm, LogitsAreThoseOfLoopsInDouble) {
  TestModel model(GetParam());
  const TestFile file(model.writer().bytes());
  const std::vector<int32_t> tokens = some_tokens(23);
  const std::vector<Values> expected = oracle(model, tokens);
  for (const size_t part : {size_t{1}, size_t{4}, tokens.size()}) {
    SCOPED_TRACE(part);
    const auto got = computed(file.path(), 1, WeightType::kFloat32, tokens, part);
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t row = std::min((i + 1) * part, tokens.size()) - 1;
      for (size_t id = 0; id < got[i].size(); ++id)
        ASSERT_NEAR(got[i][id], expected[row][id], 2e-4) << "position " << row << ", token " << id;
    }
    EXPECT_EQ(computed(file.path(), 3, WeightType::kFloat32, tokens, part), got)
        << "bits depend on the number of threads";
  }
  const auto rounded = computed(file.path(), 2, WeightType::kBfloat16, tokens, tokens.size());
  double difference = 0;
  for (size_t id = 0; id < rounded[0].size(); ++id)
    difference = std::max(difference, std::fabs(rounded[0][id] - expected.back()[id]));
  EXPECT_GT(difference, 1e-5) << "weights are rounded";
  EXPECT_LT(difference, 0.3);
}

INSTANTIATE_TEST_SUITE_P(Architectures, ToolLlm,
                         testing::Values(Case{"llama", 2}, Case{"llama", 2, true, true},
                                         Case{"llama", 1, false, false, 8}, Case{"qwen2", 2},
                                         Case{"qwen3", 2, true}, Case{"gemma3", 7, true}));

void expect_refused(const gguf::Writer& writer, const std::string& part) {
  const TestFile file(writer.bytes());
  try {
    (void)computed(file.path(), 1, WeightType::kFloat32, {1}, 1);
    ADD_FAILURE() << "not refused: " << part;
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(ToolLlmFiles, ThatAreNotServedAreRefusedByName) {
  const auto with = [](const std::function<void(gguf::Writer&)>& change, const char* part) {
    TestModel model({"llama", 1});
    change(model.writer());
    expect_refused(model.writer(), part);
  };
  with([](gguf::Writer& w) { w.value("llama.expert_count", gguf::ValueType::kU32, uint32_t{8}); },
       "llama.expert_count");
  with([](gguf::Writer& w) { w.text("llama.rope.scaling.type", "longrope"); },
       "\"longrope\", expected none, linear or yarn");
  with(
      [](gguf::Writer& w) {
        w.value("llama.attention.value_length", gguf::ValueType::kU32, uint32_t{8});
      },
      "llama.attention.value_length = 8, expected that of K, 16");
  with(
      [](gguf::Writer& w) {
        w.texts("tokenizer.ggml.tokens", {"a", "b"});
      },
      "tokenizer.ggml.tokens has 2 tokens, and token_embd.weight has rows for 70");
  gguf::Writer other, empty;
  other.text("general.architecture", "mamba");
  expect_refused(other, "\"mamba\" is not served here: llama, qwen2, qwen3 and gemma3 are");
  empty.text("general.architecture", "llama");
  expect_refused(empty, "has no llama.block_count");
}

TEST(ToolSampler, DrawsTheLikeliestOrByTheirShare) {
  const std::vector<float> logits = {0, 2, -1, 2, 1};
  chat::Sampler greedy({});
  EXPECT_EQ(greedy.draw(logits), 1) << "the first of two that are equal";
  chat::Sampler warm({.temperature = 1, .top_p = 1, .seed = 5});
  std::vector<int> counts(logits.size());
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(warm.draw(logits))];
  double total = 0;
  for (const float logit : logits) total += std::exp(logit);
  for (size_t id = 0; id < logits.size(); ++id)
    EXPECT_NEAR(static_cast<double>(counts[id]) / kDraws, std::exp(logits[id]) / total, 0.015)
        << id;
  chat::Sampler narrow({.temperature = 1, .top_p = 0.5, .seed = 5});
  for (int i = 0; i < 1000; ++i) {
    const int32_t id = narrow.draw(logits);
    ASSERT_TRUE(id == 1 || id == 3) << id;
  }
}

// No test of its own: tests/clients/hf/test_command_logits.py runs it on files of the `gguf`
// package, and compares what it writes with the logits of transformers. KVC_LLM_FILES has three
// lines: a model, ids of tokens, and where the logits go, both as arrays.
TEST(ToolLlmOracle, DISABLED_WritesLogits) {
  const char* given = std::getenv("KVC_LLM_FILES");
  ASSERT_NE(given, nullptr);
  const std::string names = given;
  const size_t first = names.find('\n'), second = names.rfind('\n');
  ASSERT_LT(first, second);
  std::ifstream in(names.substr(first + 1, second - first - 1), std::ios::binary);
  std::vector<int32_t> tokens;
  for (int32_t id = 0; in.read(reinterpret_cast<char*>(&id), sizeof id);) tokens.push_back(id);
  ASSERT_FALSE(tokens.empty());

  const gguf::File file(names.substr(0, first));
  const Shape shape = read_shape(file);
  WorkerPool pool(1);
  const Weights weights =
      load_weights(file, shape, {WeightType::kFloat32, {}}, pool, block_kernels());
  Network network(shape, weights, pool, block_kernels());
  chat::ChatCache cache(shape, {kDLFloat, 32, 1}, static_cast<int64_t>(tokens.size()), pool);
  cache.add(1);
  std::ofstream out(names.substr(second + 1), std::ios::binary);
  // In parts, so that most keys come out of the cache.
  constexpr size_t kPart = 64;
  for (size_t at = 0; at < tokens.size(); at += kPart) {
    const size_t count = std::min(kPart, tokens.size() - at);
    std::vector<int64_t> wanted(count);
    std::iota(wanted.begin(), wanted.end(), 0);
    std::vector<float> logits(count * static_cast<size_t>(shape.vocabulary));
    cache.forward(1, std::span(tokens).subspan(at, count), network, wanted, logits.data());
    out.write(reinterpret_cast<const char*>(logits.data()),
              static_cast<std::streamsize>(logits.size() * sizeof(float)));
  }
  out.close();
  ASSERT_TRUE(out.good());
}

}  // namespace
}  // namespace kvc::llm
