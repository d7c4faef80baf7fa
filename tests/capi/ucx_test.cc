// The engine "ucx": addresses, peers that are not there or talk nonsense, what it leaves alone.
// What all engines have in common is in transfers_test.cc, which `ctest` runs over "ucx" as well.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "tests/capi/transfers.h"

namespace kvc::test {
namespace {

kvc_transport_desc ucx_desc(const char* address = nullptr, uint64_t flags = 0) {
  kvc_transport_desc desc{};
  desc.struct_size = sizeof desc;
  desc.flags = flags;
  desc.engine = "ucx";
  desc.address = address;
  return desc;
}

std::string address_of(const TestTransport& transport) {
  char address[128];
  size_t len = sizeof address;
  EXPECT_EQ(kvc_transport_address(transport.get(), address, &len, nullptr), KVC_OK);
  return address;
}

std::vector<void (*)(int)> signal_handlers() {
  std::vector<void (*)(int)> handlers;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGPIPE, SIGCHLD}) {
    struct sigaction now {};
    EXPECT_EQ(sigaction(signal, nullptr, &now), 0);
    handlers.push_back(now.sa_handler);
  }
  return handlers;
}
// Before the module is loaded. A sanitizer has its own.
const std::vector<void (*)(int)> kHandlersAtStart = signal_handlers();

class Ucx : public testing::Test {
 protected:
  void SetUp() override {
    if (kvc_has_feature("transport.ucx") == 0)
      GTEST_SKIP() << "this build has no libkvcache_transport_ucx.so";
  }
};

TEST_F(Ucx, AddressesAreOfOneInterface) {
  const TestTransport by_default(ucx_desc()), on_a_free_port(ucx_desc("127.0.0.2"));
  EXPECT_EQ(address_of(by_default).rfind("127.0.0.1:", 0), 0u) << address_of(by_default);
  EXPECT_EQ(address_of(on_a_free_port).rfind("127.0.0.2:", 0), 0u) << address_of(on_a_free_port);
  EXPECT_NE(address_of(by_default), "127.0.0.1:0");
  const auto refused = [](const char* address, kvc_status status, int32_t sys_code,
                          std::initializer_list<const char*> parts) {
    SCOPED_TRACE(address);
    const kvc_transport_desc desc = ucx_desc(address);
    kvc_transport* out = nullptr;
    const kvc_error error = expect_error(
        status, parts, [&](kvc_error* err) { return kvc_transport_open(&desc, &out, err); });
    EXPECT_EQ(error.sys_code, sys_code);
    EXPECT_EQ(out, nullptr);
  };
  for (const char* address :
       {"localhost:1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:1x",
        "127.0.0.1:4294967297", "127.0.0", "127.0.0.1.1", ":7000", "::1", "[::1]:7000", "0.0.0.0",
        "0.0.0.0:7000", "*", "/", "10.0.0.5:7000:1", "127.0.0.1 :1", "255.255.255.255:65535:"}) {
    refused(address, KVC_E_INVALID_ARGUMENT, 0, {"desc.address = ", address});
  }
  const std::string long_one(300, '1');
  refused(long_one.c_str(), KVC_E_INVALID_ARGUMENT, 0, {"desc.address"});
  refused("", KVC_E_INVALID_ARGUMENT, 0, {"empty"});
  const std::string taken = address_of(by_default);
  refused(taken.c_str(), KVC_E_IO, EADDRINUSE, {taken.c_str(), "in use"});
  refused("203.0.113.77:7000", KVC_E_IO, EADDRNOTAVAIL, {"203.0.113.77:7000", "assign"});
}

// Sixteen chunks and more, in both directions, in layers of odd sizes.
TEST_F(Ucx, LongSequencesArrive) {
  constexpr int64_t kTokens = 150000;
  Net net({attention_layer(), attention_layer(0, 3)}, 20000);
  net.config.page_size = 16;
  net.config.max_seq_len = kTokens;
  Cache first(net.config), second(net.config);
  append_pattern(first, 1, kTokens, 7);
  append_pattern(second, 2, kTokens - 5, 8);
  const TestTransport left(ucx_desc()), right(ucx_desc());
  TestTransfer there[2], back[2];
  ASSERT_NO_FATAL_FAILURE(begin_transfer(first, 1, second, recv_desc(1, kTokens), left.get(),
                                         right.get(), &there[0], &there[1]));
  ASSERT_NO_FATAL_FAILURE(begin_transfer(second, 2, first, recv_desc(2, kTokens - 5), right.get(),
                                         left.get(), &back[0], &back[1]));
  for (const TestTransfer* one : {&there[0], &there[1], &back[0], &back[1]}) {
    expect_ok([&](kvc_error* err) { return one->wait(60 * kSecond, err); });
    EXPECT_GT(one->info().chunks_total, 8u);
  }
  EXPECT_EQ(file_difference(first, second, 1), "");
  EXPECT_EQ(file_difference(first, second, 2), "");
  expect_sound(first);
  expect_sound(second);
}

