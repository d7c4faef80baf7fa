// Calls of the stateless operators, over pools that the case makes. Their tensors lie on the host.
#include "tests/conformance/player.h"

namespace kvc::conformance {
namespace {

HostPool& pool_of(Call& c) { return c.player.pools.at(c.step.get<std::string>("pool")); }

kvc_status make_pool(Call& c) {
  HostPool& pool = c.player.pools[c.step.get<std::string>("pool")];
  pool.call.struct_size = sizeof pool.call;
  pool.call.layout = c.step.get<int32_t>("layout");
  pool.call.quant = c.step.get("quant", kvc_quant{KVC_QUANT_NONE});
  pool.call.k_scale = c.step.get("k_scale", 0.0f);
  pool.call.v_scale = c.step.get("v_scale", 0.0f);
  const auto make = [&](const char* key, HostTensor& tensor) -> const DLTensor* {
    if (!c.step.has(key)) return nullptr;
    tensor = HostTensor(c.step.object(key));
    return tensor.host_view();
  };
  pool.call.k = make("k", pool.k);
  pool.call.v = make("v", pool.v);
  pool.call.k_scales = make("k_scales", pool.k_scales);
  pool.call.v_scales = make("v_scales", pool.v_scales);
  return KVC_OK;
}

kvc_status quantize(Call& c) {
  uint64_t saturated = 0;
  DLTensor* scales = c.step.has("scales") ? c.host_in("scales") : c.host_out("out_scales");
  const kvc_status status =
      kvc_op_quantize(c.op_opt(), c.step.get<kvc_quant>("quant"), c.host_in("x"), c.host_out("out"),
                      scales, &saturated, c.err);
  if (status == KVC_OK) c.expect_equal(static_cast<int64_t>(saturated), "saturated");
  return status;
}

kvc_status copy_pages(Call& c) {
  const auto pairs = c.step.get<std::vector<std::vector<int64_t>>>("pairs");
  HostTensor list({static_cast<int64_t>(pairs.size()), 2}, dtype_of("i64"));
  int64_t index = 0;
  for (const auto& pair : pairs)
    for (const int64_t page : pair) list.set(index++, static_cast<double>(page));
  return kvc_op_copy_pages(&pool_of(c).call, c.op_opt(), list.host_view(), c.err);
}

kvc_status rotate(Call& c) {
  if (c.step.get<bool>("in_place")) {
    DLTensor* x = c.in_place("x", "out");
    return kvc_op_rotate(c.op_opt(), x, x, c.err);
  }
  return kvc_op_rotate(c.op_opt(), c.host_in("x"), c.host_out("out"), c.err);
}

}  // namespace

void add_operator_calls(std::map<std::string, Handler>& handlers) {
  handlers["op_pool"] = make_pool;
  handlers["op_copy_pages"] = copy_pages;
  handlers["op_rotate"] = rotate;
  handlers["op_quantize"] = quantize;
  handlers["op_dequantize"] = [](Call& c) {
    return kvc_op_dequantize(c.op_opt(), c.step.get<kvc_quant>("quant"), c.host_in("x"),
                             c.host_in("scales"), c.host_out("out"), c.err);
  };
  handlers["op_append"] = [](Call& c) {
    return kvc_op_append(&pool_of(c).call, c.op_opt(), c.host_in("slots"), c.host_in("k"),
                         c.host_in("v"), c.err);
  };
  handlers["op_attention"] = [](Call& c) {
    return kvc_op_attention_paged(&pool_of(c).call, c.table(), c.op_opt(), c.host_in("q"),
                                  c.host_out("out"), c.host_out("lse"), c.err);
  };
  handlers["op_mla"] = [](Call& c) {
    return kvc_op_mla_paged(&pool_of(c).call, c.table(), c.step.get<int32_t>("latent_rank"),
                            c.op_opt(), c.host_in("q"), c.host_out("out"), c.host_out("lse"),
                            c.err);
  };
  handlers["op_ragged"] = [](Call& c) {
    return kvc_op_attention_ragged(c.host_in("qo_indptr"), c.host_in("kv_indptr"), c.op_opt(),
                                   c.host_in("q"), c.host_in("k"), c.host_in("v"),
                                   c.host_out("out"), c.host_out("lse"), c.err);
  };
  handlers["op_merge"] = [](Call& c) {
    return kvc_op_merge(c.op_opt(), c.in_place("out", "want_out"), c.in_place("lse", "want_lse"),
                        c.host_in("other_out"), c.host_in("other_lse"), c.err);
  };
  handlers["op_gather"] = [](Call& c) {
    return kvc_op_gather(&pool_of(c).call, c.table(), c.op_opt(), c.host_out("k"), c.host_out("v"),
                         c.err);
  };
  handlers["op_linear"] = [](Call& c) {
    return kvc_op_linear_step(c.linear_opt(), c.op_opt(), c.host_in("qo_indptr"),
                              c.in_place("states", "want_states"), c.host_in("q"), c.host_in("k"),
                              c.host_in("v"), c.host_in("decay"), c.host_in("beta"),
                              c.host_out("out"), c.err);
  };
}

}  // namespace kvc::conformance
