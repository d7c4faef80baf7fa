// An engine whose module is not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/transfer/module.h"

namespace kvc {
namespace {

using testing::HasSubstr;

TEST(TransferModules, AMissingOneIsNamed) {
  if (has_ucx_engine()) GTEST_SKIP() << "it lies beside this program";
  try {
    (void)open_ucx_engine(nullptr);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_E_UNSUPPORTED);
    for (const char* part :
         {"desc.engine = \"ucx\"", "libkvcache_transport_ucx.so", "kvc_module_path_set"})
      EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

}  // namespace
}  // namespace kvc
