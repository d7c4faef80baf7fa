// Who else wants the blocks that sequences publish.
#pragma once

#include "src/device/device.h"
#include "src/prefix/index.h"

namespace kvc {

class BlockSink {
 public:
  // add() would do something.
  virtual bool is_open() const noexcept = 0;
  // A block that is in the index now, with its pages on the device.
  virtual void add(const NewBlock& block, CallStream stream) noexcept = 0;

 protected:
  ~BlockSink() = default;
};

}  // namespace kvc
