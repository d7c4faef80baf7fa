// The operations of SwapRun that save sequences and load them, whole and damaged.
#include <algorithm>

#include "tests/model/swap_rows.h"
#include "tests/model/swap_run.h"

namespace kvc::test {

kvc_status SwapRun::save(const std::vector<kvc_seq>& which, std::vector<uint8_t>* file) {
  kvc_save_desc desc{};
  desc.struct_size = sizeof desc;
  desc.user = file;
  desc.write = [](void* user, const void* data, size_t size) {
    auto& bytes = *static_cast<std::vector<uint8_t>*>(user);
    const auto* first = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), first, first + size);
    return 0;
  };
  file->reserve(1 << 18);  // The allocation that fails shall be one of the library's.
  return call_strong("kvc_seq_save", [&](kvc_error* err) {
    file->clear();
    return kvc_seq_save(cache_, which.size(), which.data(), &desc, nullptr, nullptr, err);
  });
}

kvc_status SwapRun::load(const std::vector<kvc_seq>& which, const std::vector<uint8_t>& file) {
  kvc_load_desc desc{};
  desc.struct_size = sizeof desc;
  desc.data = file.data();
  desc.size = file.size();
  return call_strong("kvc_seq_load", [&](kvc_error* err) {
    return kvc_seq_load(cache_, &desc, which.size(), which.data(), nullptr, err);
  });
}

void SwapRun::op_save() {
  const std::vector<kvc_seq> which = some_of(ids([](const Seq&) { return true; }), 4);
  if (which.empty()) return;
  File file;
  const kvc_status status = save(which, &file.bytes);
  const bool is_swapped =
      std::any_of(which.begin(), which.end(), [&](kvc_seq id) { return seqs_.at(id).is_swapped; });
  allow("kvc_seq_save", status, {is_swapped ? KVC_E_INVALID_STATE : KVC_OK});
  if (status != KVC_OK) return;
  note("saved " + std::to_string(which.size()) + " sequences from " +
       std::to_string(which.front()) + " on");
  for (const kvc_seq id : which) {
    file.seqs.push_back(seqs_.at(id));
    file.infos.push_back(info(id));
  }
  files_.push_back(std::move(file));
  if (files_.size() > 4) files_.pop_front();
}

void SwapRun::op_load() {
  if (files_.empty()) return;
  const File& file =
      files_[static_cast<size_t>(random_.range(0, static_cast<int64_t>(files_.size()) - 1))];
  std::vector<kvc_seq> which;
  for (size_t i = 0; i < file.seqs.size(); ++i) which.push_back(next_id_++);
  if (random_.chance(0.3)) return load_damaged(which, file.bytes);
  if (seqs_.size() + which.size() > kMostSeqs) return;
  const kvc_status status = load(which, file.bytes);
  allow("kvc_seq_load", status, {KVC_OK, KVC_E_NO_PAGES, KVC_E_NEVER_FITS});
  note("loaded from " + std::to_string(which.front()) + " on: " + kvc_status_name(status));
  if (status != KVC_OK) return;
  for (size_t i = 0; i < which.size(); ++i) {
    seqs_[which[i]] = file.seqs[i];
    const kvc_seq_info before = file.infos[i], after = info(which[i]);
    if (after.length != before.length || after.num_pages != before.num_pages ||
        after.first_position != before.first_position ||
        after.last_position != before.last_position || after.window != before.window ||
        after.sink != before.sink || after.cross_length != before.cross_length ||
        after.num_checkpoints != before.num_checkpoints)
      fail("the info of sequence " + std::to_string(which[i]) + " is not what was saved");
    check_contents(which[i]);
  }
  check_counts();
}

void SwapRun::load_damaged(const std::vector<kvc_seq>& which, std::vector<uint8_t> bytes) {
  const auto last = static_cast<int64_t>(bytes.size()) - 1;
  const bool is_cut = random_.chance(0.3);
  if (is_cut)
    bytes.resize(static_cast<size_t>(random_.range(0, last)));
  else
    bytes[static_cast<size_t>(random_.range(0, last))] ^=
        static_cast<uint8_t>(1 << random_.range(0, 7));
  note(is_cut ? "a cut file" : "a flipped bit");
  allow("kvc_seq_load of a damaged file", load(which, bytes),
        {KVC_E_CORRUPT, KVC_E_INVALID_ARGUMENT, KVC_E_VERSION,
         // The description is whole, and says that there is no room.
         KVC_E_NO_PAGES, KVC_E_NEVER_FITS});
}

}  // namespace kvc::test
