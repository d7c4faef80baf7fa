#include "bench/limit_loops.h"

#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define KVC_BENCH_TARGET(features) __attribute__((target(features)))
// Chains live in registers only when the loop over them is gone.
#define KVC_BENCH_UNROLL _Pragma("GCC unroll 16")
#endif

namespace kvc::bench {
namespace {

constexpr int64_t kBlock = 256;  // Four lines: what one turn of a read loop takes from a stream.
constexpr int64_t kLine = 64;
constexpr int kRounds = 20000;  // Rounds of one arithmetic chunk.

// Keeps results alive, so that no loop is optimised away.
void keep(uint64_t value) {
  static std::atomic<uint64_t> sink{0};
  if (value == 0x9e3779b97f4a7c15u) sink.fetch_add(value);
}

template <typename Vector>
void keep_lanes(const Vector& lanes) {
  uint64_t first;
  std::memcpy(&first, &lanes, sizeof first);
  keep(first);
}

uint64_t read_plain(const std::byte* const* portions, int64_t count, int64_t portion_bytes) {
  uint64_t seen = 0;
  for (int64_t portion = 0; portion < count; ++portion) {
    for (int64_t offset = 0; offset + 8 <= portion_bytes; offset += 8) {
      uint64_t word;
      std::memcpy(&word, portions[portion] + offset, sizeof word);
      seen ^= word;
    }
  }
  return seen;
}

#if defined(__x86_64__)

// Offsets [begin, end) of every stream of one portion; `fetch` + offset is the line to prefetch.
template <int kStreams, bool kPrefetch>
KVC_BENCH_TARGET("avx512f")
__m512i read_part_avx512(const std::byte* portion, const std::byte* fetch, int64_t stream_bytes,
                         int64_t begin, int64_t end, __m512i seen) {
  for (int64_t offset = begin; offset < end; offset += kBlock) {
    for (int stream = 0; stream < kStreams; ++stream) {
      const int64_t at = stream * stream_bytes + offset;
      if (kPrefetch) {
        _mm_prefetch(reinterpret_cast<const char*>(fetch + at), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(fetch + at + kLine), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(fetch + at + 2 * kLine), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(fetch + at + 3 * kLine), _MM_HINT_T0);
      }
      const std::byte* p = portion + at;
      const __m512i low = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_loadu_si512(p + kLine));
      const __m512i high =
          _mm512_xor_si512(_mm512_loadu_si512(p + 2 * kLine), _mm512_loadu_si512(p + 3 * kLine));
      seen = _mm512_xor_si512(seen, _mm512_xor_si512(low, high));
    }
  }
  return seen;
}

template <int kStreams, bool kPrefetch>
KVC_BENCH_TARGET("avx512f")
uint64_t read_avx512(const std::byte* const* portions, int64_t count, int64_t portion_bytes,
                     int64_t ahead) {
  __m512i seen = _mm512_setzero_si512();
  const int64_t stream_bytes = portion_bytes / kStreams;
  const int64_t own =
      stream_bytes - ahead;  // From here on the prefetch belongs to the next portion.
  for (int64_t portion = 0; portion < count; ++portion) {
    const std::byte* here = portions[portion];
    const std::byte* next = portions[portion + 1 < count ? portion + 1 : portion];
    seen = read_part_avx512<kStreams, kPrefetch>(here, here + ahead, stream_bytes, 0, own, seen);
    seen = read_part_avx512<kStreams, kPrefetch>(here, next - own, stream_bytes, own, stream_bytes,
                                                 seen);
  }
  uint64_t words[8];
  _mm512_storeu_si512(words, seen);
  return words[0] ^ words[7];
}

template <int kStreams, bool kPrefetch>
KVC_BENCH_TARGET("avx2")
uint64_t read_avx2(const std::byte* const* portions, int64_t count, int64_t portion_bytes,
                   int64_t ahead) {
  __m256i seen = _mm256_setzero_si256();
  const int64_t stream_bytes = portion_bytes / kStreams;
  const int64_t own = stream_bytes - ahead;
  for (int64_t portion = 0; portion < count; ++portion) {
    const std::byte* here = portions[portion];
    const std::byte* next = portions[portion + 1 < count ? portion + 1 : portion];
    for (int64_t offset = 0; offset < stream_bytes; offset += kLine) {
      const std::byte* fetch = offset < own ? here + ahead : next - own;
      for (int stream = 0; stream < kStreams; ++stream) {
        const int64_t at = stream * stream_bytes + offset;
        if (kPrefetch) _mm_prefetch(reinterpret_cast<const char*>(fetch + at), _MM_HINT_T0);
        const auto* p = reinterpret_cast<const __m256i*>(here + at);
        seen = _mm256_xor_si256(seen,
                                _mm256_xor_si256(_mm256_loadu_si256(p), _mm256_loadu_si256(p + 1)));
      }
    }
  }
  return static_cast<uint64_t>(_mm256_extract_epi64(seen, 0) | _mm256_extract_epi64(seen, 3));
}

// Portions too small or too odd for streams: whole portions are prefetched some portions ahead.
// portion_bytes >= 64.
KVC_BENCH_TARGET("avx2")
uint64_t read_small_avx2(const std::byte* const* portions, int64_t count, int64_t portion_bytes,
                         int64_t ahead) {
  __m256i seen = _mm256_setzero_si256();
  const int64_t portions_ahead = (ahead + portion_bytes - 1) / portion_bytes;
  const int64_t last_line =
      portion_bytes -
      kLine;  // Overlaps the line before when a portion is no whole number of lines.
  for (int64_t portion = 0; portion < count; ++portion) {
    const std::byte* here = portions[portion];
    const std::byte* later =
        portions[portion + portions_ahead < count ? portion + portions_ahead : portion];
    for (int64_t offset = 0; offset < portion_bytes; offset += kLine) {
      const int64_t at = offset < last_line ? offset : last_line;
      if (portions_ahead > 0) _mm_prefetch(reinterpret_cast<const char*>(later + at), _MM_HINT_T0);
      const auto* p = reinterpret_cast<const __m256i*>(here + at);
      seen = _mm256_xor_si256(seen,
                              _mm256_xor_si256(_mm256_loadu_si256(p), _mm256_loadu_si256(p + 1)));
    }
  }
  return static_cast<uint64_t>(_mm256_extract_epi64(seen, 0) | _mm256_extract_epi64(seen, 3));
}

using ReadLoop = uint64_t (*)(const std::byte* const*, int64_t, int64_t, int64_t);

ReadLoop read_loop(bool wide, int streams, bool prefetch) {
  switch (streams * 2 + (prefetch ? 1 : 0)) {
    case 3: return wide ? read_avx512<1, true> : read_avx2<1, true>;
    case 4: return wide ? read_avx512<2, false> : read_avx2<2, false>;
    case 5: return wide ? read_avx512<2, true> : read_avx2<2, true>;
    case 8: return wide ? read_avx512<4, false> : read_avx2<4, false>;
    case 9: return wide ? read_avx512<4, true> : read_avx2<4, true>;
    default: return wide ? read_avx512<1, false> : read_avx2<1, false>;
  }
}

KVC_BENCH_TARGET("avx512f")
void stream_copy_avx512(std::byte* to, const std::byte* from, int64_t bytes, int64_t ahead) {
  for (int64_t offset = 0; offset < bytes; offset += kLine) {
    if (ahead != 0) _mm_prefetch(reinterpret_cast<const char*>(from + offset + ahead), _MM_HINT_T0);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + offset), _mm512_loadu_si512(from + offset));
  }
}

