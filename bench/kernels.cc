// The CPU kernels by themselves: one thread, no cache around them, every instruction set of this
// machine.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/benches.h"
#include "kernels/cpu/table.h"

namespace kvc::bench {
namespace {

using namespace kvc::kernels;

constexpr int kPageSize = 16;
constexpr int kQHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kDim = 128;

// Every element a normal number of magnitude 0.25 to 0.5.
Buffer numbers(int64_t elements, DType dtype) {
  Buffer memory(static_cast<size_t>(elements * dtype_bytes(dtype)));
  std::mt19937 random(5);
  for (int64_t i = 0; i < elements; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    if (dtype == DType::kF32) {
      const uint32_t value = (bits & 0x807fffffu) | (125u << 23);
      std::memcpy(memory.data() + 4 * i, &value, sizeof value);
    } else {
      const auto value = static_cast<uint16_t>(
          dtype == DType::kF16 ? (bits & 0x83ffu) | (13u << 10) : (bits & 0x807fu) | (125u << 7));
      std::memcpy(memory.data() + 2 * i, &value, sizeof value);
    }
  }
  return memory;
}

// One layer's pages and the page table of one sequence, pages in random order.
class Pages {
 public:
  Pages(int64_t count, DType dtype)
      : dtype_(dtype), pool_(numbers(count * 2 * kKvHeads * kPageSize * kDim, dtype)) {
    for (int64_t page = 0; page < count; ++page) table_.push_back(static_cast<int32_t>(page));
    std::shuffle(table_.begin(), table_.end(), std::mt19937(6));
  }
  const int32_t* table() const { return table_.data(); }
  PagedRows k() const { return half(0); }
  PagedRows v() const { return half(1); }

 private:
  PagedRows half(int which) const {
    const int64_t head_bytes = kPageSize * kDim * dtype_bytes(dtype_);
    return {pool_.data() + which * kKvHeads * head_bytes, 2 * kKvHeads * head_bytes, head_bytes,
            kDim * dtype_bytes(dtype_), dtype_};
  }

