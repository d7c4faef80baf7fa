// What the shapes of `kvcache bench --device` move and compute, against figures that were worked
// out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "bench/gpu_shapes.h"

namespace kvc::bench {
namespace {

GpuShape shape_named(const std::string& id) {
  for (const GpuShape& shape : gpu_shapes()) {
    if (shape.id == id) return shape;
  }
  ADD_FAILURE() << "no shape " << id;
  return {};
}

// Microseconds on a device that copies 4.3 TB/s and multiplies 790 TFLOP/s.
double memory_us(const GpuWork& work) { return work.bytes / 4.3e6; }
double matmul_us(const GpuWork& work) { return work.flops / 790e6; }
double floor_us(const std::string& id) {
  const GpuWork work = work_of(shape_named(id));
  return std::max(memory_us(work), matmul_us(work));
}

TEST(ToolBenchShapes, HaveTheFloorsThatFollowFromTheirSizes) {
  struct Row {
    const char* id;
    double microseconds;
  };
  for (const Row& row :
       {Row{"D1", 3.9},     Row{"D2", 124.9}, Row{"D2-p64", 124.9}, Row{"D4", 249.7},
        Row{"D5", 62.4},    Row{"D6", 249.7}, Row{"D6-p1", 249.7},  Row{"D7", 62.4},
        Row{"D8", 3.9},     Row{"D9", 249.7}, Row{"V1", 124.9},     Row{"P1", 696},
        Row{"P1-p64", 696}, Row{"P2", 174},   Row{"P3", 1218},      Row{"P4", 3480},
        Row{"C1", 35.1},    Row{"M1", 185},   Row{"M2", 140},       Row{"S1", 124.9},
        Row{"R1", 62.4}}) {
    EXPECT_NEAR(floor_us(row.id), row.microseconds, 0.01 * row.microseconds) << row.id;
  }
}

TEST(ToolBenchShapes, AnAppendReadsRowsAndWritesThem) {
  // 8192 tokens, K and V of 8 heads of 128 elements of 2 bytes, read and written.
  EXPECT_EQ(work_of(shape_named("A2")).bytes, 2.0 * 8192 * 4096);
  EXPECT_EQ(work_of(shape_named("A1")).bytes, 2.0 * 128 * 4096);
}

TEST(ToolBenchShapes, ATreeIsComputeOfItsPathsAndASharedPrefixIsReadOnceOrByAll) {
  EXPECT_NEAR(matmul_us(work_of(shape_named("V1"))), 87, 1);
  EXPECT_NEAR(memory_us(flat_work_of(shape_named("C1"))), 281, 1);
  EXPECT_EQ(tree_parents(5), (std::vector<int32_t>{-1, 0, 0, 1, 1}));
}

TEST(ToolBenchShapes, LengthsByZipfHaveTheirAverageAndTheirLongest) {
  const GpuShape shape = shape_named("D3");
  const std::vector<int64_t> lengths = cached_lengths(shape);
  ASSERT_EQ(lengths.size(), 64u);
  EXPECT_EQ(*std::max_element(lengths.begin(), lengths.end()) + 1, 65536);
  EXPECT_NEAR(std::accumulate(lengths.begin(), lengths.end(), 0.0) / 64, 4096, 41);
}

TEST(ToolBenchShapes, HaveIdsOfTheirOwnAndStaySmallWhenTiny) {
  std::set<std::string> ids;
  for (const GpuShape& shape : gpu_shapes()) {
    EXPECT_TRUE(ids.insert(shape.id).second) << shape.id;
    const GpuShape small = tiny(shape);
    EXPECT_EQ(small.q_heads % small.kv_heads, 0) << shape.id;
    EXPECT_LE(work_of(small).bytes, 1 << 21) << shape.id;
    EXPECT_EQ(small.op, shape.op);
  }
}

}  // namespace
}  // namespace kvc::bench
