// Calls on the plan, the cache, its sequences, what they store, and the prefix cache.
#include <gtest/gtest.h>

#include "tests/conformance/player.h"

namespace kvc::conformance {
namespace {

#define KVC_FIELD(field) \
  { #field, of.field }

Json fields_of(const kvc_layer_info& of) {
  return {KVC_FIELD(kind),
          KVC_FIELD(group),
          KVC_FIELD(num_q_heads),
          KVC_FIELD(num_kv_heads),
          KVC_FIELD(k_dim),
          KVC_FIELD(v_dim),
          KVC_FIELD(window),
          KVC_FIELD(chunk),
          KVC_FIELD(source_layer),
          KVC_FIELD(latent_rank),
          KVC_FIELD(latent_rope_dim),
          KVC_FIELD(num_states),
          KVC_FIELD(bytes_per_token),
          KVC_FIELD(state_bytes)};
}

#undef KVC_FIELD

kvc_layer_info layer_info(const kvc_plan* plan, const std::string& layer) {
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_layer_get(plan, std::stoi(layer), &info, nullptr), KVC_OK)
      << "layer " << layer;
  return info;
}

kvc_plan_info plan_info(const kvc_plan* plan) {
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
  return info;
}

void check_plan(Call& c, const kvc_plan* plan) {
  c.expect_equal(plan_info(plan).num_groups, "groups");
  for (const auto& [layer, fields] : c.step.members("layers"))
    for (const auto& [field, wanted] : fields.items()) {
      EXPECT_EQ(fields_of(layer_info(plan, layer)).at(field), wanted)
          << field << " of layer " << layer;
      c.player.count_check();
    }
  // Equal numbers: the layers share a page table; different ones: they do not; -1: the layer has
  // none.
  std::map<int32_t, int32_t> stated, found;
  for (const auto& [layer, number] : c.step.members("layer_groups")) {
    const int32_t group = layer_info(plan, layer).group, wanted = number.get<int32_t>();
    c.player.count_check();
    if (wanted == -1 || group == -1) {
      EXPECT_EQ(group, wanted) << "group of layer " << layer;
      continue;
    }
    EXPECT_EQ(stated.emplace(wanted, group).first->second, group) << "layer " << layer;
    EXPECT_EQ(found.emplace(group, wanted).first->second, wanted) << "layer " << layer;
  }
  for (const auto& [tokens, wanted] : c.step.members("request_pages")) {
    int64_t pages = -1;
    EXPECT_EQ(kvc_plan_request_pages(plan, std::stoll(tokens), &pages, nullptr), KVC_OK);
    EXPECT_EQ(pages, wanted.get<int64_t>()) << "pages of a request of " << tokens << " tokens";
    c.player.count_check();
  }
}

// Plans the step's own configuration, or asks about the plan of the case.
kvc_status plan(Call& c) {
  if (!c.step.has("config")) {
    check_plan(c, c.player.plan);
    return KVC_OK;
  }
  const Config config(c.step.object("config"), c.player.isa);
  kvc_plan* made = nullptr;
  const kvc_status status = kvc_plan_create(&config.call(), &made, c.err);
  if (status == KVC_OK) check_plan(c, made);
  EXPECT_EQ(made != nullptr, status == KVC_OK) << "outputs are written on success only";
  kvc_plan_destroy(made);
  return status;
}

kvc_status can_append(Call& c) {
  size_t count = 0;
  const kvc_seq* seqs = c.list<kvc_seq>("seqs", &count);
  return kvc_seq_can_append(c.player.cache, count, seqs, c.list<int64_t>("lengths"),
                            c.answer("missing"), c.err);
}

kvc_status commit(Call& c) {
  size_t count = 0;
  const kvc_seq* seqs = c.list<kvc_seq>("seqs", &count);
  return kvc_tree_commit(c.player.cache, count, seqs, c.list<int32_t>("leaves"), nullptr, c.err);
}

kvc_status save(Call& c) {
  size_t count = 0;
  const kvc_seq* seqs = c.list<kvc_seq>("seqs", &count);
  kvc_save_desc desc{};
  desc.struct_size = sizeof desc;
  uint64_t bytes = 0;
  kvc_status status = kvc_seq_save(c.player.cache, count, seqs, &desc, nullptr, &bytes, c.err);
  const auto name = c.step.get<std::string>("file");
  if (status != KVC_OK) return status;
  std::vector<char>& file = c.player.files[name];
  file.resize(bytes);
  desc.data = file.data();
  desc.size = file.size();
  return kvc_seq_save(c.player.cache, count, seqs, &desc, nullptr, nullptr, c.err);
}

kvc_status load(Call& c) {
  size_t count = 0;
  const kvc_seq* seqs = c.list<kvc_seq>("seqs", &count);
  std::vector<char> file = c.player.files.at(c.step.get<std::string>("file"));
  if (c.step.has("flip")) file[static_cast<size_t>(c.step.number("flip")) % file.size()] ^= 1;
  kvc_load_desc desc{};
  desc.struct_size = sizeof desc;
  desc.data = file.data();
  desc.size = file.size();
  return kvc_seq_load(c.player.cache, &desc, count, seqs, nullptr, c.err);
}

// With `num_tokens` the senders have not computed all of them yet, and both sides stay open.
kvc_status transfer(Call& c) {
  kvc_cache* cache = c.player.cache;
  const auto seq = c.step.get<kvc_seq>("seq");
  std::vector<kvc_cache*> senders;
  for (const auto& name : c.step.get("senders", std::vector<std::string>{}))
    senders.push_back(c.player.cache_of(name));
  if (senders.empty()) senders.push_back(cache);
  kvc_recv_desc recv{};
  recv.struct_size = sizeof recv;
  recv.seq = c.step.get<kvc_seq>("to");
  recv.begin = c.step.number("begin");
  recv.flags = c.step.get<bool>("publish") ? KVC_TRANSFER_PUBLISH : 0;
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  kvc_status status = kvc_seq_info_get(senders[0], seq, &info, c.err);
  if (status != KVC_OK) return status;
  recv.num_tokens = c.step.get("num_tokens", info.length - recv.begin);
  recv.cross_length = recv.begin == 0 ? info.cross_length : 0;
  recv.sender_tp_size = static_cast<int32_t>(senders.size());
  auto all = std::make_unique<Transfer>();
  kvc_transport_desc open{};
  open.struct_size = sizeof open;
  status = kvc_transport_open(&open, &all->transport, c.err);
  if (status != KVC_OK) return status;
  status = kvc_transfer_recv(cache, all->transport, &recv, &all->receiving, c.err);
  if (status != KVC_OK) return status;
  char ticket[4096];
  size_t size = sizeof ticket;
  status = kvc_transfer_ticket(all->receiving, ticket, &size, c.err);
  if (status != KVC_OK) return status;
  kvc_send_desc send{};
  send.struct_size = sizeof send;
  send.seq = seq;
  send.begin = recv.begin;
  send.ticket = ticket;
  send.ticket_len = size;
  send.mode = c.step.has("num_tokens") ? KVC_SEND_AS_COMPUTED : KVC_SEND_NOW;
  send.tp_size = static_cast<int32_t>(senders.size());
  for (; status == KVC_OK && send.tp_rank < send.tp_size; ++send.tp_rank) {
    all->sending.push_back(nullptr);
    status = kvc_transfer_send(senders.at(static_cast<size_t>(send.tp_rank)), all->transport, &send,
                               &all->sending.back(), c.err);
  }
  if (status != KVC_OK || send.mode == KVC_SEND_NOW) return all->wait(status, c.err);
  c.player.transfer = std::move(all);
  return KVC_OK;
}

kvc_status export_pool(Call& c) {
  DLManagedTensorVersioned* exported = nullptr;
  const kvc_status status =
      kvc_export_pool(c.player.cache, c.layer(), c.step.get<int32_t>("kind"), &exported, c.err);
  if (status != KVC_OK) return status;
  const DLTensor& tensor = exported->dl_tensor;
  if (c.step.has("shape")) {
    EXPECT_EQ(std::vector<int64_t>(tensor.shape, tensor.shape + tensor.ndim),
              c.step.get<std::vector<int64_t>>("shape"));
    c.player.count_check();
  }
  exported->deleter(exported);
  return status;
}

// What a query of the prefix cache borrows.
struct Query {
  explicit Query(const Fields& step)
      : tokens(step.get<std::vector<int32_t>>("tokens")), salt(step.get<std::string>("salt", "")) {
    const size_t count = step.has("keys") ? step.at("keys").size() : 0;
    data.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const Fields json(step.at("keys")[i]);
      data[i] = json.get<std::string>("data");
      kvc_prefix_key key{};
      key.struct_size = sizeof key;
      key.type = json.get<uint32_t>("type");
      key.offset = json.number("offset");
      key.data = data[i].data();
      key.size = data[i].size();
      keys.push_back(key);
    }
    call.struct_size = sizeof call;
    call.flags = step.get("flags", uint64_t{0});
    call.num_tokens = step.get("num_tokens", static_cast<int64_t>(tokens.size()));
    call.tokens = tokens.data();
    call.salt = salt.data();
    call.salt_size = salt.size();
    call.keys = keys.data();
    call.num_keys = keys.size();
    call.priority = step.get("priority", 0);
  }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  kvc_status hash(int32_t block, kvc_error* err) {
    size_t len = 0;
    const auto call_it = [&](uint8_t* buffer) {
      return kvc_prefix_hash(tokens.data(), tokens.size(), block, salt.data(), salt.size(),
                             keys.data(), keys.size(), buffer, &len, err);
    };
    const kvc_status status = call_it(nullptr);
    if (status != KVC_OK) return status;
    hashes.assign(len * KVC_HASH_BYTES + 1, 0xEE);
    EXPECT_EQ(call_it(hashes.data()), KVC_OK);
    EXPECT_EQ(hashes.back(), 0xEE) << "behind the last key";
    hashes.resize(len * KVC_HASH_BYTES);
    return KVC_OK;
  }

