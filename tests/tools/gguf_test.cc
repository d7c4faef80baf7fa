// GGUF files: values and tensors of files that the tests write, every type unpacked from blocks
// that the tests pack, and files that are cut, flipped and lie about their counts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/tools/gguf_writer.h"
#include "tools/gguf/describe.h"
#include "tools/gguf/file.h"
#include "tools/gguf/unpack.h"

namespace kvc::gguf {
namespace {

class Gguf : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("gguf_test." + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string written(const Bytes& bytes) const {
    const std::string path = folder_ / "model.gguf";
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    file.close();
    EXPECT_TRUE(file.good());
    return path;
  }
  // What the refusal of the file says; empty: it was read.
  std::string refusal(const Bytes& bytes) const {
    try {
      const File file(written(bytes));
      for (const Tensor& tensor : file.tensors()) {
        std::vector<float> row(static_cast<size_t>(tensor.shape[0]));
        unpack(tensor, 0, tensor.shape[0], row.data());
      }
      describe(file, true);
      return {};
    } catch (const std::runtime_error& error) {
      EXPECT_NE(error.what(), std::string());
      return error.what();
    }
  }
  void refused(const Bytes& bytes, const std::string& part) const {
    EXPECT_NE(refusal(bytes).find(part), std::string::npos) << refusal(bytes);
  }

  std::filesystem::path folder_;
};

Writer small_model() {
  Writer writer;
  writer.text("general.architecture", "llama");
  writer.value<uint32_t>("llama.block_count", ValueType::kU32, 2);
  writer.value<float>("llama.rope.freq_base", ValueType::kF32, 1e5f);
  writer.value<uint8_t>("tokenizer.ggml.add_bos_token", ValueType::kBool, 1);
  writer.texts("tokenizer.ggml.tokens",
               {"a", "", "long enough to be no short string of any library"});
  writer.array<int32_t>("tokenizer.ggml.token_type", ValueType::kI32, {1, 3, -1});
  writer.array<float>("tokenizer.ggml.scores", ValueType::kF32, {0.5f, -1.0f, 2.0f});
  writer.tensor("output.weight", TensorType::kF32, {3, 2}, Bytes(24, 0));
  writer.tensor("blk.0.attn_q.weight", TensorType::kQ8_0, {32, 1}, Bytes(34, 0));
  return writer;
}

TEST_F(Gguf, ValuesAndTensorsComeBack) {
  const File file(written(small_model().bytes()));
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("llama.block_count"), 2);
  EXPECT_EQ(file.number("llama.block_count"), 2.0);
  EXPECT_EQ(file.number("llama.rope.freq_base"), 1e5);
  EXPECT_EQ(file.flag("tokenizer.ggml.add_bos_token"), true);
  ASSERT_EQ(file.texts("tokenizer.ggml.tokens")->size(), 3u);
  EXPECT_EQ(file.texts("tokenizer.ggml.tokens")->at(1), "");
  EXPECT_EQ(file.length("tokenizer.ggml.tokens"), 3);
  EXPECT_EQ(file.integers("tokenizer.ggml.token_type"), (std::vector<int64_t>{1, 3, -1}));
  EXPECT_EQ(file.numbers("tokenizer.ggml.scores"), (std::vector<float>{0.5f, -1.0f, 2.0f}));
  EXPECT_FALSE(file.integer("llama.context_length").has_value());
  ASSERT_EQ(file.tensors().size(), 2u);
  const Tensor* tensor = file.tensor("output.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(tensor->bytes(), 24);
  EXPECT_EQ(file.tensor("output"), nullptr);
}

TEST_F(Gguf, AValueOfAnotherTypeIsNamed) {
  const File file(written(small_model().bytes()));
  const auto said = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_NE(said([&] {
              file.integer("general.architecture");
            }).find("\"general.architecture\" is of type string, expected an integer"),
            std::string::npos);
  EXPECT_NE(said([&] { file.text("tokenizer.ggml.tokens"); }).find("an array of string"),
            std::string::npos);
  EXPECT_NE(said([&] { file.integers("tokenizer.ggml.scores"); }).find("expected an array of int"),
            std::string::npos);
  EXPECT_NE(said([&] { file.flag("llama.block_count"); }).find("expected a bool"),
            std::string::npos);
}

// ---- Blocks, packed from known integers

uint16_t half_of(float value) {  // For powers of two alone.
  int exponent = 0;
  std::frexp(value, &exponent);
  return static_cast<uint16_t>((exponent + 14) << 10);
}

struct Packed {
  Bytes bytes;
  std::vector<float> expected;
};

Packed packed_block(TensorType type, std::mt19937& random) {
  const auto below = [&](int end) {
    return static_cast<int>(random() % static_cast<uint32_t>(end));
  };
  Packed block;
  const float d = std::ldexp(1.0f, below(9) - 6), m = std::ldexp(1.0f, below(5) - 3);
  const auto elements = static_cast<size_t>(type_info(type)->block_elements);
  block.expected.resize(elements);
  const auto both = [&](auto&& low_of, auto&& high_of, size_t half) {
    for (size_t i = 0; i < half; ++i)
      block.bytes.push_back(static_cast<uint8_t>(low_of(i) | high_of(i) << 4));
  };
  std::vector<int> q(elements);
  const auto draw = [&](int end) {
    for (int& value : q) value = below(end);
  };
  switch (type) {
    case TensorType::kQ4_0:
    case TensorType::kQ4_1: {
      draw(16);
      put(block.bytes, half_of(d));
      if (type == TensorType::kQ4_1) put(block.bytes, half_of(m));
      both([&](size_t i) { return q[i]; }, [&](size_t i) { return q[i + 16]; }, 16);
      for (size_t i = 0; i < 32; ++i)
        block.expected[i] = type == TensorType::kQ4_0 ? d * static_cast<float>(q[i] - 8)
                                                      : d * static_cast<float>(q[i]) + m;
      break;
    }
    case TensorType::kQ5_0:
    case TensorType::kQ5_1: {
      draw(32);
      put(block.bytes, half_of(d));
      if (type == TensorType::kQ5_1) put(block.bytes, half_of(m));
      uint32_t high = 0;
      for (size_t i = 0; i < 32; ++i) high |= static_cast<uint32_t>(q[i] >> 4) << i;
      put(block.bytes, high);
      both([&](size_t i) { return q[i] & 15; }, [&](size_t i) { return q[i + 16] & 15; }, 16);
      for (size_t i = 0; i < 32; ++i)
        block.expected[i] = type == TensorType::kQ5_0 ? d * static_cast<float>(q[i] - 16)
                                                      : d * static_cast<float>(q[i]) + m;
      break;
    }
    case TensorType::kQ8_0:
      put(block.bytes, half_of(d));
      for (size_t i = 0; i < 32; ++i) {
        const int value = below(256) - 128;
        block.bytes.push_back(static_cast<uint8_t>(value));
        block.expected[i] = d * static_cast<float>(value);
      }
      break;
    case TensorType::kQ4_K:
    case TensorType::kQ5_K: {
      draw(type == TensorType::kQ4_K ? 16 : 32);
      int scales[8], mins[8];
      for (int g = 0; g < 8; ++g) scales[g] = below(64), mins[g] = below(64);
      put(block.bytes, half_of(d));
      put(block.bytes, half_of(m));
      for (int i = 0; i < 4; ++i)
        block.bytes.push_back(static_cast<uint8_t>(scales[i] | (scales[i + 4] >> 4) << 6));
      for (int i = 0; i < 4; ++i)
        block.bytes.push_back(static_cast<uint8_t>(mins[i] | (mins[i + 4] >> 4) << 6));
      for (int i = 0; i < 4; ++i)
        block.bytes.push_back(static_cast<uint8_t>((scales[i + 4] & 15) | (mins[i + 4] & 15) << 4));
      if (type == TensorType::kQ5_K) {
        for (size_t i = 0; i < 32; ++i) {
          int bits = 0;
          for (size_t g = 0; g < 8; ++g) bits |= (q[32 * g + i] >> 4) << g;
          block.bytes.push_back(static_cast<uint8_t>(bits));
        }
      }
      for (size_t pair = 0; pair < 4; ++pair)
        both([&](size_t i) { return q[64 * pair + i] & 15; },
             [&](size_t i) { return q[64 * pair + 32 + i] & 15; }, 32);
      for (size_t i = 0; i < 256; ++i) {
        const size_t g = i / 32;
        block.expected[i] = d * static_cast<float>(scales[g]) * static_cast<float>(q[i]) -
                            m * static_cast<float>(mins[g]);
      }
      break;
    }
    case TensorType::kQ6_K: {
      draw(64);
      int scales[16];
      for (int& scale : scales) scale = below(256) - 128;
      for (size_t half = 0; half < 2; ++half) {
        const int* of = q.data() + 128 * half;
        both([&](size_t i) { return of[i] & 15; }, [&](size_t i) { return of[i + 64] & 15; }, 64);
      }
      for (size_t half = 0; half < 2; ++half) {
        for (size_t i = 0; i < 32; ++i) {
          int bits = 0;
          for (size_t g = 0; g < 4; ++g) bits |= (q[128 * half + 32 * g + i] >> 4) << (2 * g);
          block.bytes.push_back(static_cast<uint8_t>(bits));
        }
      }
      for (const int scale : scales) block.bytes.push_back(static_cast<uint8_t>(scale));
      put(block.bytes, half_of(d));
      for (size_t i = 0; i < 256; ++i)
        block.expected[i] = d * static_cast<float>(scales[i / 16]) * static_cast<float>(q[i] - 32);
      break;
    }
    default: ADD_FAILURE() << "no block type";
  }
  return block;
}

TEST_F(Gguf, BlocksOfEveryTypeUnpackToWhatWasPacked) {
  std::mt19937 random(20261127);
  for (const TensorType type :
       {TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1,
        TensorType::kQ8_0, TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K}) {
    SCOPED_TRACE(type_name(type));
    const TypeInfo& info = *type_info(type);
    Bytes data;
    std::vector<float> expected;
    for (int block = 0; block < 40; ++block) {
      const Packed packed = packed_block(type, random);
      ASSERT_EQ(packed.bytes.size(), static_cast<size_t>(info.block_bytes));
      data.insert(data.end(), packed.bytes.begin(), packed.bytes.end());
      expected.insert(expected.end(), packed.expected.begin(), packed.expected.end());
    }
    Writer writer;
    const auto columns = static_cast<uint64_t>(4 * info.block_elements);
    writer.tensor("t", type, {columns, 10}, data);
    const File file(written(writer.bytes()));
    const Tensor& tensor = *file.tensor("t");
    ASSERT_EQ(tensor.elements(), static_cast<int64_t>(expected.size()));
    std::vector<float> out(expected.size());
    unpack(tensor, 0, tensor.elements(), out.data());
    EXPECT_EQ(out, expected);
    std::vector<float> row(columns);
    unpack(tensor, 3 * tensor.shape[0], tensor.shape[0], row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), expected.begin() + 3 * tensor.shape[0]));
  }
}

