// One connection to a server of the Redis protocol, with a deadline on everything. hiredis
// connects, writes commands and reads replies; values go from and to the caller's memory without
// it.
#pragma once

#include <hiredis/hiredis.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/tiers/tier.h"

namespace kvc {

struct Endpoint {
  std::string host;
  int port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
  std::string text() const { return host + ":" + std::to_string(port); }
};

struct ReplyDeleter {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyDeleter>;

// One thread at a time. After a failure or a timeout the connection is of no more use: nobody knows
// which reply comes next.
class Connection {
 public:
  // Connects and authenticates. Throws ConnectionError.
  Connection(const Endpoint& endpoint, const TierConfig& config, TierTime deadline);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // It was kept, and may have been closed by the server meanwhile.
  bool was_used() const { return was_used_; }
  void use_again() { was_used_ = true; }

  // A reply, errors too. Throws ConnectionError.
  Reply command(const std::vector<std::string>& arguments, TierTime deadline);

  // ---- Pipelines: writes first, then as many reads. All throw ConnectionError.

  // Both are sent before the call returns, or buffered when they are small.
  void write(std::string_view text, TierTime deadline);
  void write_value(const std::byte* data, size_t size, TierTime deadline);
  void flush(TierTime deadline);

  // What read() has found: a status, an error, or a value; size -1: nil.
  struct Line {
    char type;         // '+', '-', ':' or '$'
    std::string text;  // All types but '$' have one.
    int64_t size = -1;
  };
  Line read(TierTime deadline);
  // The bytes of a value that read() has announced, all of them.
  void read_value(std::byte* data, size_t size, TierTime deadline);
  void skip_value(size_t size, TierTime deadline);

 private:
  void wait(short events, TierTime deadline) const;
  void send(const char* data, size_t size, TierTime deadline);
  size_t receive(char* data, size_t size, TierTime deadline);
  void fill(TierTime deadline);

  struct ContextDeleter {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  std::unique_ptr<redisContext, ContextDeleter> context_;
  std::string output_;
  std::vector<char> input_;
  size_t begin_ = 0, end_ = 0;  // Bytes of input_ that wait.
  bool was_used_ = false;
};

struct ConnectionError {
  TierResult result;  // kFailed or kTimeout.
  int sys_code;
  std::string text;
};

}  // namespace kvc
