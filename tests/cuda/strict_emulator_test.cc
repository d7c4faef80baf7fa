// The emulator with KVC_CUDASIM_STRICT=1 keeps host and device apart: each test does what a program
// with a GPU would not survive.
#include <cuda.h>
#include <gtest/gtest.h>

#include <vector>

#include "cudasim/cudasim.h"
#include "kernels/cuda/runtime/launch.cuh"

namespace {

using namespace kvc::cuda;

struct TwoArrays {
  int64_t count;
  const uint32_t* from;
  uint32_t* to;
};
void copy_all(TwoArrays arrays) {
  for (int64_t i = threadIdx.x; i < arrays.count; i += 32) arrays.to[i] = arrays.from[i];
}

cudaError_t run(const TwoArrays& arrays) {
  LaunchShape shape;
  shape.threads = 32;
  return launch(copy_all, shape, nullptr, arrays);
}

using Reserve = CUresult (*)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
using Create = CUresult (*)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                            unsigned long long);
using Map = CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                         unsigned long long);
using SetAccess = CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);
using Release = CUresult (*)(CUmemGenericAllocationHandle);
using OfRange = CUresult (*)(CUdeviceptr, size_t);
template <typename Function>
Function driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result),
            cudaSuccess);
  return reinterpret_cast<Function>(function);
}

constexpr int64_t kCount = 100;
constexpr const char* kTouched = "the host touched memory of the device";

class StrictEmulatorDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cudasim::is_strict())
      GTEST_SKIP() << "KVC_CUDASIM_STRICT is not set, or the address sanitizer is on";
    cudasim::reset();
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&device_), 4 * kCount), cudaSuccess);
    ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), 4 * kCount, cudaHostAllocDefault),
              cudaSuccess);
    for (uint32_t i = 0; i < kCount; ++i) pinned_[i] = i;
  }
  void TearDown() override {
    if (!cudasim::is_strict()) return;
    cudasim::reset();
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
  }

  uint32_t* device_ = nullptr;
  uint32_t* pinned_ = nullptr;
};

TEST_F(StrictEmulatorDeathTest, KernelsAndCopiesReachBothMemories) {
  std::vector<uint32_t> back(kCount);
  ASSERT_EQ(run({kCount, pinned_, device_}), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(back.data(), device_, 4 * kCount, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(back, std::vector<uint32_t>(pinned_, pinned_ + kCount));
  cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
  ASSERT_EQ(cudaMemsetAsync(device_, 0, 4 * kCount, nullptr), cudaSuccess);
  ASSERT_EQ(run({kCount, device_, pinned_}), cudaSuccess);
  cudasim::finish_all();
  EXPECT_EQ(pinned_[kCount - 1], 0u);
}

TEST_F(StrictEmulatorDeathTest, TheHostCannotReadOrWriteDeviceMemory) {
  const volatile uint32_t* read = device_;
  volatile uint32_t* written = device_ + kCount - 1;
  EXPECT_DEATH((void)read[0], kTouched);
  EXPECT_DEATH(*written = 1, kTouched);
}

TEST_F(StrictEmulatorDeathTest, TheHostCannotReadMemoryOfAPool) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaMemPoolCreate(&pool, &properties), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocFromPoolAsync(&memory, 64, pool, nullptr), cudaSuccess);
  EXPECT_DEATH((void)*static_cast<volatile char*>(memory), kTouched);
  ASSERT_EQ(cudaFreeAsync(memory, nullptr), cudaSuccess);
  ASSERT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

TEST_F(StrictEmulatorDeathTest, TheHostCannotReadMappedMemory) {
  constexpr size_t kBytes = size_t{2} << 20;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr space = 0;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(driver<Reserve>("cuMemAddressReserve")(&space, kBytes, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver<Create>("cuMemCreate")(&handle, kBytes, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver<Map>("cuMemMap")(space, kBytes, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver<SetAccess>("cuMemSetAccess")(space, kBytes, &access, 1), CUDA_SUCCESS);
  auto* words = reinterpret_cast<uint32_t*>(space);
  EXPECT_EQ(run({kCount, pinned_, words}), cudaSuccess);
  EXPECT_DEATH((void)*static_cast<volatile uint32_t*>(words), kTouched);
  ASSERT_EQ(driver<OfRange>("cuMemUnmap")(space, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(driver<Release>("cuMemRelease")(handle), CUDA_SUCCESS);
  ASSERT_EQ(driver<OfRange>("cuMemAddressFree")(space, kBytes), CUDA_SUCCESS);
}

TEST_F(StrictEmulatorDeathTest, AKernelCannotBePassedMemoryOfTheHost) {
  const std::vector<uint32_t> pageable(kCount);
  EXPECT_DEATH((void)run({kCount, pageable.data(), device_}),
               "copy_all is passed the address of pageable memory");
  EXPECT_DEATH((void)run({kCount, pinned_, const_cast<uint32_t*>(pageable.data()) + kCount - 1}),
               "copy_all is passed the address of pageable memory");
}

}  // namespace