TEST_F(Ucx, WhereNobodyListensATransferEnds) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  append_pattern(first, 1, 10, 7);
  const TestTransport sender(ucx_desc());
  TestTransport gone(ucx_desc()), still(ucx_desc());
  TestTransfer receiving, sending;
  const kvc_recv_desc desc = recv_desc(1, 10);
  ASSERT_EQ(kvc_transfer_recv(second.get(), gone.get(), &desc, receiving.out(), nullptr), KVC_OK);
  const Bytes ticket = receiving.ticket();
  gone.destroy();
  const kvc_send_desc send = send_desc(1, ticket);
  kvc_error error{};
  const kvc_status status =
      kvc_transfer_send(first.get(), sender.get(), &send, sending.out(), &error);
  if (status == KVC_OK) {
    expect_error(KVC_E_PEER, {"connection"},
                 [&](kvc_error* err) { return sending.wait(60 * kSecond, err); });
  } else {
    EXPECT_EQ(status, KVC_E_PEER) << error.message;
  }
  expect_sound(first);
  // The sender's transport serves the next one.
  transfer(first, 1, second, recv_desc(2, 10), sender.get(), still.get());
}

// Who has the port may say anything. Connections that say nothing stay open meanwhile.
TEST_F(Ucx, StrangersWhoTalkNonsenseChangeNothing) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  append_pattern(first, 1, 10, 7);
  const TestTransport sender(ucx_desc()), receiver(ucx_desc());
  const std::string address = address_of(receiver);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  there.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  std::vector<int> strangers;
  for (const size_t size : {0, 1, 7, 64, 1000}) {
    for (const bool stays : {false, true}) {
      const int stranger = socket(AF_INET, SOCK_STREAM, 0);
      ASSERT_EQ(connect(stranger, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
      const std::vector<uint8_t> words(size, 0xc3);
      (void)!::send(stranger, words.data(), words.size(), MSG_NOSIGNAL);
      if (stays) {
        strangers.push_back(stranger);
      } else {
        close(stranger);
      }
    }
  }
  for (kvc_seq seq = 1; seq < 6; ++seq) {
    transfer(first, 1, second, recv_desc(seq, 10), sender.get(), receiver.get());
    EXPECT_EQ(pattern_difference(second, seq, 7), "");
  }
  for (const int stranger : strangers) close(stranger);
  expect_sound(second);
}

// The signals of the host program are its own, and descriptors come back.
TEST_F(Ucx, SignalsAndDescriptorsAreLeftAlone) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  std::ptrdiff_t opened = 0;
  Net net({attention_layer()});
  for (int round = 0; round < 20; ++round) {
    Cache first(net.config), second(net.config);
    append_pattern(first, 1, 10, 7);
    {
      const TestTransport sender(ucx_desc()), receiver(ucx_desc());
      transfer(first, 1, second, recv_desc(1, 10), sender.get(), receiver.get());
    }
    if (round == 4) opened = descriptors();  // Whatever is made once has been made.
  }
  EXPECT_LE(descriptors(), opened);
  EXPECT_EQ(signal_handlers(), kHandlersAtStart);
}

TEST_F(Ucx, ATicketIsForOneEngine) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  append_pattern(first, 1, 10, 7);
  kvc_transport_desc desc = ucx_desc();
  desc.engine = "loopback";
  const TestTransport loopback(desc), ucx(ucx_desc());
  TestTransfer receiving;
  const kvc_recv_desc recv = recv_desc(1, 10);
  ASSERT_EQ(kvc_transfer_recv(second.get(), ucx.get(), &recv, receiving.out(), nullptr), KVC_OK);
  const Bytes ticket = receiving.ticket();
  const kvc_send_desc send = send_desc(1, ticket);
  kvc_transfer* out = nullptr;
  expect_error(KVC_E_UNSUPPORTED, {"\"ucx\"", "\"loopback\""}, [&](kvc_error* err) {
    return kvc_transfer_send(first.get(), loopback.get(), &send, &out, err);
  });
  EXPECT_EQ(out, nullptr);
}

}  // namespace
}  // namespace kvc::test
