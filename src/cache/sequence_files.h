// Whole sequences to a file and back: kvc_seq_save, kvc_seq_load.
//
// A file has three kinds of chunks: the description (state_file.h), pages, states. Pages are
// packed as in a pool of the layout PAGE_FIRST, each of the bytes that its layer group uses. A page
// or state that several sequences share is in it once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvcache.h"
#include "src/device/device.h"
#include "src/files/byte_sink.h"
#include "src/files/byte_source.h"

namespace kvc {

struct CacheCore;

class SequenceFiles {
 public:
  explicit SequenceFiles(CacheCore& core) : core_(core) {}

  // Bytes of the file. Throws Error or std::bad_alloc.
  uint64_t measure(size_t num_seqs, const kvc_seq* seqs, const std::string& model_id) const;
  // Complete on return. Throws Error or std::bad_alloc; a file is then as it was before.
  void save(size_t num_seqs, const kvc_seq* seqs, const std::string& model_id, ByteSink& sink,
            CallStream stream) const;
  struct LoadFlags {
    bool converts = false;  // Element types may differ.
    bool publishes = true;  // The prefix index gets their blocks, and gives those it has.
  };
  // Adds the sequences of the file under these ids, in its order. Complete on return. Throws Error
  // or std::bad_alloc; nothing has changed then.
  void load(size_t num_seqs, const kvc_seq* seqs, const std::string& model_id,
            const LoadFlags& flags, ByteSource& source, CallStream stream);

 private:
  CacheCore& core_;
};

}  // namespace kvc