TEST_F(Gguf, HalvesOfEveryKindAreTheirNumbers) {
  Bytes data;
  const std::vector<std::pair<uint16_t, float>> halves = {
      {0x0000, 0.0f},  {0x3c00, 1.0f},     {0xc000, -2.0f},     {0x0001, std::ldexp(1.0f, -24)},
      {0x7bff, 65504}, {0x7c00, INFINITY}, {0xfc00, -INFINITY}, {0x3555, 0.333251953125f},
  };
  for (const auto& [bits, value] : halves) put(data, bits);
  put<uint16_t>(data, 0x7e00);  // NaN.
  Writer writer;
  writer.tensor("h", TensorType::kF16, {9}, data);
  Bytes bfloats;
  put<uint16_t>(bfloats, 0x3f80);
  put<uint16_t>(bfloats, 0xc2f7);
  writer.tensor("b", TensorType::kBF16, {2}, bfloats);
  const File file(written(writer.bytes()));
  float out[9];
  unpack(*file.tensor("h"), 0, 9, out);
  for (size_t i = 0; i < halves.size(); ++i) EXPECT_EQ(out[i], halves[i].second) << i;
  EXPECT_TRUE(std::isnan(out[8]));
  unpack(*file.tensor("b"), 0, 2, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -123.5f);
}

