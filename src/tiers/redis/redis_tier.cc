// libkvcache_tier_redis.so: a tier on servers of the Redis protocol (Redis, Valkey). One key per
// block, "kvcache:1:" and the key in hexadecimal; the value is the block's, head and all.
#include <errno.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/tiers/redis/connection.h"
#include "src/tiers/redis/servers.h"
#include "src/tiers/tier.h"

namespace kvc {
namespace {

constexpr int kMostRounds = 4;  // Each follows one redirection.

std::string name_of(const TierKey& key) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "kvcache:1:";
  for (const uint8_t byte : key) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

// "$<size>\r\n<text>\r\n"
void append_bulk(std::string* out, std::string_view text) {
  *out += "$" + std::to_string(text.size()) + "\r\n";
  *out += text;
  *out += "\r\n";
}

// One command on one key: what to send, and what its answer becomes.
struct Item {
  std::string name;
  std::byte* data;  // The value that is sent, or where the answer goes.
  size_t size;
  bool replaces = false;
  TierResult result = TierResult::kFailed;
  bool is_done = false;
  Endpoint at{};
  bool asks = false;  // The slot is on its way to `at`.
};

enum class Command { kSet, kGet, kHead };

class RedisTier final : public Tier {
 public:
  RedisTier(std::vector<Endpoint> seeds, const TierConfig& config)
      : servers_(std::move(seeds), config), put_ms_(config.put_ms), ttl_s_(config.ttl_s) {}

  void put(std::span<TierPut> puts, TierFailure* failure) noexcept override {
    uint64_t bytes = 0;
    for (const TierPut& put : puts) bytes += put.size;
    const TierTime deadline = std::chrono::steady_clock::now() +
                              std::chrono::milliseconds(put_ms_) +
                              std::chrono::milliseconds(8 * (bytes >> 20));
    run_all(Command::kSet, puts, deadline, failure);
  }
  void get(std::span<TierGet> gets, TierTime deadline, TierFailure* failure) noexcept override {
    run_all(Command::kGet, gets, deadline, failure);
  }

  TierResult find(std::span<const TierKey> keys, size_t head_bytes, std::byte* heads, size_t* found,
                  TierTime deadline, TierFailure* failure) noexcept override {
    *found = 0;
    try {
      std::vector<Item> items;
      for (size_t i = 0; i < keys.size(); ++i)
        items.push_back({name_of(keys[i]), heads + i * head_bytes, head_bytes});
      run(Command::kHead, &items, deadline, failure);
      for (const Item& item : items) {
        if (item.result != TierResult::kOk) break;
        ++*found;
      }
      // While some servers of a cluster answer, the blocks of the others are misses.
      const bool is_answered = std::any_of(items.begin(), items.end(), [](const Item& item) {
        return item.result == TierResult::kOk || item.result == TierResult::kMiss;
      });
      if (!is_answered) return items.front().result;
    } catch (const std::exception& error) {
      failure->set("%s", error.what());
      return TierResult::kFailed;
    }
    return TierResult::kOk;
  }

  uint64_t stored_bytes() noexcept override { return 0; }  // The servers know.

 private:
  template <typename Entry>
  void run_all(Command command, std::span<Entry> entries, TierTime deadline,
               TierFailure* failure) noexcept {
    for (Entry& entry : entries) entry.result = TierResult::kFailed;
    try {
      std::vector<Item> items;
      for (Entry& entry : entries) {
        items.push_back({name_of(entry.key), entry.data, entry.size});
        if constexpr (std::is_same_v<Entry, TierPut>) items.back().replaces = entry.replaces;
      }
      run(command, &items, deadline, failure);
      for (size_t i = 0; i < entries.size(); ++i) entries[i].result = items[i].result;
    } catch (const std::exception& error) {
      failure->set("%s", error.what());
    }
  }

  void run(Command command, std::vector<Item>* items, TierTime deadline, TierFailure* failure) {
    for (Item& item : *items) item.at = servers_.at(slot_of_key(item.name));
    for (int round = 0; round < kMostRounds; ++round) {
      std::vector<Item*> left;
      for (Item& item : *items) {
        if (!item.is_done) left.push_back(&item);
      }
      if (left.empty()) return;
      std::stable_sort(left.begin(), left.end(), [](const Item* a, const Item* b) {
        return std::tie(a->at.host, a->at.port) < std::tie(b->at.host, b->at.port);
      });
      for (size_t begin = 0, end = 0; begin < left.size(); begin = end) {
        while (end < left.size() && left[end]->at == left[begin]->at) ++end;
        run_on(command, {left.data() + begin, end - begin}, deadline, failure);
      }
    }
    failure->set("a slot is sent from server to server");
  }

