// The CPU kernels by themselves: one thread, no cache around them, every instruction set of this
// machine.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/table.h"

namespace {

using namespace kvc::kernels;

constexpr int kPageSize = 16;
constexpr int kQHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kDim = 128;

struct FreeAligned {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, FreeAligned>;

// 64-byte aligned, every element a normal number of magnitude 0.25 to 0.5 in `dtype`.
Memory numbers(int64_t elements, DType dtype) {
  const int64_t bytes = (elements * dtype_bytes(dtype) + 63) / 64 * 64;
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(bytes))));
  std::mt19937 random(5);
  for (int64_t i = 0; i < elements; ++i) {
    const uint32_t bits = random();
    if (dtype == DType::kF32) {
      const uint32_t value = (bits & 0x807fffffu) | (125u << 23);
      std::memcpy(memory.get() + 4 * i, &value, sizeof value);
    } else {
      const auto value = static_cast<uint16_t>(
          dtype == DType::kF16 ? (bits & 0x83ffu) | (13u << 10) : (bits & 0x807fu) | (125u << 7));
      std::memcpy(memory.get() + 2 * i, &value, sizeof value);
    }
  }
  return memory;
}

// One layer's pages and the page table of one sequence, pages in random order.
class Pages {
 public:
  Pages(int64_t count, DType dtype)
      : count_(count),
        dtype_(dtype),
        pool_(numbers(count * 2 * kKvHeads * kPageSize * kDim, dtype)) {
    for (int64_t page = 0; page < count; ++page) table_.push_back(static_cast<int32_t>(page));
    std::shuffle(table_.begin(), table_.end(), std::mt19937(6));
  }
  const int32_t* table() const { return table_.data(); }
  PagedRows k() const { return half(0); }
  PagedRows v() const { return half(1); }
  int64_t tokens() const { return count_ * kPageSize; }

 private:
  PagedRows half(int which) const {
    const int64_t head_bytes = kPageSize * kDim * dtype_bytes(dtype_);
    return {pool_.get() + which * kKvHeads * head_bytes, 2 * kKvHeads * head_bytes, head_bytes,
            kDim * dtype_bytes(dtype_), dtype_};
  }

  int64_t count_;
  DType dtype_;
  Memory pool_;
  std::vector<int32_t> table_;
};

TokenRows rows_of(const Memory& memory, int heads, DType dtype) {
  return {memory.get(), heads * kDim * dtype_bytes(dtype), kDim * dtype_bytes(dtype), dtype};
}

AttnParams attention(const Pages& pages, const Memory& q, const Memory& out, DType dtype,
                     const AttnSequence* sequence) {
  AttnParams params{};
  params.q = rows_of(q, kQHeads, dtype);
  params.q_scale = 0.1275f;  // log2(e)/sqrt(128)
  params.k = pages.k();
  params.v = pages.v();
  params.page_size = kPageSize;
  params.num_q_heads = kQHeads;
  params.num_kv_heads = kKvHeads;
  params.k_dim = params.v_dim = kDim;
  params.causal = 1;
  params.out = rows_of(out, kQHeads, dtype);
  params.sequences = sequence;
  return params;
}

AttnSequence plain_sequence(const Pages& pages, int64_t rows, int64_t first_key_end) {
  AttnSequence sequence{};
  sequence.pages = pages.table();
  sequence.num_rows = rows;
  sequence.first_key_end = first_key_end;
  sequence.position = first_key_end - 1;
  return sequence;
}

AttnItem whole_item(int32_t head_begin, int32_t head_end, int64_t rows, int64_t keys) {
  return {.sequence = 0,
          .head_begin = head_begin,
          .head_end = head_end,
          .sink_part = 0,
          .merge_group = -1,
          .num_merge_groups = 0,
          .row_begin = 0,
          .row_end = rows,
          .key_begin = 0,
          .key_end = keys,
          .partial = -1};
}

double read_bytes(int64_t keys, DType dtype) {
  return 2.0 * static_cast<double>(keys * kKvHeads * kDim * dtype_bytes(dtype));
}

