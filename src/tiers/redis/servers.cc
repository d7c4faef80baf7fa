#include "src/tiers/redis/servers.h"

#include <errno.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

namespace kvc {
namespace {

constexpr size_t kMostKept = 8;  // Connections to one server.
constexpr std::chrono::seconds kPause{1};

bool is_text(const redisReply* reply) {
  return reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS;
}

// A range of CLUSTER SLOTS: begin, end, [host, port, …] of the primary, and its replicas.
bool read_range(const redisReply* range, const Endpoint& asked, std::vector<Endpoint>* map) {
  if (range->type != REDIS_REPLY_ARRAY || range->elements < 3) return false;
  const redisReply *begin = range->element[0], *end = range->element[1],
                   *primary = range->element[2];
  if (begin->type != REDIS_REPLY_INTEGER || end->type != REDIS_REPLY_INTEGER ||
      primary->type != REDIS_REPLY_ARRAY || primary->elements < 2 ||
      primary->element[1]->type != REDIS_REPLY_INTEGER || begin->integer < 0 ||
      end->integer < begin->integer || end->integer >= static_cast<long long>(kNumSlots))
    return false;
  // A server that does not know its own name leaves it out.
  const redisReply* name = primary->element[0];
  const std::string host = is_text(name) && name->len > 0 ? name->str : asked.host;
  for (long long slot = begin->integer; slot <= end->integer; ++slot)
    (*map)[static_cast<size_t>(slot)] = {host, static_cast<int>(primary->element[1]->integer)};
  return true;
}

}  // namespace

bool parse_endpoint(std::string_view text, Endpoint* out) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  out->host = host;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out->port);
  return error == std::errc() && end == port.data() + port.size() && !host.empty() &&
         out->port > 0 && out->port < 65536;
}

Servers::Servers(std::vector<Endpoint> seeds, const TierConfig& config)
    : seeds_(std::move(seeds)),
      username_(config.username != nullptr ? config.username : ""),
      password_(config.password != nullptr ? config.password : ""),
      config_(config) {
  config_.username = config.username != nullptr ? username_.c_str() : nullptr;
  config_.password = config.password != nullptr ? password_.c_str() : nullptr;
  for (size_t i = 0;; ++i) {
    try {
      const TierTime deadline = connect_deadline();
      auto connection = std::make_unique<Connection>(seeds_[i], config_, deadline);
      map_ = ask(*connection, seeds_[i], deadline);
      first_ = seeds_[i];
      warn_of_limits(*connection);
      release(seeds_[i], std::move(connection));
      return;
    } catch (const ConnectionError&) {
      if (i + 1 == seeds_.size()) throw;
    }
  }
}

TierTime Servers::connect_deadline() const {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(config_.connect_ms);
}

// Without limit or eviction the server is full one day, and refuses writes.
void Servers::warn_of_limits(Connection& connection) noexcept {
  try {
    for (const auto& [name, bad] :
         {std::pair{"maxmemory", "0"}, std::pair{"maxmemory-policy", "noeviction"}}) {
      const Reply reply = connection.command({"CONFIG", "GET", name}, connect_deadline());
      if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
        continue;  // Not allowed to ask.
      if (!is_text(reply->element[1]) || std::string_view(reply->element[1]->str) != bad) continue;
      config_.log(KVC_LOG_WARNING,
                  "Redis tier: %s of %s is %s: set maxmemory, and maxmemory-policy allkeys-lru",
                  name, first_.text().c_str(), bad);
      return;
    }
  } catch (const std::exception&) {
  } catch (const ConnectionError&) {
  }
}

Servers::Map Servers::ask(Connection& connection, const Endpoint& asked, TierTime deadline) const {
  const Reply reply = connection.command({"CLUSTER", "SLOTS"}, deadline);
  if (reply->type == REDIS_REPLY_ERROR) {
    const std::string_view text(reply->str);
    // The first: a server that is no part of a cluster. The second: one that may not say.
    if (text.find("cluster support disabled") != std::string_view::npos ||
        text.find("NOPERM") == 0 || text.find("ERR unknown command") == 0)
      return {};
    throw ConnectionError{TierResult::kFailed, EIO, asked.text() + ": " + reply->str};
  }
  Map map(kNumSlots, asked);
  for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; ++i) {
    if (!read_range(reply->element[i], asked, &map))
      throw ConnectionError{TierResult::kFailed, EPROTO, "CLUSTER SLOTS of another shape"};
  }
  return map;
}

Endpoint Servers::at(uint16_t slot) const {
  const std::lock_guard lock(mutex_);
  return map_.empty() ? first_ : map_[slot];
}

void Servers::moved(uint16_t slot, const Endpoint& to) {
  const std::lock_guard lock(mutex_);
  if (map_.empty()) map_.assign(kNumSlots, first_);
  map_[slot] = to;
}

void Servers::forget(const Endpoint& endpoint) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    kept_.erase(endpoint.text());
  } catch (const std::exception&) {
    return;
  }
}

void Servers::lost(const Endpoint& endpoint) noexcept {
  forget(endpoint);
  try {
    std::vector<Endpoint> others = seeds_;
    {
      const std::lock_guard lock(mutex_);
      const TierTime now = std::chrono::steady_clock::now();
      if (map_.empty()) return;
      lost_at_[endpoint.text()] = now;
      if (now - asked_ < kPause) return;
      asked_ = now;
      for (const Endpoint& known : map_) {
        if (others.back() != known) others.push_back(known);
      }
    }
    std::sort(others.begin(), others.end(),
              [](const Endpoint& a, const Endpoint& b) { return a.text() < b.text(); });
    others.erase(std::unique(others.begin(), others.end()), others.end());
    for (const Endpoint& other : others) {
      if (other == endpoint) continue;
      try {
        const TierTime deadline = connect_deadline();
        auto connection = take(other, deadline);
        Map map = ask(*connection, other, deadline);
        release(other, std::move(connection));
        const std::lock_guard lock(mutex_);
        if (!map.empty()) map_ = std::move(map);
        first_ = other;
        return;
      } catch (const ConnectionError&) {
        continue;
      }
    }
  } catch (const std::exception&) {
    return;  // No memory: the old map serves on.
  }
}

std::unique_ptr<Connection> Servers::take(const Endpoint& endpoint, TierTime deadline) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(endpoint.text());
    if (found != kept_.end() && !found->second.empty()) {
      auto connection = std::move(found->second.back());
      found->second.pop_back();
      connection->use_again();
      return connection;
    }
    const auto lost = lost_at_.find(endpoint.text());
    if (lost != lost_at_.end() && std::chrono::steady_clock::now() - lost->second < kPause)
      throw ConnectionError{TierResult::kFailed, EHOSTDOWN, "left alone for a second"};
  }
  return std::make_unique<Connection>(endpoint, config_, std::min(deadline, connect_deadline()));
}

void Servers::release(const Endpoint& endpoint, std::unique_ptr<Connection> connection) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    auto& kept = kept_[endpoint.text()];
    if (kept.size() < kMostKept) kept.push_back(std::move(connection));
  } catch (const std::exception&) {
    return;  // Closed.
  }
}

}  // namespace kvc
