// SPDX-License-Identifier: Apache-2.0
// flashjit variants: the legal variants of a problem.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "cli/io/command.h"
#include "cli/io/pass_options.h"
#include "cli/io/problem_options.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"(A default is for buckets of shapes. q16, q64, q128, qmore: up to 16 rows, which are queries of heads that share a tile, up to
64 queries, up to 128, more; kv1k, kv2k, kv8k, kvmore: below 1024 keys, 2048, 8192, more; w05, w1, w2, w4, wmore: up to
half a tile of 128 rows for each SM, up to 1, 2, 4, more. Here w2-w4 is both, kv2k+ that and all larger ones, and what of
a part is not named may be anything; --json lists each bucket.

--explain lists every combination that is considered. A verdict is kept; pruned: legal, but the model sees it far below
the best; replaced: another that only shares out shared memory or an SM differently is tried in its place; or illegal.
Beside it: shared memory of a thread block in bytes, an estimate of a thread's registers, bytes of shared memory that are
read and written for 1000 operations, and the share of the tensor cores' peak that this and the instruction leave.

With --pass backward it is about kernels of gradients. Calls that have a default of the hopper family take it with 64
queries or more, of tensors that have tensor maps, and else the one of mma. Of registers these are the sums that a thread
has, and what has no model, as the hopper family, has 0 there.

Examples:
  flashjit variants --arch sm_90a --head-dim 64
  flashjit variants --arch sm_90a --head-dim 256 --explain
  flashjit variants --arch sm_120a --head-dim 192x128 --mask causal --json
  flashjit variants --arch sm_80 --pass backward)";

struct Options {
  ProblemOptions problem;
  PassOptions pass;
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

// The buckets from one to another, in each part.
struct BucketBox {
  ShapeBucket first, last;

  bool holds(const ShapeBucket& bucket) const {
    return first.queries <= bucket.queries && bucket.queries <= last.queries && first.keys <= bucket.keys &&
           bucket.keys <= last.keys && first.work <= bucket.work && bucket.work <= last.work;
  }
  auto count(const std::vector<ShapeBucket>& buckets) const {
    return std::count_if(buckets.begin(), buckets.end(), [this](const ShapeBucket& each) { return holds(each); });
  }
};

// Boxes of these buckets and no others, the largest first. They may overlap.
std::vector<BucketBox> cover(const std::vector<ShapeBucket>& buckets) {
  const std::vector<ShapeBucket> all = shape_buckets();
  std::vector<BucketBox> boxes;
  for (std::vector<ShapeBucket> rest = buckets; !rest.empty();) {
    BucketBox best{rest.front(), rest.front()};
    for (const ShapeBucket& first : buckets) {
      for (const ShapeBucket& last : buckets) {
        const BucketBox box{first, last};
        if (box.count(buckets) == box.count(all) && box.count(rest) > best.count(rest)) best = box;
      }
    }
    boxes.push_back(best);
    std::erase_if(rest, [&](const ShapeBucket& bucket) { return best.holds(bucket); });
  }
  return boxes;
}

std::vector<std::string> parts_of(const ShapeBucket& bucket) {
  std::istringstream name(to_string(bucket));
  std::vector<std::string> parts;
  for (std::string part; std::getline(name, part, '-');) parts.push_back(part);
  return parts;
}

std::string spell(const BucketBox& box) {
  const std::vector<std::string> first = parts_of(box.first), last = parts_of(box.last);
  const std::vector<std::string> lowest = parts_of(shape_buckets().front()), highest = parts_of(shape_buckets().back());
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i] == lowest[i] && last[i] == highest[i]) continue;
    parts.push_back(first[i] == last[i] ? first[i] : first[i] + (last[i] == highest[i] ? "+" : "-" + last[i]));
  }
  return parts.empty() ? "all" : fmt::format("{}", fmt::join(parts, " "));
}

std::string spell(const std::vector<ShapeBucket>& buckets) {
  std::vector<std::string> boxes;
  for (const BucketBox& box : cover(buckets)) boxes.push_back(spell(box));
  return fmt::format("{}", fmt::join(boxes, ", "));
}

void print(const Options& options, const std::string& problem, const std::string& architecture, const Json& list,
           const Table& table) {
  if (options.json) {
    print_out("{}\n", to_text({{"problem", problem}, {"architecture", architecture}, {"variants", list}}));
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
    table.add_row({to_string(variant), spell(buckets)});
  }
  print(options, to_string(problem), architecture, list, table);
}

// Which of the defaults a call takes is no matter of buckets alone.
void list_variants(const Engine& engine, const Options& options, const BackwardProblem& problem,
                   const std::string& architecture) {
  const std::vector<BackwardVariant> defaults = engine.default_backward_variants(problem, architecture);
  Table table({"<variant", "<default"});
  Json list = Json::array();
  for (const BackwardVariant& variant : engine.backward_variants(problem, architecture)) {
    const bool is_default = std::find(defaults.begin(), defaults.end(), variant) != defaults.end();
    list.push_back({{"variant", to_string(variant)}, {"default", is_default}});
    table.add_row({to_string(variant), is_default ? "yes" : ""});
  }
  print(options, to_string(problem), architecture, list, table);
}

std::string percent(double share) { return share == 0 ? "" : fmt::format("{:.0f} %", 100 * share); }

template <class OfProblem>
void explain(const Engine& engine, const Options& options, const OfProblem& problem, const std::string& architecture) {
  Table table({"<variant", "<verdict", "smem", "registers", "bytes/kFLOP", "of peak", "<reason"});
  Json list = Json::array();
  for (const auto& each : explain_variants(engine, problem, architecture)) {
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
  print(options, to_string(problem), architecture, list, table);
}

template <class OfProblem>
void tell_variants(const Engine& engine, const Options& options, const OfProblem& problem,
                   const std::string& architecture) {
  if (options.explain)
    explain(engine, options, problem, architecture);
  else
    list_variants(engine, options, problem, architecture);
}

int run(const Options& options, const Session& session) {
  const Engine engine(session.engine_options());
  const std::string architecture = choose_architecture(engine, options.architecture);
  const Problem problem = options.problem.problem();
  if (options.pass.is_backward())
    tell_variants(engine, options, options.pass.gradients_of(problem), architecture);
  else
    tell_variants(engine, options, problem, architecture);
  return kSuccess;
}

}  // namespace

void add_variants(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* variants = add_subcommand(
      app, command, "variants", "List the variants that are worth trying for a problem, best guess first", kEpilog);
  add_pass_options(variants, options->pass, "Variants of attention, or of its gradients");
  add_problem_options(variants, options->problem);
  add_architecture_option(variants, options->architecture);
  add_flag(variants, "--explain", options->explain, "List also what is not worth trying, and say why");
  add_flag(variants, "--json", options->json, "Print one JSON object");
  run_when_chosen(variants, command, options, run);
}

}  // namespace flashjit::cli
