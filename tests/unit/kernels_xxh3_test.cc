// Digests of every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/base/digest.h"

namespace kvc {
namespace {

using kernels::cpu::Isa;

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  uint64_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

// As the Python package xxhash 0.8.4 has them.
TEST(Digests, AreThoseOfXxh3) {
  EXPECT_EQ(digest_of("", 0), 0x2d06800538d394c2u);
  EXPECT_EQ(digest_of("kvcache", 7), 0xb1c9ac0296b3c980u);
}

TEST(Digests, OfAllInstructionSetsAreTheSame) {
  const std::vector<std::byte> bytes = some_bytes(70'000);
  const DigestTable& plain = *digest_table(Isa::kScalar);
  int num_tables = 0;
  for (const Isa isa : {Isa::kAuto, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    const DigestTable* table = digest_table(isa);
    if (table == nullptr) continue;
    ++num_tables;
    for (const size_t begin : {0, 1, 13}) {
      for (const size_t size : {0, 1, 16, 17, 128, 129, 240, 241, 1024, 1025, 4096, 65'537}) {
        for (const uint64_t seed : {uint64_t{0}, uint64_t{0x123456789abcdef0}}) {
          EXPECT_EQ(table->whole(bytes.data() + begin, size, seed),
                    plain.whole(bytes.data() + begin, size, seed))
              << size << " bytes from " << begin;
        }
        // The same in parts: of one byte, of a few, of half of what is left.
        for (const size_t part : {1, 100, 30'000}) {
          StreamDigest digest(*table);
          for (size_t done = 0; done < size;) {
            const size_t some = std::min(size - done, part);
            digest.add(bytes.data() + begin + done, some);
            done += some;
          }
          EXPECT_EQ(digest.value(), plain.whole(bytes.data() + begin, size, 0))
              << size << " bytes in parts of " << part;
        }
      }
    }
  }
  EXPECT_GE(num_tables, 1);
}

}  // namespace
}  // namespace kvc
