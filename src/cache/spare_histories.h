// Memory of token histories that are gone, for those that come.
#pragma once

#include <array>
#include <utility>

#include "src/sequences/token_history.h"

namespace kvc {

// Tokens and keys of a long prompt are hundreds of kilobytes, which the system hands out page by
// page: the next prompt writes over them. Two are kept, the larger first: a request that is
// attached and then published needs two.
class SpareHistories {
 public:
  void keep(TokenHistory& history) noexcept {
    for (TokenHistory& spare : spares_) {
      if (history.keys.capacity() > spare.keys.capacity()) std::swap(history.keys, spare.keys);
      if (history.ids.capacity() > spare.ids.capacity()) std::swap(history.ids, spare.ids);
    }
  }
  // Returns the larger one; its content is undefined.
  TokenHistory take() noexcept {
    std::swap(spares_[0], spares_[1]);
    return std::move(spares_[1]);
  }

 private:
  std::array<TokenHistory, 2> spares_;
};

}  // namespace kvc
