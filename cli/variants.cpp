// SPDX-License-Identifier: Apache-2.0
// flashjit variants: the legal variants of a problem.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/problem_options.h"
#include "cli/streams.h"
#include "cli/table.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"(A default is for buckets of shapes, such as q128-kv8k-w2: up to 128 queries (q64, q128, qmore), below 8192 keys (kv1k,
kv2k, kv8k, kvmore), and up to 2 tiles of 128 rows for each SM (w05: half a tile, w1, w2, w4, wmore). Where all values of
a part are meant it is left out: q64-w05 has any number of keys. With --json each bucket is listed.

--explain lists every combination that is considered. A verdict is kept; pruned: legal, but the model sees it far below
the best; replaced: another that only shares out shared memory or an SM differently is tried in its place; or illegal.
Beside it: shared memory of a thread block in bytes, an estimate of a thread's registers, bytes of shared memory that are
read and written for 1000 operations, and the share of the tensor cores' peak that this and the instruction leave.

Examples:
  flashjit variants --arch sm_90a --head-dim 64
  flashjit variants --arch sm_90a --head-dim 256 --explain
  flashjit variants --arch sm_120a --head-dim 192x128 --mask causal --json)";

struct Options {
  ProblemOptions problem;
  std::string architecture;
  bool explain = false, json = false;
};

std::vector<ShapeBucket> buckets_of(const Engine& engine, const Variant& variant, const Problem& problem,
                                    const std::string& architecture) {
  std::vector<ShapeBucket> buckets = shape_buckets();
  std::erase_if(buckets, [&](const ShapeBucket& bucket) {
    return engine.default_variant(problem, architecture, bucket) != variant;
  });
  return buckets;
}

// The name of a bucket without the parts whose bits are not set.
std::string shorten(const ShapeBucket& bucket, unsigned kept) {
  std::istringstream parts(to_string(bucket));
  std::vector<std::string> names;
  for (std::string part; std::getline(parts, part, '-'); kept >>= 1)
    if (kept & 1) names.push_back(part);
  return names.empty() ? "all" : fmt::format("{}", fmt::join(names, "-"));
}

// Buckets in few words: a name without some of the parts stands for all buckets that have the others.
std::vector<std::string> shorten(const std::vector<ShapeBucket>& buckets) {
  constexpr unsigned kPartsByTheirNumber[] = {0b000, 0b001, 0b010, 0b100, 0b011, 0b101, 0b110, 0b111};
  std::vector<std::string> names;
  std::vector<ShapeBucket> unnamed = buckets;
  for (const unsigned kept : kPartsByTheirNumber) {
    std::map<std::string, std::size_t> missing;
    for (const ShapeBucket& bucket : shape_buckets()) ++missing[shorten(bucket, kept)];
    for (const ShapeBucket& bucket : buckets) --missing[shorten(bucket, kept)];
    for (const ShapeBucket& bucket : unnamed) {
      const std::string name = shorten(bucket, kept);
      const bool is_new = std::find(names.begin(), names.end(), name) == names.end();
      if (is_new && missing[name] == 0) names.push_back(name);
    }
    std::erase_if(unnamed, [&](const ShapeBucket& bucket) { return missing[shorten(bucket, kept)] == 0; });
  }
  return names;
}

void print(const Options& options, const Problem& problem, const std::string& architecture, const Json& list,
           const Table& table) {
  if (options.json) {
    print_out("{}\n", to_text({{"problem", to_string(problem)}, {"architecture", architecture}, {"variants", list}}));
  } else {
    print_out("{}", table.text());
  }
}

void list_variants(const Engine& engine, const Options& options, const Problem& problem,
                   const std::string& architecture) {
  Table table({"<variant", "<default for"});
  Json list = Json::array();
  for (const Variant& variant : engine.variants(problem, architecture)) {
    const std::vector<ShapeBucket> buckets = buckets_of(engine, variant, problem, architecture);
    Json names = Json::array();
    for (const ShapeBucket& bucket : buckets) names.push_back(to_string(bucket));
    list.push_back({{"variant", to_string(variant)}, {"default_for", names}});
    table.add_row({to_string(variant), fmt::format("{}", fmt::join(shorten(buckets), ", "))});
  }
  print(options, problem, architecture, list, table);
}

std::string percent(double share) { return share == 0 ? "" : fmt::format("{:.0f} %", 100 * share); }

void explain_variants(const Engine& engine, const Options& options, const Problem& problem,
                      const std::string& architecture) {
  Table table({"<variant", "<verdict", "smem", "registers", "bytes/kFLOP", "of peak", "<reason"});
  Json list = Json::array();
  for (const VariantExplanation& each : engine.explain_variants(problem, architecture)) {
    list.push_back({{"variant", to_string(each.variant)},
                    {"verdict", to_string(each.verdict)},
                    {"reason", each.reason},
                    {"smem_bytes", each.smem_bytes},
                    {"registers", each.registers},
                    {"smem_bytes_per_kflop", each.smem_bytes_per_kflop},
                    {"attainable_rate", each.attainable_rate}});
    table.add_row({to_string(each.variant), to_string(each.verdict), std::to_string(each.smem_bytes),
                   std::to_string(each.registers), fmt::format("{:.1f}", each.smem_bytes_per_kflop),
                   percent(each.attainable_rate), each.reason});
  }
  print(options, problem, architecture, list, table);
}

int run(const Options& options, const Session& session) {
  const Engine engine(session.engine_options());
  const std::string architecture = choose_architecture(engine, options.architecture);
  (options.explain ? explain_variants : list_variants)(engine, options, options.problem.problem(), architecture);
  return kSuccess;
}

}  // namespace

void add_variants(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* variants = add_subcommand(
      app, command, "variants", "List the variants that are worth trying for a problem, best guess first", kEpilog);
  add_problem_options(variants, options->problem);
  add_architecture_option(variants, options->architecture);
  add_flag(variants, "--explain", options->explain, "List also what is not worth trying, and say why");
  add_flag(variants, "--json", options->json, "Print one JSON object");
  run_when_chosen(variants, command, options, run);
}

}  // namespace flashjit::cli
