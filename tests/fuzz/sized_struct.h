// Structs as a hostile but honest caller hands them over: the memory ends exactly where struct_size
// says, so that an address sanitizer sees every byte read or written too far, and fields hold
// anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>

namespace kvc::fuzz {

// Input bytes of the fuzzer, zeros behind their end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  uint64_t take(size_t bytes) {
    uint64_t value = 0;
    const size_t taken = bytes < size_ ? bytes : size_;
    if (taken != 0) std::memcpy(&value, data_, taken);
    data_ += taken;
    size_ -= taken;
    return value;
  }
  // In [0, count).
  size_t choose(size_t count) { return take(1) % count; }
  bool one_in(size_t count) { return choose(count) == count - 1; }  // never at the end of the input

 private:
  const uint8_t* data_;
  size_t size_;
};

[[noreturn]] inline void violated(const char* claim, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, claim);
  std::abort();
}
#define KVC_FUZZ_CHECK(claim)                                        \
  do {                                                               \
    if (!(claim)) ::kvc::fuzz::violated(#claim, __FILE__, __LINE__); \
  } while (false)

// Memory from the heap, zeroed, that is not one byte longer than asked for.
class ExactMemory {
 public:
  explicit ExactMemory(size_t bytes) : bytes_(bytes), memory_(new unsigned char[bytes]()) {}

  size_t bytes() const { return bytes_; }
  unsigned char* data() { return memory_.get(); }
  // Copies what fits.
  void put(size_t offset, const void* from, size_t bytes) {
    if (offset >= bytes_) return;
    std::memcpy(memory_.get() + offset, from, bytes < bytes_ - offset ? bytes : bytes_ - offset);
  }

 private:
  size_t bytes_;
  std::unique_ptr<unsigned char[]> memory_;
};

// A struct_size as callers of all ages send it: mostly this version's, else shorter, longer, or too
// small for itself. A shorter one ends between two fields: half a pointer is no older version of a
// struct.
inline size_t choose_struct_size(Input& input, size_t current) {
  switch (input.choose(8)) {
    case 5: return 8 * input.choose(current / 8 + 1);
    case 6: return current + 8 * (1 + input.choose(8));
    case 7: return input.choose(8);
    default: return current;
  }
}

// Bytes that a caller with this struct_size really owns: the size field itself can always be read.
inline size_t owned_bytes(size_t struct_size) {
  return struct_size < sizeof(size_t) ? sizeof(size_t) : struct_size;
}

// Overwrites one integer field (1, 2, 4 or 8 bytes, aligned) with a value worth trying. Offsets in
// `pointers` are set to NULL instead: any other pointer would be a lie that no library can see
// through.
inline void mutate(Input& input, void* object, size_t size,
                   std::initializer_list<size_t> pointers) {
  static constexpr uint64_t kWorthTrying[] = {0,
                                              1,
                                              2,
                                              3,
                                              15,
                                              16,
                                              17,
                                              48,
                                              64,
                                              80,
                                              127,
                                              128,
                                              256,
                                              513,
                                              65535,
                                              65536,
                                              65537,
                                              0x7fffffff,
                                              0x80000000,
                                              0xffffffff,
                                              0x100000000,
                                              0x7fffffffffffffff,
                                              0x8000000000000000,
                                              0xffffffffffffffff,
                                              0x7fc00000,
                                              0x7ff8000000000000};
  const size_t width = size_t{1} << input.choose(4);
  const size_t offset = input.take(2) % (size / width) * width;
  const uint64_t value =
      input.one_in(4) ? input.take(width) : kWorthTrying[input.choose(std::size(kWorthTrying))];
  for (const size_t pointer : pointers) {
    if (offset + width > pointer && offset < pointer + sizeof(void*)) {
      std::memset(static_cast<unsigned char*>(object) + pointer, 0, sizeof(void*));
      return;
    }
  }
  std::memcpy(static_cast<unsigned char*>(object) + offset, &value, width);
}

}  // namespace kvc::fuzz
