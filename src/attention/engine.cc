#include "src/attention/engine.h"

#include <algorithm>
#include <climits>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc {
namespace {

using kernels::AppendParams;
using kernels::AttnItem;
using kernels::AttnParams;
using kernels::AttnSequence;
using kernels::TokenRows;

// Waking a sleeping thread costs 4 to 25 us; smaller calls stay on the caller's thread.
constexpr double kWorthThreads = 30e-6;
constexpr double kCopyBytesPerSecond = 10e9;
// Rows of one append task: some 100 KiB for a common layer.
constexpr int64_t kAppendRows = 32;
constexpr int64_t kGatherKeys = 128;

const kernels::cpu::KernelTable* choose_kernels(kvc_cpu_isa isa) {
  const kernels::cpu::KernelTable* table = kernels::cpu::kernel_table(static_cast<kernels::cpu::Isa>(isa));
  if (table == nullptr) {
    fail_with(KVC_E_UNSUPPORTED, isa,
              "config.cpu_isa = %d is not available: the best of this machine and build is %d", isa,
              static_cast<int>(kernels::cpu::detect()));
  }
  return table;
}

}  // namespace

AttentionEngine::AttentionEngine(const Spec& spec, const PagePool* pool)
    : spec_(&spec),
      pool_(pool),
      kernels_(choose_kernels(spec.cpu_isa)),
      executor_(spec.has_executor ? Executor(spec.executor) : Executor(spec.num_threads)),
      scratch_(static_cast<size_t>(executor_.concurrency())) {}

AppendParams AttentionEngine::append_params(Forward& forward, int32_t local_layer, const TokenRows& k,
                                            const TokenRows& v) {
  const LayerSpec& layer = spec_->layers[static_cast<size_t>(local_layer)];
  return {.k = k,
          .v = v,
          .k_rotation = forward.rotation(*spec_, layer.rope, executor_),
          .k_pages = pool_->k_rows(local_layer),
          .v_pages = pool_->v_rows(local_layer),
          .slots = forward.slots(spec_->page_size),
          .page_size = spec_->page_size,
          .num_kv_heads = layer.num_kv_heads,
          .k_dim = layer.k_dim,
          .v_dim = layer.v_dim};
}

void AttentionEngine::run_append(const AppendParams& params, int64_t num_rows) {
  const double bytes =
      4.0 * static_cast<double>(num_rows) * params.num_kv_heads * (params.k_dim + params.v_dim);
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    kernels_->append(params, 0, num_rows);
    return;
  }
  executor_.run(ceil_div(num_rows, kAppendRows), [&](int64_t task, int32_t) {
    kernels_->append(params, task * kAppendRows, std::min(num_rows, (task + 1) * kAppendRows));
  });
}

void AttentionEngine::append(Forward& forward, int32_t local_layer, const TokenRows& k, const TokenRows& v) {
  run_append(append_params(forward, local_layer, k, v), forward.batch().num_rows());
  forward.mark_appended(local_layer);
}

void AttentionEngine::fill_sequences(const Forward& forward, KeyScope scope) {
  const std::vector<BatchEntry>& entries = forward.batch().entries();
  sequences_.clear();
  sequences_.reserve(entries.size());
  if (scope == KeyScope::kNew) {
    first_rows_.clear();
    first_rows_.reserve(entries.size());
  }
  for (const BatchEntry& entry : entries) {
    AttnSequence sequence{.pages = entry.sequence->pages.data(),
                          .row_begin = entry.row_begin,
                          .num_rows = entry.append_length,
                          .first_key_end = 0,
                          .position = entry.old_length,
                          .key_position = 0};
    switch (scope) {
      case KeyScope::kAll: sequence.first_key_end = entry.old_length + 1; break;
      case KeyScope::kCached: sequence.first_key_end = entry.old_length; break;
      case KeyScope::kNew:
        first_rows_.push_back(static_cast<int32_t>(entry.row_begin));
        sequence.pages = &first_rows_.back();
        sequence.first_key_end = 1;
        sequence.key_position = entry.old_length;
        break;
    }
    sequences_.push_back(sequence);
  }
}

