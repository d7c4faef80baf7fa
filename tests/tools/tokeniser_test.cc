// Tokenisers on small vocabularies that the tests write: the words of each pattern, merges, special
// tokens, bytes that are no text, and vocabularies that are damaged.
#include "tools/tokeniser/tokeniser.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/tools/gguf_writer.h"
#include "tools/tokeniser/byte_level.h"
#include "tools/tokeniser/merge.h"
#include "tools/tokeniser/normal_form.h"
#include "tools/tokeniser/sentencepiece.h"
#include "tools/tokeniser/utf8.h"
#include "tools/tokeniser/words.h"

namespace kvc::tokeniser {
namespace {

using gguf::Bytes;
using gguf::ValueType;
using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

// Keys and values of a file, which a test may change before it writes them.
struct Model {
  std::string model, pre;
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::vector<float> scores;
  int add_space = -1;
  int64_t bos = -1, add_bos = -1;
  std::vector<std::string> left_out;  // Keys that the file does not get.

  int32_t add(const std::string& token, int32_t type = kNormal, float score = 0) {
    tokens.push_back(token);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<int32_t>(tokens.size() - 1);
  }
  int32_t merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return add(left + right);
  }
  Bytes bytes() const {
    gguf::Writer writer;
    const auto has = [&](const std::string& key) {
      return std::find(left_out.begin(), left_out.end(), key) == left_out.end();
    };
    if (has("model")) writer.text("tokenizer.ggml.model", model);
    if (has("pre")) writer.text("tokenizer.ggml.pre", pre);
    if (has("tokens")) writer.texts("tokenizer.ggml.tokens", tokens);
    if (has("token_type")) writer.array("tokenizer.ggml.token_type", ValueType::kI32, types);
    if (has("scores")) writer.array("tokenizer.ggml.scores", ValueType::kF32, scores);
    if (add_space >= 0)
      writer.value("tokenizer.ggml.add_space_prefix", ValueType::kBool,
                   static_cast<uint8_t>(add_space));
    if (has("merges")) writer.texts("tokenizer.ggml.merges", merges);
    if (bos >= 0)
      writer.value("tokenizer.ggml.bos_token_id", ValueType::kU32, static_cast<uint32_t>(bos));
    if (add_bos >= 0)
      writer.value("tokenizer.ggml.add_bos_token", ValueType::kBool, static_cast<uint8_t>(add_bos));
    return writer.bytes();
  }
};

class Tokenisers : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("tokeniser_test." + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  gguf::File written(const Model& model) const { return written(model.bytes()); }
  gguf::File written(const Bytes& bytes) const {
    const std::string path = folder_ / "model.gguf";
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    file.close();
    EXPECT_TRUE(file.good());
    return gguf::File(path);
  }
  Tokeniser loaded(const Model& model) const { return Tokeniser(written(model)); }
  // What the refusal of the vocabulary says; empty: it was read.
  std::string refusal(const Model& model) const {
    try {
      loaded(model);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return {};
  }
  void refused(const Model& model, const std::string& part) const {
    const std::string said = refusal(model);
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }

  std::filesystem::path folder_;
};

// ---- Characters

size_t first_character(std::string_view text) { return character_bytes(text, 0); }

TEST(Utf8, CharactersOfEveryLengthAreFoundAndNothingElse) {
  for (const char32_t character : {U'\0', U'\x7f', U'\x80', U'\x7ff', U'\x800', U'\xd7ff',
                                   U'\xe000', U'\xffff', U'\x10000', U'\x10ffff'}) {
    std::string text;
    append_character(text, character);
    EXPECT_EQ(first_character(text + "a"), text.size()) << static_cast<uint32_t>(character);
    EXPECT_EQ(first_character(text.substr(0, text.size() - 1) + "a"), text.size() == 1 ? 1u : 0u);
  }
  for (const std::string_view text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x82", "\xc2"})
    EXPECT_EQ(first_character(text), 0u) << testing::PrintToString(text);
}

// ---- Normal forms

std::string nfc(const std::string& text) {
  std::string storage;
  return std::string(to_nfc(text, storage));
}

TEST(NormalForm, CharactersAreComposedInTheirOrder) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"abc \u00e9 \u017f", "abc \u00e9 \u017f"},
      {"e\u0301", "\u00e9"},
      {"e\u0301\u0323", "\u1eb9\u0301"},               // Marks that are out of order.
      {"\u00e9\u0323", "\u1eb9\u0301"},                // A composed character comes apart.
      {"a\u0323\u0302", "\u1ead"},                     // Two marks.
      {"\u0301e", "\u0301e"},                          // A mark without a character.
      {"\u1112\u1161\u11ab", "\ud55c"},                // Jamo.
      {"\uac00\u11a8", "\uac01"},                      // A syllable without its end.
      {"\u1100\uac00", "\u1100\uac00"},                // No syllable.
      {"\ufb01 \ufb2a", "\ufb01 \u05e9\u05c1"},        // Ligatures.
      {"\u212b\u2126\u212a", "\u00c5\u03a9K"},         // Singletons.
      {"\u0958 \u0344", "\u0915\u093c \u0308\u0301"},  // Not composed again.
      {"\u304b\u3099\uf900", "\u304c\u8c48"},
      {">\u0338", "\u226f"},
      {"\U0001d15e", "\U0001d157\U0001d165"},
  };
  for (const auto& [given, expected] : cases) {
    EXPECT_EQ(nfc(given), expected) << given;
    EXPECT_EQ(nfc(expected), expected);
    const std::string twice = std::string("x") + given + " y " + given + "z";
    EXPECT_EQ(nfc(twice), std::string("x") + expected + " y " + expected + "z") << given;
  }
}

