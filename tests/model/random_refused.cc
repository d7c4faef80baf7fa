// Calls that are wrong in one way: each answers its status and changes nothing.
#include "tests/model/random_run.h"

namespace kvc::test {

void RandomRun::op_refused() {
  trace("refused calls");
  kvc_cache* cache = setup_.cache();
  int64_t number = 0;
  kvc_seq_info info{};
  refuse("kvc_seq_info_get", KVC_E_INVALID_ARGUMENT,
         [&](kvc_error* err) { return kvc_seq_info_get(cache, 0, &info, err); });
  refuse("kvc_seq_length", KVC_E_NOT_FOUND,
         [&](kvc_error* err) { return kvc_seq_length(cache, 1000, &number, err); });
  refuse("kvc_seq_length", KVC_E_NOT_FOUND,
         [&](kvc_error* err) { return kvc_seq_length(cache, -1, &number, err); });
  refuse("kvc_seq_length", KVC_E_INVALID_ARGUMENT,
         [&](kvc_error* err) { return kvc_seq_length(cache, 0, nullptr, err); });
  refuse("kvc_seq_shift", KVC_E_NOT_FOUND,
         [&](kvc_error* err) { return kvc_seq_shift(cache, 1000, 0, 0, 0, err); });
  refuse("kvc_tree_commit", KVC_E_INVALID_ARGUMENT,
         [&](kvc_error* err) { return kvc_tree_commit(cache, 0, nullptr, nullptr, nullptr, err); });
  DLManagedTensorVersioned* exported = nullptr;
  if (num_groups() > 0) {
    refuse("kvc_export_seq_pages", KVC_E_NOT_FOUND,
           [&](kvc_error* err) { return kvc_export_seq_pages(cache, 1000, 0, &exported, err); });
  }
  const auto groups = static_cast<int32_t>(num_groups());
  refuse("kvc_export_seq_pages", KVC_E_OUT_OF_RANGE,
         [&](kvc_error* err) { return kvc_export_seq_pages(cache, 1000, groups, &exported, err); });
  refuse("kvc_export_pool", setup_.has_data() ? KVC_E_OUT_OF_RANGE : KVC_E_UNSUPPORTED,
         [&](kvc_error* err) { return kvc_export_pool(cache, 99, KVC_POOL_K, &exported, err); });
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  kvc_forward* opened = nullptr;
  refuse("kvc_forward_begin", model_.is_open() ? KVC_E_BUSY : KVC_E_INVALID_ARGUMENT,
         [&](kvc_error* err) { return kvc_forward_begin(cache, &desc, &opened, err); });
  desc.flags = uint64_t{1} << 40;
  refuse("kvc_forward_begin", KVC_E_UNSUPPORTED,
         [&](kvc_error* err) { return kvc_forward_begin(cache, &desc, &opened, err); });
  if (setup_.has_data()) {
    for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
      const NaiveLayer& spec = setup_.layers()[layer];
      const kvc_pool_kind kind = spec.v_in_k ? KVC_POOL_V : KVC_POOL_K;
      if ((spec.has_pages() || spec.source >= 0) && !spec.v_in_k) continue;
      refuse("kvc_export_pool", KVC_E_UNSUPPORTED, [&](kvc_error* err) {
        return kvc_export_pool(cache, setup_.global_layer(layer), kind, &exported, err);
      });
    }
  }
  if (model_.is_open()) refuse_in_forward();
  if (exported != nullptr || opened != nullptr) mismatch("a refused call wrote its result");
}

void RandomRun::refuse_in_forward() {
  HostTensor wrong(Elem::kF32, {1, 1, 1});
  DLManagedTensorVersioned* exported = nullptr;
  refuse("kvc_attn", KVC_E_OUT_OF_RANGE, [&](kvc_error* err) {
    return kvc_attn(forward_, 99, nullptr, wrong.dl(), nullptr, nullptr, wrong.dl(), nullptr, err);
  });
  if (num_groups() > 0) {
    refuse("kvc_export_page_table", KVC_E_INVALID_ARGUMENT,
           [&](kvc_error* err) { return kvc_export_page_table(forward_, 0, 77, &exported, err); });
  }
  refuse("kvc_export_page_table", KVC_E_OUT_OF_RANGE, [&](kvc_error* err) {
    return kvc_export_page_table(forward_, static_cast<int32_t>(num_groups()), KVC_TABLE_INDICES,
                                 &exported, err);
  });
  if (exported != nullptr) mismatch("a refused export wrote its result");
  refuse_layers();
}

// Functions of one kind of layer on layers of the others.
void RandomRun::refuse_layers() {
  HostTensor wrong(Elem::kF32, {1, 1, 1});
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    const kvc_layer_kind kind = setup_.layers()[layer].kind;
    const int32_t id = setup_.global_layer(layer);
    Expected expected;
    expected.errors.insert(setup_.has_data() ? KVC_E_INVALID_STATE : KVC_E_UNSUPPORTED);
    if (!setup_.has_data()) expected.errors.insert(KVC_E_INVALID_STATE);
    const bool any = !setup_.has_data();  // without storage every kind is refused
    if (any || kind != KVC_LAYER_ATTENTION) {
      agree("kvc_kv_append", expected, [&](kvc_error* err) {
        return kvc_kv_append(forward_, id, wrong.dl(), wrong.dl(), err);
      });
    }
    if (any || kind != KVC_LAYER_MLA) {
      agree("kvc_mla_append", expected,
            [&](kvc_error* err) { return kvc_mla_append(forward_, id, wrong.dl(), err); });
    }
    if (any || kind != KVC_LAYER_CROSS) {
      agree("kvc_attn_cross", expected, [&](kvc_error* err) {
        return kvc_attn_cross(forward_, id, nullptr, wrong.dl(), nullptr, nullptr, wrong.dl(),
                              nullptr, err);
      });
    }
    if (any || kind != KVC_LAYER_STATE) {
      agree("kvc_state_get", expected,
            [&](kvc_error* err) { return kvc_state_get(forward_, id, 0, wrong.dl(), err); });
      agree("kvc_state_set", expected,
            [&](kvc_error* err) { return kvc_state_set(forward_, id, 0, wrong.dl(), err); });
      agree("kvc_attn_linear", expected, [&](kvc_error* err) {
        return kvc_attn_linear(forward_, id, nullptr, wrong.dl(), wrong.dl(), wrong.dl(), nullptr,
                               nullptr, wrong.dl(), err);
      });
    }
    if (any || kind == KVC_LAYER_CROSS || kind == KVC_LAYER_STATE || kind == KVC_LAYER_NONE) {
      agree("kvc_attn", expected, [&](kvc_error* err) {
        return kvc_attn(forward_, id, nullptr, wrong.dl(), nullptr, nullptr, wrong.dl(), nullptr,
                        err);
      });
      agree("kvc_attn_shared_kv", expected, [&](kvc_error* err) {
        return kvc_attn_shared_kv(forward_, id, nullptr, wrong.dl(), wrong.dl(), nullptr, err);
      });
    }
  }
  if (wrong.is_untouched() == false) mismatch("a refused call wrote its output");
}

}  // namespace kvc::test
