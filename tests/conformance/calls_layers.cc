// Calls inside an open forward, on the handle of the last one when none is open.
#include <gtest/gtest.h>

#include "tests/conformance/player.h"

namespace kvc::conformance {
namespace {

kvc_status begin(Call& c) {
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.seqs = c.list<kvc_seq>("seqs", &desc.num_seqs);
  desc.append_lengths = c.list<int64_t>("lengths");
  desc.tree_parents = c.list<int32_t>("tree_parents");
  desc.tokens = c.list<int32_t>("tokens");
  desc.cross_lengths = c.list<int64_t>("cross_lengths");
  desc.positions = c.host_in("positions");
  if (c.step.get("partial", false)) desc.flags |= KVC_FORWARD_PARTIAL;
  kvc_forward* opened = nullptr;
  const kvc_status status = kvc_forward_begin(c.player.cache, &desc, &opened, c.err);
  EXPECT_EQ(opened != nullptr, status == KVC_OK) << "outputs are written on success only";
  if (status != KVC_OK) return status;
  c.expect_equal(kvc_forward_num_tokens(opened), "num_tokens");
  c.player.fwd = opened;
  c.player.open = true;
  return status;
}

kvc_status close(Call& c, kvc_status (*call)(kvc_forward*, kvc_error*)) {
  const kvc_status status = call(c.player.fwd, c.err);
  if (status == KVC_OK) c.player.open = false;
  return status;
}

// Every form of the table says the same: INDICES and PAGE_POSITION list what BLOCK_TABLE has, and
// SLOT_MAPPING points into it.
void check_forms(const Fields& step, const std::vector<std::vector<int64_t>>& tables) {
  const std::vector<int64_t>& indptr = tables[KVC_TABLE_INDPTR];
  const std::vector<int64_t>& blocks = tables[KVC_TABLE_BLOCK_TABLE];
  const auto new_tokens = step.get<std::vector<int64_t>>("new_tokens");
  const int64_t page_size = step.number("page_size");
  ASSERT_EQ(indptr.size(), new_tokens.size() + 1);
  const size_t width = blocks.size() / new_tokens.size();
  size_t token = 0;
  for (size_t entry = 0; entry < new_tokens.size(); ++entry) {
    std::vector<int64_t> pages, positions;
    for (size_t column = 0; column < width; ++column) {
      if (blocks[entry * width + column] < 0) continue;
      pages.push_back(blocks[entry * width + column]);
      positions.push_back(static_cast<int64_t>(column) * page_size);
    }
    const auto slice = [&](kvc_table_kind kind) {
      const auto& table = tables[static_cast<size_t>(kind)];
      return std::vector<int64_t>(table.begin() + indptr[entry], table.begin() + indptr[entry + 1]);
    };
    EXPECT_EQ(slice(KVC_TABLE_INDICES), pages) << "INDICES against BLOCK_TABLE, entry " << entry;
    EXPECT_EQ(slice(KVC_TABLE_PAGE_POSITION), positions) << "PAGE_POSITION, entry " << entry;
    const int64_t length = tables[KVC_TABLE_SEQ_LENS].at(entry);
    for (int64_t index = length - new_tokens[entry]; index < length; ++index, ++token) {
      const int64_t page = blocks.at(entry * width + static_cast<size_t>(index / page_size));
      EXPECT_EQ(tables[KVC_TABLE_SLOT_MAPPING].at(token), page * page_size + index % page_size)
          << "SLOT_MAPPING of new token " << token;
    }
  }
}

kvc_status tables(Call& c) {
  static const std::map<const char*, kvc_table_kind> kStated{
      {"indptr", KVC_TABLE_INDPTR},
      {"last_page_len", KVC_TABLE_LAST_PAGE_LEN},
      {"seq_lens", KVC_TABLE_SEQ_LENS},
      {"qo_indptr", KVC_TABLE_QO_INDPTR},
      {"page_position", KVC_TABLE_PAGE_POSITION}};
  const int32_t group = c.player.group_of(c.layer());
  std::vector<std::vector<int64_t>> all(8);
  for (kvc_table_kind kind = 0; kind < 8; ++kind) {
    DLManagedTensorVersioned* exported = nullptr;
    const kvc_table_kind wanted = c.step.get<int32_t>("kind", kind);
    const kvc_status status = kvc_export_page_table(c.player.fwd, group, wanted, &exported, c.err);
    if (status != KVC_OK) return status;
    all[static_cast<size_t>(kind)] = take_integers(exported);
  }
  if (c.step.has("kind")) return KVC_OK;
  for (const auto& [key, kind] : kStated)
    if (c.step.has(key)) {
      EXPECT_EQ(all[static_cast<size_t>(kind)], c.step.get<std::vector<int64_t>>(key)) << key;
      c.player.count_check();
    }
  check_forms(c.step, all);
  return KVC_OK;
}

}  // namespace

void add_layer_calls(std::map<std::string, Handler>& handlers) {
  handlers["begin"] = begin;
  handlers["tables"] = tables;
  handlers["end"] = [](Call& c) { return close(c, kvc_forward_end); };
  handlers["abort"] = [](Call& c) { return close(c, kvc_forward_abort); };
  handlers["positions"] = [](Call& c) {
    return kvc_forward_positions(c.player.fwd, c.out("out"), c.err);
  };
  handlers["attn"] = [](Call& c) {
    return kvc_attn(c.player.fwd, c.layer(), c.opt(), c.in("q"), c.in("k"), c.in("v"), c.out("out"),
                    c.out("lse"), c.err);
  };
  handlers["fused"] = [](Call& c) {
    return kvc_attn_fused_qkv(c.player.fwd, c.layer(), c.opt(), c.in("qkv"), c.out("out"), c.err);
  };
  handlers["self"] = [](Call& c) {
    return kvc_attn_self(c.player.fwd, c.layer(), c.opt(), c.in("q"), c.in("k"), c.in("v"),
                         c.out("out"), c.out("lse"), c.err);
  };
  handlers["cached"] = [](Call& c) {
    return kvc_attn_cached(c.player.fwd, c.layer(), c.opt(), c.in("q"), c.out("out"), c.out("lse"),
                           c.err);
  };
  handlers["cross"] = [](Call& c) {
    return kvc_attn_cross(c.player.fwd, c.layer(), c.opt(), c.in("q"), c.in("k"), c.in("v"),
                          c.out("out"), c.out("lse"), c.err);
  };
  handlers["shared_kv"] = [](Call& c) {
    return kvc_attn_shared_kv(c.player.fwd, c.step.get<int32_t>("source"), c.opt(), c.in("q"),
                              c.out("out"), c.out("lse"), c.err);
  };
  handlers["merge"] = [](Call& c) {
    return kvc_attn_merge(c.player.fwd, c.partial("into", "out"), c.partial("into", "lse"),
                          c.partial("other", "out"), c.partial("other", "lse"), c.err);
  };
  handlers["append"] = [](Call& c) {
    return kvc_kv_append(c.player.fwd, c.layer(), c.in("k"), c.in("v"), c.err);
  };
  handlers["mla_append"] = [](Call& c) {
    return kvc_mla_append(c.player.fwd, c.layer(), c.in("latent"), c.err);
  };
  handlers["gather"] = [](Call& c) {
    return kvc_kv_gather(c.player.fwd, c.layer(), c.seq(), c.out("k"), c.out("v"), c.err);
  };
  handlers["state_get"] = [](Call& c) {
    return kvc_state_get(c.player.fwd, c.layer(), c.state(), c.out("out"), c.err);
  };
  handlers["state_set"] = [](Call& c) {
    return kvc_state_set(c.player.fwd, c.layer(), c.state(), c.in("given"), c.err);
  };
  handlers["linear"] = [](Call& c) {
    return kvc_attn_linear(c.player.fwd, c.layer(), c.linear_opt(), c.in("q"), c.in("k"), c.in("v"),
                           c.in("decay"), c.in("beta"), c.out("out"), c.err);
  };
  handlers["conv"] = [](Call& c) {
    return kvc_state_conv(c.player.fwd, c.layer(), c.state(), c.in("x"), c.in("weight"),
                          c.in("bias"), c.step.get<int32_t>("activation"), c.out("out"), c.err);
  };
}

}  // namespace kvc::conformance