TEST(NormalForm, ATextOfThatFormIsNotCopied) {
  const std::string text = "\u00e9t\u00e9 \uac01 \u05e9\u05c1 \u4e00 \u226f \U0001f600";
  std::string storage;
  EXPECT_EQ(to_nfc(text, storage).data(), text.data());
}

TEST(NormalForm, ManyMarksOfOneCharacterAreSorted) {
  constexpr int kMarks = 200000;
  std::string text = "a", expected = "\u1ea1";
  for (int i = 0; i < kMarks; ++i) text += "\u0301\u0323";
  for (int i = 1; i < kMarks; ++i) expected += "\u0323";
  for (int i = 0; i < kMarks; ++i) expected += "\u0301";
  EXPECT_TRUE(nfc(text) == expected);
}

// ---- Words

Words words(const char* pre, std::string_view text) {
  std::vector<std::string_view> found;
  WordPattern(pre).split(text, found);
  return Words(found.begin(), found.end());
}

TEST(Words, SmollmMakesEveryDigitAWord) {
  EXPECT_EQ(
      words("smollm", "It's 12 o'clock,  really\n\n ok"),
      (Words{"It", "'s", " ", "1", "2", " o", "'", "clock", ",", " ", " really", "\n\n", " ok"}));
  EXPECT_EQ(words("smollm", "a   1b  "), (Words{"a", "   ", "1", "b", "  "}));
  EXPECT_EQ(words("smollm", "x²Ⅷ٣"), (Words{"x", "²", "Ⅷ", "٣"}));
  EXPECT_EQ(words("smollm", "IT'S"), (Words{"IT", "'", "S"}));
}

TEST(Words, LlamaTakesDigitsByThreeAndKeepsLineEndsWithMarks) {
  EXPECT_EQ(words("llama-bpe", "It'S 12345 (ok)!\r\n  \n  x"),
            (Words{"It", "'S", " ", "123", "45", " (", "ok", ")!\r\n", "  \n", " ", " x"}));
  EXPECT_EQ(words("llama-bpe", "\tday 'llama"), (Words{"\tday", " '", "llama"}));
}

TEST(Words, QwenTakesDigitsOneByOne) {
  EXPECT_EQ(words("qwen2", "we'RE 12, ok"), (Words{"we", "'RE", " ", "1", "2", ",", " ok"}));
}

