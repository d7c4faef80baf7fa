// Steps on the prefix cache. A token's id in the scenario is its id for the cache, so that what `stored` finds in a page says which tokens it holds.
#include <gtest/gtest.h>

#include "tests/conformance/session.h"

namespace kvc::conformance {
namespace {

const std::map<std::string, int32_t> kMatchFlags{{"ALL_TOKENS", KVC_PREFIX_ALL_TOKENS},
                                                 {"WHOLE_BLOCKS", KVC_PREFIX_WHOLE_BLOCKS}};
const std::map<std::string, int32_t> kKeyTypes{
    {"ADAPTER", KVC_PREFIX_KEY_ADAPTER}, {"MEDIA", KVC_PREFIX_KEY_MEDIA}, {"USER", KVC_PREFIX_KEY_USER}};
const std::map<std::string, int32_t> kEvents{{"STORED", KVC_EVENT_STORED},
                                             {"REMOVED", KVC_EVENT_REMOVED},
                                             {"MOVED", KVC_EVENT_MOVED},
                                             {"CLEARED", KVC_EVENT_CLEARED}};

// What a query borrows.
struct Query {
  explicit Query(const Json& step) {
    if (step.at("tokens").is_string()) {
      for (const int64_t id : parse_ids(step["tokens"].get<std::string>()))
        tokens.push_back(static_cast<int32_t>(id));
    } else {
      tokens = step["tokens"].get<std::vector<int32_t>>();
    }
    salt = step.value("salt", "");
    for (const Json& json : step.value("keys", Json::array())) {
      data.push_back(json.value("data", ""));
      kvc_prefix_key key{};
      key.struct_size = sizeof key;
      key.type = static_cast<kvc_prefix_key_type>(look_up(json.value("type", "USER"), kKeyTypes));
      key.offset = json.value("offset", int64_t{0});
      keys.push_back(key);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i].data = data[i].data();
      keys[i].size = data[i].size();
    }
    call.struct_size = sizeof call;
    for (const Json& flag : step.value("flags", Json::array()))
      call.flags |= static_cast<uint64_t>(look_up(flag.get<std::string>(), kMatchFlags));
    call.num_tokens = step.value("num_tokens", static_cast<int64_t>(tokens.size()));
    call.tokens = tokens.data();
    call.salt = salt.data();
    call.salt_size = salt.size();
    call.keys = keys.data();
    call.num_keys = keys.size();
    call.priority = step.value("priority", 0);
  }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  kvc_status hash(int32_t block, std::vector<uint8_t>& out, kvc_error* err) const {
    size_t len = 0;
    const auto call_it = [&](uint8_t* buffer) {
      return kvc_prefix_hash(tokens.data(), tokens.size(), block, salt.data(), salt.size(), keys.data(),
                             keys.size(), buffer, &len, err);
    };
    const kvc_status status = call_it(nullptr);
    if (status != KVC_OK) return status;
    out.assign(len * KVC_HASH_BYTES + 1, 0xEE);
    EXPECT_EQ(call_it(out.data()), KVC_OK);
    EXPECT_EQ(out.back(), 0xEE) << "behind the last key";
    out.resize(len * KVC_HASH_BYTES);
    return KVC_OK;
  }

  std::vector<int32_t> tokens;
  std::string salt;
  std::vector<std::string> data;
  std::vector<kvc_prefix_key> keys;
  std::vector<uint8_t> hashes;
  kvc_prefix_query call{};
};

kvc_plan_info plan_info(const Session& session) {
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_info_get(session.plan, &info, nullptr), KVC_OK);
  return info;
}

// Calls with the step's query, and again with keys of blocks instead of, or beside, the tokens where the step says so.
template <typename Call>
kvc_status with_query(const Session& session, const Json& step, kvc_error* err, Call call) {
  Query query(step);
  if (step.contains("hashes")) {
    const kvc_status status = query.hash(plan_info(session).prefix_block, query.hashes, err);
    if (status != KVC_OK) return status;
    query.call.hashes = query.hashes.data();
    query.call.num_hashes = query.hashes.size() / KVC_HASH_BYTES;
    if (step["hashes"] == "only") query.call.tokens = nullptr;
    if (step["hashes"].is_number()) query.call.num_hashes = step["hashes"].get<size_t>();
  }
  int64_t tokens = -1;
  const kvc_status status = call(&query.call, &tokens);
  if (status != KVC_OK) {
    EXPECT_EQ(tokens, -1) << "outputs are written on success only";
  } else if (step.contains("hit")) {
    EXPECT_EQ(tokens, step["hit"].get<int64_t>()) << "tokens found";
  }
  return status;
}

