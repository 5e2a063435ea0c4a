// SPDX-License-Identifier: Apache-2.0
#include "cli/cache/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <set>
#include <utility>
#include <vector>

#include "cli/io/size.h"
#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

Json describe_facts(const std::map<std::string, std::string>& facts) {
  static const std::set<std::string> kNumbers = {"threads",     "registers",   "smem_bytes",
                                                 "spill_bytes", "stack_bytes", "compile_ms"};
  Json json = Json::object();
  for (const auto& [name, value] : facts) {
    const Json number = kNumbers.count(name) != 0 ? Json::parse(value, nullptr, false) : Json();
    json[name] = number.is_number() ? number : Json(value);
  }
  return json;
}

}  // namespace

std::string counters_text(const Counters& counters) {
  const std::vector<std::pair<std::uint64_t, const char*>> counts = {{counters.memory_hits, "from memory"},
                                                                     {counters.user_hits, "from the user's directory"},
                                                                     {counters.system_hits, "from system directories"},
                                                                     {counters.bundle_hits, "from bundles"},
                                                                     {counters.embedded_hits, "from embedded bundles"},
                                                                     {counters.misses, "missed"},
                                                                     {counters.compiles, "compiled"},
                                                                     {counters.quarantined, "quarantined"},
                                                                     {counters.write_failures, "not stored"},
                                                                     {counters.waits, "waited for"},
                                                                     {counters.wait_timeouts, "waited for in vain"},
                                                                     {counters.evicted, "evicted"},
                                                                     {counters.records_used, "chosen by records"},
                                                                     {counters.tunings, "tuned"}};
  std::string text;
  for (const auto& [count, what] : counts) {
    if (count != 0) text += fmt::format("{} {}, ", count, what);
  }
  return text + fmt::format("{} read, {} written", size_text(counters.bytes_read), size_text(counters.bytes_written));
}

std::string date_text(std::int64_t seconds) {
  if (seconds == 0) return {};
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

std::string entries_text(std::uint64_t entries, std::uint64_t bytes) {
  return fmt::format("{} {}, {}", entries, entries == 1 ? "entry" : "entries", size_text(bytes));
}

std::string records_text(std::uint64_t records) {
  return records == 0 ? "" : fmt::format(", {} tuning {}", records, records == 1 ? "record" : "records");
}

std::string fact(const CacheEntry& entry, const std::string& name) {
  const auto found = entry.facts.find(name);
  return found == entry.facts.end() ? std::string() : found->second;
}

std::string title(const CacheEntry& entry) {
  const std::string kernel = fact(entry, "name");
  return kernel.empty() ? entry.name : kernel;
}

void warn_of_problems(const Cache& cache) {
  for (const CacheLayerInfo& layer : cache.layers()) {
    if (!layer.problem.empty()) tell("{}", layer.problem);
  }
}

Json describe(const Counters& counters) {
  return {{"memory_hits", counters.memory_hits},
          {"user_hits", counters.user_hits},
          {"system_hits", counters.system_hits},
          {"bundle_hits", counters.bundle_hits},
          {"embedded_hits", counters.embedded_hits},
          {"misses", counters.misses},
          {"compiles", counters.compiles},
          {"quarantined", counters.quarantined},
          {"write_failures", counters.write_failures},
          {"waits", counters.waits},
          {"wait_timeouts", counters.wait_timeouts},
          {"evicted", counters.evicted},
          {"tunings", counters.tunings},
          {"timed_launches", counters.timed_launches},
          {"records_used", counters.records_used},
          {"bytes_read", counters.bytes_read},
          {"bytes_written", counters.bytes_written}};
}

Json describe(const CacheLayerInfo& layer) {
  return {{"layer", to_string(layer.layer)},
          {"location", layer.location},
          {"problem", layer.problem.empty() ? Json() : Json(layer.problem)},
          {"entries", layer.entries},
          {"bytes", layer.bytes}};
}

Json describe(const CacheEntry& entry) {
  return {{"name", entry.name},
          {"layer", to_string(entry.layer)},
          {"location", entry.location},
          {"bytes", entry.bytes},
          {"last_used", entry.last_used == 0 ? Json() : Json(date_text(entry.last_used))},
          {"facts", describe_facts(entry.facts)}};
}

Json describe(const CacheRecord& record) {
  return {{"path", record.path},
          {"layer", to_string(record.layer)},
          {"location", record.location},
          {"bytes", record.bytes}};
}

}  // namespace flashjit::cli
