// Traces are read as they are, and what cannot be replayed is refused with its file, line and
// reason.
#include <cmath>
#include <cstdlib>
#include <random>

#include "tests/support/environment.h"
#include "tests/tools/replay_support.h"
#include "tools/replay/trace_lines.h"

namespace kvc::replay {
namespace {

using testing::Test;

constexpr const char* kGood =
    R"({"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]})";

std::string with_line(const std::string& line) {
  return std::string(kGood) + "\n" + line + "\n" + kGood + "\n";
}

// What is said about the second line of a file, without the place.
std::string said_about(const std::string& line) {
  const ScratchFile file(with_line(line));
  const std::string message = refusal(reading(file.path()));
  const std::string place = file.path() + ":2: ";
  EXPECT_EQ(message.substr(0, place.size()), place);
  return message.substr(std::min(message.size(), place.size()));
}

TEST(ToolReplayTrace, BlockIdsAreReadWithTheirLengthsAndTimes) {
  const Trace trace = read_trace(reading(sample_path("block_ids.jsonl")));
  EXPECT_EQ(trace.kind, TraceKind::kBlockIds);
  EXPECT_EQ(trace.name, "block_ids.jsonl");
  ASSERT_EQ(trace.requests.size(), 7u);
  EXPECT_EQ(trace.prompt_tokens(), 13196);
  const TraceRequest& second = trace.requests[1];
  EXPECT_DOUBLE_EQ(second.seconds, 1.5);
  EXPECT_EQ(second.prompt_tokens, 1500);
  EXPECT_EQ(second.output_tokens, 90);
  ASSERT_EQ(second.num_ids, 3u);
  EXPECT_EQ(trace.block_ids[second.first_id + 2], 4u);
  EXPECT_TRUE(trace.has_times());
}

TEST(ToolReplayTrace, TokenIdsAreReadWithTheOutputsBehindThePrompts) {
  const Trace trace = read_trace(reading(sample_path("token_ids.jsonl")));
  EXPECT_EQ(trace.kind, TraceKind::kTokenIds);
  ASSERT_EQ(trace.requests.size(), 4u);
  const TraceRequest& second = trace.requests[1];
  EXPECT_EQ(second.prompt_tokens, 10);
  EXPECT_EQ(second.output_tokens, 2);
  ASSERT_EQ(second.num_ids, 12u);
  EXPECT_EQ(trace.token_ids[second.first_id], 10);
  EXPECT_EQ(trace.token_ids[second.first_id + 11], 24);
  EXPECT_DOUBLE_EQ(trace.requests[2].seconds, 2.5);
  EXPECT_EQ(trace.requests[3].output_tokens, 0);
}

TEST(ToolReplayTrace, AnyOfThreeNamesHoldsTheTokens) {
  for (const char* name : {"input_tok_ids", "tokens", "prompt_token_ids"}) {
    const ScratchFile file("{\"" + std::string(name) +
                           "\": [7, 8, 2147483647], \"output_length\": 4}\n");
    const Trace trace = read_trace(reading(file.path()));
    EXPECT_EQ(trace.token_ids, (std::vector<int32_t>{7, 8, 2147483647})) << name;
    EXPECT_EQ(trace.requests[0].output_tokens, 4) << name;
    EXPECT_EQ(trace.requests[0].num_ids, 3u) << name;
    EXPECT_FALSE(trace.has_times()) << name;
  }
}

TEST(ToolReplayTrace, LengthsAreReadFromTheColumnsThatTheHeaderNames) {
  const Trace trace = read_trace(reading(sample_path("lengths.csv")));
  EXPECT_EQ(trace.kind, TraceKind::kLengths);
  ASSERT_EQ(trace.requests.size(), 5u);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 396);
  EXPECT_EQ(trace.requests[1].output_tokens, 109);
  EXPECT_NEAR(trace.requests[1].seconds - trace.requests[0].seconds, 4.314579, 1e-6);
  EXPECT_TRUE(trace.has_times());

  const ScratchFile swapped("GeneratedTokens, model ,\"ContextTokens\"\r\n5,x,17\r\n");
  const Trace other = read_trace(reading(swapped.path()));
  EXPECT_EQ(other.requests[0].prompt_tokens, 17);
  EXPECT_EQ(other.requests[0].output_tokens, 5);
  EXPECT_FALSE(other.has_times());
}