  std::vector<int32_t> tokens;
  std::string salt;
  std::vector<std::string> data;
  std::vector<kvc_prefix_key> keys;
  std::vector<uint8_t> hashes;
  kvc_prefix_query call{};
};

// Calls with the query of the step; keys of blocks stand instead of, or beside, its tokens where it
// says so.
template <class Function>
kvc_status with_query(Call& c, Function function) {
  Query query(c.step);
  if (c.step.has("hashes")) {
    const kvc_status status = query.hash(plan_info(c.player.plan).prefix_block, c.err);
    if (status != KVC_OK) return status;
    const Json& how = c.step.at("hashes");
    query.call.hashes = query.hashes.data();
    query.call.num_hashes =
        how.is_number() ? how.get<size_t>() : query.hashes.size() / KVC_HASH_BYTES;
    if (how == "only") query.call.tokens = nullptr;
  }
  return function(&query.call, c.answer("hit"));
}

template <auto kFunction>
kvc_status by_query(Call& c) {
  return with_query(c, [&](const kvc_prefix_query* query, int64_t* hit) {
    return kFunction(c.player.cache, query, hit, c.err);
  });
}

template <auto kFunction>
kvc_status by_seq_and_query(Call& c) {
  return with_query(c, [&](const kvc_prefix_query* query, int64_t* hit) {
    return kFunction(c.player.cache, c.seq(), query, hit, c.err);
  });
}

kvc_status prefix_hash(Call& c) {
  Query query(c.step);
  const kvc_status status = query.hash(c.step.get<int32_t>("block"), c.err);
  if (status != KVC_OK) return status;
  std::vector<std::string> keys;
  for (size_t at = 0; at < query.hashes.size(); ++at) {
    if (at % KVC_HASH_BYTES == 0) keys.emplace_back();
    for (const int nibble : {query.hashes[at] >> 4, query.hashes[at] & 15})
      keys.back() += "0123456789abcdef"[nibble];
  }
  EXPECT_EQ(keys, c.step.get<std::vector<std::string>>("values"));
  c.player.count_check();
  return status;
}

kvc_status quota(Call& c) {
  const auto salt = c.step.get<std::string>("salt");
  const uint64_t bytes = plan_info(c.player.plan).page_bytes * c.step.get<uint64_t>("pages");
  return kvc_prefix_quota_set(c.player.cache, salt.data(), salt.size(), bytes, c.err);
}

// Polls everything that waits, two events at a time.
kvc_status events(Call& c) {
  static const std::vector<std::string> kNames{"STORED", "REMOVED", "MOVED", "CLEARED"};
  Json counts = Json::object();
  for (size_t count = 2; count > 0;) {
    kvc_event out[2]{};
    out[0].struct_size = sizeof out[0];
    count = 2;
    const kvc_status status = kvc_events_poll(c.player.cache, out, &count, c.err);
    if (status != KVC_OK) return status;
    for (size_t i = 0; i < count; ++i) {
      Json& sum = counts[kNames.at(static_cast<size_t>(out[i].type))];
      sum = (sum.is_null() ? 0 : sum.get<int64_t>()) + 1;
    }
  }
  for (const std::string& name : kNames)
    EXPECT_EQ(counts.value(name, 0), c.step.object("counts").get(name.c_str(), 0)) << name;
  c.player.count_check();
  return KVC_OK;
}

}  // namespace

