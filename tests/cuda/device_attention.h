// A random attention problem (tests/unit) with all that it reads and writes in memory of the
// device, its keys in any storage, its work divided by the scheduler.
#pragma once

#include "kernels/reference/reference.h"
#include "tests/cuda/rows_support.h"
#include "tests/cuda/schedule_executor.h"
#include "tests/unit/kernels_visibility.h"

namespace kvc::cuda::row_test {

using kernels::test::AttnFeatures;
using kernels::test::AttnProblem;
using kernels::test::Visibility;
using test::HostSchedule;
using test::make_schedule;
using test::schedule_shape;

constexpr float kLog2EOfTests = 1.44269504088896341f;

// Copies of pointers' targets on the device, kept until the problem goes.
class Uploads {
 public:
  template <typename T>
  T* add(const T* from, int64_t count) {
    if (from == nullptr) return nullptr;
    const auto* bytes = reinterpret_cast<const std::byte*>(from);
    arrays_.emplace_back(
        std::vector<std::byte>(bytes, bytes + count * static_cast<int64_t>(sizeof(T))));
    return reinterpret_cast<T*>(arrays_.back().data());
  }

 private:
  std::vector<DeviceArray<std::byte>> arrays_;
};

// The keys of `pool` (a half of the problem's) in another storage. What it has instead of them, as
// float32, takes their place, so that the reference sees what a kernel sees. Rows of NaN stay
// poison.
inline StoredPool stored_as(Random& random, const StorageKind& kind, PoolOwner& pool,
                            PagedRows& rows, int64_t page_size, int64_t heads, int64_t dim) {
  const int64_t pages = pool.memory.size() / rows.page_stride;
  StoredPool stored(random, kind, pages, page_size, heads, dim);
  PoolOwner plain(random, pages, page_size, heads, dim, DType::kF32);
  for (int64_t page = 0; page < pages; ++page) {
    for (int64_t offset = 0; offset < page_size; ++offset) {
      for (int64_t head = 0; head < heads; ++head) {
        const std::byte* from = kernels::row_address(rows, page, head, offset);
        std::vector<double> values;
        for (int64_t d = 0; d < dim; ++d)
          values.push_back(kernels::reference::read_element(from, rows.dtype, d));
        if (std::isnan(values[0])) continue;
        stored.write(page, head, offset, values);
        for (int64_t d = 0; d < dim; ++d)
          kernels::reference::write_element(kernels::row_address(plain.rows, page, head, offset),
                                            DType::kF32, d, stored.read(page, head, offset, d));
      }
    }
  }
  pool = std::move(plain);
  rows = pool.rows;
  return stored;
}

class DeviceAttention {
 public:
  // `k`, `v`: the keys where they are not stored as the problem has them.
  DeviceAttention(AttnProblem& problem, const StoredPool* k, const StoredPool* v)
      : problem_(problem), out_(problem.out), lse_(lse_of(problem)) {
    kernels::AttnParams& params = launch.params;
    params = problem.params;
    params.q.base = uploads_.add(problem.q.memory.data(), problem.q.memory.size());
    upload_keys(k, problem.k, &params.k, &launch.k_storage);
    upload_keys(v, problem.v, &params.v, &launch.v_storage);
    upload_rotation(&params.q_rotation, problem.tokens);
    upload_rotation(&params.sink_q_rotation, problem.tokens);
    for (Rotation& rotation : params.k_rotations) upload_rotation(&rotation, 2000);
    params.sinks = in_natural_units(params.sinks);
    params.alibi = in_natural_units(params.alibi);
    params.bias = uploads_.add(params.bias, static_cast<int64_t>(problem.bias.size()));
    params.out = out_.rows;
    params.lse = lse_.data();
    params.partials = nullptr;
    std::vector<kernels::AttnSequence> sequences = problem.sequences;
    for (int32_t s = 0; s < problem.num_sequences(); ++s)
      upload_sequence(s, &sequences[static_cast<size_t>(s)]);
    params.sequences = uploads_.add(sequences.data(), static_cast<int64_t>(sequences.size()));
  }

  void set_plan(HostSchedule& schedule) {
    schedule.reserve_partials(problem_.params.v_dim);
    launch.schedule = schedule.view();
    launch.schedule.counts =
        uploads_.add(schedule.counts.data(), static_cast<int64_t>(schedule.counts.size()));
    launch.schedule.cta_begin =
        uploads_.add(schedule.cta_begin.data(), static_cast<int64_t>(schedule.cta_begin.size()));
    launch.schedule.items =
        uploads_.add(schedule.items.data(), static_cast<int64_t>(schedule.items.size()));
    launch.schedule.reductions =
        uploads_.add(schedule.reductions.data(), static_cast<int64_t>(schedule.reductions.size()));
    launch.schedule.sources =
        uploads_.add(schedule.sources.data(), static_cast<int64_t>(schedule.sources.size()));
    partials_ = DeviceArray<float>(schedule.partials);
    launch.schedule.partials = partials_.data();
  }

