// Runs a fuzz target without libFuzzer: a bounded number of random inputs from a printed seed, the
// same on every machine, or the files named
// on the command line.
//   <target> [--inputs N] [--seed S] [file ...]
// A file whose name ends in .hex holds the bytes as hexadecimal digits.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// The engine's output is fixed by the standard; distributions are not, so none is used.
std::vector<uint8_t> random_input(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(random() % 256);
  // Small bytes take the usual branches, large ones the rare ones: mix inputs of both tempers.
  const uint64_t modulus = random() % 2 == 0 ? 256 : 16;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % modulus);
  return bytes;
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

uint64_t current = 0;  // seed of the input that runs

// Names the input that ended the process; the signal then does what it does.
void report(int signal_number) {
  std::fprintf(stderr, "failed with --seed %llu --inputs 1\n",
               static_cast<unsigned long long>(current));
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t num_inputs = 20000;
  uint64_t seed = 1;
  bool files = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--inputs") == 0 && i + 1 < argc) {
      num_inputs = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      files = true;
      std::ifstream file(argv[i], std::ios::binary);
      if (!file) {
        std::fprintf(stderr, "cannot read %s\n", argv[i]);
        return 2;
      }
      std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      if (std::string(argv[i]).ends_with(".hex")) bytes = from_hex(bytes);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    }
  }
  if (files) return 0;
  std::printf("seed %llu, %llu inputs\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(num_inputs));
  std::signal(SIGABRT, report);
  for (uint64_t i = 0; i < num_inputs; ++i) {
    current = seed + i;
    const std::vector<uint8_t> bytes = random_input(seed + i);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  return 0;
}
