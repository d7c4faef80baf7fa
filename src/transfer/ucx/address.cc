#include "src/transfer/ucx/address.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace kvc {
namespace {

constexpr size_t kMostLetters = 21;  // "255.255.255.255:65535"
constexpr unsigned kMostPort = 65535;

bool refuse(const char* text, const char* name, const char* expected,
            TransferFailure* failure) noexcept {
  failure->status = KVC_E_INVALID_ARGUMENT;
  failure->set("%s = \"%.100s\", expected %s", name, text, expected);
  return false;
}

}  // namespace

bool parse_address(const char* text, const char* name, sockaddr_in* out,
                   TransferFailure* failure) noexcept {
  constexpr char kExpected[] = "an IPv4 address with a port, as \"10.0.0.5:7000\"";
  const size_t size = strnlen(text, kMostLetters + 1);
  if (size > kMostLetters) return refuse(text, name, kExpected, failure);
  char host[kMostLetters + 1];
  std::memcpy(host, text, size + 1);
  unsigned port = 0;
  if (char* colon = std::strchr(host, ':'); colon != nullptr) {
    *colon = '\0';
    const char* begin = colon + 1;
    const char* end = host + size;
    const auto [last, error] = std::from_chars(begin, end, port);
    if (error != std::errc() || last != end || port > kMostPort)
      return refuse(text, name, kExpected, failure);
  }
  *out = {};
  out->sin_family = AF_INET;
  out->sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host, &out->sin_addr) != 1) return refuse(text, name, kExpected, failure);
  if (out->sin_addr.s_addr == INADDR_ANY)
    return refuse(text, name, "the address of one interface: peers cannot reach 0.0.0.0", failure);
  return true;
}

std::string format_address(const sockaddr_in& address) {
  char host[INET_ADDRSTRLEN] = "", text[kMostLetters + 1];
  (void)inet_ntop(AF_INET, &address.sin_addr, host, sizeof host);
  std::snprintf(text, sizeof text, "%s:%d", host, ntohs(address.sin_port));
  return text;
}

bool is_loopback(const sockaddr_in& address) noexcept {
  constexpr uint32_t kLoopbackNet = 127;
  return ntohl(address.sin_addr.s_addr) >> 24 == kLoopbackNet;
}

bool can_bind(const sockaddr_in& address, const char* text, TransferFailure* failure) noexcept {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  // UCX takes ports that wait for late packets too.
  const bool can = probe >= 0 && setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                   bind(probe, generic(address), sizeof address) == 0 && listen(probe, 1) == 0;
  const int error = errno;
  if (probe >= 0) ::close(probe);
  if (can) return true;
  failure->status = KVC_E_IO;
  failure->sys_code = error;
  char reason[64];
  const char* words = strerror_r(error, reason, sizeof reason);
  failure->set("desc.address = \"%.21s\" cannot be listened at: %s", text, words);
  return false;
}

}  // namespace kvc