Transfer::~Transfer() {
  for (kvc_transfer* one : sending) kvc_transfer_destroy(one);
  kvc_transfer_destroy(receiving);
  kvc_transport_destroy(transport);
}

kvc_status Transfer::wait(kvc_status status, kvc_error* err) const {
  constexpr int64_t kMinute = 60'000'000'000;
  for (size_t i = 0; i < sending.size() && status == KVC_OK; ++i)
    status = kvc_transfer_wait(sending[i], kMinute, err);
  if (status == KVC_OK) return kvc_transfer_wait(receiving, kMinute, err);
  EXPECT_EQ(kvc_transfer_cancel(receiving, nullptr), KVC_OK);
  EXPECT_NE(kvc_transfer_wait(receiving, kMinute, nullptr), KVC_OK);
  return status;
}

void add_cache_calls(std::map<std::string, Handler>& handlers) {
  handlers["plan"] = plan;
  handlers["add"] = [](Call& c) { return kvc_seq_add(c.player.cache, c.seq(), c.err); };
  handlers["remove"] = [](Call& c) { return kvc_seq_remove(c.player.cache, c.seq(), c.err); };
  handlers["checkpoint"] = [](Call& c) {
    return kvc_state_checkpoint(c.player.cache, c.seq(), c.err);
  };
  handlers["release"] = [](Call& c) {
    return kvc_state_checkpoint_release(c.player.cache, c.seq(), c.step.number("pos"), c.err);
  };
  handlers["fork"] = [](Call& c) {
    return kvc_seq_fork(c.player.cache, c.step.number("parent"), c.step.number("child"),
                        c.step.number("pos"), c.err);
  };
  handlers["pop"] = [](Call& c) {
    return kvc_seq_pop(c.player.cache, c.seq(), c.step.number("n"), c.err);
  };
  handlers["shift"] = [](Call& c) {
    return kvc_seq_shift(c.player.cache, c.seq(), c.step.number("begin"), c.step.number("end"),
                         c.step.number("delta"), c.err);
  };
  handlers["set_window"] = [](Call& c) {
    return kvc_seq_set_window(c.player.cache, c.seq(), c.step.number("window"),
                              c.step.number("sink"), c.err);
  };
  handlers["clear"] = [](Call& c) { return kvc_cache_clear(c.player.cache, c.err); };
  handlers["resize"] = [](Call& c) {
    return kvc_cache_resize(c.player.cache, c.step.number("num_pages"), c.err);
  };
  handlers["can_append"] = can_append;
  handlers["can"] = [](Call& c) {
    return kvc_seq_can(c.player.cache, c.seq(), c.step.get<int32_t>("what"), c.step.number("pos"),
                       c.answer("nearest"), c.err);
  };
  handlers["around"] = [](Call& c) {
    return kvc_seq_positions(c.player.cache, c.seq(), c.step.get<int32_t>("what"),
                             c.step.number("pos"), c.answer("below"), c.answer("above"), c.err);
  };
  handlers["commit"] = commit;
  handlers["save"] = save;
  handlers["transfer"] = transfer;
  handlers["arrive"] = [](Call& c) {
    const std::unique_ptr<Transfer> all = std::move(c.player.transfer);
    return all->wait(KVC_OK, c.err);
  };
  handlers["load"] = load;
  handlers["export_pool"] = export_pool;
  handlers["stored"] = [](Call& c) {
    return kvc_debug_get_layer(c.player.cache, c.seq(), c.layer(), c.step.number("begin"),
                               c.step.number("end"), c.out("k"), c.out("v"), nullptr, c.err);
  };
  handlers["stored_kv"] = [](Call& c) {
    return kvc_debug_get_kv(c.player.cache, c.seq(), c.step.number("begin"), c.step.number("end"),
                            c.out("k"), c.out("v"), nullptr, c.err);
  };
  handlers["stored_mla"] = [](Call& c) {
    return kvc_debug_get_mla(c.player.cache, c.seq(), c.step.number("begin"), c.step.number("end"),
                             c.out("k"), nullptr, c.err);
  };
  handlers["stored_state"] = [](Call& c) {
    return kvc_debug_get_state(c.player.cache, c.seq(), c.layer(), c.state(), c.out("out"), nullptr,
                               c.err);
  };
  handlers["store"] = [](Call& c) {
    return kvc_debug_set_layer(c.player.cache, c.seq(), c.layer(), c.step.number("begin"),
                               c.in("k"), c.in("v"), nullptr, c.err);
  };
  handlers["store_kv"] = [](Call& c) {
    return kvc_debug_set_kv(c.player.cache, c.seq(), c.step.number("begin"), c.in("k"), c.in("v"),
                            nullptr, c.err);
  };
  handlers["store_mla"] = [](Call& c) {
    return kvc_debug_set_mla(c.player.cache, c.seq(), c.step.number("begin"), c.in("k"), nullptr,
                             c.err);
  };
  handlers["store_state"] = [](Call& c) {
    return kvc_debug_set_state(c.player.cache, c.seq(), c.layer(), c.state(), c.in("given"),
                               nullptr, c.err);
  };
  handlers["prefix_hash"] = prefix_hash;
  handlers["match"] = by_query<kvc_prefix_match>;
  handlers["attach"] = by_seq_and_query<kvc_prefix_attach>;
  handlers["insert"] = by_seq_and_query<kvc_prefix_insert>;
  handlers["pin"] = by_query<kvc_prefix_pin>;
  handlers["unpin"] = by_query<kvc_prefix_unpin>;
  handlers["evict"] = [](Call& c) {
    return kvc_prefix_evict(c.player.cache, c.step.number("pages"), c.answer("freed"), c.err);
  };
  handlers["prefix_reset"] = [](Call& c) { return kvc_prefix_reset(c.player.cache, c.err); };
  handlers["quota"] = quota;
  handlers["events"] = events;
}

}  // namespace kvc::conformance
