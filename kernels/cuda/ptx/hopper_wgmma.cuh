// wgmma: asynchronous matrix multiply of a warpgroup, D (64 x N, float32) += A (64 x 16) * B (16 x
// N). Part of hopper.cuh.
#pragma once

namespace kvc::cuda {

// Accumulators of thread t of the warpgroup (lane = t % 32), with row = 16 * (t / 32) + lane / 4
// and column = 8 * j + 2 * (lane % 4):
//   d[4j], d[4j+1]: (row, column) and the next      d[4j+2], d[4j+3]: (row + 8, column) and the
//   next
// A in registers (wgmma_rs) has the layout of mma_16816's A in every warp. So two neighbouring
// groups of 8 columns of D, packed, are an A.
//
// Operands in shared memory with the 128-byte swizzle (PTX ISA, "Matrix-descriptor") lie in tiles
// of 8 rows of 128 bytes, 1024-byte aligned:
// - K-major (A, and B not transposed): a row holds 64 elements of the reduction dimension.
//   stride_bytes leads from 8 rows to the next 8; leading_bytes is not used. The next 16 elements
//   of the reduction are 32 bytes further.
// - N-major (B transposed): a row holds 64 of the N columns for one element of the reduction.
//   stride_bytes leads from 8 rows to the next 8, and leading_bytes to the next 64 columns. The
//   next 16 elements of the reduction are 16 rows further.
// wgmma_layout.h states the same as functions.
KVC_DEVICE uint64_t wgmma_descriptor(const void* shared, int leading_bytes, int stride_bytes,
                                     int swizzle) {
  const uint64_t mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
  return static_cast<uint64_t>((shared_address(shared) & 0x3ffffu) >> 4) |
         static_cast<uint64_t>((leading_bytes & 0x3ffff) >> 4) << 16 |
         static_cast<uint64_t>((stride_bytes & 0x3ffff) >> 4) << 32 | mode << 62;
}
// The same operand, `bytes` further.
KVC_DEVICE uint64_t wgmma_advance(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

// Warpgroup, for all of these.
// - fence: registers written before are visible to the wgmmas behind it.
// - commit: the wgmmas since the last commit form a group.
// - wait: waits until at most `Pending` groups are in flight.
// Between the first wgmma and the wait no other instruction may write its accumulators or A
// registers: ptxas then serialises all of them and only prints "Potential Performance Loss".
KVC_DEVICE void wgmma_fence() { KVC_HOPPER("wgmma.fence.sync.aligned;" ::: "memory"); }
KVC_DEVICE void wgmma_commit() { KVC_HOPPER("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
KVC_DEVICE void wgmma_wait() {
  KVC_HOPPER("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// The compiler does not know that wgmma is asynchronous. This keeps it from moving uses of the
// registers across this point.
template <int Count>
KVC_DEVICE void wgmma_pin(float (&registers)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int Count>
KVC_DEVICE void wgmma_pin(uint32_t (&registers)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Operand lists: PTX has no other way to name N / 2 registers.
#define KVC_WGMMA_D32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KVC_WGMMA_D64                                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, "                                                                                      \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KVC_WGMMA_D128                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, "                                                                                      \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, " \
  "%39, "                                                                                      \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, " \
  "%58, "                                                                                      \
  "%59, %60, %61, %62, %63"
#define KVC_WGMMA_D256                                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "    \
  "%20, "                                                                                         \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, "    \
  "%39, "                                                                                         \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "    \
  "%58, "                                                                                         \
  "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "    \
  "%77, "                                                                                         \
  "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "    \
  "%96, "                                                                                         \
  "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define KVC_WGMMA_8(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define KVC_WGMMA_R32 KVC_WGMMA_8(0), KVC_WGMMA_8(8)
#define KVC_WGMMA_R64 KVC_WGMMA_R32, KVC_WGMMA_8(16), KVC_WGMMA_8(24)
#define KVC_WGMMA_R128 \
  KVC_WGMMA_R64, KVC_WGMMA_8(32), KVC_WGMMA_8(40), KVC_WGMMA_8(48), KVC_WGMMA_8(56)
#define KVC_WGMMA_R256                                                                \
  KVC_WGMMA_R128, KVC_WGMMA_8(64), KVC_WGMMA_8(72), KVC_WGMMA_8(80), KVC_WGMMA_8(88), \
      KVC_WGMMA_8(96), KVC_WGMMA_8(104), KVC_WGMMA_8(112), KVC_WGMMA_8(120)

// One instruction of shape 64 x n x 16. p1, p2 and so on are the numbers of the operands behind the
// accumulators. `transposed` is a literal.
#define KVC_WGMMA_SS(n, type, p1, p2, p3, transposed)                                            \
  KVC_HOPPER("{\n.reg .pred p;\nsetp.ne.b32 p, " p3                                              \
             ", 0;\n"                                                                            \
             "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" KVC_WGMMA_D##n \
             "}, " p1 ", " p2 ", p, 1, 1, 0, " transposed ";\n}\n"                               \
             : KVC_WGMMA_R##n                                                                    \
             : "l"(a), "l"(b), "r"(add))
#define KVC_WGMMA_RS(n, type, p1, p2, p3, p4, p5, p6, transposed)                                \
  KVC_HOPPER("{\n.reg .pred p;\nsetp.ne.b32 p, " p6                                              \
             ", 0;\n"                                                                            \
             "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" KVC_WGMMA_D##n \
             "}, {" p1 ", " p2 ", " p3 ", " p4 "}, " p5 ", p, 1, 1, " transposed ";\n}\n"        \
             : KVC_WGMMA_R##n                                                                    \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define KVC_WGMMA_EACH(FORM, n, ...)                                                           \
  if constexpr (T == kernels::DType::kBF16 && TransposedB) FORM(n, "bf16", __VA_ARGS__, "1");  \
  if constexpr (T == kernels::DType::kBF16 && !TransposedB) FORM(n, "bf16", __VA_ARGS__, "0"); \
  if constexpr (T == kernels::DType::kF16 && TransposedB) FORM(n, "f16", __VA_ARGS__, "1");    \
  if constexpr (T == kernels::DType::kF16 && !TransposedB) FORM(n, "f16", __VA_ARGS__, "0")

// A and B by descriptors. With `accumulate` false, D is overwritten.
template <kernels::DType T, int N, bool TransposedB>
KVC_DEVICE void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(N == 32 || N == 64 || N == 128 || N == 256);
  [[maybe_unused]] const uint32_t add = accumulate ? 1 : 0;
  if constexpr (N == 32) {
    KVC_WGMMA_EACH(KVC_WGMMA_SS, 32, "%16", "%17", "%18");
  }
  if constexpr (N == 64) {
    KVC_WGMMA_EACH(KVC_WGMMA_SS, 64, "%32", "%33", "%34");
  }
  if constexpr (N == 128) {
    KVC_WGMMA_EACH(KVC_WGMMA_SS, 128, "%64", "%65", "%66");
  }
  if constexpr (N == 256) {
    KVC_WGMMA_EACH(KVC_WGMMA_SS, 256, "%128", "%129", "%130");
  }
}

// A in registers, B by descriptor.
template <kernels::DType T, int N, bool TransposedB>
KVC_DEVICE void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(N == 32 || N == 64 || N == 128 || N == 256);
  [[maybe_unused]] const uint32_t add = accumulate ? 1 : 0;
  if constexpr (N == 32) {
    KVC_WGMMA_EACH(KVC_WGMMA_RS, 32, "%16", "%17", "%18", "%19", "%20", "%21");
  }
  if constexpr (N == 64) {
    KVC_WGMMA_EACH(KVC_WGMMA_RS, 64, "%32", "%33", "%34", "%35", "%36", "%37");
  }
  if constexpr (N == 128) {
    KVC_WGMMA_EACH(KVC_WGMMA_RS, 128, "%64", "%65", "%66", "%67", "%68", "%69");
  }
  if constexpr (N == 256) {
    KVC_WGMMA_EACH(KVC_WGMMA_RS, 256, "%128", "%129", "%130", "%131", "%132", "%133");
  }
}

#undef KVC_WGMMA_EACH
#undef KVC_WGMMA_RS
#undef KVC_WGMMA_SS
#undef KVC_WGMMA_8
#undef KVC_WGMMA_D32
#undef KVC_WGMMA_R32
#undef KVC_WGMMA_D64
#undef KVC_WGMMA_R64
#undef KVC_WGMMA_D128
#undef KVC_WGMMA_R128
#undef KVC_WGMMA_D256
#undef KVC_WGMMA_R256

}  // namespace kvc::cuda
