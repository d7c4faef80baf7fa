// Storage and hooks of a configuration: pool tensors, budgets, allocator, executor.
#include <string>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/tensor.h"
#include "src/plan/spec_parts.h"

namespace kvc {
namespace {

PoolTensor borrow(const DLTensor* tensor, int32_t index, DLDevice device) {
  const std::string name = "config.pool_tensors[" + std::to_string(index) + "]";
  if (tensor == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s is NULL", name.c_str());
  if (tensor->ndim < 1)
    fail(KVC_E_SHAPE, "%s has %d dimensions, expected at least 1", name.c_str(), tensor->ndim);
  if (tensor->shape == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s.shape is NULL", name.c_str());
  check_device(*tensor, name.c_str(), device);
  if (tensor->dtype.bits == 0 || tensor->dtype.bits * tensor->dtype.lanes % 8 != 0) {
    fail(KVC_E_DTYPE, "%s is %s, expected elements of whole bytes", name.c_str(),
         describe(tensor->dtype).text);
  }
  int64_t content = element_bytes(*tensor);
  for (int d = tensor->ndim - 1; d >= 1; --d) {
    if (tensor->shape[d] > 1 && stride_of(*tensor, d) * element_bytes(*tensor) != content) {
      fail(KVC_E_SHAPE, "%s has stride %lld in dimension %d, expected %lld: a page is compact",
           name.c_str(), ll(stride_of(*tensor, d)), d, ll(content / element_bytes(*tensor)));
    }
    if (tensor->shape[d] < 0 || !multiply(content, tensor->shape[d], &content)) {
      fail(KVC_E_OUT_OF_RANGE, "%s has shape[%d] = %lld", name.c_str(), d, ll(tensor->shape[d]));
    }
  }
  if (tensor->shape[0] < 1)
    fail(KVC_E_SHAPE, "%s has shape[0] = %lld pages, expected at least 1", name.c_str(),
         ll(tensor->shape[0]));
  if (tensor->data == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s.data is NULL", name.c_str());
  // Strides of hostile size must not wrap into plausible ones.
  constexpr int64_t kMost = int64_t{1} << 56;
  const int64_t page_elements = tensor->shape[0] == 1 ? 0 : stride_of(*tensor, 0);
  int64_t span = 0;
  if (page_elements < 0 || page_elements > kMost ||
      !multiply(page_elements * element_bytes(*tensor), tensor->shape[0], &span) || span > kMost) {
    fail_with(KVC_E_OUT_OF_RANGE, page_elements,
              "%s has stride %lld over %lld pages, which cannot be addressed", name.c_str(),
              ll(page_elements), ll(tensor->shape[0]));
  }
  PoolTensor pool{.data = data_of(*tensor),
                  .num_pages = tensor->shape[0],
                  .page_stride = 0,
                  .page_bytes = content};
  pool.page_stride =
      tensor->shape[0] == 1 ? content : stride_of(*tensor, 0) * element_bytes(*tensor);
  if (pool.page_stride < content) {
    fail(KVC_E_SHAPE, "%s has a page stride of %lld bytes, smaller than a page's %lld",
         name.c_str(), ll(pool.page_stride), ll(content));
  }
  return pool;
}

}  // namespace

void read_storage(const kvc_config& config, Spec& spec) {
  refuse_unless(config.storage >= KVC_STORAGE_OWNED && config.storage <= KVC_STORAGE_NONE,
                "config.storage", config.storage, "OWNED (0), BORROWED (1) and NONE (2) are");
  refuse_unless(
      config.pool_layout == KVC_POOL_LAYER_FIRST || config.pool_layout == KVC_POOL_PAGE_FIRST,
      "config.pool_layout", config.pool_layout, "LAYER_FIRST (0) and PAGE_FIRST (1) are");
  spec.storage = config.storage;
  refuse_unless(!spec.clears_pages || spec.storage != KVC_STORAGE_NONE, "config.storage",
                config.storage,
                "with KVC_CONFIG_CLEAR_PAGES (2) pools of the library (OWNED, 0) and of the host "
                "(BORROWED, 1) are");
  spec.pool_layout = config.pool_layout;
  check_range("config.num_pages", config.num_pages, 0, INT32_MAX - 1);
  if (config.num_pages != 0 && config.byte_budget != 0) {
    fail(KVC_E_INVALID_ARGUMENT,
         "config.num_pages = %lld and config.byte_budget = %llu are both set: give one",
         ll(config.num_pages), static_cast<unsigned long long>(config.byte_budget));
  }
  spec.num_pages = config.num_pages;
  spec.byte_budget = config.byte_budget;
  if (config.storage != KVC_STORAGE_BORROWED) {
    if (config.num_pool_tensors != 0 || config.pool_tensors != nullptr) {
      fail(KVC_E_INVALID_ARGUMENT,
           "config.num_pool_tensors = %d with config.storage = %d: pool tensors need BORROWED (1)",
           config.num_pool_tensors, config.storage);
    }
    return;
  }
  if (config.byte_budget != 0) {
    fail(
        KVC_E_INVALID_ARGUMENT,
        "config.byte_budget = %llu with borrowed storage: the tensors say how many pages there are",
        static_cast<unsigned long long>(config.byte_budget));
  }
  const int32_t expected = config.pool_layout == KVC_POOL_PAGE_FIRST ? 1 : spec.num_page_regions();
  if (config.num_pool_tensors != expected) {
    fail_with(KVC_E_INVALID_ARGUMENT, config.num_pool_tensors,
              "config.num_pool_tensors = %d, expected %d for this pool layout",
              config.num_pool_tensors, expected);
  }
  if (config.pool_tensors == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "config.pool_tensors is NULL with borrowed storage");
  for (int32_t i = 0; i < expected; ++i) {
    spec.pool_tensors.push_back(borrow(config.pool_tensors[i], i, spec.device));
    const int64_t pages = spec.pool_tensors.back().num_pages;
    check_range("pages of a pool tensor", pages, 1, INT32_MAX - 1);
    if (spec.num_pages == 0) spec.num_pages = pages;
    if (pages < spec.num_pages) {
      fail_with(KVC_E_SHAPE, pages,
                "config.pool_tensors[%d] has %lld pages, expected at least %lld", i, ll(pages),
                ll(spec.num_pages));
    }
  }
}

namespace {

// A cache on a GPU computes and copies there, so threads and instruction sets of the CPU would
// change nothing.
void refuse_cpu_settings(const kvc_config& config, const Spec& spec) {
  if (!spec.is_on_gpu() || spec.storage == KVC_STORAGE_NONE) return;
  refuse_unless(config.num_threads <= 1, "config.num_threads", config.num_threads,
                "with config.device = CUDA (2) the caller's thread alone works, 0 and 1 are");
  refuse_unless(config.cpu_isa == KVC_CPU_ISA_AUTO, "config.cpu_isa", config.cpu_isa,
                "with config.device = CUDA (2) AUTO (0) is");
  if (config.executor != nullptr) {
    fail(KVC_E_UNSUPPORTED,
         "config.executor is set with config.device = CUDA (%d): the CPU has nothing to spread, "
         "NULL is "
         "supported",
         static_cast<int>(kDLCUDA));
  }
}

}  // namespace

void read_hooks(const kvc_config& config, Spec& spec) {
  refuse_cpu_settings(config, spec);
  if (config.allocator != nullptr) {
    if (config.storage != KVC_STORAGE_OWNED) {
      fail(KVC_E_INVALID_ARGUMENT,
           "config.allocator is set with config.storage = %d: it serves OWNED (0) pools",
           config.storage);
    }
    spec.has_allocator = true;
    spec.allocator = *config.allocator;
    if (spec.allocator.alloc == nullptr || spec.allocator.free == nullptr) {
      fail(KVC_E_INVALID_ARGUMENT, "config.allocator->%s is NULL",
           spec.allocator.alloc == nullptr ? "alloc" : "free");
    }
  }
  if (config.executor != nullptr) {
    spec.has_executor = true;
    spec.executor = *config.executor;
    if (spec.executor.concurrency == nullptr || spec.executor.parallel_for == nullptr) {
      fail(KVC_E_INVALID_ARGUMENT, "config.executor->%s is NULL",
           spec.executor.concurrency == nullptr ? "concurrency" : "parallel_for");
    }
    if (config.num_threads != 0) {
      fail(KVC_E_INVALID_ARGUMENT,
           "config.num_threads = %d with config.executor: the executor brings the threads",
           config.num_threads);
    }
  }
}

}  // namespace kvc
