// Every case of cases/ on every instruction set that the machine has. See README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/conformance/player.h"
#include "tests/support/source_tree.h"

namespace kvc::conformance {
namespace {

struct Run {
  std::string name;  // of the case: its file without suffix
  kvc_cpu_isa isa;
};

const std::map<kvc_cpu_isa, std::string> kIsaNames{
    {KVC_CPU_ISA_AUTO, "device"},   {KVC_CPU_ISA_REFERENCE, "reference"},
    {KVC_CPU_ISA_SCALAR, "scalar"}, {KVC_CPU_ISA_AVX2, "avx2"},
    {KVC_CPU_ISA_AVX512, "avx512"}, {KVC_CPU_ISA_AVX512_BF16, "avx512_bf16"}};

// KVC_CASE_DIR of the environment serves a program that was built elsewhere.
std::string case_dir() {
  const char* given = std::getenv("KVC_CASE_DIR");
  return given != nullptr ? given : test::source_path("tests/conformance/cases").string();
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(case_dir()))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

// CUDA does not shift quantised K that is stored rotated: kvc_seq_shift refuses it there. Nor does
// it count what does not fit, keep tokens unquantised, or take part in transfers.
bool is_left_to_cpu(const std::string& name) {
  std::ifstream file(case_dir() + "/" + name + ".json");
  const Json json = Json::parse(file);
  const Json& steps = json.at("steps");
  if (!json.contains("config") || !json.at("config").contains("layers")) return false;
  const Json& layers = json.at("config").at("layers");
  for (const Json& step : steps) {
    if (step.value("/expect/stats"_json_pointer, Json::object()).contains("values_saturated"))
      return true;
  }
  if (std::any_of(layers.begin(), layers.end(),
                  [](const Json& layer) { return layer.contains("keep_tokens"); }))
    return true;
  if (std::any_of(steps.begin(), steps.end(),
                  [](const Json& step) { return step.at("op") == "transfer"; }))
    return true;
  return std::any_of(steps.begin(), steps.end(),
                     [](const Json& step) { return step.at("op") == "shift"; }) &&
         std::any_of(layers.begin(), layers.end(), [](const Json& layer) {
           return layer.value("quant", 0) != KVC_QUANT_NONE && layer.contains("rope") &&
                  layer.at("rope").value("mode", 0) == KVC_ROPE_ON_APPEND;
         });
}

std::vector<Run> runs() {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  (void)kvc_device_query({kDLCPU, 0}, &caps, nullptr);
  std::vector<Run> all;
  for (const std::string& name : case_names()) {
    if (test::is_on_gpu() && is_left_to_cpu(name)) continue;
    for (const auto& [isa, unused] : kIsaNames) {
      const bool wanted = test::is_on_gpu()
                              ? isa == KVC_CPU_ISA_AUTO
                              : isa != KVC_CPU_ISA_AUTO && (caps.isas >> isa & 1) != 0;
      if (wanted) all.push_back({name, isa});
    }
  }
  return all;
}

void PrintTo(const Run& run, std::ostream* out) {
  *out << run.name << " on " << kIsaNames.at(run.isa);
}

class Conformance : public testing::TestWithParam<Run> {};

TEST_P(Conformance, ScenarioHolds) {
  std::ifstream file(case_dir() + "/" + GetParam().name + ".json");
  const Json json = Json::parse(file);
  forget_reads();
  const Fields fields(json);
  EXPECT_EQ(fields.get<std::string>("name"), GetParam().name) << "a case is named as its file";
  SCOPED_TRACE(fields.get<std::string>("about"));
  Player(json, GetParam().isa).run();
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Conformance, testing::ValuesIn(runs()), [](const auto& info) {
  return info.param.name + "_" + kIsaNames.at(info.param.isa);
});

TEST(ConformanceFiles, EveryInstructionSetHasCases) {
  EXPECT_GE(case_names().size(), 160u) << "cases are missing in " << case_dir();
  const std::vector<std::string> names = case_names();
  const auto left = std::count_if(names.begin(), names.end(), is_left_to_cpu);
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 16);
  EXPECT_GE(runs().size(),
            test::is_on_gpu() ? names.size() - static_cast<size_t>(left) : 2 * names.size())
      << "REFERENCE and SCALAR are there on every machine";
}

TEST(ConformanceFiles, TheGeneratorGivesTheNumbersOfTheReadme) {
  EXPECT_EQ(value(2, 0, 0, 0, 0), -0.109375);
  EXPECT_EQ(value(3, 1, 5, 2, 3), -0.4375);
  EXPECT_EQ(value(1, 0, 1000, 1, 7), -0.78125);
}

TEST(ConformanceFiles, KeysThatNobodyReadsAreRefused) {
  const Json json = Json::parse(R"({"read": 1, "list": [{"read": 2, "unread": 3}]})");
  forget_reads();
  const Fields fields(json);
  EXPECT_EQ(fields.number("read"), 1);
  EXPECT_EQ(Fields(fields.at("list")[0]).number("read"), 2);
  EXPECT_THROW(fields.refuse_unread("case"), std::runtime_error);
  EXPECT_EQ(Fields(fields.at("list")[0]).number("unread"), 3);
  EXPECT_NO_THROW(fields.refuse_unread("case"));
}

}  // namespace
}  // namespace kvc::conformance
