// Models of every kind, saves to memory and loads from it: what the tests of state files share.
#pragma once

#include <string>
#include <vector>

#include "tests/capi/swap.h"

namespace kvc::test {

using Bytes = std::vector<uint8_t>;

inline kvc_save_desc save_desc() {
  kvc_save_desc desc{};
  desc.struct_size = sizeof desc;
  return desc;
}

inline kvc_load_desc load_desc() {
  kvc_load_desc desc{};
  desc.struct_size = sizeof desc;
  return desc;
}

inline kvc_load_desc load_desc(const Bytes& file) {
  kvc_load_desc desc = load_desc();
  desc.data = file.data();
  desc.size = file.size();
  return desc;
}

inline kvc_status save(const Cache& cache, const std::vector<kvc_seq>& seqs,
                       const kvc_save_desc& desc, kvc_error* err = nullptr) {
  return kvc_seq_save(cache.get(), seqs.size(), seqs.data(), &desc, nullptr, nullptr, err);
}

inline kvc_status load(const Cache& cache, const std::vector<kvc_seq>& seqs,
                       const kvc_load_desc& desc, kvc_error* err = nullptr) {
  return kvc_seq_load(cache.get(), &desc, seqs.size(), seqs.data(), nullptr, err);
}

inline kvc_status load(const Cache& cache, const std::vector<kvc_seq>& seqs, const Bytes& file,
                       kvc_error* err = nullptr) {
  return load(cache, seqs, load_desc(file), err);
}

// The file of these sequences; empty when saving failed.
inline Bytes saved(const Cache& cache, const std::vector<kvc_seq>& seqs,
                   const char* model_id = nullptr) {
  kvc_save_desc desc = save_desc();
  desc.model_id = model_id;
  kvc_error error{};
  uint64_t bytes = 0;
  const auto call = [&] {
    return kvc_seq_save(cache.get(), seqs.size(), seqs.data(), &desc, nullptr, &bytes, &error);
  };
  EXPECT_EQ(call(), KVC_OK) << error.message;
  Bytes file(bytes);
  desc.data = file.data();
  desc.size = file.size();
  EXPECT_EQ(call(), KVC_OK) << error.message;
  EXPECT_EQ(bytes, file.size());
  return file;
}

inline std::string described(const Bytes& file) {
  const kvc_load_desc desc = load_desc(file);
  size_t len = 0;
  kvc_error error{};
  EXPECT_EQ(kvc_state_file_describe(&desc, nullptr, &len, &error), KVC_OK) << error.message;
  std::string text(len, '\0');
  EXPECT_EQ(kvc_state_file_describe(&desc, text.data(), &len, &error), KVC_OK) << error.message;
  text.pop_back();
  return text;
}

inline std::string fingerprint(const kvc_plan* plan) {
  char text[128];
  size_t len = sizeof text;
  EXPECT_EQ(kvc_layout_fingerprint(plan, text, &len, nullptr), KVC_OK);
  return text;
}

}  // namespace kvc::test