KVC_BENCH_TARGET("avx2")
void stream_copy_avx2(std::byte* to, const std::byte* from, int64_t bytes, int64_t ahead) {
  for (int64_t offset = 0; offset < bytes; offset += kLine) {
    if (ahead != 0) _mm_prefetch(reinterpret_cast<const char*>(from + offset + ahead), _MM_HINT_T0);
    const auto* source = reinterpret_cast<const __m256i*>(from + offset);
    auto* target = reinterpret_cast<__m256i*>(to + offset);
    _mm256_stream_si256(target, _mm256_loadu_si256(source));
    _mm256_stream_si256(target + 1, _mm256_loadu_si256(source + 1));
  }
}

KVC_BENCH_TARGET("avx512f")
void update_avx512(std::byte* data, int64_t bytes, int64_t ahead) {
  const __m512 factor = _mm512_set1_ps(-1.0f);
  for (int64_t offset = 0; offset < bytes; offset += kLine) {
    if (ahead != 0) _mm_prefetch(reinterpret_cast<const char*>(data + offset + ahead), _MM_HINT_T0);
    _mm512_storeu_ps(data + offset, _mm512_mul_ps(factor, _mm512_loadu_ps(data + offset)));
  }
}

KVC_BENCH_TARGET("avx2")
void update_avx2(std::byte* data, int64_t bytes, int64_t ahead) {
  const __m256 factor = _mm256_set1_ps(-1.0f);
  for (int64_t offset = 0; offset < bytes; offset += kLine) {
    if (ahead != 0) _mm_prefetch(reinterpret_cast<const char*>(data + offset + ahead), _MM_HINT_T0);
    auto* line = reinterpret_cast<float*>(data + offset);
    const __m256 low = _mm256_loadu_ps(line), high = _mm256_loadu_ps(line + 8);
    _mm256_storeu_ps(line, _mm256_mul_ps(factor, low));
    _mm256_storeu_ps(line + 8, _mm256_mul_ps(factor, high));
  }
}

