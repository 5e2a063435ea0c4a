// SPDX-License-Identifier: Apache-2.0
// flashjit cache export and flashjit cache import: kernels that travel.
#include <flashjit/cache.h>
#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/cache/cache.h"
#include "cli/cache/report.h"
#include "cli/io/output_file.h"
#include "cli/io/problem_options.h"
#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

constexpr const char* kExportEpilog =

    R"(One file with the intact entries of all layers, and with their tuning records. Equal entries give equal bytes, on
whatever machine. It serves kernels and choices where it is named in FLASHJIT_BUNDLES, linked into a program, or
imported. 'flashjit compile --bundle' makes one without filling the cache first. A tuning leaves the kernels that it
tried in the cache; --chosen leaves them out of the bundle. Exit code 2, and no file, when nothing in the cache is as
--arch and --chosen ask for.

Examples:
  flashjit cache export kernels.fjb
  flashjit cache export hopper.fjb --arch sm_90a --chosen)";

constexpr const char* kImportEpilog =
    R"(Import what you trust: kernels of a bundle run in your processes, and checksums are no signatures. Exit code 1
when entries of the bundle were damaged; the others are imported. Tuning records that are there already stay.

Example:
  flashjit cache import kernels.fjb)";

struct ExportOptions {
  std::string file, architectures;
  bool chosen = false, json = false;
};

struct ImportOptions {
  std::string file;
  bool json = false;
};

// What an export without entries and records would be: a file that serves nobody, in the place of one that may.
void require_content(const std::string& bundle, const ExportOptions& options) {
  if (bundle != Cache(EngineOptions()).export_bundle()) return;
  const char* const kind = options.chosen ? "nothing that calls choose" : "nothing";
  const std::string where = options.architectures.empty() ? "" : " for " + options.architectures;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: must leave something of what is in the cache, but there is {}{}; {} is not written",
                          where.empty() ? "--chosen" : "--arch", kind, where, options.file));
}

int run_export(const ExportOptions& options, const Session& session) {
  const std::vector<std::string> architectures = parse_wanted_architectures(options.architectures);
  OutputFile file("FILE", options.file, kWritableByOthers);
  const Cache cache(session.engine_options());
  warn_of_problems(cache);
  const std::string bundle = cache.export_bundle({architectures, options.chosen});
  if (!architectures.empty() || options.chosen) require_content(bundle, options);
  file.write(bundle);
  file.publish();
  const CacheVerification written = Cache::verify_bundle(options.file);
  if (options.json) {
    print_out("{}\n", to_text({{"file", options.file},
                               {"entries", written.intact},
                               {"bytes", written.bytes},
                               {"records", written.records}}));
  } else {
    print_out("{}: {}{}\n", options.file, entries_text(written.intact, written.bytes), records_text(written.records));
  }
  return written.ok() ? kSuccess : kCheckFailed;
}

int run_import(const ImportOptions& options, const Session& session) {
  const CacheImport result = Cache(session.engine_options()).import_bundle(options.file);
  if (options.json) {
    print_out("{}\n", to_text({{"imported", result.imported},
                               {"present", result.present},
                               {"records", result.records},
                               {"records_present", result.records_present},
                               {"damaged", result.damaged}}));
  } else {
    print_out("{} imported, {} already there, {} damaged\n", result.imported, result.present, result.damaged.size());
    if (result.records + result.records_present != 0) {
      print_out("tuning records: {} imported, {} already there\n", result.records, result.records_present);
    }
  }
  for (const std::string& member : result.damaged) tell("{} is damaged", member);
  return result.damaged.empty() ? kSuccess : kCheckFailed;
}

}  // namespace

void add_cache_export(CLI::App& cache, Command& command) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* subcommand = add_subcommand(cache, command, "export",
                                        "Write a bundle of the cache's kernels and tuning records", kExportEpilog);
  require(add_option(subcommand, "FILE", options->file, "FILE", "The bundle to write"));
  add_option(subcommand, "--arch", options->architectures, kArchListType,
             "Only what is for these, for example sm_80,sm_90a [default: all]");
  add_flag(
      subcommand, "--chosen", options->chosen,
      "Only what calls choose: kernels of the default rules and of tuning records, and these without their timings");
  add_flag(subcommand, "--json", options->json, "Print one JSON object");
  run_when_chosen(subcommand, command, options, run_export);
}

void add_cache_import(CLI::App& cache, Command& command) {
  const auto options = std::make_shared<ImportOptions>();
  CLI::App* subcommand = add_subcommand(
      cache, command, "import", "Copy a bundle's kernels and tuning records into the user's directory", kImportEpilog);
  require(add_option(subcommand, "FILE", options->file, "FILE", "The bundle to read"));
  add_flag(subcommand, "--json", options->json, "Print one JSON object");
  run_when_chosen(subcommand, command, options, run_import);
}

}  // namespace flashjit::cli
