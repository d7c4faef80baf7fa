// State files of strangers. Half of the inputs damage a file, half forge one: digests are right,
// and what they cover is not what a cache wrote. Claims: no access outside memory; a file is
// refused with a status, a message and no other effect, or its sequences are sound: the audit
// passes, they grow, they are saved again, and nothing is held after the end.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "kvcache.h"
#include "src/base/error.h"
#include "src/files/chunks.h"
#include "tests/fuzz/cache_state.h"
#include "tests/fuzz/error_box.h"

namespace kvc::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

struct Chunk {
  ChunkHead head;
  Bytes payload;
};

class BytesSink final : public ByteSink {
 public:
  explicit BytesSink(Bytes* out) : out_(out) {}
  void write(const void* data, size_t size) override {
    const auto* first = static_cast<const std::byte*>(data);
    out_->insert(out_->end(), first, first + size);
  }
  void finish() override {}

 private:
  Bytes* out_;
};

// A cache of all that a file can hold, and the file of its three sequences: one, its fork, and one
// behind a window.
class Model {
 public:
  explicit Model(bool is_hybrid) {
    for (kvc_layer& layer : layers_) {
      layer.struct_size = sizeof layer;
      if (&layer == &layers_[2]) break;
      layer.num_kv_heads = 1;
      layer.k_dim = 2;
      layer.k_dtype = {kDLFloat, 32, 1};
    }
    layers_[1].window = 4;
    layers_[2].kind = KVC_LAYER_STATE;
    spec_.struct_size = sizeof spec_;
    spec_.ndim = 1;
    spec_.shape = &extent_;
    layers_[2].states = &spec_;
    layers_[2].num_states = 1;
    kvc_config config{};
    config.struct_size = sizeof config;
    config.page_size = 4;
    config.num_layers = is_hybrid ? 3 : 2;
    config.layers = layers_.data();
    config.num_pages = 24;
    config.num_threads = 1;
    KVC_FUZZ_CHECK(kvc_plan_create(&config, &plan_, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_cache_create(plan_, &cache_, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_seq_add(cache_, 0, nullptr) == KVC_OK);
    grow(0, 6);
    if (is_hybrid) KVC_FUZZ_CHECK(kvc_state_checkpoint(cache_, 0, nullptr) == KVC_OK);
    grow(0, 3);
    KVC_FUZZ_CHECK(kvc_seq_fork(cache_, 0, 1, -1, nullptr) == KVC_OK);
    grow(1, 4);
    KVC_FUZZ_CHECK(kvc_seq_add(cache_, 2, nullptr) == KVC_OK);

    KVC_FUZZ_CHECK(is_hybrid || kvc_seq_set_window(cache_, 2, 6, 2, nullptr) == KVC_OK);
    grow(2, 17);
    file_ = save({0, 1, 2});
    MemorySource source(file_.data(), file_.size());
    ChunkReader reader(&source);
    while (const ChunkHead* head = reader.next()) {
      const auto payload = reader.payload();
      chunks_.push_back({*head, Bytes(payload.begin(), payload.end())});
    }
  }

  const Bytes& file() const { return file_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  kvc_cache* cache() const { return cache_; }

  kvc_status grow(kvc_seq seq, int64_t tokens) {
    const std::vector<int32_t> ids(static_cast<size_t>(tokens), 7);
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1;
    desc.seqs = &seq;
    desc.append_lengths = &tokens;
    desc.tokens = ids.data();
    desc.flags = KVC_FORWARD_PARTIAL;
    kvc_forward* fwd = nullptr;
    const kvc_status status = kvc_forward_begin(cache_, &desc, &fwd, nullptr);
    if (status == KVC_OK) KVC_FUZZ_CHECK(kvc_forward_end(fwd, nullptr) == KVC_OK);
    return status;
  }

  Bytes save(const std::vector<kvc_seq>& seqs) {
    kvc_save_desc desc{};
    desc.struct_size = sizeof desc;
    uint64_t size = 0;
    KVC_FUZZ_CHECK(kvc_seq_save(cache_, seqs.size(), seqs.data(), &desc, nullptr, &size, nullptr) ==
                   KVC_OK);
    Bytes file(size);
    desc.data = file.data();
    desc.size = file.size();
    KVC_FUZZ_CHECK(
        kvc_seq_save(cache_, seqs.size(), seqs.data(), &desc, nullptr, nullptr, nullptr) == KVC_OK);
    return file;
  }

 private:
  std::array<kvc_layer, 3> layers_{};
  kvc_state_spec spec_{};
  int64_t extent_ = 3;
  kvc_plan* plan_ = nullptr;
  kvc_cache* cache_ = nullptr;
  Bytes file_;
  std::vector<Chunk> chunks_;
};

// Replaces, inserts and erases bytes; numbers that are wrong by one or very large are likely.
void edit(Input& input, Bytes* bytes) {
  for (size_t edits = 1 + input.choose(4); edits > 0; --edits) {
    if (bytes->empty()) return;
    const size_t at = input.take(4) % bytes->size();
    const auto place = bytes->begin() + static_cast<std::ptrdiff_t>(at);
    switch (input.choose(8)) {
      case 0: bytes->resize(at); break;
      case 1: bytes->erase(place); break;
      case 2: bytes->insert(place, static_cast<std::byte>(input.take(1))); break;
      case 3: *place = static_cast<std::byte>(static_cast<uint8_t>(*place) + 1); break;
      case 4: *place = static_cast<std::byte>(static_cast<uint8_t>(*place) - 1); break;
      case 5: {
        const uint64_t number = uint64_t{0} - input.take(1);
        std::memcpy(&*place, &number, std::min<size_t>(8, bytes->size() - at));
        break;
      }
      default: *place = static_cast<std::byte>(input.take(1));
    }
  }
}

Bytes forged(Input& input, std::vector<Chunk> chunks) {
  // The description is where a lie can be told; now and then another chunk, or their order.
  const size_t which = input.one_in(6) ? input.choose(chunks.size()) : 0;
  edit(input, &chunks[which].payload);
  if (input.one_in(12)) std::swap(chunks[input.choose(chunks.size())], chunks.back());
  if (input.one_in(12)) chunks[input.choose(chunks.size())].head.first += input.take(1);
  if (input.one_in(12)) chunks[input.choose(chunks.size())].head.count += input.take(1);
  if (input.one_in(12)) chunks.pop_back();
  Bytes file;
  BytesSink sink(&file);
  ChunkWriter writer(&sink);
  for (const Chunk& chunk : chunks)
    writer.write(chunk.head.tag, chunk.head.first, chunk.head.count, chunk.payload);
  writer.finish();
  return file;
}

void run(Input& input) {
  static Model models[] = {Model(false), Model(true)};
  Model& model = models[input.choose(2)];
  Bytes file = model.file();
  if (input.one_in(2))
    edit(input, &file);
  else
    file = forged(input, model.chunks());
  // The memory ends where the file ends.
  ExactMemory memory(std::max<size_t>(1, file.size()));
  memory.put(0, file.data(), file.size());
  kvc_load_desc desc{};
  desc.struct_size = sizeof desc;
  desc.data = memory.data();
  desc.size = file.size();
  desc.flags = input.one_in(3) ? static_cast<uint64_t>(KVC_LOAD_CONVERT) : 0;
  if (input.one_in(8)) desc.flags |= KVC_LOAD_NO_PUBLISH;
  const std::array<kvc_seq, 4> ids = {10, 11, 12, 13};
  const size_t count = input.one_in(6) ? input.choose(4) : 3;
  const CacheState before = state_of(model.cache());
  ErrorBox err(input);
  const kvc_status status =
      kvc_seq_load(model.cache(), &desc, count, ids.data(), nullptr, err.get());
  err.check(status);
  KVC_FUZZ_CHECK(kvc_cache_check(model.cache(), nullptr) == KVC_OK);
  if (status != KVC_OK) {
    KVC_FUZZ_CHECK(status != KVC_E_INTERNAL && status != KVC_E_NO_MEMORY);
    KVC_FUZZ_CHECK(state_of(model.cache()) == before);
    return;
  }
  const std::vector<kvc_seq> loaded(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
  (void)model.save(loaded);
  for (const kvc_seq seq : loaded) {
    (void)model.grow(seq, 1 + static_cast<int64_t>(input.choose(6)));
    (void)kvc_seq_pop(model.cache(), seq, static_cast<int64_t>(input.choose(4)), nullptr);
    (void)kvc_seq_fork(model.cache(), seq, 20, -1, nullptr);
    (void)kvc_seq_remove(model.cache(), 20, nullptr);
    KVC_FUZZ_CHECK(kvc_cache_check(model.cache(), nullptr) == KVC_OK);
  }
  for (const kvc_seq seq : loaded)
    KVC_FUZZ_CHECK(kvc_seq_remove(model.cache(), seq, nullptr) == KVC_OK);
  KVC_FUZZ_CHECK(kvc_prefix_reset(model.cache(), nullptr) == KVC_OK);
  KVC_FUZZ_CHECK(kvc_cache_check(model.cache(), nullptr) == KVC_OK);
  const CacheState after = state_of(model.cache());
  KVC_FUZZ_CHECK(after.seqs == before.seqs && after.total_length == before.total_length);
}

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvc::fuzz::Input input(data, size);
  kvc::fuzz::run(input);
  return 0;
}