const WorkList& AttentionEngine::work_list(const Forward& forward, KeyScope scope, const WorkShape& shape) {
  CachedList* reusable = nullptr;
  for (const std::unique_ptr<CachedList>& cached : lists_) {
    if (cached->step != forward.step()) {
      reusable = cached.get();
    } else if (cached->scope == scope && cached->shape == shape) {
      return cached->list;
    }
  }
  if (reusable == nullptr) {
    lists_.push_back(std::make_unique<CachedList>());
    reusable = lists_.back().get();
  }
  reusable->step = 0;  // stays stale when planning throws
  plan_work(sequences_.data(), static_cast<int64_t>(sequences_.size()), shape, &reusable->list);
  reusable->scope = scope;
  reusable->shape = shape;
  reusable->step = forward.step();
  return reusable->list;
}

// The new keys as if they had been appended, in rows of their own: one "page" per sequence that starts at its first row.
void AttentionEngine::stage_new_keys(Forward& forward, int32_t local_layer, const AttnTensors& tensors,
                                     AttnParams* params) {
  const LayerSpec& layer = spec_->layers[static_cast<size_t>(local_layer)];
  const int64_t rows = forward.batch().num_rows();
  const int64_t k_row = layer.k_dim * kernels::dtype_bytes(layer.k_dtype);
  const int64_t v_row = layer.v_dim * kernels::dtype_bytes(layer.v_dtype);
  new_k_.ensure(static_cast<size_t>(rows * layer.num_kv_heads * k_row));
  new_v_.ensure(static_cast<size_t>(rows * layer.num_kv_heads * v_row));
  identity_slots_.reserve(static_cast<size_t>(rows));
  for (auto slot = static_cast<int64_t>(identity_slots_.size()); slot < rows; ++slot)
    identity_slots_.push_back(slot);
  const int64_t k_token = layer.num_kv_heads * k_row;
  const int64_t v_token = layer.num_kv_heads * v_row;
  params->k = {new_k_.data(), k_token, k_row, k_token, layer.k_dtype};
  params->v = {new_v_.data(), v_token, v_row, v_token, layer.v_dtype};
  params->page_size = INT_MAX;
  AppendParams append = append_params(forward, local_layer, tensors.k, tensors.v);
  append.k_pages = params->k;
  append.v_pages = params->v;
  append.slots = identity_slots_.data();
  append.page_size = INT_MAX;
  run_append(append, rows);
}

void AttentionEngine::secure_workspace(const WorkList& list, const AttnParams& params) {
  size_t bytes = 0;
  if (list.num_tile_items > 0) bytes = kernels_->attn_tile_scratch_bytes(params, list.max_tile_rows);
  if (list.max_decode_rows > 0)
    bytes = std::max(bytes, kernels_->attn_decode_scratch_bytes(params, list.max_decode_rows));
  for (AlignedBuffer& scratch : scratch_) scratch.ensure(bytes);
  partials_.ensure(static_cast<size_t>(list.partial_floats) * sizeof(float));
  if (list.groups.size() > finished_capacity_) {
    const size_t capacity = list.groups.size() * 2;
    finished_ = std::make_unique<std::atomic<int32_t>[]>(capacity);
    finished_capacity_ = capacity;
  }
}

void AttentionEngine::run_items(const WorkList& list, const AttnParams& params) {
  for (size_t group = 0; group < list.groups.size(); ++group)
    finished_[group].store(0, std::memory_order_relaxed);
  const auto run_item = [&](int64_t index, int32_t worker) {
    const AttnItem& item = list.items[static_cast<size_t>(index)];
    std::byte* scratch = scratch_[static_cast<size_t>(worker)].data();
    if (index < list.num_tile_items) {
      kernels_->attn_tile(params, item, scratch);
    } else {
      kernels_->attn_decode(params, item, scratch);
    }
    if (item.merge_group < 0) return;
    // The last split to finish merges all of them, in index order: who that is does not matter.
    const auto group = static_cast<size_t>(item.merge_group);
    if (finished_[group].fetch_add(1, std::memory_order_acq_rel) + 1 == list.groups[group].num_splits) {
      kernels_->attn_merge_splits(params, list.groups[group]);
    }
  };
  const auto num_items = static_cast<int64_t>(list.items.size());
  if (list.seconds < kWorthThreads) {
    for (int64_t index = 0; index < num_items; ++index) run_item(index, 0);
  } else {
    executor_.run(num_items, run_item);
  }
}

