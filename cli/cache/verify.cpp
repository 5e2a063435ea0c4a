// SPDX-License-Identifier: Apache-2.0
// flashjit cache verify: reads every entry and every tuning record.
#include <flashjit/cache.h>
#include <fmt/format.h>

#include "cli/cache/cache.h"
#include "cli/cache/report.h"
#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =

    R"(Exit code 1 when anything is damaged or cannot be read. A damaged entry does no harm: a look-up notices it, and
the kernel is compiled again. The same holds for tuning records. Checksums find accidents; they are no signatures.

Examples:
  flashjit cache verify
  flashjit cache verify kernels.fjb
  flashjit cache verify --set-aside)";

struct Options {
  std::string bundle;
  bool set_aside = false, json = false;
};

void print_json(const CacheVerification& result) {
  Json damaged = Json::array();
  for (const CacheEntry& entry : result.damaged) damaged.push_back(describe(entry));
  print_out("{}\n", to_text({{"ok", result.ok()},
                             {"intact", result.intact},
                             {"bytes", result.bytes},
                             {"records", result.records},
                             {"damaged", damaged},
                             {"problems", result.problems}}));
}

void print_text(const CacheVerification& result) {
  for (const std::string& problem : result.problems) print_out("problem: {}\n", problem);
  for (const CacheEntry& entry : result.damaged) print_out("damaged: {}\n", entry.location);
  print_out("{} intact{}; {} damaged\n", entries_text(result.intact, result.bytes), records_text(result.records),
            result.damaged.size());
}

int run(const Options& options, const Session& session) {
  const CacheVerification result = options.bundle.empty() ? Cache(session.engine_options()).verify(options.set_aside)
                                                          : Cache::verify_bundle(options.bundle);
  (options.json ? print_json : print_text)(result);
  return result.ok() ? kSuccess : kCheckFailed;
}

}  // namespace

void add_cache_verify(CLI::App& cache, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* verify =
      add_subcommand(cache, command, "verify", "Check all entries and tuning records, or a bundle", kEpilog);
  CLI::Option* bundle =
      add_option(verify, "BUNDLE", options->bundle, "FILE", "This bundle alone [default: the cache, all layers]");
  exclude(add_flag(verify, "--set-aside", options->set_aside,
                   "Rename damaged entries of the user's directory to *.bad, for a look at them"),
          bundle);
  add_flag(verify, "--json", options->json, "Print one JSON object");
  run_when_chosen(verify, command, options, run);
}

}  // namespace flashjit::cli
