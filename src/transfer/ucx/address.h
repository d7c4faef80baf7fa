// Addresses of the engine "ucx": "10.0.0.5:7000", or "10.0.0.5" for any free port. IPv4 alone: over
// IPv6, UCX 1.13 writes beyond the end of its own memory.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "src/transfer/module.h"

namespace kvc {

constexpr char kDefaultAddress[] = "127.0.0.1:0";

inline const sockaddr* generic(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// False with a failure. `name`: what the text is, for the message.
bool parse_address(const char* text, const char* name, sockaddr_in* out,
                   TransferFailure* failure) noexcept;
// Throws std::bad_alloc.
std::string format_address(const sockaddr_in& address);
bool is_loopback(const sockaddr_in& address) noexcept;
// Binds a socket to it and gives it up again. False with a failure that says why it cannot be had:
// UCX itself says that in its log alone.
bool can_bind(const sockaddr_in& address, const char* text, TransferFailure* failure) noexcept;

}  // namespace kvc
