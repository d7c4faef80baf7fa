// The CPU time that a control group allows: what `docker run --cpus=2` sets.
#pragma once

#include <cstdint>
#include <string>

namespace kvc {

// Cores that the quotas of the control group of this process and of those around it leave, rounded
// down, at least 1; 0: there is no quota. Reads <proc>/self/cgroup and the files of cgroup v2 or v1
// under `mount`. What cannot be read sets no quota.
int32_t cores_by_quota(const std::string& proc = "/proc",
                       const std::string& mount = "/sys/fs/cgroup");

}  // namespace kvc
