// Every scenario of scenarios/ on every instruction set that the machine has. See README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tests/conformance/session.h"

namespace kvc::conformance {
namespace {

struct Run {
  std::string scenario;  // file name without suffix
  kvc_cpu_isa isa;
};

const std::map<kvc_cpu_isa, std::string> kIsaNames{
    {KVC_CPU_ISA_AUTO, "device"},   {KVC_CPU_ISA_REFERENCE, "reference"},
    {KVC_CPU_ISA_SCALAR, "scalar"}, {KVC_CPU_ISA_AVX2, "avx2"},
    {KVC_CPU_ISA_AVX512, "avx512"}, {KVC_CPU_ISA_AVX512_BF16, "avx512_bf16"}};

// KVC_SCENARIO_DIR of the environment serves a program that was built elsewhere.
std::string scenario_dir() {
  const char* given = std::getenv("KVC_SCENARIO_DIR");
  return given != nullptr ? given : KVC_SCENARIO_DIR;
}

std::vector<std::string> scenario_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(scenario_dir()))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string path_of(const std::string& scenario) { return scenario_dir() + "/" + scenario + ".json"; }

std::vector<Run> runs() {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  (void)kvc_device_query({kDLCPU, 0}, &caps, nullptr);
  std::vector<Run> all;
  if (test::is_on_gpu()) {
    for (const std::string& name : scenario_names()) all.push_back({name, KVC_CPU_ISA_AUTO});
    return all;
  }
  for (const std::string& name : scenario_names())
    for (const auto& [isa, unused] : kIsaNames)
      if (isa != KVC_CPU_ISA_AUTO && (caps.isas >> isa & 1) != 0) all.push_back({name, isa});
  return all;
}

void PrintTo(const Run& run, std::ostream* out) { *out << run.scenario << " on " << kIsaNames.at(run.isa); }

class Conformance : public testing::TestWithParam<Run> {};

TEST_P(Conformance, ScenarioHolds) {
  const Json scenario = load_scenario(path_of(GetParam().scenario));
  EXPECT_EQ(scenario.at("name"), GetParam().scenario) << "a scenario is named as its file";
  SCOPED_TRACE(scenario.at("about").get<std::string>());
  Session(scenario, GetParam().isa).run();
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Conformance, testing::ValuesIn(runs()), [](const auto& info) {
  return info.param.scenario + "_" + kIsaNames.at(info.param.isa);
});

TEST(ConformanceFiles, EveryInstructionSetHasScenarios) {
  EXPECT_GE(scenario_names().size(), 60u) << "scenarios are missing in " << scenario_dir();
  EXPECT_GE(runs().size(), (test::is_on_gpu() ? 1 : 2) * scenario_names().size())
      << "REFERENCE and SCALAR are there on every machine";
}

}  // namespace
}  // namespace kvc::conformance
