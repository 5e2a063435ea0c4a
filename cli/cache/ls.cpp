// SPDX-License-Identifier: Apache-2.0
// flashjit cache ls: a line for each entry and each tuning record. Reads headers only.
#include <flashjit/cache.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/cache/cache.h"
#include "cli/cache/report.h"
#include "cli/io/problem_options.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =

    R"(Shows what the headers of the entries say; 'flashjit cache verify' tells whether they are sound, and 'flashjit
cache inspect DIGEST' tells all about one. Dates are UTC, to the hour.

Examples:
  flashjit cache ls
  flashjit cache ls --layer user --arch sm_90a
  flashjit cache ls --json)";

constexpr std::size_t kDigits = 8;  // enough of a digest for 'flashjit cache inspect'

struct Options {
  std::string architectures, layer;
  bool json = false;
};

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

struct Listing {
  std::vector<CacheEntry> entries;
  std::vector<CacheRecord> records;
};

// "-sm_90a-", as the folder of a device's records has it.
bool is_of_one(const CacheRecord& record, const std::vector<std::string>& architectures) {
  return std::any_of(architectures.begin(), architectures.end(), [&](const std::string& architecture) {
    return record.path.find('-' + architecture + '-') != record.path.npos;
  });
}

Listing choose(const Session& session, const Options& options) {
  const std::vector<std::string> architectures = parse_wanted_architectures(options.architectures);
  const Cache cache(session.engine_options());
  warn_of_problems(cache);
  const auto is_elsewhere = [&](CacheLayer layer) {
    return !options.layer.empty() && to_string(layer) != options.layer;
  };
  Listing listing = {cache.entries(), cache.records()};
  std::erase_if(listing.entries, [&](const CacheEntry& entry) {
    return is_elsewhere(entry.layer) ||
           (!architectures.empty() && !contains(architectures, fact(entry, "architecture")));
  });
  std::erase_if(listing.records, [&](const CacheRecord& record) {
    return is_elsewhere(record.layer) || (!architectures.empty() && !is_of_one(record, architectures));
  });
  return listing;
}

std::string table_text(const std::vector<CacheEntry>& entries) {
  Table table({"<digest", "<kernel", "<arch", "registers", "smem", "bytes", "<last used", "<layer"});
  for (const CacheEntry& entry : entries) {
    table.add_row({fact(entry, "inputs").substr(0, kDigits), title(entry), fact(entry, "architecture"),
                   fact(entry, "registers"), fact(entry, "smem_bytes"), fmt::format("{}", entry.bytes),
                   date_text(entry.last_used), to_string(entry.layer)});
  }
  return table.empty() ? std::string() : table.text();
}

std::string table_text(const std::vector<CacheRecord>& records) {
  Table table({"<tuning record", "bytes", "<layer"});
  for (const CacheRecord& record : records) {
    table.add_row({record.path, fmt::format("{}", record.bytes), to_string(record.layer)});
  }
  return table.empty() ? std::string() : table.text();
}

template <typename T>
Json describe_all(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(describe(item));
  return list;
}

int run(const Options& options, const Session& session) {
  const auto [entries, records] = choose(session, options);
  std::uint64_t bytes = 0;
  for (const CacheEntry& entry : entries) bytes += entry.bytes;
  if (options.json) {
    print_out("{}\n",
              to_text({{"entries", describe_all(entries)}, {"bytes", bytes}, {"records", describe_all(records)}}));
  } else {
    print_out("{}{}{}{}\n", table_text(entries), table_text(records), entries_text(entries.size(), bytes),
              records_text(records.size()));
  }
  return kSuccess;
}

}  // namespace

void add_cache_ls(CLI::App& cache, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* ls = add_subcommand(cache, command, "ls", "List the entries and tuning records of all layers", kEpilog);
  add_option(ls, "--arch", options->architectures, kArchListType,
             "Only what is for these, for example sm_80,sm_90a [default: all]");
  add_choice(ls, "--layer", options->layer, {"user", "system", "bundle", "embedded"}, "Only what is in this layer");
  add_flag(ls, "--json", options->json, "Print one JSON object");
  run_when_chosen(ls, command, options, run);
}

}  // namespace flashjit::cli