TEST(ToolReplayTrace, TimesMayBeDatesWithZonesOrSeconds) {
  const double base = seconds_of("2024-05-10 00:00:00");
  EXPECT_DOUBLE_EQ(base, 1715299200.0);
  EXPECT_DOUBLE_EQ(seconds_of("2024-05-10T00:00:00Z"), base);
  EXPECT_DOUBLE_EQ(seconds_of("2024-05-10 02:30:00+02:30"), base);
  EXPECT_DOUBLE_EQ(seconds_of("2024-05-09 19:00:00.5-05:00"), base + 0.5);
  EXPECT_DOUBLE_EQ(seconds_of("17.25"), 17.25);
  for (const char* bad :
       {"", "soon", "2024-13-10 00:00:00", "2024-02-30 00:00:00", "2024-05-10 24:00:00",
        "2024-05-10", "2024-05-10 00:00:00 UTC", "2024-05-10 00:00:00+", "1e999", "nan", "12s"}) {
    EXPECT_THROW(seconds_of(bad), BadLine) << bad;
  }
}

TEST(ToolReplayTrace, AGzipFileReadsLikeThePlainOne) {
  std::string text;
  // Longer than the reader's buffer
  for (int i = 0; i < 20000; ++i) text += std::string(kGood) + "\n";
  const ScratchFile plain(text), packed(gzipped(text), ".jsonl.gz"),
      misnamed(gzipped(text), ".csv");
  for (const ScratchFile* file : {&plain, &packed, &misnamed}) {
    EXPECT_EQ(read_trace(reading(file->path())).requests.size(), 20000u) << file->path();
  }
}

TEST(ToolReplayTrace, AGzipFileThatWasCutOffIsRefusedEvenWhenBadLinesMayBeSkipped) {
  std::string text;
  for (int i = 0; i < 5000; ++i)
    text += "{\"input_length\": " + std::to_string(i % 511 + 1) + ", \"hash_ids\": []}\n";
  const std::string packed = gzipped(text);
  for (const size_t length : {packed.size() - 1, packed.size() - 9, packed.size() / 2}) {
    const ScratchFile file(packed.substr(0, length), ".gz");
    const std::string message = refusal(reading(file.path(), true));
    EXPECT_NE(message.find("ends in the middle of its gzip data"), std::string::npos)
        << length << ": " << message;
  }
  std::string broken = packed;
  for (size_t i = 20; i < 60; ++i) broken[i] = static_cast<char>(~broken[i]);
  const ScratchFile file(broken, ".gz");
  EXPECT_NE(refusal(reading(file.path(), true)).find("gzip data"), std::string::npos);
}

TEST(ToolReplayTrace, LineEndsOfWindowsBlankLinesAMarkAndAMissingLastEndDoNotMatter) {
  const std::string good = kGood;
  const ScratchFile file("\xEF\xBB\xBF" + good + "\r\n\r\n  \n" + good + "\r\n" + good);
  EXPECT_EQ(read_trace(reading(file.path())).requests.size(), 3u);
  const ScratchFile csv("\xEF\xBB\xBFTIMESTAMP,ContextTokens,GeneratedTokens\r\n1,2,3\r\n", ".csv");
  EXPECT_EQ(read_trace(reading(csv.path())).requests.size(), 1u);
}

