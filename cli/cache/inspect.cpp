// SPDX-License-Identifier: Apache-2.0
// flashjit cache inspect: all that is known about one entry.
#include <flashjit/cache.h>
#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <vector>

#include "cli/cache/cache.h"
#include "cli/cache/report.h"
#include "cli/io/size.h"
#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"(Sources are not stored but rendered again, so --source works with the release that compiled the kernel.
Exit code 1 when the entry is damaged.

Examples:
  flashjit cache inspect 3f2a
  flashjit cache inspect ~/.cache/flashjit/3f/NAME.fjc --json
  flashjit cache inspect 3f2a --source | less)";

constexpr std::size_t kCandidates = 5;  // that an error lists

struct Options {
  std::string entry;
  bool source = false, json = false;
};

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error);
}

bool is_called(const CacheEntry& entry, const std::string& text) {
  return text == entry.name || text == fact(entry, "name") || text == fact(entry, "inputs") || text == entry.location ||
         is_same_file(text, entry.location);
}

bool begins_with(const CacheEntry& entry, const std::string& text) {
  return entry.name.starts_with(text) || fact(entry, "name").starts_with(text) ||
         fact(entry, "inputs").starts_with(text);
}

// An entry that several layers have counts once, as where it is found first.
std::vector<CacheEntry> select(const std::vector<CacheEntry>& entries,
                               const std::function<bool(const CacheEntry&)>& fits) {
  std::vector<CacheEntry> selected;
  std::set<std::string> names;
  for (const CacheEntry& entry : entries) {
    if (fits(entry) && names.insert(entry.name).second) selected.push_back(entry);
  }
  return selected;
}

std::string list_candidates(const std::vector<CacheEntry>& entries) {
  std::string list;
  for (std::size_t i = 0; i < std::min(entries.size(), kCandidates); ++i)
    list += (i == 0 ? "" : ", ") + entries[i].name;
  return list + (entries.size() > kCandidates ? ", ..." : "");
}

CacheEntry find_entry(const Cache& cache, const std::string& text) {
  const std::vector<CacheEntry> entries = cache.entries();
  std::vector<CacheEntry> found = select(entries, [&](const CacheEntry& entry) { return is_called(entry, text); });
  if (found.empty()) found = select(entries, [&](const CacheEntry& entry) { return begins_with(entry, text); });
  if (found.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("ENTRY: must be the file of an entry, or the beginning of its name or digest, as 'flashjit "
                            "cache ls' shows them, was '{}'",
                            text));
  }
  if (found.size() > 1) {
    throw Error(ErrorCode::invalid_argument, fmt::format("ENTRY: must fit one entry, but '{}' fits {}: {}", text,
                                                         found.size(), list_candidates(found)));
  }
  return found.front();
}

void print_line(const char* label, const std::string& text) {
  if (!text.empty()) print_out("  {:<15}{}\n", label, text);
}

// With its unit; empty when the fact is missing.
std::string with_unit(const CacheEntry& entry, const char* name, const char* unit) {
  const std::string value = fact(entry, name);
  return value.empty() ? value : fmt::format("{} {}", value, unit);
}

void print_text(const CacheEntry& entry, bool intact) {
  print_out("{}\n\nkernel\n", title(entry));
  print_line("problem", fact(entry, "problem"));
  print_line("variant", fact(entry, "variant"));
  print_line("architecture", fact(entry, "architecture"));
  print_out("\nresources\n");
  print_line("threads", fact(entry, "threads"));
  print_line("registers", fact(entry, "registers"));
  print_line("spills", with_unit(entry, "spill_bytes", "bytes"));
  print_line("stack", with_unit(entry, "stack_bytes", "bytes"));
  print_line("shared memory", with_unit(entry, "smem_bytes", "bytes"));
  print_out("\ncompiled\n");
  print_line("NVRTC", fact(entry, "nvrtc"));
  print_line("build of NVRTC", fact(entry, "compiler"));
  print_line("flashjit", fact(entry, "version"));
  print_line("time", with_unit(entry, "compile_ms", "ms"));
  print_out("\nstored\n");
  print_line("layer", to_string(entry.layer));
  print_line("file", entry.location);
  print_line("name", entry.name);
  print_line("digest", fact(entry, "inputs"));
  print_line("size", size_text(entry.bytes));
  print_line("last used", date_text(entry.last_used));
  print_line("intact", intact ? "yes" : "no");
}

int run(const Options& options, const Session& session) {
  const Cache cache(session.engine_options());
  warn_of_problems(cache);
  const CacheEntry entry = find_entry(cache, options.entry);
  if (options.source && !options.json) {
    print_out("{}", cache.source(entry));
    return kSuccess;
  }
  const bool intact = cache.is_intact(entry);
  if (options.json) {
    Json json = describe(entry);
    json["intact"] = intact;
    if (options.source) json["source"] = cache.source(entry);
    print_out("{}\n", to_text(json));
  } else {
    print_text(entry, intact);
  }
  return intact ? kSuccess : kCheckFailed;
}

}  // namespace

void add_cache_inspect(CLI::App& cache, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* inspect = add_subcommand(cache, command, "inspect", "Show what an entry is, and its source", kEpilog);
  require(add_option(inspect, "ENTRY", options->entry, "ENTRY",
                     "The entry's file, or the beginning of its name or digest that no other entry has"));
  add_flag(inspect, "--source", options->source, "Print the CUDA source alone; with --json, add it");
  add_flag(inspect, "--json", options->json, "Print one JSON object");
  run_when_chosen(inspect, command, options, run);
}

}  // namespace flashjit::cli