TEST(Words, WhiteSpaceIsThatOfUnicode) {
  // U+180E was white space up to Unicode 6.2.
  EXPECT_EQ(words("smollm", "a\u180eb"), (Words{"a", "\u180e", "b"}));
  EXPECT_EQ(words("smollm", "a\u180e\u180e!"), (Words{"a", "\u180e\u180e!"}));
  for (const std::string space : {"\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u2029",
                                  "\u202f", "\u205f", "\u3000", "\v", "\x1c"}) {
    const bool is_space = space != "\x1c";
    EXPECT_EQ(words("smollm", space + space + "!").size(), is_space ? 3u : 1u)
        << testing::PrintToString(space);
  }
}

TEST(Words, LongRunsAreWords) {
  for (const char* pre : {"smollm", "llama-bpe", "qwen2"}) {
    for (const char letter : {'a', ' ', '.', '\n'}) {
      const std::string run(1 << 20, letter);
      EXPECT_EQ(words(pre, run), Words{run}) << pre << " " << static_cast<int>(letter);
    }
    const std::string spaces(1 << 20, ' ');
    EXPECT_EQ(words(pre, spaces + "a").size(), 2u) << pre;
  }
}

// ---- Byte-level BPE

// "Ġ" is a space and "Ċ" a line end in texts of tokens.
Model byte_level(const std::string& pre) {
  Model model;
  model.model = "gpt2";
  model.pre = pre;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_visible = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    std::string text;
    append_character(text, is_visible ? static_cast<char32_t>(byte) : next++);
    model.add(text);
  }
  return model;
}

TEST_F(Tokenisers, PairsAreMergedInTheOrderOfTheList) {
  Model model = byte_level("smollm");
  const int32_t bc = model.merge("b", "c");
  const int32_t ab = model.merge("a", "b");
  const int32_t space_ab = model.merge("Ġ", "ab");
  const Tokeniser tokeniser = loaded(model);
  EXPECT_EQ(tokeniser.encode("abc", false), (Ids{'a', bc}));
  EXPECT_EQ(tokeniser.encode("ab ab", false), (Ids{ab, space_ab}));
  EXPECT_EQ(tokeniser.encode("abab", false), (Ids{ab, ab}));
  EXPECT_EQ(tokeniser.encode("", false), Ids{});
  EXPECT_EQ(tokeniser.encode("", true), Ids{});
  EXPECT_EQ(tokeniser.bytes(space_ab), " ab");
  EXPECT_EQ(tokeniser.decode({space_ab, bc, '\n'}), " abbc\n");
  EXPECT_EQ(tokeniser.size(), 259);
}

TEST_F(Tokenisers, OfEqualPairsTheLeftmostIsMergedFirst) {
  Model model = byte_level("smollm");
  const int32_t aa = model.merge("a", "a");
  EXPECT_EQ(loaded(model).encode("aaaaa", false), (Ids{aa, aa, 'a'}));
}

TEST_F(Tokenisers, LlamaKeepsAWordThatIsAToken) {
  for (const std::string pre : {"llama-bpe", "qwen2"}) {
    Model model = byte_level(pre);
    const int32_t bc = model.merge("b", "c");
    const int32_t abc = model.add("abc");
    const Ids expected = pre == "llama-bpe" ? Ids{abc} : Ids{'a', bc};
    EXPECT_EQ(loaded(model).encode("abc", false), expected) << pre;
  }
}

TEST_F(Tokenisers, ControlTokensAreFoundOnlyOnRequest) {
  Model model = byte_level("qwen2");
  const int32_t end = model.add("<|end|>", kControl);
  const int32_t longer = model.add("<|end|>>", kControl);
  const int32_t tool = model.add("<tool>", kUserDefined);
  model.add("<unused>", kUnused);
  const Tokeniser tokeniser = loaded(model);
  EXPECT_EQ(tokeniser.encode("a<|end|>b<|end|>>", true), (Ids{'a', end, 'b', longer}));
  EXPECT_EQ(tokeniser.encode("<|end|><|end|>", true), (Ids{end, end}));
  const std::string plain = "<|end|><tool>";
  EXPECT_EQ(tokeniser.encode(plain, false), (Ids{'<', '|', 'e', 'n', 'd', '|', '>', tool}));
  EXPECT_EQ(tokeniser.encode(plain, true), (Ids{end, tool}));
  EXPECT_EQ(tokeniser.encode("<|end", true), (Ids{'<', '|', 'e', 'n', 'd'}));
  EXPECT_EQ(tokeniser.encode("<unused>", true).size(), 8u);
  EXPECT_EQ(tokeniser.decode({end, 'a', tool}), "<|end|>a<tool>");
  EXPECT_EQ(tokeniser.special("<|end|>"), end);
  EXPECT_EQ(tokeniser.special("<tool>"), tool);
  EXPECT_EQ(tokeniser.special("<unused>"), std::nullopt);
  EXPECT_TRUE(tokeniser.is_control(end));
  EXPECT_FALSE(tokeniser.is_control(tool));
}