TEST(ToolReplayTrace, FilesThatAreNoTraceAreRefused) {
  EXPECT_NE(refusal(reading("no/such/file")).find("no/such/file: cannot be opened: No such file"),
            std::string::npos);
  EXPECT_NE(refusal(reading(testing::TempDir())).find("is a directory"), std::string::npos);
  for (const char* content : {"", "\n\n", "\r\n"}) {
    const ScratchFile file(content);
    EXPECT_EQ(refusal(reading(file.path())), file.path() + ": no request in it") << content;
  }
  const ScratchFile header("TIMESTAMP,ContextTokens,GeneratedTokens\n", ".csv");
  EXPECT_EQ(refusal(reading(header.path())), header.path() + ": no request in it");
  const ScratchFile prose("Once upon a time\n");
  EXPECT_NE(refusal(reading(prose.path(), true))
                .find(":1: no known trace: neither a JSON object nor a CSV header"),
            std::string::npos);
  const ScratchFile half("TIMESTAMP,ContextTokens\n1,2\n", ".csv");
  EXPECT_NE(refusal(reading(half.path(), true)).find(":1: no column GeneratedTokens"),
            std::string::npos);
  const ScratchFile other("{\"prompt\": \"hello\"}\n");
  EXPECT_NE(refusal(reading(other.path())).find(":1: no known trace: JSON lines have hash_ids"),
            std::string::npos);
}

TEST(ToolReplayTrace, ABrokenLineIsNamedWithItsReason) {
  EXPECT_NE(said_about(R"({"input_length": 600,)").find("not JSON, column "), std::string::npos);
  EXPECT_NE(said_about("{\"input_length\": \"\xFF\"}").find("not JSON, column "),
            std::string::npos);
  EXPECT_NE(
      said_about(R"({"input_length": 1e999, "hash_ids": []})").find("not JSON, number overflow"),
      std::string::npos);
  EXPECT_EQ(said_about("[1, 2]"), "a JSON object was expected, not array");
  EXPECT_EQ(said_about("600"), "a JSON object was expected, not number");
  EXPECT_EQ(said_about(R"({"hash_ids": [1]})"), "no input_length");
  EXPECT_EQ(said_about(R"({"input_length": "600", "hash_ids": [1, 2]})"),
            "input_length is \"600\", not a whole number");
  EXPECT_EQ(said_about(R"({"input_length": 600.5, "hash_ids": [1, 2]})"),
            "input_length is 600.5, not a whole number");
  EXPECT_EQ(said_about(R"({"input_length": null, "hash_ids": [1, 2]})"),
            "input_length is null, not a whole number");
  for (const char* number :
       {"0", "-600", "-9223372036854775808", "16777217", "1000000000", "18446744073709551615"}) {
    EXPECT_EQ(said_about("{\"input_length\": " + std::string(number) + ", \"hash_ids\": []}"),
              "input_length is " + std::string(number) + "; it must lie in 1..16777216");
  }
  EXPECT_EQ(said_about(R"({"input_length": 600, "output_length": -1, "hash_ids": [1]})"),
            "output_length is -1; it must lie in 0..16777216");
  EXPECT_EQ(said_about(R"({"input_length": 600, "timestamp": "now", "hash_ids": [1]})"),
            "timestamp is \"now\", not a number");
}

TEST(ToolReplayTrace, IdsThatCannotNameTheBlocksOfThePromptAreRefused) {
  EXPECT_EQ(said_about(R"({"input_length": 600})"), "no hash_ids, which the lines above have");
  EXPECT_EQ(said_about(R"({"input_length": 600, "hash_ids": {"1": 2}})"),
            "hash_ids is {\"1\":2}, not an array");
  EXPECT_EQ(said_about(R"({"input_length": 600, "hash_ids": []})"),
            "hash_ids has 0 entries, but input_length 600 has 1 full blocks of 512 tokens");
  EXPECT_EQ(said_about(R"({"input_length": 600, "hash_ids": [1, 2, 3]})"),
            "hash_ids has 3 entries, but input_length 600 has 1 full blocks of 512 tokens");
  EXPECT_EQ(said_about(R"({"input_length": 600, "hash_ids": [1, "2"]})"),
            "hash_ids[1] is \"2\", not a whole number");
  EXPECT_EQ(said_about(R"({"input_length": 600, "hash_ids": [1, -2]})"),
            "hash_ids[1] is -2; it must not be negative");
  EXPECT_EQ(said_about(R"({"input_length": 600, "hash_ids": [1, 18446744073709551616]})"),
            "hash_ids[1] is 1.8446744073709552e+19, not a whole number");
  EXPECT_EQ(said_about(R"({"input_length": 600, "hash_ids": [7, 7]})"),
            "hash_ids has 7 twice; equal ids mean equal prompts up to and with the block");
  const ScratchFile largest("{\"input_length\": 600, \"hash_ids\": [18446744073709551615]}\n");
  EXPECT_EQ(read_trace(reading(largest.path())).block_ids[0], ~uint64_t{0});
}