void AttentionEngine::attend(Forward& forward, int32_t local_layer, KeyScope scope,
                             const AttnOptions& options, const AttnTensors& tensors) {
  const LayerSpec& layer = spec_->layers[static_cast<size_t>(local_layer)];
  fill_sequences(forward, scope);
  const WorkList& list = work_list(forward, scope,
                                   {.num_q_heads = layer.num_q_heads,
                                    .num_kv_heads = layer.num_kv_heads,
                                    .k_dim = layer.k_dim,
                                    .v_dim = layer.v_dim,
                                    .causal = scope != KeyScope::kCached,
                                    .tiles_only = options.tiles_only,
                                    .concurrency = executor_.concurrency()});
  AttnParams params{.q = tensors.q,
                    .q_rotation = forward.rotation(*spec_, layer.rope, executor_),
                    .q_scale = options.q_scale,
                    .k = pool_->k_rows(local_layer),
                    .v = pool_->v_rows(local_layer),
                    .page_size = spec_->page_size,
                    .num_q_heads = layer.num_q_heads,
                    .num_kv_heads = layer.num_kv_heads,
                    .k_dim = layer.k_dim,
                    .v_dim = layer.v_dim,
                    .causal = scope != KeyScope::kCached ? 1 : 0,
                    .softcap = options.softcap,
                    .sinks = options.sinks.empty() ? nullptr : options.sinks.data(),
                    .alibi = options.alibi.empty() ? nullptr : options.alibi.data(),
                    .bias = options.bias,
                    .bias_head_stride = options.bias_head_stride,
                    .bias_token_stride = options.bias_token_stride,
                    .out = tensors.out,
                    .lse = tensors.lse,
                    .lse_token_stride = tensors.lse_token_stride,
                    .sequences = sequences_.data(),
                    .partials = nullptr};
  if (scope == KeyScope::kNew) stage_new_keys(forward, local_layer, tensors, &params);
  secure_workspace(list, params);
  params.partials = reinterpret_cast<float*>(partials_.data());
  if (scope == KeyScope::kAll && tensors.k.base != nullptr)
    append(forward, local_layer, tensors.k, tensors.v);
  run_items(list, params);
}

void AttentionEngine::merge(const kernels::MergeParams& params, int64_t num_rows) {
  const double bytes = 8.0 * static_cast<double>(num_rows) * params.num_heads * params.dim;
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    kernels_->merge(params, 0, num_rows);
    return;
  }
  executor_.run(ceil_div(num_rows, kAppendRows), [&](int64_t task, int32_t) {
    kernels_->merge(params, task * kAppendRows, std::min(num_rows, (task + 1) * kAppendRows));
  });
}

void AttentionEngine::gather(const kernels::GatherParams& params, int64_t num_keys) {
  const double bytes = 8.0 * static_cast<double>(num_keys) * params.num_heads * params.dim;
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    kernels_->gather(params, 0, num_keys);
    return;
  }
  executor_.run(ceil_div(num_keys, kGatherKeys), [&](int64_t task, int32_t) {
    kernels::GatherParams part = params;
    part.out.base += task * kGatherKeys * part.out.token_stride;
    kernels_->gather(part, task * kGatherKeys, std::min(num_keys, (task + 1) * kGatherKeys));
  });
}

void AttentionEngine::copy_pages(const std::vector<PageCopy>& copies) {
  if (copies.empty() || !pool_->has_storage()) return;
  const auto num_layers = static_cast<int64_t>(spec_->layers.size());
  const auto copy_one = [&](int64_t task, int32_t) {
    const PageCopy& copy = copies[static_cast<size_t>(task / num_layers)];
    const auto layer = static_cast<int32_t>(task % num_layers);
    const LayerPages& pages = pool_->layer(layer);
    kernels_->copy(pages.base + copy.to * pages.page_stride, pages.base + copy.from * pages.page_stride,
                   pool_->layer_page_bytes(layer));
  };
  const int64_t num_tasks = static_cast<int64_t>(copies.size()) * num_layers;
  const double bytes = static_cast<double>(num_tasks) * static_cast<double>(pool_->layer_page_bytes(0));
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    for (int64_t task = 0; task < num_tasks; ++task) copy_one(task, 0);
  } else {
    executor_.run(num_tasks, copy_one);
  }
}

}  // namespace kvc
