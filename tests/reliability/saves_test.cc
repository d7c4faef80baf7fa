// A process that saves over the same file again and again is killed at random: the file is always
// one of those that it has saved, whole, or there is none yet.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/capi/state_files.h"
#include "tests/reliability/times.h"
#include "tests/support/folder.h"
#include "tests/support/waiting.h"

namespace kvc::test {
namespace {

namespace fs = std::filesystem;

// Both generations have a length of their own: a mixture of the two shows.
constexpr uint64_t kSeeds[2] = {7, 8};
constexpr int64_t kLengths[2] = {23, 57};

[[noreturn]] void save_for_ever(const std::string& path) {
  Net net({attention_layer(), attention_layer(8)}, 64);
  net.config.num_threads = 1;
  Cache cache(net.config);
  for (const int i : {0, 1}) append_pattern(cache, i, kLengths[i], kSeeds[i]);
  kvc_save_desc desc = save_desc();
  desc.path = path.c_str();
  for (int i = 0;; i ^= 1) {
    if (save(cache, {i}, desc) != KVC_OK) _exit(1);
  }
}

TEST(KilledSaves, TheFileIsAlwaysOneThatWasSavedWhole) {
  const Folder folder;
  const std::string path = folder.file("one.kvc");
  std::mt19937_64 random(20261123);
  int64_t kills = 0, absent = 0, found[2] = {0, 0}, leftovers = 0;
  for (const int64_t end = times(20, 1000); kills < end; ++kills) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_for_ever(path);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 12000));
    // A busy machine may need longer to save anything at all.
    if (kills % 4 == 0) {
      EXPECT_TRUE(comes_true([&] { return fs::exists(path); }));
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the saving process failed by itself";
    // What a killed process leaves is a temporary file beside the path.
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.path() == path) continue;
      ASSERT_EQ(entry.path().extension(), ".tmp") << entry.path();
      fs::remove(entry.path());
      ++leftovers;
    }
    if (!fs::exists(path)) {
      ++absent;
      continue;
    }
    Net net({attention_layer(), attention_layer(8)}, 64);
    Cache cache(net.config);
    kvc_load_desc desc = load_desc();
    desc.path = path.c_str();
    kvc_error error{};
    ASSERT_EQ(load(cache, {3}, desc, &error), KVC_OK) << "kill " << kills << ": " << error.message;
    const int which = length_of(cache, 3) == kLengths[1] ? 1 : 0;
    ASSERT_EQ(length_of(cache, 3), kLengths[which]);
    ASSERT_EQ(pattern_difference(cache, 3, kSeeds[which]), "") << "kill " << kills;
    ++found[which];
    if (random() % 4 == 0) fs::remove(path);
  }
  std::printf(
      "%lld kills: %lld found no file yet, %lld the one and %lld the other; %lld had begun a "
      "temporary file\n",
      static_cast<long long>(kills), static_cast<long long>(absent),
      static_cast<long long>(found[0]), static_cast<long long>(found[1]),
      static_cast<long long>(leftovers));
  EXPECT_GT(found[0] + found[1], 0);
}

}  // namespace
}  // namespace kvc::test