  // Commands for one server. What is redirected is not done.
  void run_on(Command command, std::span<Item*> items, TierTime deadline, TierFailure* failure) {
    const Endpoint endpoint = items.front()->at;
    size_t answered = 0;
    std::unique_ptr<Connection> connection;
    try {
      connection = servers_.take(endpoint, deadline);
      for (const Item* item : items) write(command, *item, *connection, deadline);
      connection->flush(deadline);
      for (; answered < items.size(); ++answered)
        read(command, *items[answered], *connection, deadline, failure);
      servers_.release(endpoint, std::move(connection));
    } catch (const ConnectionError& error) {
      if (connection != nullptr && connection->was_used() && answered == 0 &&
          error.result == TierResult::kFailed) {
        servers_.forget(endpoint);  // Kept too long: the server has been restarted.
        return;                     // For the next round.
      }
      failure->sys_code = error.sys_code;
      failure->set("%s: %s", endpoint.text().c_str(), error.text.c_str());
      for (; answered < items.size(); ++answered) {
        items[answered]->result = error.result;
        items[answered]->is_done = true;
      }
      servers_.lost(endpoint);
    }
  }

  void write(Command command, const Item& item, Connection& connection, TierTime deadline) const {
    std::string text;
    if (item.asks) text += "*1\r\n$6\r\nASKING\r\n";
    if (command == Command::kGet) {
      text += "*2\r\n$3\r\nGET\r\n";
      append_bulk(&text, item.name);
    } else if (command == Command::kHead) {
      text += "*4\r\n$8\r\nGETRANGE\r\n";
      append_bulk(&text, item.name);
      append_bulk(&text, "0");
      append_bulk(&text, std::to_string(item.size - 1));
    } else {
      const int arguments = 3 + (item.replaces ? 0 : 1) + (ttl_s_ > 0 ? 2 : 0);
      text += "*" + std::to_string(arguments) + "\r\n$3\r\nSET\r\n";
      append_bulk(&text, item.name);
      text += "$" + std::to_string(item.size) + "\r\n";
      connection.write(text, deadline);
      connection.write_value(item.data, item.size, deadline);
      text = "\r\n";
      if (!item.replaces) append_bulk(&text, "NX");
      if (ttl_s_ > 0) {
        append_bulk(&text, "EX");
        append_bulk(&text, std::to_string(ttl_s_));
      }
    }
    connection.write(text, deadline);
  }

  void read(Command command, Item& item, Connection& connection, TierTime deadline,
            TierFailure* failure) {
    if (item.asks) (void)connection.read(deadline);
    const Connection::Line line = connection.read(deadline);
    item.is_done = true;
    if (line.type == '-') {
      item.is_done = !redirect(line.text, &item);
      item.result = TierResult::kFailed;
      if (item.is_done) failure->set("%s: %s", item.at.text().c_str(), line.text.c_str());
    } else if (command == Command::kSet) {
      item.result = TierResult::kOk;  // Or nil, where NX has found an old one.
    } else if (line.type == '$' && line.size == static_cast<int64_t>(item.size)) {
      connection.read_value(item.data, item.size, deadline);
      item.result = TierResult::kOk;
    } else {
      if (line.size >= 0) connection.skip_value(static_cast<size_t>(line.size), deadline);
      item.result = TierResult::kMiss;
    }
  }

  // "MOVED <slot> <host>:<port>" and "ASK …". False: another error.
  bool redirect(const std::string& error, Item* item) {
    const bool is_moved = error.rfind("MOVED ", 0) == 0, is_asked = error.rfind("ASK ", 0) == 0;
    const size_t space = error.rfind(' ');
    if (!is_moved && !is_asked) return false;
    Endpoint to;
    if (!parse_endpoint(error.substr(space + 1)[0] == ':' ? item->at.host + error.substr(space + 1)
                                                          : error.substr(space + 1),
                        &to))
      return false;
    item->at = to;
    item->asks = is_asked;
    if (is_moved) servers_.moved(slot_of_key(item->name), to);
    return true;
  }

  Servers servers_;
  const int32_t put_ms_;
  const int64_t ttl_s_;
};

Tier* open_tier(const TierConfig& config, TierFailure* failure) {
  try {
    std::vector<Endpoint> seeds;
    std::string_view rest = config.address;
    for (;;) {
      const size_t comma = rest.find(',');
      Endpoint& seed = seeds.emplace_back();
      if (!parse_endpoint(rest.substr(0, comma), &seed)) {
        failure->status = KVC_E_INVALID_ARGUMENT;
        failure->set("expected host:port, several separated by commas");
        return nullptr;
      }
      if (comma == std::string_view::npos) break;
      rest = rest.substr(comma + 1);
    }
    return new RedisTier(std::move(seeds), config);
  } catch (const ConnectionError& error) {
    failure->status = error.result == TierResult::kTimeout ? KVC_E_TIMEOUT : KVC_E_IO;
    failure->sys_code = error.sys_code;
    failure->set("%s", error.text.c_str());
  } catch (const std::exception& error) {
    failure->status = KVC_E_NO_MEMORY;
    failure->set("%s", error.what());
  }
  return nullptr;
}

constexpr TierModule kModule{{sizeof(TierModule), KVC_LIBRARY_VERSION}, open_tier};

}  // namespace
}  // namespace kvc

extern "C" __attribute__((visibility("default"))) const kvc::ModuleTable* kvc_tier_module();
extern "C" const kvc::ModuleTable* kvc_tier_module() { return &kvc::kModule.table; }
