// Windows over a text, and whether an answer has the expected word.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "bench/text_windows.h"
#include "tools/demo/questions.h"

namespace kvc {
namespace {

using bench::text_windows;
using bench::TextWindow;
using demo::contains_word;

TEST(TextWindows, JudgeEveryTokenButTheFirstOnce) {
  for (int64_t tokens = 0; tokens <= 40; ++tokens) {
    for (int64_t window = 2; window <= 12; ++window) {
      for (int64_t stride = 1; stride < window; ++stride) {
        int64_t next = 1, begin = 0;
        for (const TextWindow& one : text_windows(tokens, window, stride)) {
          EXPECT_EQ(one.begin, begin);
          EXPECT_EQ(one.end, std::min(begin + window, tokens));
          EXPECT_EQ(one.judged, next);
          EXPECT_LT(one.judged, one.end);
          EXPECT_GE(one.judged - one.begin, std::min(one.judged, window - stride));
          next = one.end;
          begin += stride;
        }
        EXPECT_EQ(next, std::max<int64_t>(tokens, 1));
      }
    }
  }
}

TEST(TextWindows, OneCoversAShortText) {
  for (const int64_t stride : {1, 3, 9}) {
    const std::vector<TextWindow> windows = text_windows(10, 10, stride);
    ASSERT_EQ(windows.size(), 1u);
    EXPECT_EQ(windows[0].end, 10);
  }
}

TEST(ContainsWord, CaseDoesNotCount) {
  EXPECT_TRUE(contains_word("It is the GREEN door.", "green"));
  EXPECT_TRUE(contains_word("the brass anchor", "Brass Anchor"));
  EXPECT_FALSE(contains_word("the brass, anchor", "Brass Anchor"));
}

TEST(ContainsWord, AWordIsWhole) {
  EXPECT_TRUE(contains_word("At pontoon C.", "C"));
  EXPECT_FALSE(contains_word("A nice place", "C"));
  EXPECT_FALSE(contains_word("a hundred", "red"));
  EXPECT_TRUE(contains_word("a hundred red ones", "red"));
  EXPECT_FALSE(contains_word("misleading", "lead"));
  EXPECT_TRUE(contains_word("Linnet's", "Linnet"));
  EXPECT_TRUE(contains_word("Linnet\u2019s", "Linnet"));
}

TEST(ContainsWord, APluralCounts) {
  EXPECT_TRUE(contains_word("closed on Sundays", "Sunday"));
  EXPECT_FALSE(contains_word("closed on Sundaysx", "Sunday"));
  EXPECT_FALSE(contains_word("closed on Sundayt", "Sunday"));
}

TEST(ContainsWord, ANumberIsWhole) {
  EXPECT_FALSE(contains_word("call 5521", "5"));
  EXPECT_FALSE(contains_word("call 5521", "55"));
  EXPECT_FALSE(contains_word("call 5521", "21"));
  EXPECT_TRUE(contains_word("call 5521, or 5", "5"));
  EXPECT_TRUE(contains_word("5", "5"));
  EXPECT_TRUE(contains_word("at 5.", "5"));
  EXPECT_TRUE(contains_word("at 5:00", "5"));
  EXPECT_TRUE(contains_word("10m, 8am", "10"));
  EXPECT_TRUE(contains_word("10m, 8am", "8"));
  EXPECT_FALSE(contains_word("12.5 metres", "12"));
  EXPECT_FALSE(contains_word("12.5 metres", "5"));
  EXPECT_FALSE(contains_word("5,000", "5"));
  EXPECT_TRUE(contains_word("3, 4, 5", "4"));
  EXPECT_FALSE(contains_word("pontoon A5", "5"));
}

TEST(ContainsWord, NothingIsInNothing) {
  EXPECT_FALSE(contains_word("", "5"));
  EXPECT_FALSE(contains_word("text", ""));
  EXPECT_FALSE(contains_word("", ""));
}

TEST(Questions, AreLines) {
  const std::vector<demo::Question> read =
      demo::parse_questions("Why? | because\r\n\n  A | B? |  5 \nlast|one");
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].text, "Why?");
  EXPECT_EQ(read[0].expected, "because");
  EXPECT_EQ(read[1].text, "A | B?");
  EXPECT_EQ(read[1].expected, "5");
  EXPECT_EQ(read[2].text, "last");
  EXPECT_EQ(read[2].expected, "one");
  for (const char* broken : {"Why?", "Why? |", "| because", "a|b\n|"})
    EXPECT_THROW(demo::parse_questions(broken), std::invalid_argument) << broken;
}

TEST(Questions, MayExpectNothing) {
  EXPECT_EQ(demo::parse_question(" Why? ").text, "Why?");
  EXPECT_EQ(demo::parse_question("Why?").expected, "");
  EXPECT_EQ(demo::parse_question("| because").text, "");
  EXPECT_EQ(demo::parse_question("Where?\nWhen? | at 5").text, "Where?\nWhen?");
}

TEST(Questions, HaveAnswersInTheHandbook) {
  const std::vector<demo::Question> asked = demo::questions();
  EXPECT_EQ(asked.size(), 50u);
  for (const demo::Question& question : asked)
    EXPECT_TRUE(contains_word(demo::handbook(), question.expected)) << question.text;
}

}  // namespace
}  // namespace kvc
