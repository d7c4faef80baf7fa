// The host program's locale changes nothing: a JVM sets that of its user by itself.
#include <bit>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "tests/capi/hf_config.h"
#include "tests/capi/state_files.h"
#include "tests/support/folder.h"

namespace kvc::test {
namespace {

// Locales made for the test, whatever is installed.
class Locales : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v localedef > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "there is no localedef here";
    for (const char* name : {"de_DE", "tr_TR"}) {
      const std::string command = std::string("localedef -i ") + name + " -f UTF-8 " +
                                  folder_.path() + "/" + name + ".UTF-8 > /dev/null 2>&1";
      if (std::system(command.c_str()) != 0 ||
          !std::filesystem::exists(folder_.file(name) + ".UTF-8"))
        GTEST_SKIP() << "there are no sources of locales here";
    }
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
  }
  void TearDown() override {
    std::setlocale(LC_ALL, "C");
    ::unsetenv("LOCPATH");
  }
  static void enter(const char* name) {
    ASSERT_NE(std::setlocale(LC_ALL, (std::string(name) + ".UTF-8").c_str()), nullptr) << name;
    char text[16];
    (void)std::snprintf(text, sizeof text, "%.1f", 0.5);
    ASSERT_STREQ(text, "0,5") << "this locale would show nothing";
  }

  const Folder folder_;
};

// YaRN and a scale bring fractions into the layout.
struct FractionModel {
  FractionModel() : net({attention_layer()}) {
    rope.scaling = KVC_ROPE_SCALING_YARN;
    rope.factor = 2.5;
    rope.original_context = 64;
    net.layers[0].rope = &rope;
    net.config.max_seq_len = 28;  // 4.57 requests at once.
  }
  kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  Net net;
};

std::string text_of(const std::function<kvc_status(char*, size_t*, kvc_error*)>& call) {
  size_t size = 0;
  kvc_error error{};
  EXPECT_EQ(call(nullptr, &size, &error), KVC_OK) << error.message;
  std::string text(size, '\0');
  EXPECT_EQ(call(text.data(), &size, &error), KVC_OK) << error.message;
  return text;
}

// All that a plan and a cache write, hash, parse and say of numbers.
std::vector<std::string> written() {
  std::vector<std::string> all;
  FractionModel model;
  Cache cache(model.net.config);
  const kvc_plan* plan = cache.plan();
  all.push_back(fingerprint(plan));
  all.push_back(text_of([&](char* text, size_t* size, kvc_error* err) {
    return kvc_plan_to_json(plan, text, size, err);
  }));
  all.push_back(text_of([&](char* text, size_t* size, kvc_error* err) {
    return kvc_plan_describe(plan, text, size, err);
  }));
  append_pattern(cache, 1, 13, 41);
  const Bytes file = saved(cache, {1});
  all.emplace_back(file.begin(), file.end());
  all.push_back(described(file));
  // A fraction that is parsed, and one that is refused.
  HfModel parsed(hf_text("llama-3.1-8b"));
  EXPECT_EQ(parsed.status, KVC_OK) << parsed.message;
  for (const double value : {parsed.rope(0).theta, parsed.rope(0).factor})
    all.push_back(std::to_string(std::bit_cast<uint64_t>(value)));
  model.rope.factor = -0.5;
  kvc_plan* refused = nullptr;
  kvc_error error{};
  EXPECT_NE(kvc_plan_create(&model.net.config, &refused, &error), KVC_OK);
  all.emplace_back(error.message);
  return all;
}

TEST_F(Locales, WhatIsWrittenHashedAndParsedIsThatOfTheCLocale) {
  const std::vector<std::string> expected = written();
  EXPECT_NE(expected[1].find('.'), std::string::npos) << "a fraction is among it";
  EXPECT_NE(expected.back().find("-0.5"), std::string::npos) << expected.back();
  for (const char* name : {"de_DE", "tr_TR"}) {
    enter(name);
    EXPECT_EQ(written(), expected) << name;
    std::setlocale(LC_ALL, "C");
  }
}

TEST_F(Locales, AFileOfOneLocaleIsReadInAnother) {
  FractionModel model;
  Cache first(model.net.config), second(model.net.config);
  append_pattern(first, 1, 13, 41);
  const Bytes of_c = saved(first, {1});
  enter("de_DE");
  expect_ok([&](kvc_error* err) { return load(second, {1}, of_c, err); });
  const Bytes of_de = saved(second, {1});
  std::setlocale(LC_ALL, "C");
  expect_ok([&](kvc_error* err) { return load(second, {2}, of_de, err); });
  EXPECT_EQ(of_de, of_c);
}

}  // namespace
}  // namespace kvc::test
