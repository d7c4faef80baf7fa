// Models of `kvcache chat` in GGUF, cut and with bytes changed, through the whole loader. Claims: a
// file is read or refused with a message that names it; no allocation while it is read is larger
// than eight times the file, and none for its weights either; what was read computes.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "tests/fuzz/sized_struct.h"
#include "tests/tools/gguf_writer.h"
#include "tools/chat/chat_cache.h"
#include "tools/chat/chat_template.h"
#include "tools/llm/model.h"

namespace {

size_t largest_allocation = 0;

void* allocate(size_t bytes, size_t alignment) {
  largest_allocation = std::max(largest_allocation, bytes);
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) != 0)
    throw std::bad_alloc();
  return memory;
}

// Inlined into `delete`, free() beside a `new` that is not inlined looks like a mismatch to GCC.
[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes, 16); }
void* operator new[](size_t bytes) { return allocate(bytes, 16); }
// The fuzzer's own.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { release(memory); }

namespace kvc::fuzz {
namespace {

using gguf::Bytes;
using gguf::TensorType;
using gguf::ValueType;

constexpr uint64_t kWidth = 32, kFfn = 64, kHeads = 2, kHeadDim = 16;
const std::vector<std::string> kArchitectures = {"llama", "qwen2", "qwen3", "gemma3"};
constexpr TensorType kTypes[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16,
                                 TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
                                 TensorType::kQ5_0, TensorType::kQ5_1};

// The bytes 0 to 255 as a byte-level vocabulary writes them.
std::string byte_text(int byte) {
  int code = byte;
  if (byte < 33 || (byte > 126 && byte < 161) || byte == 173)
    code = 256 + (byte < 33 ? byte : byte < 161 ? byte - 127 + 33 : 67);
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

class Maker {
 public:
  Maker(const std::string& architecture, TensorType type)
      : prefix_(architecture + "."), type_(type), is_gemma_(architecture == "gemma3") {
    writer_.text("general.architecture", architecture);
    count("block_count", 2);
    count("embedding_length", kWidth);
    count("feed_forward_length", kFfn);
    count("attention.head_count", kHeads);
    count("attention.head_count_kv", 1);
    count("attention.key_length", kHeadDim);
    count("context_length", 64);
    if (is_gemma_) count("attention.sliding_window", 4);
    vocabulary();
    tensors(architecture);
  }

  Bytes bytes() const { return writer_.bytes(); }

 private:
  void count(const char* key, uint64_t value) {
    writer_.value(prefix_ + key, ValueType::kU32, static_cast<uint32_t>(value));
  }

  void vocabulary() {
    for (int byte = 0; byte < 256; ++byte) tokens_.push_back(byte_text(byte));
    const std::string begin = is_gemma_ ? "<start_of_turn>" : "<|im_start|>";
    const std::string end = is_gemma_ ? "<end_of_turn>" : "<|im_end|>";
    tokens_.insert(tokens_.end(), {begin, end, "he"});
    std::vector<int32_t> types(tokens_.size(), 1);
    types[256] = types[257] = 3;
    writer_.text("tokenizer.ggml.model", "gpt2");
    writer_.text("tokenizer.ggml.pre", "qwen2");
    writer_.texts("tokenizer.ggml.tokens", tokens_);
    writer_.array("tokenizer.ggml.token_type", ValueType::kI32, types);
    writer_.texts("tokenizer.ggml.merges", {"h e"});
    writer_.value("tokenizer.ggml.bos_token_id", ValueType::kU32, uint32_t{256});
    writer_.value("tokenizer.ggml.eos_token_id", ValueType::kU32, uint32_t{257});
    writer_.text("tokenizer.chat_template",
                 "{{ '" + begin + "' + role + '\n' + text + '" + end + "' }}");
  }

  void add(const std::string& name, const std::vector<uint64_t>& shape) {
    uint64_t elements = 1;
    for (const uint64_t extent : shape) elements *= extent;
    const TensorType type = shape.size() == 1 ? TensorType::kF32 : type_;
    const gguf::TypeInfo& info = *gguf::type_info(type);
    const uint64_t blocks = elements / static_cast<uint64_t>(info.block_elements);
    // Small numbers in every type: no byte is above 0x3c.
    Bytes data(blocks * static_cast<uint64_t>(info.block_bytes));
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 7 % 0x3c);
    writer_.tensor(name, type, shape, data);
  }

  void tensors(const std::string& architecture) {
    add("token_embd.weight", {kWidth, tokens_.size()});
    for (const std::string block : {"blk.0.", "blk.1."}) {
      add(block + "attn_norm.weight", {kWidth});
      add(block + "attn_q.weight", {kWidth, kHeads * kHeadDim});
      add(block + "attn_k.weight", {kWidth, kHeadDim});
      add(block + "attn_v.weight", {kWidth, kHeadDim});
      if (architecture == "qwen2") {
        add(block + "attn_q.bias", {kHeads * kHeadDim});
        add(block + "attn_k.bias", {kHeadDim});
        add(block + "attn_v.bias", {kHeadDim});
      }
      if (architecture == "qwen3" || is_gemma_) {
        add(block + "attn_q_norm.weight", {kHeadDim});
        add(block + "attn_k_norm.weight", {kHeadDim});
      }
      add(block + "attn_output.weight", {kHeads * kHeadDim, kWidth});
      add(block + "ffn_norm.weight", {kWidth});
      if (is_gemma_) {
        add(block + "post_attention_norm.weight", {kWidth});
        add(block + "post_ffw_norm.weight", {kWidth});
      }
      add(block + "ffn_gate.weight", {kWidth, kFfn});
      add(block + "ffn_up.weight", {kWidth, kFfn});
      add(block + "ffn_down.weight", {kFfn, kWidth});
    }
    add("output_norm.weight", {kWidth});
  }

  std::string prefix_;
  TensorType type_;
  bool is_gemma_;
  gguf::Writer writer_;
  std::vector<std::string> tokens_;
};

// Cut, or some bytes changed: mostly before the data of the tensors.
Bytes damaged(Input& input, const Bytes& whole) {
  Bytes bytes = whole;
  if (input.one_in(4)) {
    bytes.resize(input.take(3) % bytes.size());
    return bytes;
  }
  const size_t head = bytes.size() / 4;
  for (size_t flips = input.choose(5); flips > 0; --flips) {
    const size_t range = input.one_in(4) ? bytes.size() : head;
    bytes[input.take(3) % range] = static_cast<uint8_t>(input.take(1));
  }
  return bytes;
}

class MemoryFile {
 public:
  explicit MemoryFile(const Bytes& bytes) : descriptor_(memfd_create("model", MFD_CLOEXEC)) {
    KVC_FUZZ_CHECK(descriptor_ >= 0);
    KVC_FUZZ_CHECK(write(descriptor_, bytes.data(), bytes.size()) ==
                   static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

void compute(llm::Model& model, llm::Network& network, llm::WorkerPool& pool) {
  const llm::Shape& shape = model.shape();
  const std::vector<int32_t> ids = model.tokeniser().encode("he said <|im_end|> 12\xff", true);
  (void)model.tokeniser().decode(ids);
  for (const int32_t id : ids) KVC_FUZZ_CHECK(id >= 0 && id < shape.vocabulary);
  chat::ChatCache cache(shape, {kDLFloat, 32, 1}, 32, pool);
  cache.add(1);
  std::vector<float> logits(static_cast<size_t>(shape.vocabulary));
  const size_t count = std::min<size_t>(ids.size(), 8);
  cache.forward(1, std::span(ids).first(count), network, logits.data());
  cache.forward(1, std::span(ids).first(1), network, logits.data());
}

void run(const Bytes& bytes, llm::WeightType weights) {
  const MemoryFile file(bytes);
  llm::WorkerPool pool(1);
  const auto check_memory = [&] {
    constexpr size_t kMostTimes = 8, kSlack = 16384;  // Messages, tables of the tokeniser.
    KVC_FUZZ_CHECK(largest_allocation <= kMostTimes * bytes.size() + kSlack);
  };
  largest_allocation = 0;
  try {
    llm::Model model(file.path());
    try {
      const chat::ChatTemplate chat(model.file(), model.tokeniser());
      (void)chat.whole_turn("hello", "he");
    } catch (const std::runtime_error& error) {
      KVC_FUZZ_CHECK(*error.what() != '\0');
    }
    llm::Network& network = model.load({weights, {}}, pool, llm::block_kernels());
    check_memory();
    compute(model, network, pool);
  } catch (const std::runtime_error& error) {
    check_memory();
    KVC_FUZZ_CHECK(*error.what() != '\0');
  }
}

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvc::fuzz;
  Input input(data, size);
  const std::string& architecture = kArchitectures[input.choose(kArchitectures.size())];
  const kvc::gguf::Bytes whole =
      Maker(architecture, kTypes[input.choose(std::size(kTypes))]).bytes();
  const auto weights =
      input.one_in(2) ? kvc::llm::WeightType::kFloat32 : kvc::llm::WeightType::kBfloat16;
  run(damaged(input, whole), weights);
  return 0;
}