TEST_F(Tokenisers, TextOfQwenIsNormalisedBetweenTokens) {
  const std::string given = "e\u0301\u0323 <tool>\u0338 <|end|>\u0338 >\u0338 e\xff\u0301";
  for (const std::string pre : {"smollm", "llama-bpe", "qwen2"}) {
    Model model = byte_level(pre.c_str());
    model.add("<tool>", kUserDefined);
    const int32_t end = model.add("<|end|>", kControl);
    const Tokeniser tokeniser = loaded(model);
    const Ids found = tokeniser.encode(given, true), plain = tokeniser.encode(given, false);
    EXPECT_EQ(std::count(found.begin(), found.end(), end), 1);
    const bool normalises = pre == "qwen2";
    EXPECT_EQ(tokeniser.decode(found),
              normalises ? "\u1eb9\u0301 <tool>\u0338 <|end|>\u0338 \u226f e\xff\u0301" : given);
    // What is no token here composes.
    EXPECT_EQ(tokeniser.decode(plain),
              normalises ? "\u1eb9\u0301 <tool>\u0338 <|end|\u226f \u226f e\xff\u0301" : given);
  }
}

TEST_F(Tokenisers, APromptBeginsAsTheFileSays) {
  Model model = byte_level("smollm");
  EXPECT_EQ(loaded(model).bos(), std::nullopt);
  EXPECT_FALSE(loaded(model).add_bos());
  model.bos = model.add("<s>", kControl);
  EXPECT_EQ(loaded(model).bos(), 256);
  EXPECT_FALSE(loaded(model).add_bos());
  model.add_bos = 1;
  EXPECT_TRUE(loaded(model).add_bos());
  // Files of Llama 3 leave the flag out.
  model.pre = "llama-bpe";
  model.add_bos = -1;
  EXPECT_TRUE(loaded(model).add_bos());
  model.add_bos = 0;
  EXPECT_FALSE(loaded(model).add_bos());
}

TEST_F(Tokenisers, BytesThatAreNoTextAreEncodedAlone) {
  Model model = byte_level("smollm");
  const int32_t ab = model.merge("a", "b");
  const int32_t e_acute = model.merge("Ã", "©");
  const Tokeniser tokeniser = loaded(model);
  const std::string text = "ab\xff\xc3\xc3\xa9\xe2\x82\x61\x62\xc3";
  const Ids ids = tokeniser.encode(text, true);
  EXPECT_EQ(ids, (Ids{ab, 0xff, 0xc3, e_acute, 0xe2, 0x82, ab, 0xc3}));
  EXPECT_EQ(tokeniser.decode(ids), text);
}

TEST_F(Tokenisers, BytesWithoutATokenAreLeftOut) {
  Model model = byte_level("smollm");
  const int32_t ab = model.merge("a", "b");
  model.tokens[4] = "no byte";
  EXPECT_EQ(loaded(model).encode(std::string("a\x04") + "b", false), (Ids{'a', 'b'}));
  // The byte stands within a word of marks.
  model.merges.push_back("! !");
  const int32_t marks = model.add("!!");
  EXPECT_EQ(loaded(model).encode(std::string("ab!\x04!"), false), (Ids{ab, marks}));
}