// ---- Damage

TEST_F(Gguf, FilesOfAnotherKindAreRefused) {
  EXPECT_THROW(File((folder_ / "missing").string()), std::runtime_error);
  EXPECT_THROW(File(folder_.string()), std::runtime_error);
  refused({}, "is empty");
  refused({'G', 'G', 'U'}, "is no GGUF file");
  Bytes bytes = small_model().bytes();
  bytes[4] = 1;
  refused(bytes, "version 1 is not read here");
  std::swap(bytes[4], bytes[7]);
  refused(bytes, "big-endian");
}

TEST_F(Gguf, WhatIsNotReadIsNamed) {
  Writer writer;
  writer.tensor("t", static_cast<TensorType>(10), {256}, Bytes(84, 0));
  refused(writer.bytes(), "tensor \"t\" is of type 10, which is not read here");
  writer = {};
  writer.tensor("t", TensorType::kQ4_0, {33}, Bytes(36, 0));
  refused(writer.bytes(), "rows of 33 elements, and Q4_0 has blocks of 32");
  writer = {};
  writer.tensor("t", TensorType::kF32, {1}, Bytes(4, 0));
  writer.tensor("t", TensorType::kF32, {1}, Bytes(4, 0));
  refused(writer.bytes(), "tensor \"t\" comes twice");
  writer = {};
  writer.text("key", "a");
  writer.text("key", "b");
  refused(writer.bytes(), "the key \"key\" comes twice");
  writer = {};
  writer.value<uint32_t>("general.alignment", ValueType::kU32, 24);
  refused(writer.bytes(), "general.alignment = 24");
  writer = {};
  writer.tensor("t", TensorType::kF32, {uint64_t{1} << 40, uint64_t{1} << 40}, Bytes(4, 0));
  refused(writer.bytes(), "dimension 1 of tensor \"t\" is 1099511627776");
}

