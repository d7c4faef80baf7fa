#include "src/base/wire.h"

#include "src/base/error.h"

namespace kvc {

bool WireReader::next() {
  if (rest_.empty()) return false;
  uint64_t length;
  constexpr size_t kHead = sizeof tag_ + sizeof length;
  if (rest_.size() < kHead) {
    fail(KVC_E_CORRUPT, "%s ends inside a field: %zu bytes are left, expected %zu", what_,
         rest_.size(), kHead);
  }
  std::memcpy(&tag_, rest_.data(), sizeof tag_);
  std::memcpy(&length, rest_.data() + sizeof tag_, sizeof length);
  rest_ = rest_.subspan(kHead);
  if (length > rest_.size()) {
    fail(KVC_E_CORRUPT, "%s: field %u has %llu bytes, %zu are left", what_, tag_ & ~kMandatoryTag,
         static_cast<unsigned long long>(length), rest_.size());
  }
  field_ = rest_.first(length);
  rest_ = rest_.subspan(length);
  return true;
}

void WireReader::check_size(size_t expected) const {
  if (field_.size() == expected) return;
  fail(KVC_E_CORRUPT, "%s: field %u has %zu bytes, expected %zu", what_, tag_ & ~kMandatoryTag,
       field_.size(), expected);
}

void WireReader::check_multiple(size_t element) const {
  if (field_.size() % element == 0) return;
  fail(KVC_E_CORRUPT, "%s: field %u has %zu bytes, expected a multiple of %zu", what_,
       tag_ & ~kMandatoryTag, field_.size(), element);
}

int64_t WireReader::integer(int64_t least, int64_t most) const {
  const auto number = value<int64_t>();
  if (number < least || number > most) {
    fail_with(KVC_E_CORRUPT, number, "%s: field %u = %lld out of range: %lld to %lld", what_,
              tag_ & ~kMandatoryTag, ll(number), ll(least), ll(most));
  }
  return number;
}

void WireReader::skip() const {
  if ((tag_ & kMandatoryTag) == 0) return;
  fail_with(KVC_E_VERSION, tag_ & ~kMandatoryTag,
            "%s needs field %u, which this version does not know", what_, tag_ & ~kMandatoryTag);
}

}  // namespace kvc