std::string random_text(std::mt19937& random, bool is_valid) {
  std::string text;
  const size_t length = random() % 60;
  while (text.size() < length) {
    if (!is_valid && random() % 4 == 0) {
      text += static_cast<char>(random() % 256);
      continue;
    }
    static constexpr char32_t kEnds[] = {0x80, 0x250, 0x2100, 0xd800, 0x110000};
    const char32_t character = random() % kEnds[random() % std::size(kEnds)];
    if (character < 0xd800 || character > 0xdfff) append_character(text, character);
  }
  return text;
}

TEST_F(Tokenisers, RandomTextsComeBack) {
  std::mt19937 random(20261127);
  for (const char* pre : {"smollm", "llama-bpe", "qwen2"}) {
    Model model = byte_level(pre);
    for (int i = 0; i < 300; ++i) {
      const std::string left = model.tokens[random() % model.tokens.size()];
      const std::string right = model.tokens[random() % model.tokens.size()];
      if (std::find(model.tokens.begin(), model.tokens.end(), left + right) == model.tokens.end())
        model.merge(left, right);
    }
    model.add("<|a|>", kControl);
    model.add("\u2581\u2581", kUserDefined);
    const Tokeniser tokeniser = loaded(model);
    for (int round = 0; round < 2000; ++round) {
      std::string text = random_text(random, round % 2 == 0);
      // Texts of qwen2 come back in their normal form, which stays as it is.
      if (model.pre == "qwen2") text = tokeniser.decode(tokeniser.encode(text, true));
      const Ids ids = tokeniser.encode(text, true);
      ASSERT_EQ(tokeniser.decode(ids), text) << pre << " " << round;
      std::string joined;
      for (const int32_t id : ids) joined += tokeniser.bytes(id);
      ASSERT_EQ(joined, text);
    }
  }
}

TEST_F(Tokenisers, ALongWordTakesALinearNumberOfSteps) {
  Model model = byte_level("smollm");
  std::string letters = "a";
  for (int i = 0; i < 4; ++i) {
    model.merge(letters, letters);
    letters += letters;
  }
  const Vocabulary vocabulary(written(model));
  const SpecialTokens none;
  const ByteLevelEncoder encoder(written(model), vocabulary, none);
  Merging merging;
  Ids ids;
  const std::string word(1 << 20, 'a');
  EXPECT_LE(encoder.encode_word(word, merging, ids), 3 * word.size());
  EXPECT_EQ(ids, Ids(word.size() / 16, static_cast<int32_t>(model.tokens.size() - 1)));
}

// ---- BPE by score

// Ids: 0 unknown, 1 and 2 control, 3 + b byte b, 259 the space, 260 + i letter 'a' + i.
Model by_score(bool adds_space = false) {
  Model model;
  model.model = "llama";
  model.add_space = adds_space ? 1 : 0;
  model.add("<unk>", kUnknown);
  model.bos = model.add("<s>", kControl);
  model.add("</s>", kControl);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    model.add(name, kByte);
  }
  model.add("\u2581", kNormal, -1000);
  for (char letter = 'a'; letter <= 'f'; ++letter)
    model.add(std::string(1, letter), kNormal, -1001 - static_cast<float>(letter));
  return model;
}
constexpr int32_t kFirstByte = 3, kSpace = 259, kLetterA = 260;

TEST_F(Tokenisers, TheHighestScoreIsMergedFirst) {
  Model model = by_score();
  const int32_t ab = model.add("ab", kNormal, -2);
  const int32_t bc = model.add("bc", kNormal, -1);
  const int32_t space_a = model.add("\u2581a", kNormal, -3);
  const Tokeniser tokeniser = loaded(model);
  EXPECT_EQ(tokeniser.encode("abc", false), (Ids{kLetterA, bc}));
  EXPECT_EQ(tokeniser.encode("ab", false), (Ids{ab}));
  EXPECT_EQ(tokeniser.encode(" ab", false), (Ids{kSpace, ab}));
  EXPECT_EQ(tokeniser.encode("b a", false), (Ids{kLetterA + 1, space_a}));
  EXPECT_EQ(tokeniser.encode("", false), Ids{});
  EXPECT_EQ(tokeniser.decode({space_a, bc}), " abc");
  EXPECT_TRUE(tokeniser.add_bos());
  EXPECT_EQ(tokeniser.bos(), 1);
}

