// CPU quotas of control groups, read from folders that look like the kernel's.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "src/base/cpu_quota.h"

namespace kvc {
namespace {

class CpuQuota : public testing::Test {
 protected:
  CpuQuota() : root_(testing::TempDir() + "/kvcache_cpu_quota") {
    std::filesystem::remove_all(root_);
    write("proc/self/cgroup", "");
  }
  ~CpuQuota() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int32_t cores() const { return cores_by_quota(root_ + "/proc", root_ + "/mount"); }

  std::string root_;
};

TEST_F(CpuQuota, NoneIsSetWhereNothingSaysOne) {
  EXPECT_EQ(cores(), 0);
  write("proc/self/cgroup", "0::/user.slice/a\n");
  EXPECT_EQ(cores(), 0);
  write("mount/user.slice/a/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), 0);
  EXPECT_EQ(cores_by_quota(root_ + "/nowhere", root_ + "/mount"), 0);
  EXPECT_GE(cores_by_quota(), 0) << "the machine's own";
}

TEST_F(CpuQuota, OfVersionTwoIsTheLeastOfTheGroupsAround) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write("mount/pod/container/cpu.max", "400000 100000\n");
  EXPECT_EQ(cores(), 4);
  write("mount/pod/cpu.max", "250000 100000\n");
  EXPECT_EQ(cores(), 2) << "rounded down";
  write("mount/cpu.max", "50000 100000\n");
  EXPECT_EQ(cores(), 1) << "at least one";
  for (const char* odd : {"", "x", "-1 100000", "200000 0", "200000", "0 100000"}) {
    write("mount/cpu.max", odd);
    EXPECT_EQ(cores(), 2) << odd;
  }
}

TEST_F(CpuQuota, InsideAContainerIsThatOfTheMountedRoot) {
  write("proc/self/cgroup", "0::/\n");
  write("mount/cpu.max", "300000 100000\n");
  EXPECT_EQ(cores(), 3);
  write("proc/self/cgroup", "0::/the/path/outside\n");
  EXPECT_EQ(cores(), 3);
}

TEST_F(CpuQuota, OfVersionOneIsThatOfItsController) {
  write("proc/self/cgroup", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:cpuset:/docker/x\n");
  write("mount/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
  write("mount/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 0);
  write("mount/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(cores(), 2);
  write("mount/cpuset/docker/x/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(cores(), 2);
}

}  // namespace
}  // namespace kvc
