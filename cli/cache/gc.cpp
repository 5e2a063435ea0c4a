// SPDX-License-Identifier: Apache-2.0
// flashjit cache gc and flashjit cache clear: what removes files from the user's directory.
#include <flashjit/cache.h>
#include <fmt/format.h>

#include "cli/cache/cache.h"
#include "cli/cache/report.h"
#include "cli/io/for_option.h"
#include "cli/io/size.h"
#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

constexpr const char* kGcEpilog =

    R"(Engines keep the directory below its size by themselves, so nobody needs to run this. It removes temporary files
that killed writers left, entries that were set aside as damaged, and entries beyond the size: those first that were not
used for longest. Tuning records stay: they are small. Exit code 2 when something could not be removed.

Examples:
  flashjit cache gc --dry-run
  flashjit cache gc --max-size 200M)";

constexpr const char* kClearEpilog =
    R"(Asks nothing: what is removed can be compiled and tuned again. Files that are not the cache's own stay. Exit code
2 when something could not be removed, or when a file of others stands where the cache needs a folder.

Examples:
  flashjit cache clear --dry-run
  flashjit cache clear)";

struct Options {
  std::string max_size;  // of gc; default: the environment's
  bool dry_run = false, json = false;
};

void print_json(const CacheCollection& collection, bool dry_run) {
  Json removed = Json::array();
  for (const CacheCollection::Removed& file : collection.removed) {
    removed.push_back({{"path", file.path}, {"bytes", file.bytes}, {"why", file.why}});
  }
  print_out("{}\n", to_text({{"dry_run", dry_run},
                             {"removed", removed},
                             {"removed_bytes", collection.removed_bytes},
                             {"kept_entries", collection.kept_entries},
                             {"kept_bytes", collection.kept_bytes},
                             {"problem", collection.problem.empty() ? Json() : Json(collection.problem)}}));
}

void print_text(const CacheCollection& collection, bool dry_run) {
  const char* const verb = dry_run ? "would remove" : "removed";
  for (const CacheCollection::Removed& file : collection.removed) {
    print_out("{} {} ({}, {})\n", verb, file.path, size_text(file.bytes), file.why);
  }
  const std::size_t files = collection.removed.size();
  print_out("{} {} {}, {}; {} stay\n", verb, files, files == 1 ? "file" : "files", size_text(collection.removed_bytes),
            entries_text(collection.kept_entries, collection.kept_bytes));
}

int report(const Options& options, const CacheCollection& collection) {
  (options.json ? print_json : print_text)(collection, options.dry_run);
  if (collection.problem.empty()) return kSuccess;
  tell("{}", collection.problem);
  return kError;
}

int run_gc(const Options& options, const Session& session) {
  EngineOptions engine_options = session.engine_options();
  if (!options.max_size.empty()) {
    engine_options.cache_max_bytes = for_option("--max-size", [&] { return parse_size(options.max_size); });
  }
  return report(options, Cache(engine_options).collect(engine_options.cache_max_bytes, options.dry_run));
}

int run_clear(const Options& options, const Session& session) {
  return report(options, Cache(session.engine_options()).clear(options.dry_run));
}

void add_common_options(CLI::App* subcommand, Options& options) {
  add_flag(subcommand, "--dry-run", options.dry_run, "Remove nothing, and tell what would be removed");
  add_flag(subcommand, "--json", options.json, "Print one JSON object");
}

}  // namespace

void add_cache_gc(CLI::App& cache, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* gc =
      add_subcommand(cache, command, "gc", "Tidy the user's directory and bring it below its size", kGcEpilog);
  add_option(gc, "--max-size", options->max_size, "SIZE",
             "Bytes, or a number with K, M, G or T [default: FLASHJIT_CACHE_SIZE, else 1G]");
  add_common_options(gc, *options);
  run_when_chosen(gc, command, options, run_gc);
}

void add_cache_clear(CLI::App& cache, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* clear = add_subcommand(cache, command, "clear", "Empty the user's directory", kClearEpilog);
  add_common_options(clear, *options);
  run_when_chosen(clear, command, options, run_clear);
}

}  // namespace flashjit::cli