TEST(ToolReplayTrace, TokensThatAreNoIdsAreRefused) {
  const auto said = [](const std::string& line) {
    const ScratchFile file("{\"tokens\": [1]}\n" + line + "\n");
    const std::string message = refusal(reading(file.path()));
    return message.substr(std::min(message.size(), file.path().size() + 4));
  };
  EXPECT_EQ(said(R"({"tokens": []})"), "tokens is empty");
  if (test::rounds(10) == 10) {  // half a minute with sanitizers
    std::string many = "{\"tokens\": [1";
    for (int64_t i = 0; i < kMaxTokens; ++i) many += ",1";
    EXPECT_EQ(said(many + "]}"), "tokens has 16777217 entries; at most 16777216 are replayed");
  }
  EXPECT_EQ(said(std::string(size_t{65} << 20, ' ')), "longer than 64 MiB");
  EXPECT_EQ(said(R"({"tokens": 5})"), "tokens is 5, not an array");
  EXPECT_EQ(said(R"({"tokens": [1, -1]})"), "tokens[1] is -1; it must lie in 0..2147483647");
  EXPECT_EQ(said(R"({"tokens": [2147483648]})"),
            "tokens[0] is 2147483648; it must lie in 0..2147483647");
  EXPECT_EQ(said(R"({"tokens": [1, true]})"), "tokens[1] is true, not a whole number");
  EXPECT_EQ(said(R"({"tokens": [1], "output_tok_ids": "x"})"),
            "output_tok_ids is \"x\", not an array");
  EXPECT_EQ(said(R"({"input_length": 5})"), "no token ids, which the lines above have");
}

TEST(ToolReplayTrace, BrokenRowsOfATableAreRefused) {
  const auto said = [](const std::string& line) {
    const ScratchFile file("TIMESTAMP,ContextTokens,GeneratedTokens\n" + line + "\n", ".csv");
    const std::string message = refusal(reading(file.path()));
    return message.substr(std::min(message.size(), file.path().size() + 4));
  };
  EXPECT_EQ(said("1,2"), "2 cells, but the header has 3");
  EXPECT_EQ(said("1,2,3,4"), "4 cells, but the header has 3");
  EXPECT_EQ(said("1,many,3"), "ContextTokens is 'many', not a whole number");
  EXPECT_EQ(said("1,,3"), "ContextTokens is '', not a whole number");
  EXPECT_EQ(said("1,2.5,3"), "ContextTokens is '2.5', not a whole number");
  EXPECT_EQ(said("1,0,3"), "ContextTokens is '0'; it must lie in 1..16777216");
  EXPECT_EQ(said("1,99999999999999999999,3"),
            "ContextTokens is '99999999999999999999'; it must lie in 1..16777216");
  EXPECT_EQ(said("1,1000000000,3"), "ContextTokens is '1000000000'; it must lie in 1..16777216")
      << "a short line that would take gigabytes";
  EXPECT_EQ(said("1,2,16777217"), "GeneratedTokens is '16777217'; it must lie in 0..16777216");
  EXPECT_EQ(said("1,2,-3"), "GeneratedTokens is '-3'; it must lie in 0..16777216");
  EXPECT_EQ(said("then,2,3"), "TIMESTAMP is 'then', neither a date with a time nor seconds");
}