// One decode row over state.range(0) keys: 256 stays in the cache, 65536 comes from memory.
void decode(benchmark::State& state, const cpu::KernelTable* table, DType dtype) {
  const int64_t keys = state.range(0);
  const Pages pages(keys / kPageSize, dtype);
  const Memory q = numbers(kQHeads * kDim, dtype), out = numbers(kQHeads * kDim, dtype);
  const AttnSequence sequence = plain_sequence(pages, 1, keys);
  const AttnParams params = attention(pages, q, out, dtype, &sequence);
  const AttnItem item = whole_item(0, kKvHeads, 1, keys);
  const Memory scratch =
      numbers(static_cast<int64_t>(table->attn_decode_scratch_bytes(params, 1)), DType::kF32);
  for (auto _ : state) {
    table->attn_decode(params, item, scratch.get());
    benchmark::ClobberMemory();
  }
  state.counters["KV"] =
      benchmark::Counter(read_bytes(keys, dtype), benchmark::Counter::kIsIterationInvariantRate,
                         benchmark::Counter::kIs1000);
}

// state.range(0) new rows over a context of 2048 keys, one kv head after the other as the planner
// cuts them.
void tile(benchmark::State& state, const cpu::KernelTable* table, DType dtype) {
  const int64_t rows = state.range(0), context = 2048;
  const Pages pages((context + rows + kPageSize - 1) / kPageSize, dtype);
  const Memory q = numbers(rows * kQHeads * kDim, dtype),
               out = numbers(rows * kQHeads * kDim, dtype);
  const AttnSequence sequence = plain_sequence(pages, rows, context + 1);
  const AttnParams params = attention(pages, q, out, dtype, &sequence);
  const Memory scratch =
      numbers(static_cast<int64_t>(table->attn_tile_scratch_bytes(params, rows)), DType::kF32);
  for (auto _ : state) {
    for (int head = 0; head < kKvHeads; ++head) {
      table->attn_tile(params, whole_item(head, head + 1, rows, context + rows), scratch.get());
    }
    benchmark::ClobberMemory();
  }
  const double pairs =
      static_cast<double>(rows * context) + 0.5 * static_cast<double>(rows * (rows + 1));
  state.counters["flops"] =
      benchmark::Counter(4 * pairs * kQHeads * kDim, benchmark::Counter::kIsIterationInvariantRate,
                         benchmark::Counter::kIs1000);
}

// state.range(0) rows of K and V, K rotated, into pages.
void append(benchmark::State& state, const cpu::KernelTable* table, DType dtype) {
  const int64_t rows = state.range(0);
  const Pages pages((rows + kPageSize - 1) / kPageSize, dtype);
  const Memory k = numbers(rows * kKvHeads * kDim, dtype),
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
  for (auto _ : state) {
    table->append(params, 0, rows);
    benchmark::ClobberMemory();
  }
  state.counters["KV"] =
      benchmark::Counter(read_bytes(rows, dtype), benchmark::Counter::kIsIterationInvariantRate,
                         benchmark::Counter::kIs1000);
}

// Copies of state.range(0) bytes, source and target far apart in 256 MiB.
void copy(benchmark::State& state, const cpu::KernelTable* table) {
  const int64_t bytes = state.range(0), half = int64_t{128} << 20;
  const Memory memory = numbers(2 * half / 4, DType::kF32);
  int64_t offset = 0;
  for (auto _ : state) {
    table->copy(memory.get() + half + offset, memory.get() + offset, static_cast<size_t>(bytes));
    offset = offset + 2 * bytes <= half ? offset + bytes : 0;
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

const char* dtype_name(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kF16 ? "f16" : "bf16";
}

bool register_all() {
  for (const auto isa :
       {cpu::Isa::kAvx512Bf16, cpu::Isa::kAvx512, cpu::Isa::kAvx2, cpu::Isa::kScalar}) {
    const cpu::KernelTable* table = cpu::kernel_table(isa);
    if (table == nullptr) continue;
    const std::string suffix = std::string("/") + table->name;
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const std::string name = suffix + "/" + dtype_name(dtype);
      benchmark::RegisterBenchmark(("decode" + name).c_str(), decode, table, dtype)
          ->Arg(256)
          ->Arg(65536);
      benchmark::RegisterBenchmark(("tile" + name).c_str(), tile, table, dtype)->Arg(32)->Arg(256);
      benchmark::RegisterBenchmark(("append" + name).c_str(), append, table, dtype)
          ->Arg(1)
          ->Arg(4096);
    }
    benchmark::RegisterBenchmark(("copy" + suffix).c_str(), copy, table)->Arg(4096)->Arg(65536);
  }
  return true;
}

const bool registered = register_all();

}  // namespace