std::string hex(const uint8_t* bytes) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < KVC_HASH_BYTES; ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

kvc_status prefix_hash(Session&, const Json& step, kvc_error* err) {
  const Query query(step);
  std::vector<uint8_t> out;
  const kvc_status status = query.hash(step.at("block").get<int32_t>(), out, err);
  if (status != KVC_OK) return status;
  std::vector<std::string> keys;
  for (size_t at = 0; at < out.size(); at += KVC_HASH_BYTES) keys.push_back(hex(out.data() + at));
  EXPECT_EQ(keys, step.at("values").get<std::vector<std::string>>());
  return status;
}

kvc_status evict(Session& session, const Json& step, kvc_error* err) {
  int64_t freed = -1;
  const kvc_status status = kvc_prefix_evict(session.cache, step.at("pages").get<int64_t>(), &freed, err);
  if (status == KVC_OK && step.contains("freed")) {
    EXPECT_EQ(freed, step["freed"].get<int64_t>());
  }
  return status;
}

kvc_status quota(Session& session, const Json& step, kvc_error* err) {
  const std::string salt = step.value("salt", "");
  const uint64_t bytes = plan_info(session).page_bytes * step.at("pages").get<uint64_t>();
  return kvc_prefix_quota_set(session.cache, salt.data(), salt.size(), bytes, err);
}

// Polls everything that waits, two events at a time.
kvc_status events(Session& session, const Json& step, kvc_error* err) {
  std::map<int32_t, int64_t> counts;
  for (size_t count = 2; count > 0;) {
    kvc_event out[2]{};
    out[0].struct_size = sizeof out[0];
    const kvc_status status = kvc_events_poll(session.cache, out, &count, err);
    if (status != KVC_OK) return status;
    for (size_t i = 0; i < count; ++i) ++counts[out[i].type];
    if (count == 0) break;
    count = 2;
  }
  for (const auto& [name, type] : kEvents)
    EXPECT_EQ(counts[type], step.value("counts", Json::object()).value(name, int64_t{0})) << name;
  return KVC_OK;
}

}  // namespace

void add_prefix_steps(Handlers& handlers) {
  handlers["prefix_hash"] = prefix_hash;
  handlers["match"] = [](Session& s, const Json& step, kvc_error* err) {
    return with_query(s, step, err, [&](const kvc_prefix_query* query, int64_t* tokens) {
      return kvc_prefix_match(s.cache, query, tokens, err);
    });
  };
  handlers["attach"] = [](Session& s, const Json& step, kvc_error* err) {
    return with_query(s, step, err, [&](const kvc_prefix_query* query, int64_t* tokens) {
      return kvc_prefix_attach(s.cache, step.at("seq").get<kvc_seq>(), query, tokens, err);
    });
  };
  handlers["insert"] = [](Session& s, const Json& step, kvc_error* err) {
    return with_query(s, step, err, [&](const kvc_prefix_query* query, int64_t* tokens) {
      return kvc_prefix_insert(s.cache, step.at("seq").get<kvc_seq>(), query, tokens, err);
    });
  };
  handlers["pin"] = [](Session& s, const Json& step, kvc_error* err) {
    return with_query(s, step, err, [&](const kvc_prefix_query* query, int64_t* tokens) {
      return kvc_prefix_pin(s.cache, query, tokens, err);
    });
  };
  handlers["unpin"] = [](Session& s, const Json& step, kvc_error* err) {
    return with_query(s, step, err, [&](const kvc_prefix_query* query, int64_t* tokens) {
      return kvc_prefix_unpin(s.cache, query, tokens, err);
    });
  };
  handlers["evict"] = evict;
  handlers["prefix_reset"] = [](Session& s, const Json&, kvc_error* err) {
    return kvc_prefix_reset(s.cache, err);
  };
  handlers["quota"] = quota;
  handlers["events"] = events;
}

}  // namespace kvc::conformance
