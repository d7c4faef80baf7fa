// One result, as JSON for programs or as a table for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/measure.h"

namespace kvc::bench {

using Report = nlohmann::ordered_json;

// A report opens with what was measured on what: bench, library version, CPU, ISA, threads.
Report new_report(const std::string& bench, const std::string& isa, int threads);

// Adds subject, limit and share under the given names, each with its range as NAME_min and
// NAME_max, and how the repetitions went. `scale` divides the rates (1e9: giga).
void add_pairs(Report& report, const PairedResult& result, double scale, const std::string& subject,
               const std::string& limit);

// Exactly one JSON object, or one "name value" line per field, on stdout.
void print_report(const Report& report, bool json);

// Four significant digits: more would only be noise.
double rounded(double value);

}  // namespace kvc::bench
