#include "src/tiers/redis/connection.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace kvc {
namespace {

constexpr size_t kInputBytes = size_t{64} << 10;
constexpr size_t kOutputBytes = size_t{16} << 10;

int64_t micros_until(TierTime deadline) {
  return std::chrono::duration_cast<std::chrono::microseconds>(deadline -
                                                               std::chrono::steady_clock::now())
      .count();
}

[[noreturn]] void fail_with_errno(const char* what, int error) {
  throw ConnectionError{TierResult::kFailed, error, std::string(what) + ": " + strerror(error)};
}

[[noreturn]] void fail_late(const char* what) {
  throw ConnectionError{TierResult::kTimeout, ETIMEDOUT, std::string(what) + " took too long"};
}

}  // namespace

Connection::Connection(const Endpoint& endpoint, const TierConfig& config, TierTime deadline)
    : input_(kInputBytes) {
  const int64_t micros = std::max<int64_t>(1000, micros_until(deadline));
  const timeval timeout{static_cast<time_t>(micros / 1000000),
                        static_cast<suseconds_t>(micros % 1000000)};
  context_.reset(redisConnectWithTimeout(endpoint.host.c_str(), endpoint.port, timeout));
  if (context_ == nullptr) throw ConnectionError{TierResult::kFailed, ENOMEM, "no memory"};
  if (context_->err != 0) {
    const int error = errno;
    const bool is_late = context_->err == REDIS_ERR_IO && error == ETIMEDOUT;
    throw ConnectionError{is_late ? TierResult::kTimeout : TierResult::kFailed,
                          context_->err == REDIS_ERR_IO ? error : 0,
                          endpoint.text() + ": " + context_->errstr};
  }
  (void)redisEnableKeepAlive(context_.get());
  if (config.password == nullptr && config.username == nullptr) return;
  std::vector<std::string> arguments{"AUTH"};
  if (config.username != nullptr) arguments.emplace_back(config.username);
  arguments.emplace_back(config.password != nullptr ? config.password : "");
  const Reply reply = command(arguments, deadline);
  if (reply->type == REDIS_REPLY_ERROR)
    throw ConnectionError{TierResult::kFailed, EACCES, endpoint.text() + ": " + reply->str};
}

Connection::~Connection() = default;

// ---- Bytes ------------------------------------------------------------------------------------

void Connection::wait(short events, TierTime deadline) const {
  pollfd entry{context_->fd, events, 0};
  for (;;) {
    const int64_t micros = micros_until(deadline);
    if (micros <= 0) fail_late("an answer of the server");
    const int found =
        poll(&entry, 1, static_cast<int>(std::min<int64_t>(micros / 1000 + 1, 60000)));
    if (found > 0) return;
    if (found < 0 && errno != EINTR) fail_with_errno("poll", errno);
  }
}

void Connection::send(const char* data, size_t size, TierTime deadline) {
  while (size > 0) {
    const ssize_t sent = ::send(context_->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      data += sent;
      size -= static_cast<size_t>(sent);
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      wait(POLLOUT, deadline);
    } else if (sent < 0 && errno != EINTR) {
      fail_with_errno("the connection to the server", errno);
    }
  }
}

// At least one byte.
size_t Connection::receive(char* data, size_t size, TierTime deadline) {
  for (;;) {
    const ssize_t got = recv(context_->fd, data, size, MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0)
      throw ConnectionError{TierResult::kFailed, ECONNRESET,
                            "the server has closed the connection"};
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait(POLLIN, deadline);
    } else if (errno != EINTR) {
      fail_with_errno("the connection to the server", errno);
    }
  }
}

void Connection::fill(TierTime deadline) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == input_.size()) {
    std::memmove(input_.data(), input_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == input_.size())
    throw ConnectionError{TierResult::kFailed, EPROTO, "the server sent a line without an end"};
  end_ += receive(input_.data() + end_, input_.size() - end_, deadline);
}

// ---- Commands ---------------------------------------------------------------------------------

Reply Connection::command(const std::vector<std::string>& arguments, TierTime deadline) {
  std::vector<const char*> data;
  std::vector<size_t> sizes;
  for (const std::string& argument : arguments) {
    data.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  char* formatted = nullptr;
  const int length =
      redisFormatCommandArgv(&formatted, static_cast<int>(data.size()), data.data(), sizes.data());
  if (length < 0) throw ConnectionError{TierResult::kFailed, ENOMEM, "no memory"};
  const std::string text(formatted, static_cast<size_t>(length));
  redisFreeCommand(formatted);
  write(text, deadline);
  flush(deadline);
  for (;;) {
    void* reply = nullptr;
    if (begin_ == end_) fill(deadline);
    if (redisReaderFeed(context_->reader, input_.data() + begin_, end_ - begin_) != REDIS_OK ||
        redisReaderGetReply(context_->reader, &reply) != REDIS_OK)
      throw ConnectionError{TierResult::kFailed, EPROTO,
                            std::string("not the Redis protocol: ") + context_->reader->errstr};
    begin_ = end_ = 0;
    if (reply != nullptr) return Reply(static_cast<redisReply*>(reply));
  }
}

void Connection::write(std::string_view text, TierTime deadline) {
  output_ += text;
  if (output_.size() >= kOutputBytes) flush(deadline);
}

void Connection::write_value(const std::byte* data, size_t size, TierTime deadline) {
  flush(deadline);
  send(reinterpret_cast<const char*>(data), size, deadline);
}

void Connection::flush(TierTime deadline) {
  send(output_.data(), output_.size(), deadline);
  output_.clear();
}

Connection::Line Connection::read(TierTime deadline) {
  const char* end = nullptr;
  for (size_t searched = 0;;) {
    const char* const waiting = input_.data() + begin_;
    const size_t size = end_ - begin_;
    end = size > searched
              ? static_cast<const char*>(std::memchr(waiting + searched, '\n', size - searched))
              : nullptr;
    if (end != nullptr) break;
    searched = size;
    fill(deadline);
  }
  const std::string_view line(input_.data() + begin_,
                              static_cast<size_t>(end - (input_.data() + begin_)));
  begin_ += line.size() + 1;
  Line found{line.empty() ? '\0' : line.front(), {}};
  if (line.size() < 2 || line.back() != '\r' ||
      std::string_view("+-:$").find(found.type) == std::string_view::npos)
    throw ConnectionError{TierResult::kFailed, EPROTO, "not the Redis protocol"};
  const std::string_view text = line.substr(1, line.size() - 2);
  if (found.type != '$') {
    found.text = text;
    return found;
  }
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), found.size);
  if (error != std::errc() || rest != text.data() + text.size() || found.size < -1)
    throw ConnectionError{TierResult::kFailed, EPROTO, "a value of no size"};
  return found;
}

void Connection::read_value(std::byte* data, size_t size, TierTime deadline) {
  const size_t waiting = std::min(size, end_ - begin_);
  std::memcpy(data, input_.data() + begin_, waiting);
  begin_ += waiting;
  for (size_t done = waiting; done < size;)
    done += receive(reinterpret_cast<char*>(data) + done, size - done, deadline);
  skip_value(0, deadline);
}

// The value's own end is two bytes.
void Connection::skip_value(size_t size, TierTime deadline) {
  for (size_t left = size + 2; left > 0;) {
    if (begin_ == end_) fill(deadline);
    const size_t skipped = std::min(left, end_ - begin_);
    begin_ += skipped;
    left -= skipped;
  }
}

}  // namespace kvc
