// SPDX-License-Identifier: Apache-2.0
// flashjit variants: the legal variants of a problem.
#include <fmt/format.h>

#include <vector>

#include "cli/command.h"
#include "cli/problem_options.h"
#include "cli/table.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"(Length ranges: few_queries (seqlen_q up to 64), short_kv (seqlen_kv below 1024), medium_kv (below 2048), long_kv
(below 8192), huge_kv (the rest).

Examples:
  flashjit variants --arch sm_90a --head-dim 64
  flashjit variants --arch sm_120a --head-dim 192 --head-dim-v 128 --causal --json)";

struct Options {
  ProblemOptions problem;
  std::string architecture;
  bool json = false;
};

std::vector<std::string> ranges_of(const Engine& engine, const Variant& variant, const Problem& problem,
                                   const std::string& architecture) {
  std::vector<std::string> names;
  for (const LengthRange range : kLengthRanges) {
    if (engine.default_variant(problem, architecture, range) == variant) names.push_back(to_string(range));
  }
  return names;
}

int run(const Options& options, const Session& session) {
  const Engine engine(session.engine_options());
  const Problem problem = options.problem.problem();
  const std::string architecture = choose_architecture(engine, options.architecture);
  Table table({"<variant", "<default for"});
  Json list = Json::array();
  for (const Variant& variant : engine.variants(problem, architecture)) {
    const std::vector<std::string> ranges = ranges_of(engine, variant, problem, architecture);
    list.push_back({{"variant", to_string(variant)}, {"default_for", ranges}});
    std::string text;
    for (const std::string& range : ranges) text += (text.empty() ? "" : ", ") + range;
    table.add_row({to_string(variant), text});
  }
  if (options.json) {
    fmt::print("{}\n", to_text({{"problem", to_string(problem)}, {"architecture", architecture}, {"variants", list}}));
  } else {
    fmt::print("{}", table.text());
  }
  return kSuccess;
}

}  // namespace

void add_variants(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* variants = add_subcommand(app, command, "variants",
                                      "List the variants that are legal for a problem, best guess first", kEpilog);
  add_problem_options(variants, options->problem);
  add_architecture_option(variants, options->architecture);
  add_flag(variants, "--json", options->json, "Print one JSON object");
  run_when_chosen(variants, command, options, run);
}

}  // namespace flashjit::cli