TEST_F(Gguf, CountsBeyondTheFileAreRefusedBeforeMemoryIsTaken) {
  const Bytes whole = small_model().bytes();
  for (const size_t at : {size_t{8}, size_t{16}}) {  // Numbers of tensors and of values.
    Bytes bytes = whole;
    const uint64_t many = uint64_t{1} << 60;
    std::memcpy(bytes.data() + at, &many, sizeof many);
    refused(bytes, "it says that it has 1152921504606846976");
  }
  Writer writer;
  writer.array<uint8_t>("a", ValueType::kU8, {1, 2, 3});
  Bytes bytes = writer.bytes();
  const uint64_t many = ~uint64_t{0};
  std::memcpy(bytes.data() + 24 + 8 + 1 + 4 + 4, &many, sizeof many);
  refused(bytes, "elements of \"a\"");
}

// Ten thousand files, each cut or with some bytes changed: read or refused, never anything else.
TEST_F(Gguf, DamagedFilesAreReadOrRefused) {
  const Bytes whole = small_model().bytes();
  std::mt19937 random(7);
  int num_refused = 0;
  for (int round = 0; round < 10000; ++round) {
    Bytes bytes = whole;
    if (round % 3 == 0) bytes.resize(random() % whole.size());
    const int flips = round % 3 == 0 ? 0 : 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < flips; ++i)
      bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1 + random() % 255);
    num_refused += refusal(bytes).empty() ? 0 : 1;
    if (HasFailure()) FAIL() << "round " << round;
  }
  EXPECT_GT(num_refused, 5000);
  EXPECT_LT(num_refused, 10000);
}

}  // namespace
}  // namespace kvc::gguf