TEST_F(Tokenisers, OfEqualScoresTheLeftmostIsMergedFirst) {
  Model model = by_score();
  const int32_t ab = model.add("ab", kNormal, -2);
  model.add("bc", kNormal, -2);
  const int32_t aa = model.add("aa", kNormal, -2);
  const Tokeniser tokeniser = loaded(model);
  EXPECT_EQ(tokeniser.encode("abc", false), (Ids{ab, kLetterA + 2}));
  EXPECT_EQ(tokeniser.encode("aaa", false), (Ids{aa, kLetterA}));
}

TEST_F(Tokenisers, ASpaceGoesBeforeATextAndComesOff) {
  Model model = by_score(true);
  const int32_t space_a = model.add("\u2581a", kNormal, -3);
  const Tokeniser tokeniser = loaded(model);
  EXPECT_EQ(tokeniser.encode("a a", true), (Ids{space_a, space_a}));
  EXPECT_EQ(tokeniser.encode("a<s>a</s>", true), (Ids{space_a, 1, space_a, 2}));
  EXPECT_EQ(tokeniser.encode(" ", true), (Ids{kSpace, kSpace}));
  EXPECT_EQ(tokeniser.decode({space_a, 1, space_a, 2}), "a<s>a</s>");
  EXPECT_EQ(tokeniser.decode({kSpace, kSpace}), " ");
  EXPECT_EQ(tokeniser.bytes(space_a), " a");
  // The key is missing in files of Llama 2.
  model.add_space = -1;
  EXPECT_EQ(loaded(model).encode("a", true), (Ids{space_a}));
}

TEST_F(Tokenisers, CharactersWithoutATokenAreTheirBytes) {
  Model model = by_score();
  const int32_t e_acute = model.add("\u00e9", kNormal, -5);
  const Tokeniser tokeniser = loaded(model);
  const std::string text =
      "\u00e9\u00ea\xff"
      "a\xc3\n";
  const Ids ids = tokeniser.encode(text, true);
  EXPECT_EQ(ids, (Ids{e_acute, kFirstByte + 0xc3, kFirstByte + 0xaa, kFirstByte + 0xff, kLetterA,
                      kFirstByte + 0xc3, kFirstByte + '\n'}));
  EXPECT_EQ(tokeniser.decode(ids), text);
  EXPECT_EQ(tokeniser.bytes(kFirstByte + 0xff), "\xff");
}

TEST_F(Tokenisers, NamesOfTokensAreNoTokens) {
  Model model = by_score();
  const Tokeniser tokeniser = loaded(model);
  for (const std::string text : {"<s>", "<unk>", "<0x61>"}) {
    EXPECT_GE(tokeniser.encode(text, false).size(), text.size() - 3) << text;
    EXPECT_EQ(tokeniser.decode(tokeniser.encode(text, false)), text);
  }
  EXPECT_EQ(tokeniser.encode("<s>", true), Ids{1});
}

TEST_F(Tokenisers, UserDefinedTokensAreNotMerged) {
  // Files have spaces in such tokens as themselves or as U+2581.
  for (const std::string spaces : {"  ", "\u2581\u2581"}) {
    Model model = by_score(true);
    const int32_t two = model.add(spaces, kUserDefined);
    const int32_t cd = model.add("cd", kUserDefined);
    model.add("bc", kNormal, -1);
    model.add("\u2581a", kNormal, -1);
    const Tokeniser tokeniser = loaded(model);
    const Ids ids = tokeniser.encode(" abcd   ", false);
    EXPECT_EQ(ids, (Ids{two, kLetterA, kLetterA + 1, cd, two, kSpace}));
    EXPECT_EQ(tokeniser.decode(ids), " abcd   ");
  }
}

TEST_F(Tokenisers, AnUnusedTokenIsTheTwoItWasMergedFrom) {
  Model model = by_score();
  const int32_t ab = model.add("ab", kUnused, -1);
  const int32_t abc = model.add("abc", kUnused, -2);
  const int32_t abcd = model.add("abcd", kNormal, -3);
  const Tokeniser tokeniser = loaded(model);
  EXPECT_EQ(tokeniser.encode("abc", false), (Ids{kLetterA, kLetterA + 1, kLetterA + 2}));
  EXPECT_EQ(tokeniser.encode("abcd", false), Ids{abcd});
  EXPECT_EQ(tokeniser.decode({ab, abc}), "ababc");
}