  // What the kernel wrote into the problem's outputs; its partial slots are merged on the host, in
  // double.
  void read_back(HostSchedule& schedule) {
    testing::finish();
    out_.read_back(problem_.out);
    const std::vector<float> lse = lse_.read();
    std::copy(lse.begin(), lse.end(), problem_.lse.floats());
    schedule.partials = partials_.read();
    kernels::AttnParams params = problem_.params;
    std::vector<float> sinks;
    for (int32_t h = 0; params.sinks != nullptr && h < params.num_q_heads; ++h)
      sinks.push_back(params.sinks[h] / kLog2EOfTests);
    if (params.sinks != nullptr) params.sinks = sinks.data();
    for (int32_t i = 0; i < schedule.num_reductions(); ++i)
      test::execute_reduction(params, schedule.view(), schedule.reductions[static_cast<size_t>(i)]);
  }

  AttnLaunch launch{};

 private:
  static std::vector<float> lse_of(AttnProblem& problem) {
    return {problem.lse.floats(), problem.lse.floats() + problem.lse.size() / 4};
  }

  void upload_keys(const StoredPool* stored, PoolOwner& plain, PagedRows* rows,
                   RowStorage* storage) {
    if (stored == nullptr) {
      rows->base = uploads_.add(plain.memory.data(), plain.memory.size());
      return;
    }
    *rows = stored->rows;
    *storage = stored->storage;
    rows->base = uploads_.add(stored->memory.data(), static_cast<int64_t>(stored->memory.size()));
    storage->scales =
        uploads_.add(stored->scales.data(), static_cast<int64_t>(stored->scales.size()));
  }

  void upload_rotation(Rotation* rotation, int64_t rows) {
    if (rotation->rotary_dim == 0) return;
    rotation->cos = uploads_.add(rotation->cos, rows * (rotation->rotary_dim / 2));
    rotation->sin = uploads_.add(rotation->sin, rows * (rotation->rotary_dim / 2));
  }

  const float* in_natural_units(const float* of_heads) {
    if (of_heads == nullptr) return nullptr;
    std::vector<float> values(of_heads, of_heads + problem_.params.num_q_heads);
    for (float& value : values) value /= kLog2EOfTests;
    return uploads_.add(values.data(), problem_.params.num_q_heads);
  }

  // Behind the pages of a table lie ids that no pool has.
  void upload_sequence(int32_t s, kernels::AttnSequence* sequence) {
    const int64_t rows = sequence->num_rows;
    std::vector<int32_t> pages(
        sequence->pages, sequence->pages + problem_.page_tables[static_cast<size_t>(s)].size());
    pages.insert(pages.end(), 4, 0x7ffffff0);
    sequence->pages = uploads_.add(pages.data(), static_cast<int64_t>(pages.size()));
    sequence->row_map = uploads_.add(sequence->row_map, rows);
    sequence->key_begins = uploads_.add(sequence->key_begins, rows);
    sequence->key_ends = uploads_.add(sequence->key_ends, rows);
    sequence->tree_mask = uploads_.add(sequence->tree_mask, rows * sequence->tree_words);
    sequence->row_positions = uploads_.add(sequence->row_positions, rows);
    sequence->key_positions = uploads_.add(sequence->key_positions, problem_.max_keys(s));
  }

  AttnProblem& problem_;
  Uploads uploads_;
  DeviceTensor out_;
  DeviceArray<float> lse_;
  DeviceArray<float> partials_;
};

// The problem's outputs against `expected`: out relative to its size, lse each for itself. A sink
// much larger than the scores leaves results below the smallest of 16 bits: `least` of every
// element is as good as 0.
inline void expect_close(AttnProblem& problem, TensorOwner& expected,
                         const std::vector<float>& expected_lse, double limit) {
  const double least = problem.out.rows.dtype == DType::kF16 ? 1e-4 : 1e-30;
  double difference = 0, size = 0;
  for (int64_t t = 0; t < expected.tokens; ++t) {
    for (int64_t h = 0; h < expected.heads; ++h) {
      for (int64_t d = 0; d < expected.dim; ++d) {
        const double found = problem.out.at(t, h, d), wanted = expected.at(t, h, d);
        ASSERT_TRUE(std::isfinite(found)) << "token " << t << ", head " << h << ", element " << d;
        difference += (found - wanted) * (found - wanted), size += wanted * wanted + least * least;
      }
    }
  }
  ASSERT_LE(std::sqrt(difference), limit * std::sqrt(size));
  for (size_t i = 0; i < expected_lse.size(); ++i) {
    const float found = problem.lse.floats()[i], wanted = expected_lse[i];
    if (std::isfinite(wanted)) {
      ASSERT_NEAR(found, wanted, limit * std::max(10.0f, std::fabs(wanted))) << "lse " << i;
    } else {
      ASSERT_EQ(found, wanted) << "lse " << i;
    }
  }
}

}  // namespace kvc::cuda::row_test
