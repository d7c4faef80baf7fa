#include "src/base/random.h"

#include <unistd.h>
#ifdef __APPLE__
#include <sys/random.h>
#endif

#include <cerrno>

#include "src/base/error.h"

namespace kvc {

void fill_random(void* data, size_t size) {
  if (getentropy(data, size) != 0)
    fail_errno(KVC_E_IO, errno, "the system gave no %zu random bytes", size);
}

}  // namespace kvc
