// Subject and limit, measured in turn over rounds.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/report.h"

namespace kvc::bench {

struct Rates {
  std::vector<double> subject, limit, share;

  void add(double subject_rate, double limit_rate) {
    subject.push_back(subject_rate);
    limit.push_back(limit_rate);
    share.push_back(subject_rate / limit_rate);
  }
  Report report(const char* limit_name) const {
    Report part;
    const auto put = [&](const std::string& name, const std::vector<double>& values, double scale) {
      const Spread spread = spread_of(values);
      part[name] = rounded(spread.median / scale);
      part[name + "_min"] = rounded(spread.min / scale);
      part[name + "_max"] = rounded(spread.max / scale);
    };
    put("gbps", subject, 1e9);
    put(limit_name, limit, 1e9);
    put("share", share, 1);
    return part;
  }
};

}  // namespace kvc::bench
