#include "bench/gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <random>
#include <stdexcept>
#include <system_error>

#include "bench/fixture.h"

namespace kvc::bench {
namespace {

constexpr int64_t kPatternBytes = int64_t{8} << 20;

int32_t number_of(const std::string& name) {
  if (name == "cuda") return 0;
  int32_t number = -1;
  const char* const end = name.data() + name.size();
  if (name.rfind("cuda:", 0) == 0) {
    const auto [stop, error] = std::from_chars(name.data() + 5, end, number);
    if (error == std::errc{} && stop == end && number >= 0) return number;
  }
  throw std::runtime_error("--device " + name + ": expected cpu, cuda or cuda:N");
}

// Throws the library's reason where it cannot make the smallest cache on the device.
void require_cache_on(DLDevice device) {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.num_kv_heads = 1;
  layer.k_dim = 16;
  kvc_error error{};
  error.struct_size = sizeof error;
  kvc_config config{};
  check(kvc_config_init(&config, sizeof config), error);
  config.device = device;
  config.num_layers = 1;
  config.layers = &layer;
  config.num_pages = 1;
  kvc_plan* plan = nullptr;
  check(kvc_plan_create(&config, &plan, &error), error);
  kvc_cache* cache = nullptr;
  const kvc_status status = kvc_cache_create(plan, &cache, &error);
  kvc_plan_destroy(plan);
  kvc_cache_destroy(cache);
  check(status, error);
}

const cuda::BackendTable* open_back_end() {
  // Loaded by now: the name finds the same library again, and nothing else.
  if (kvc_has_feature("cuda") == 0) throw std::runtime_error("the library has no CUDA back end");
  void* library = dlopen("libkvcache_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error(dlerror());
  using Entry = const cuda::BackendTable* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "kvc_cuda_backend"));
  if (entry == nullptr) throw std::runtime_error("libkvcache_cuda.so without kvc_cuda_backend");
  const cuda::BackendTable* table = entry();
  if (table->struct_size != sizeof(cuda::BackendTable))
    throw std::runtime_error("libkvcache_cuda.so is of another version than this program");
  return table;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

std::vector<std::byte> pattern(DLDataType type, Values values, int64_t bytes, uint64_t seed) {
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::uniform_real_distribution<float> distribution(values.least, values.most);
  const size_t element = type.bits / 8;
  for (size_t at = 0; at + element <= data.size(); at += element) {
    if (element == 4) {
      const uint32_t bits = bits_of(distribution(random));
      std::memcpy(data.data() + at, &bits, 4);
    } else if (element == 2) {  // bfloat16
      const auto high = static_cast<uint16_t>(bits_of(distribution(random)) >> 16);
      std::memcpy(data.data() + at, &high, 2);
    } else {  // Sign, an exponent of -2 or -1 (bias 7), three bits of mantissa.
      const auto bits = static_cast<uint32_t>(random());
      data[at] = static_cast<std::byte>((bits & 0x87u) | (5u + (bits >> 8 & 1u)) << 3);
    }
  }
  return data;
}

int64_t bytes_of(DLDataType type, const std::vector<int64_t>& shape) {
  int64_t bytes = type.bits / 8;
  for (const int64_t extent : shape) bytes *= extent;
  return bytes;
}

}  // namespace

Gpu::Gpu(const std::string& name) : id_(number_of(name)) {
  require_cache_on(device());
  table_ = open_back_end();
  caps_.struct_size = sizeof caps_;
  kvc_error error{};
  error.struct_size = sizeof error;
  check(kvc_device_query(device(), &caps_, &error), error);
  cuda::Failure failure{};
  require(table_->query_device(id_, &info_, &failure), failure);
  require(table_->create_stream(id_, &stream_, &failure), failure);
}

Gpu::~Gpu() { table_->destroy_stream(id_, stream_); }

bool Gpu::is_emulated() const { return std::strncmp(caps_.name, "Emulated", 8) == 0; }

void Gpu::require(cuda::Result result, const cuda::Failure& failure) const {
  if (result != cuda::Result::kOk) throw std::runtime_error(failure.text);
}

void Gpu::synchronize() const {
  cuda::Failure failure{};
  require(table_->synchronize(id_, stream_, &failure), failure);
}

void Gpu::copy(void* to, const void* from, int64_t bytes) const {
  cuda::Failure failure{};
  require(table_->copy(id_, to, from, bytes, stream_, &failure), failure);
}

void Gpu::fill(void* to, int32_t byte, int64_t bytes) const {
  cuda::Failure failure{};
  require(table_->fill(id_, to, byte, bytes, stream_, &failure), failure);
}

GpuMemory::GpuMemory(const Gpu& gpu, int64_t bytes) : gpu_(gpu), bytes_(bytes) {
  cuda::Failure failure{};
  void* address = nullptr;
  gpu.require(gpu.table_->allocate(gpu.id_, std::max<int64_t>(bytes, 1), &address, &failure),
              failure);
  data_ = static_cast<std::byte*>(address);
}

GpuMemory::~GpuMemory() { gpu_.table_->free(gpu_.id_, data_); }

PinnedMemory::PinnedMemory(const Gpu& gpu, int64_t bytes) : gpu_(gpu) {
  cuda::Failure failure{};
  void* address = nullptr;
  gpu.require(gpu.table_->allocate_pinned(std::max<int64_t>(bytes, 1), &address, &failure),
              failure);
  data_ = static_cast<std::byte*>(address);
}

PinnedMemory::~PinnedMemory() { gpu_.table_->free_pinned(data_); }

void fill_random(const Gpu& gpu, const GpuMemory& memory, DLDataType type, Values values,
                 uint64_t seed) {
  const int64_t first = std::min(kPatternBytes, memory.bytes());
  if (first == 0) return;
  const PinnedMemory staging(gpu, first);
  const std::vector<std::byte> data = pattern(type, values, first, seed);
  std::memcpy(staging.data(), data.data(), data.size());
  gpu.copy(memory.data(), staging.data(), first);
  for (int64_t done = first; done < memory.bytes(); done *= 2)
    gpu.copy(memory.data() + done, memory.data(), std::min(done, memory.bytes() - done));
  gpu.synchronize();
}

GpuTensor::GpuTensor(const Gpu& gpu, DLDataType type, std::vector<int64_t> shape, Values values,
                     uint64_t seed)
    : gpu_(gpu), shape_(std::move(shape)), memory_(gpu, bytes_of(type, shape_)) {
  fill_random(gpu, memory_, type, values, seed);
  tensor_.data = memory_.data();
  tensor_.device = gpu.device();
  tensor_.ndim = static_cast<int32_t>(shape_.size());
  tensor_.dtype = type;
  tensor_.shape = shape_.data();
}

void GpuTensor::poison() { gpu_.fill(memory_.data(), 0xFF, memory_.bytes()); }

bool GpuTensor::is_finite() const {
  const int64_t bytes = std::min<int64_t>(memory_.bytes(), 1 << 16);
  const PinnedMemory host(gpu_, 2 * bytes);
  gpu_.copy(host.data(), memory_.data(), bytes);
  gpu_.copy(host.data() + bytes, memory_.data() + memory_.bytes() - bytes, bytes);
  gpu_.synchronize();
  for (int64_t at = 0; at < 2 * bytes; at += 2) {
    uint16_t bits;
    std::memcpy(&bits, host.data() + at, sizeof bits);
    if ((bits & 0x7f80) == 0x7f80) return false;
  }
  return true;
}

}  // namespace kvc::bench
