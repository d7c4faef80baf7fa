// KVC_TEST_LOCALE: all tests of this program run in that locale, as in a host program that has set
// its user's. LOCPATH names the folder of what localedef has made.
#include <gtest/gtest.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>

namespace kvc::test {
namespace {

class ChosenLocale : public testing::Environment {
 public:
  void SetUp() override {
    const char* name = std::getenv("KVC_TEST_LOCALE");
    if (name == nullptr) return;
    ASSERT_NE(std::setlocale(LC_ALL, name), nullptr) << "KVC_TEST_LOCALE: no locale " << name;
    std::printf("in the locale %s, with %s before fractions\n", name,
                std::localeconv()->decimal_point);
  }
};

[[maybe_unused]] const auto* const kChosen = testing::AddGlobalTestEnvironment(new ChosenLocale);

}  // namespace
}  // namespace kvc::test