TEST_F(Tokenisers, RandomTextsComeBackFromTokensByScore) {
  std::mt19937 random(20261127);
  for (const bool adds_space : {false, true}) {
    Model model = by_score(adds_space);
    for (int i = 0; i < 200; ++i) {
      std::string token;
      const size_t length = 1 + random() % 3;
      while (token.size() < length) append_character(token, 0x20 + random() % 0x200);
      std::replace(token.begin(), token.end(), ' ', 'a');
      if (std::find(model.tokens.begin(), model.tokens.end(), token) == model.tokens.end())
        model.add(token, kNormal, -static_cast<float>(random() % 100));
    }
    model.add("\u2581\u2581", kUserDefined);
    model.add("<|a|>", kControl);
    const Tokeniser tokeniser = loaded(model);
    for (int round = 0; round < 2000; ++round) {
      std::string text = random_text(random, round % 2 == 0);
      if (round % 3 == 0) text += "<|a|>" + random_text(random, true);
      if (text.find("\u2581") != std::string::npos) continue;
      ASSERT_EQ(tokeniser.decode(tokeniser.encode(text, true)), text) << adds_space << round;
    }
  }
}

TEST_F(Tokenisers, ALongTextTakesALinearNumberOfStepsByScore) {
  Model model = by_score();
  std::string letters = "a";
  for (int i = 0; i < 4; ++i) {
    letters += letters;
    model.add(letters, kNormal, -static_cast<float>(i));
  }
  const Vocabulary vocabulary(written(model));
  const SentencePieceEncoder encoder(written(model), vocabulary);
  Ids ids;
  const std::string text(1 << 20, 'a');
  EXPECT_LE(encoder.encode_marked(text, ids), 3 * text.size());
  EXPECT_EQ(ids, Ids(text.size() / 16, static_cast<int32_t>(model.tokens.size() - 1)));
}

TEST_F(Tokenisers, IdsBeyondTheVocabularyAreRefused) {
  const Tokeniser tokeniser = loaded(byte_level("smollm"));
  EXPECT_THROW(tokeniser.bytes(-1), std::out_of_range);
  EXPECT_THROW(tokeniser.bytes(256), std::out_of_range);
  EXPECT_THROW(tokeniser.decode({'a', 256}), std::out_of_range);
}

// ---- Damage

TEST_F(Tokenisers, VocabulariesOfAnotherKindAreRefused) {
  Model model = byte_level("smollm");
  model.model = "t5";
  refused(model, "tokenizer.ggml.model = \"t5\", expected gpt2 or llama");
  model = byte_level("gpt-4o");
  refused(model, "tokenizer.ggml.pre = \"gpt-4o\", expected smollm, llama-bpe or qwen2");
  for (const char* key : {"model", "pre", "tokens", "token_type", "merges"}) {
    model = byte_level("smollm");
    model.left_out = {key};
    refused(model, std::string("has no tokenizer.ggml.") + key);
  }
}

TEST_F(Tokenisers, DamagedVocabulariesAreRefused) {
  Model model = byte_level("smollm");
  model.types.pop_back();
  refused(model, "token_type has 255 elements, but tokenizer.ggml.tokens has 256");
  model = byte_level("smollm");
  model.types[7] = 0;
  refused(model, "token_type of token 7 is 0, expected 1 to 6");
  model = byte_level("smollm");
  model.bos = 256;
  refused(model, "bos_token_id = 256, expected 0 to 255");
  model = byte_level("smollm");
  model.add_bos = 1;
  refused(model, "add_bos_token is true, but there is no tokenizer.ggml.bos_token_id");
  model = byte_level("smollm");
  model.tokens[' '] = "none";
  refused(model, "tokenizer.ggml.tokens has no normal token \"Ġ\" for byte 32");
  // A letter that were a control token could be typed.
  model = byte_level("smollm");
  model.types['e'] = kControl;
  refused(model, "tokenizer.ggml.tokens has no normal token \"e\"");
  model = byte_level("smollm");
  model.merges = {"a b"};
  refused(model, "has \"a b\" as element 0, but tokenizer.ggml.tokens has no normal token \"ab\"");
  model.merges = {"ab"};
  refused(model, "expected two tokens with a space between them");
  model.tokens.clear();
  model.types.clear();
  refused(model, "tokenizer.ggml.tokens has 0 elements");
}

