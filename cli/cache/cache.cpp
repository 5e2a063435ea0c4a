// SPDX-License-Identifier: Apache-2.0
// flashjit cache, and flashjit cache path: where kernels are kept.
#include "cli/cache/cache.h"

#include <flashjit/cache.h>
#include <flashjit/error.h>
#include <fmt/format.h>

#include <vector>

#include "cli/cache/report.h"
#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"(Needs neither GPU nor driver nor NVRTC. Kernels are looked up in this order: the user's directory
(FLASHJIT_CACHE_DIR), system directories (FLASHJIT_SYSTEM_CACHE), bundle files (FLASHJIT_BUNDLES). Only the user's
directory is ever changed. docs/cache.md tells the whole of it.

Examples:
  flashjit cache ls
  flashjit cache inspect --help
  flashjit cache export kernels.fjb --arch sm_90a
  FLASHJIT_BUNDLES=kernels.fjb flashjit cache verify)";

struct Options {
  bool json = false;
};

const CacheLayerInfo& require_user_directory(const std::vector<CacheLayerInfo>& layers) {
  if (layers.empty() || layers.front().layer != CacheLayer::user) {
    throw Error(ErrorCode::io,
                "the user's cache: must have a directory, has none: FLASHJIT_CACHE_DIR is not set, and neither "
                "XDG_CACHE_HOME nor HOME names a directory that is there by an absolute path");
  }
  if (!layers.front().problem.empty()) throw Error(ErrorCode::io, layers.front().problem);
  return layers.front();
}

int run(const Options& options, const Session& session) {
  const std::vector<CacheLayerInfo> layers = Cache(session.engine_options()).layers();
  if (options.json) {
    Json json = Json::array();
    for (const CacheLayerInfo& layer : layers) json.push_back(describe(layer));
    print_out("{}\n", to_text({{"layers", json}}));
  }
  const CacheLayerInfo& user = require_user_directory(layers);
  if (!options.json) print_out("{}\n", user.location);
  return kSuccess;
}

}  // namespace

void add_cache_path(CLI::App& cache, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* path =
      add_subcommand(cache, command, "path", "Print the user's directory",
                     "Exit code 2 when there is none, or when it is refused because others own it or can "
                     "write to it;\nstderr has the reason.\n\nExample:\n  du -sh \"$(flashjit cache path)\"");
  add_flag(path, "--json", options->json, "Print one JSON object with all places that kernels are looked up in");
  run_when_chosen(path, command, options, run);
}

void add_cache(CLI::App& app, Command& command) {
  CLI::App* cache = add_group(app, "cache", "Look into the cache of kernels, tidy it, ship it", kEpilog);
  for (auto add : {add_cache_path, add_cache_ls, add_cache_inspect, add_cache_verify, add_cache_gc, add_cache_clear,
                   add_cache_export, add_cache_import}) {
    add(*cache, command);
  }
}

}  // namespace flashjit::cli
