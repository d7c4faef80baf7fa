// Transports of this process and transfers between two caches: what the tests of transfers share.
#pragma once

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/capi/state_files.h"
#include "tests/support/waiting.h"

namespace kvc::test {

constexpr int64_t kSecond = 1'000'000'000;
// A machine that stands still for seconds ends no transfer: tests of limits set their own.
constexpr int64_t kPatienceNs = std::chrono::nanoseconds(kPatience).count();

// The engine that the tests of this run use.
inline const char* test_engine() {
  const char* engine = std::getenv("KVCACHE_TEST_ENGINE");
  return engine != nullptr ? engine : "loopback";
}
inline bool is_loopback() { return std::string(test_engine()) == "loopback"; }

inline kvc_transport_desc transport_desc(uint64_t flags = 0) {
  kvc_transport_desc desc{};
  desc.struct_size = sizeof desc;
  desc.flags = flags;
  desc.engine = test_engine();
  desc.idle_ns = kPatienceNs;
  return desc;
}

class TestTransport {
 public:
  explicit TestTransport(kvc_transport_desc desc = transport_desc()) {
    kvc_error error{};
    EXPECT_EQ(kvc_transport_open(&desc, &transport_, &error), KVC_OK) << error.message;
  }
  ~TestTransport() { kvc_transport_destroy(transport_); }
  TestTransport(const TestTransport&) = delete;
  TestTransport& operator=(const TestTransport&) = delete;

  kvc_transport* get() const { return transport_; }
  void destroy() { kvc_transport_destroy(std::exchange(transport_, nullptr)); }
  kvc_transport_stats stats() const {
    kvc_transport_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(kvc_transport_stats_get(transport_, &stats, nullptr), KVC_OK);
    return stats;
  }

 private:
  kvc_transport* transport_ = nullptr;
};

class TestTransfer {
 public:
  TestTransfer() = default;
  ~TestTransfer() { kvc_transfer_destroy(transfer_); }
  TestTransfer(const TestTransfer&) = delete;
  TestTransfer& operator=(const TestTransfer&) = delete;

  kvc_transfer** out() { return &transfer_; }
  kvc_transfer* get() const { return transfer_; }
  void destroy() { kvc_transfer_destroy(std::exchange(transfer_, nullptr)); }
  kvc_status wait(int64_t timeout_ns = kPatienceNs, kvc_error* err = nullptr) const {
    return kvc_transfer_wait(transfer_, timeout_ns, err);
  }
  kvc_transfer_info info() const {
    kvc_transfer_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(kvc_transfer_query(transfer_, &info, nullptr), KVC_OK);
    return info;
  }
  Bytes ticket() const {
    size_t len = 0;
    kvc_error error{};
    EXPECT_EQ(kvc_transfer_ticket(transfer_, nullptr, &len, &error), KVC_OK) << error.message;
    Bytes ticket(len);
    EXPECT_EQ(kvc_transfer_ticket(transfer_, ticket.data(), &len, &error), KVC_OK);
    return ticket;
  }

 private:
  kvc_transfer* transfer_ = nullptr;
};

inline kvc_recv_desc recv_desc(kvc_seq seq, int64_t num_tokens, int64_t begin = 0) {
  kvc_recv_desc desc{};
  desc.struct_size = sizeof desc;
  desc.seq = seq;
  desc.begin = begin;
  desc.num_tokens = num_tokens;
  desc.deadline_ns = kPatienceNs;
  return desc;
}

inline kvc_send_desc send_desc(kvc_seq seq, const Bytes& ticket, int64_t begin = 0) {
  kvc_send_desc desc{};
  desc.struct_size = sizeof desc;
  desc.seq = seq;
  desc.begin = begin;
  desc.ticket = ticket.data();
  desc.ticket_len = ticket.size();
  desc.deadline_ns = kPatienceNs;
  return desc;
}

// Empty where state files of the sequence are equal in both caches; else how they differ.
inline std::string file_difference(const Cache& first, const Cache& second, kvc_seq seq) {
  const Bytes a = saved(first, {seq}), b = saved(second, {seq});
  if (a == b) return "";
  std::string text = std::to_string(a.size()) + " and " + std::to_string(b.size()) + " bytes:";
  for (size_t i = 0, shown = 0; i < std::min(a.size(), b.size()) && shown < 64; ++i) {
    if (a[i] == b[i]) continue;
    text +=
        " " + std::to_string(i) + " (" + std::to_string(a[i]) + ", " + std::to_string(b[i]) + ")";
    ++shown;
  }
  return text;
}

// Lets both sides of a transfer begin.
inline void begin_transfer(Cache& from, kvc_seq seq, Cache& to, const kvc_recv_desc& desc,
                           kvc_transport* sender, kvc_transport* receiver, TestTransfer* sending,
                           TestTransfer* receiving, kvc_send_mode mode = KVC_SEND_NOW) {
  expect_ok([&](kvc_error* err) {
    return kvc_transfer_recv(to.get(), receiver, &desc, receiving->out(), err);
  });
  ASSERT_NE(receiving->get(), nullptr);
  const Bytes ticket = receiving->ticket();
  kvc_send_desc send = send_desc(seq, ticket, desc.begin);
  send.mode = mode;
  expect_ok([&](kvc_error* err) {
    return kvc_transfer_send(from.get(), sender, &send, sending->out(), err);
  });
  ASSERT_NE(sending->get(), nullptr);
}

// Moves a sequence, and waits for both sides.
inline void transfer(Cache& from, kvc_seq seq, Cache& to, const kvc_recv_desc& desc,
                     kvc_transport* sender, kvc_transport* receiver) {
  TestTransfer receiving, sending;
  ASSERT_NO_FATAL_FAILURE(
      begin_transfer(from, seq, to, desc, sender, receiver, &sending, &receiving));
  expect_ok([&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
  expect_ok([&](kvc_error* err) { return sending.wait(kPatienceNs, err); });
  EXPECT_EQ(receiving.info().state, KVC_TRANSFER_DONE);
  EXPECT_EQ(sending.info().state, KVC_TRANSFER_DONE);
}

}  // namespace kvc::test