// Sixteen chains: the latency of a multiply-add times its throughput needs at least eight.
constexpr int kChains = 16;

KVC_BENCH_TARGET("avx512f")
double arithmetic_avx512() {
  __m512 chain[kChains];
  KVC_BENCH_UNROLL for (int i = 0; i < kChains; ++i) chain[i] =
      _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.5f);
  const __m512 addend = _mm512_set1_ps(1.0f);
  for (int round = 0; round < kRounds; ++round) {
    KVC_BENCH_UNROLL for (int i = 0; i < kChains; ++i) chain[i] =
        _mm512_fmadd_ps(chain[i], factor, addend);
  }
  __m512 total = chain[0];
  KVC_BENCH_UNROLL for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, chain[i]);
  keep_lanes(total);
  return 2.0 * 16 * kChains * kRounds;
}

KVC_BENCH_TARGET("avx512f,avx512bf16")
double arithmetic_avx512bf16() {
  __m512 chain[kChains];
  KVC_BENCH_UNROLL for (int i = 0; i < kChains; ++i) chain[i] =
      _mm512_set1_ps(static_cast<float>(i));
  const __m512i ones = _mm512_set1_epi32(0x3f803f80);  // Pairs of bfloat16 1.0.
  const auto pairs = (__m512bh)ones;
  for (int round = 0; round < kRounds; ++round) {
    KVC_BENCH_UNROLL for (int i = 0; i < kChains; ++i) chain[i] =
        _mm512_dpbf16_ps(chain[i], pairs, pairs);
  }
  __m512 total = chain[0];
  KVC_BENCH_UNROLL for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, chain[i]);
  keep_lanes(total);
  return 2.0 * 32 * kChains * kRounds;
}

// Twelve chains: sixteen and their operands do not fit the sixteen registers.
KVC_BENCH_TARGET("avx2,fma")
double arithmetic_avx2() {
  constexpr int kFewerChains = 12;
  __m256 chain[kFewerChains];
  KVC_BENCH_UNROLL for (int i = 0; i < kFewerChains; ++i) chain[i] =
      _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.5f);
  const __m256 addend = _mm256_set1_ps(1.0f);
  for (int round = 0; round < kRounds; ++round) {
    KVC_BENCH_UNROLL for (int i = 0; i < kFewerChains; ++i) chain[i] =
        _mm256_fmadd_ps(chain[i], factor, addend);
  }
  __m256 total = chain[0];
  KVC_BENCH_UNROLL for (int i = 1; i < kFewerChains; ++i) total = _mm256_add_ps(total, chain[i]);
  keep_lanes(total);
  return 2.0 * 8 * kFewerChains * kRounds;
}

