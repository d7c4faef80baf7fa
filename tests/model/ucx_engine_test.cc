// The engine "ucx" alone: what it moves, where payloads are copied and where UCX has their ranges.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "src/base/modules.h"
#include "src/transfer/module.h"
#include "tests/model/random.h"

namespace kvc::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kMilli = 1'000'000;

// One side: what it has been told. What is sent to it lands in ranges of its own.
class Side final : private TransferEvents {
 public:
  explicit Side(bool copies) : engine(open_ucx_engine(nullptr, copies)) {}
  void progress() {
    if (!engine->progress(*this)) engine->wait(kMilli);
  }

  const std::unique_ptr<TransferEngine> engine;
  std::vector<std::vector<IoRange>> into;  // [token]
  std::vector<IoDigest> received, sent;    // [token]
  size_t num_received = 0, num_sent = 0, num_whole = 0, num_closed = 0;

 private:
  bool on_message(PeerId, std::span<const std::byte> header, uint64_t payload_bytes,
                  std::vector<IoRange>* ranges, uint64_t* token) override {
    std::memcpy(token, header.data(), sizeof *token);
    if (*token >= into.size() || payload_bytes != total_bytes(into[*token])) return false;
    *ranges = into[*token];
    return true;
  }
  void on_received(uint64_t token, bool is_whole, IoDigest digest) override {
    received.at(token) = digest;
    ++num_received;
    num_whole += is_whole;
  }
  void on_sent(uint64_t token, IoDigest digest) override {
    sent.at(token) = digest;
    ++num_sent;
  }
  void on_closed(PeerId) override { ++num_closed; }
};

// Cuts bytes at random places, some of them between neighbours, some with a gap.
std::vector<IoRange> cut(Bytes& bytes, size_t size, Random& random) {
  std::vector<IoRange> ranges;
  for (size_t at = 0, left = size; left > 0;) {
    const size_t most = random.next() % 4 == 0 ? 3 : 70'000;
    const size_t some = std::min<size_t>(left, 1 + random.next() % most);
    ranges.push_back({bytes.data() + at, some});
    at += some + (random.next() % 2 == 0 ? 7 : 0);
    left -= some;
  }
  return ranges;
}

Bytes packed(const std::vector<IoRange>& ranges) {
  Bytes all;
  for (const IoRange& range : ranges) all.insert(all.end(), range.data, range.data + range.size);
  return all;
}

class UcxEngines : public testing::TestWithParam<bool> {
 protected:
  static void SetUpTestSuite() {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    set_module_path(program.parent_path().parent_path().c_str());
  }
  void SetUp() override {
    if (!has_ucx_engine()) GTEST_SKIP() << "there is no module beside this program";
  }
};

// Small ones, ones of one segment of TCP and a byte more, ones of many.
TEST_P(UcxEngines, PayloadsArriveAsTheyWereSent) {
  const uint64_t seed = 1;
  Random random(seed);
  Side from(GetParam()), to(GetParam());
  const std::vector<size_t> sizes{
      1, 7, 4096, 70'001, (512 << 10) - 64, (512 << 10) + 1, (1 << 20) + 12'345, 5 << 20, 300};
  std::vector<Bytes> theirs(sizes.size()), ours(sizes.size());
  std::vector<std::vector<IoRange>> sent;
  for (size_t i = 0; i < sizes.size(); ++i) {
    theirs[i].resize(8 * sizes[i] + 8);
    ours[i].resize(8 * sizes[i] + 8);
    for (std::byte& byte : theirs[i]) byte = static_cast<std::byte>(random.next() >> 32);
    sent.push_back(cut(theirs[i], sizes[i], random));
    to.into.push_back(cut(ours[i], sizes[i], random));
  }
  const size_t refused = 3;
  to.into[refused].clear();
  from.sent.resize(sizes.size());
  to.received.resize(sizes.size());
  const PeerId peer = from.engine->connect(to.engine->address());
  for (uint64_t i = 0; i < sizes.size(); ++i)
    from.engine->send(peer, std::as_bytes(std::span(&i, 1)), sent[i], i);
  while (from.num_sent < sizes.size() || to.num_received + 1 < sizes.size()) {
    from.progress();
    to.progress();
    ASSERT_EQ(from.num_closed + to.num_closed, 0u);
  }
  EXPECT_EQ(to.num_whole, sizes.size() - 1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    SCOPED_TRACE(sizes[i]);
    if (i == refused) {
      EXPECT_FALSE(from.sent[i].has_value()) << "nothing of it has been read";
      continue;
    }
    EXPECT_TRUE(packed(sent[i]) == packed(to.into[i]));
    if (!GetParam()) {
      EXPECT_FALSE(from.sent[i] || to.received[i]);
      continue;
    }
    EXPECT_EQ(from.sent[i], digest_of(sent[i]));
    EXPECT_EQ(to.received[i], digest_of(sent[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Copies, UcxEngines, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "copied" : "in_place"; });

}  // namespace
}  // namespace kvc::test