TEST_F(Tokenisers, DamagedVocabulariesByScoreAreRefused) {
  Model model = by_score();
  model.left_out = {"scores"};
  refused(model, "has no tokenizer.ggml.scores");
  model = by_score();
  model.scores.pop_back();
  refused(model, "scores has 265 elements, but tokenizer.ggml.tokens has 266");
  model = by_score();
  model.scores[7] = NAN;
  refused(model, "scores of token 7 is NaN, expected a number");
  model = by_score();
  model.types[kFirstByte + 0x41] = kNormal;
  refused(model, "has no byte token \"<0x41>\", expected one for each byte");
  for (const char* name : {"<0x4a>", "<0X41>", "A", "<0x041>", ""}) {
    model = by_score();
    model.tokens[kFirstByte + 0x41] = name;
    refused(model, "for a byte as element 68, expected <0x00> to <0xFF>");
  }
  model = by_score();
  model.types[kSpace] = kControl;
  refused(model, "has no normal token \"\u2581\", expected one for the space");
}

// Vocabularies with some bytes changed: read or refused, never anything else.
TEST_F(Tokenisers, FlippedVocabulariesAreReadOrRefused) {
  std::mt19937 random(7);
  int num_refused = 0;
  Model by_rank = byte_level("llama-bpe");
  by_rank.merge("a", "b");
  by_rank.add("<|a|>", kControl);
  for (const Bytes& whole : {by_rank.bytes(), by_score().bytes()}) {
    for (int round = 0; round < 1000; ++round) {
      Bytes bytes = whole;
      for (uint32_t flips = 1 + random() % 4; flips > 0; --flips)
        bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1 + random() % 255);
      try {
        const Tokeniser tokeniser(written(bytes));
        tokeniser.decode(tokeniser.encode("ab <|a|> caf\u00e9 12\xff", true));
      } catch (const std::runtime_error& error) {
        EXPECT_NE(error.what(), std::string());
        ++num_refused;
      }
    }
  }
  EXPECT_GT(num_refused, 200);
  EXPECT_LT(num_refused, 2000);
}

// ---- The oracle's partner

std::string read_bytes(std::ifstream& in) {
  uint32_t size = 0;
  in.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string bytes(in ? size : 0, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

// For tokeniser_oracle.py. KVC_TOKENISER_FILES names a model, a file of texts and one for results,
// with line ends between them. A text is a byte `parse_special`, 4 bytes of size, and its bytes. A
// result is the ids with their number in 4 bytes, and the decoded text with its size.
TEST(TokeniserOracle, DISABLED_TextsOfAFile) {
  const char* given = std::getenv("KVC_TOKENISER_FILES");
  ASSERT_NE(given, nullptr);
  const std::string names = given;
  const size_t first = names.find('\n'), second = names.rfind('\n');
  ASSERT_LT(first, second);
  const Tokeniser tokeniser(gguf::File(names.substr(0, first)));
  std::ifstream in(names.substr(first + 1, second - first - 1), std::ios::binary);
  std::ofstream out(names.substr(second + 1), std::ios::binary);
  const auto put_size = [&](size_t size) {
    const auto number = static_cast<uint32_t>(size);
    out.write(reinterpret_cast<const char*>(&number), sizeof number);
  };
  char parse_special = 0;
  while (in.get(parse_special)) {
    const Ids ids = tokeniser.encode(read_bytes(in), parse_special != 0);
    put_size(ids.size());
    out.write(reinterpret_cast<const char*>(ids.data()),
              static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
    const std::string text = tokeniser.decode(ids);
    put_size(text.size());
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  out.close();
  ASSERT_TRUE(out.good());
}

}  // namespace
}  // namespace kvc::tokeniser
