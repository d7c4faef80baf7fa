#include "src/cache/layer_call.h"

#include <string>

#include "src/base/error.h"
#include "src/cache/cache_core.h"
#include "src/cache/key_leads.h"
#include "src/plan/names.h"

namespace kvc {
namespace {

// "ATTENTION (0), MLA (1) or SHARED (4)"
std::string kinds_text(uint32_t kinds) {
  std::string text;
  for (kvc_layer_kind kind = KVC_LAYER_ATTENTION; kinds != 0; ++kind) {
    if ((kinds & kind_bit(kind)) == 0) continue;
    kinds &= ~kind_bit(kind);
    if (!text.empty()) text += kinds == 0 ? " or " : ", ";
    text += std::string(layer_kind_name(kind)) + " (" + std::to_string(kind) + ")";
  }
  return text;
}

}  // namespace

LayerCall::LayerCall(CacheCore& core, int32_t id, const char* function, uint32_t kinds)
    : layer(core.layer(core.require_layer(id))),
      core_(core),
      id_(id),
      local_(core.plan->local_layer(id)) {
  if ((kinds & kind_bit(layer.kind)) == 0) {
    fail_with(KVC_E_INVALID_STATE, layer.kind, "%s: layer %d is of kind %s (%d), expected %s",
              function, id, layer_kind_name(layer.kind), layer.kind, kinds_text(kinds).c_str());
  }
  core.require_storage(function);
  core.require_readable(local_, function);
  source_id_ = core.spec().layer_begin + layer.source;
  num_rows_ = core.forward.batch().num_rows();
  device_ = core.spec().device;
}

int64_t LayerCall::num_cross_rows() const { return core_.forward.batch().num_cross_rows(); }

int64_t LayerCall::max_num_keys() const { return core_.forward.batch().longest(is_cross()); }

void LayerCall::read_spans(const DLTensor* spans, std::vector<Span>* out) const {
  kvc::read_spans(spans, core_.forward.batch(), out);
}

// Rows that the host's own kernels write are not known of.
bool LayerCall::has_new_rows_written() const {
  return core_.forward.written().is_appended(layer.source) || core_.host_can_write_pool();
}

void LayerCall::require_appended() const {
  if (has_new_rows_written()) return;
  fail(KVC_E_INVALID_STATE,
       "layer %d: k and v are NULL, and nothing was appended to layer %d in this forward of %lld "
       "tokens",
       id_, source_id_, ll(num_rows_));
}

void LayerCall::attend(KeyScope scope, const AttnOptions& options, const AttnTensors& tensors,
                       bool is_mla_self) {
  core_.engine->attend(core_.forward, {layer, scope, is_mla_self}, options, tensors);
}

void LayerCall::append(const kernels::TokenRows& k, const kernels::TokenRows& v) {
  core_.engine->append(core_.forward, local_, k, v);
}

StoredTokens LayerCall::stored_tokens(kvc_seq seq) const {
  const Sequence& sequence = core_.sequences.get_on_device(seq, "gather");
  StoredTokens tokens{&sequence.tables[core_.layer(layer.source).group], seq,
                      sequence.stored(is_cross()), false, is_cross() ? KeyLead{} : sequence.lead};
  if (const BatchEntry* entry = core_.entry_of(sequence); entry != nullptr) {
    tokens.length = entry->new_stored(is_cross());
    tokens.grows = tokens.length > entry->old_stored(is_cross());
  }
  return tokens;
}

void LayerCall::gather(const StoredTokens& tokens, const kernels::TokenRows& k,
                       const kernels::TokenRows& v) {
  if (!tokens.table->keeps(0, tokens.length)) {
    fail_with(KVC_E_OUT_OF_RANGE, tokens.table->kept_begin,
              "layer %d: a window of sequence %lld has dropped tokens before %lld", id_,
              ll(tokens.seq), ll(tokens.table->kept_begin));
  }
  if (tokens.grows && !has_new_rows_written()) {
    fail_with(KVC_E_INVALID_STATE, id_,
              "layer %d: nothing was appended to it in this forward, which grows sequence %lld",
              id_, ll(tokens.seq));
  }
  if (tokens.length == 0) return;
  const int32_t page_size = core_.group_of(core_.layer(layer.source)).page_size;
  const LeadRotation back(core_.spec(), layer.source, tokens.lead);
  const auto gather_rows = [&](bool is_v, const kernels::PagedRows& rows,
                               const kernels::TokenRows& out, int32_t dim) {
    core_.engine->gather({layer.source, is_v},
                         {.rows = rows,
                          .pages = tokens.table->pages.data(),
                          .out = out,
                          .page_size = page_size,
                          .num_heads = layer.num_kv_heads,
                          .dim = dim,
                          .rotation = is_v ? kernels::Rotation{} : back.get(),
                          .rotate_from = tokens.lead.begin,
                          .gap = tokens.table->pages.gap()},
                         tokens.length);
  };
  if (k.base != nullptr) gather_rows(false, core_.pool.k_rows(layer.source), k, layer.k_dim);
  if (v.base != nullptr) gather_rows(true, core_.pool.v_rows(layer.source), v, layer.v_dim);
}

}  // namespace kvc