  DType dtype_;
  Buffer pool_;
  std::vector<int32_t> table_;
};

TokenRows rows_of(const Buffer& memory, int heads, DType dtype) {
  return {memory.data(), heads * kDim * dtype_bytes(dtype), kDim * dtype_bytes(dtype), dtype};
}

// Attention of `rows` new tokens of one sequence that has `keys` tokens with them.
struct Attention {
  Attention(int64_t rows, int64_t keys, DType dtype)
      : pages((keys + kPageSize - 1) / kPageSize, dtype),
        q(numbers(rows * kQHeads * kDim, dtype)),
        out(numbers(rows * kQHeads * kDim, dtype)) {
    sequence.pages = pages.table();
    sequence.num_rows = rows;
    sequence.first_key_end = keys - rows + 1;
    sequence.position = keys - rows;
    params.q = rows_of(q, kQHeads, dtype);
    params.q_scale = 0.1275f;  // log2(e) / sqrt(128)
    params.k = pages.k();
    params.v = pages.v();
    params.page_size = kPageSize;
    params.num_q_heads = kQHeads;
    params.num_kv_heads = kKvHeads;
    params.k_dim = params.v_dim = kDim;
    params.causal = 1;
    params.out = rows_of(out, kQHeads, dtype);
    params.sequences = &sequence;
    item.head_end = kKvHeads;
    item.row_end = rows;
    item.key_end = keys;
    item.merge_group = -1;
    item.partial = -1;
  }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  Pages pages;
  Buffer q, out;
  AttnSequence sequence{};
  AttnParams params{};
  AttnItem item{};
};

double kv_bytes(int64_t tokens, DType dtype) {
  return 2.0 * static_cast<double>(tokens * kKvHeads * kDim * dtype_bytes(dtype));
}

// Seconds of one decode row over `keys` keys: 256 stay in the cache, 65,536 come from memory.
double decode_seconds(const cpu::KernelTable& table, const Budget& budget, int64_t keys,
                      DType dtype) {
  const Attention attention(1, keys, dtype);
  const Buffer scratch(table.attn_decode_scratch_bytes(attention.params, 1) + 64);
  return seconds_of_call(
             budget, [&] { table.attn_decode(attention.params, attention.item, scratch.data()); })
      .median;
}

// `rows` new tokens behind 2,048 others, one KV head after the other.
double tile_seconds(const cpu::KernelTable& table, const Budget& budget, int64_t rows,
                    DType dtype) {
  const Attention attention(rows, 2048 + rows, dtype);
  const Buffer scratch(table.attn_tile_scratch_bytes(attention.params, rows) + 64);
  return seconds_of_call(budget,
                         [&] {
                           AttnItem item = attention.item;
                           for (item.head_begin = 0; item.head_begin < kKvHeads;
                                ++item.head_begin) {
                             item.head_end = item.head_begin + 1;
                             table.attn_tile(attention.params, item, scratch.data());
                           }
                         })
      .median;
}

double tile_flops(int64_t rows) {
  const double pairs = static_cast<double>(rows) * (2048 + 0.5 * static_cast<double>(rows + 1));
  return 4 * pairs * kQHeads * kDim;
}

// `rows` rows of K and V, K rotated, into pages.
double append_seconds(const cpu::KernelTable& table, const Budget& budget, int64_t rows,
                      DType dtype) {
  const Pages pages((rows + kPageSize - 1) / kPageSize, dtype);
  const Buffer k = numbers(rows * kKvHeads * kDim, dtype),
               v = numbers(rows * kKvHeads * kDim, dtype);
  const std::vector<float> cos(static_cast<size_t>(rows * kDim / 2), 0.8f), sin(cos.size(), 0.6f);
  std::vector<int64_t> slots;
  for (int64_t row = 0; row < rows; ++row)
    slots.push_back(pages.table()[row / kPageSize] * kPageSize + row % kPageSize);
  AppendParams params{};
  params.k = rows_of(k, kKvHeads, dtype);
  params.v = rows_of(v, kKvHeads, dtype);
  params.k_rotation = {cos.data(), sin.data(), kDim, 0, 0};
  params.k_pages = pages.k();
  params.v_pages = pages.v();
  params.slots = slots.data();
  params.page_size = kPageSize;
  params.num_kv_heads = kKvHeads;
  params.k_dim = params.v_dim = kDim;
  return seconds_of_call(budget, [&] { table.append(params, 0, rows); }).median;
}

// Copies of `bytes` bytes, source and target far apart in 256 MiB.
double copy_seconds(const cpu::KernelTable& table, const Budget& budget, const Buffer& memory,
                    int64_t bytes) {
  const int64_t half = static_cast<int64_t>(memory.bytes()) / 2;
  int64_t offset = 0;
  return seconds_of_call(budget,
                         [&] {
                           table.copy(memory.data() + half + offset, memory.data() + offset,
                                      static_cast<size_t>(bytes));
                           offset = offset + 2 * bytes <= half ? offset + bytes : 0;
                         })
      .median;
}

}  // namespace

Report run_kernels(const KernelsOptions& options) {
  Report report = new_report("kernels", "each", 1);
  report["q_heads"] = kQHeads;
  report["kv_heads"] = kKvHeads;
  report["head_dim"] = kDim;
  report["page"] = kPageSize;
  // Thirteen figures for each of three element types and up to four instruction sets.
  Budget budget = options.common.budget;
  budget.seconds /= 40;
  const Buffer memory(size_t{256} << 20);
  for (const auto isa :
       {cpu::Isa::kAvx512Bf16, cpu::Isa::kAvx512, cpu::Isa::kAvx2, cpu::Isa::kScalar}) {
    const cpu::KernelTable* table = cpu::kernel_table(isa);
    if (table == nullptr) continue;
    Report part;
    for (const auto& [name, dtype] :
         {std::pair{"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp32", DType::kF32}}) {
      Report figures;
      for (const int64_t keys : {256, 65536})
        figures["decode_" + std::to_string(keys) + "_gbps"] =
            rounded(kv_bytes(keys, dtype) / decode_seconds(*table, budget, keys, dtype) / 1e9);
      for (const int64_t rows : {32, 256})
        figures["tile_" + std::to_string(rows) + "_gflops"] =
            rounded(tile_flops(rows) / tile_seconds(*table, budget, rows, dtype) / 1e9);
      for (const int64_t rows : {1, 4096})
        figures["append_" + std::to_string(rows) + "_gbps"] =
            rounded(kv_bytes(rows, dtype) / append_seconds(*table, budget, rows, dtype) / 1e9);
      part[name] = figures;
    }
    for (const int64_t bytes : {4096, 65536})
      part["copy_" + std::to_string(bytes) + "_gbps"] =
          rounded(static_cast<double>(bytes) / copy_seconds(*table, budget, memory, bytes) / 1e9);
    report[table->name] = part;
  }
  return report;
}

}  // namespace kvc::bench