#endif  // __x86_64__

double arithmetic_scalar() {
  float chain[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int round = 0; round < kRounds; ++round) {
    for (float& value : chain) value = value * 0.5f + 1.0f;
  }
  float sum = 0;
  for (const float value : chain) sum += value;
  keep(static_cast<uint64_t>(sum));
  return 2.0 * 8 * kRounds;
}

}  // namespace

bool machine_has(Arithmetic arithmetic) {
#if defined(__x86_64__)
  switch (arithmetic) {
    case Arithmetic::kAvx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Arithmetic::kAvx512: return __builtin_cpu_supports("avx512f");
    case Arithmetic::kAvx512Bf16:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
    case Arithmetic::kScalar: break;
  }
#endif
  return arithmetic == Arithmetic::kScalar;
}

const char* arithmetic_name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kAvx2: return "fp32 fma ymm";
    case Arithmetic::kAvx512: return "fp32 fma zmm";
    case Arithmetic::kAvx512Bf16: return "vdpbf16ps zmm";
    case Arithmetic::kScalar: break;
  }
  return "fp32 baseline";
}

bool streams_fit(int64_t portion_bytes, int streams, int64_t ahead) {
  constexpr int64_t kSmallest = 4096;
  return portion_bytes >= kSmallest && portion_bytes % (kBlock * streams) == 0 &&
         ahead <= portion_bytes / streams;
}

void loop_read(const std::byte* const* portions, int64_t count, int64_t portion_bytes, int streams,
               int64_t ahead) {
#if defined(__x86_64__)
  static const bool wide = machine_has(Arithmetic::kAvx512);
  static const bool vectors = machine_has(Arithmetic::kAvx2);
  if (vectors && streams_fit(portion_bytes, streams, ahead)) {
    return keep(read_loop(wide, streams, ahead > 0)(portions, count, portion_bytes, ahead));
  }
  if (vectors && portion_bytes >= kLine)
    return keep(read_small_avx2(portions, count, portion_bytes, ahead));
#else
  (void)streams, (void)ahead;
#endif
  keep(read_plain(portions, count, portion_bytes));
}

void loop_update(std::byte* data, int64_t bytes, int64_t ahead) {
#if defined(__x86_64__)
  static const bool wide = machine_has(Arithmetic::kAvx512);
  static const bool vectors = machine_has(Arithmetic::kAvx2);
  if (wide) return update_avx512(data, bytes, ahead);
  if (vectors) return update_avx2(data, bytes, ahead);
#endif
  (void)ahead;
  for (int64_t offset = 0; offset < bytes; offset += 4) {
    float value;
    std::memcpy(&value, data + offset, sizeof value);
    value = -value;
    std::memcpy(data + offset, &value, sizeof value);
  }
}

void loop_stream_copy(std::byte* to, const std::byte* from, int64_t bytes, int64_t ahead) {
#if defined(__x86_64__)
  if (machine_has(Arithmetic::kAvx512)) {
    stream_copy_avx512(to, from, bytes, ahead);
  } else {
    stream_copy_avx2(to, from, bytes, ahead);
  }
  _mm_sfence();
#else
  (void)ahead;
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

double loop_arithmetic(Arithmetic arithmetic) {
#if defined(__x86_64__)
  switch (arithmetic) {
    case Arithmetic::kAvx2: return arithmetic_avx2();
    case Arithmetic::kAvx512: return arithmetic_avx512();
    case Arithmetic::kAvx512Bf16: return arithmetic_avx512bf16();
    case Arithmetic::kScalar: break;
  }
#endif
  (void)arithmetic;
  return arithmetic_scalar();
}

}  // namespace kvc::bench