TEST(ToolReplayTrace, SkippedLinesAreCountedAndTheFirstReasonsKept) {
  std::string text = "{\"no\": 1}\n";  // does not decide the format
  text += std::string(kGood) + "\n";
  for (int i = 0; i < 9; ++i) text += "{\n";
  text += std::string(kGood) + "\n";
  const ScratchFile file(text);
  const Trace trace = read_trace(reading(file.path(), true));
  EXPECT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.block_ids.size(), 4u);
  EXPECT_EQ(trace.skipped_lines, 10);
  ASSERT_EQ(trace.skipped.size(), 5u);
  EXPECT_EQ(trace.skipped[1].substr(0, file.path().size() + 4), file.path() + ":3: ");

  const ScratchFile all_bad("{\"no\": 1}\n{\n");
  const std::string message = refusal(reading(all_bad.path(), true));
  EXPECT_EQ(message.find(all_bad.path() + ": no request in it; " + all_bad.path() + ":1: "), 0u)
      << message;
}

TEST(ToolReplayTrace, ALimitEndsTheReadingBeforeWhatIsBroken) {
  const ScratchFile file(with_line("{"));
  ReadOptions options = reading(file.path());
  options.limit = 1;
  EXPECT_EQ(read_trace(options).requests.size(), 1u);
  options.limit = 2;
  EXPECT_NE(refusal(options), "");
}

TEST(ToolReplayTrace, IdsMayNameBlocksOfAnotherLength) {
  const ScratchFile file("{\"input_length\": 40, \"hash_ids\": [1, 2, 3]}\n");
  ReadOptions options = reading(file.path());
  EXPECT_NE(refusal(options), "");
  options.block_tokens = 16;
  EXPECT_EQ(read_trace(options).requests[0].num_ids, 3u);
}

TEST(ToolReplayTrace, WhateverTheBytesAreWhatIsReadCanBeReplayed) {
  const char* given = std::getenv("KVC_TEST_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::stoul(given)) : 20260521u;
  SCOPED_TRACE("KVC_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (const char* name : {"block_ids.jsonl", "token_ids.jsonl", "lengths.csv"}) {
    std::ifstream in(sample_path(name), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    ASSERT_FALSE(text.empty());
    for (int round = 0; round < 200; ++round) {
      std::string broken = text;
      for (unsigned change = random() % 8; change-- > 0;) {
        const size_t at = random() % broken.size();
        if (random() % 2 == 0) {
          broken[at] = "{}[]\"\\,:-.0129eE \n\r\0\xFF"[random() % 22];
        } else {
          broken.erase(at, random() % 6);
        }
      }
      const ScratchFile file(broken);
      Trace trace;
      try {
        trace = read_trace(reading(file.path(), true));
      } catch (const TraceError&) {
        continue;
      }
      for (const TraceRequest& request : trace.requests) {
        EXPECT_GE(request.prompt_tokens, 1);
        EXPECT_GE(request.output_tokens, 0);
        const size_t ids =
            trace.kind == TraceKind::kBlockIds ? trace.block_ids.size() : trace.token_ids.size();
        EXPECT_LE(request.first_id + request.num_ids, ids);
        if (trace.kind == TraceKind::kTokenIds) {
          EXPECT_GE(static_cast<int64_t>(request.num_ids), request.prompt_tokens);
        }
      }
    }
  }
}

TEST(ToolReplayTrace, TimesThatGoBackwardsAreNotUsed) {
  const ScratchFile file(R"({"timestamp": 5, "tokens": [1]})"
                         "\n"
                         R"({"timestamp": 4, "tokens": [1]})"
                         "\n");
  EXPECT_FALSE(read_trace(reading(file.path())).has_times());
}

}  // namespace
}  // namespace kvc::replay
