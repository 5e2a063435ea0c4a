// SPDX-License-Identifier: Apache-2.0
// How near the default rules come to what the records inside the library chose, by the times in these records.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "flashjit/tuning.h"
#include "generator/source.h"
#include "generator/variant_space.h"
#include "runtime/tuning/tuning_records.h"
#include "runtime/tuning/tuning_summary.h"
#include "tests/support/feature.h"

using namespace flashjit;
using generator::default_variant;
using generator::default_variants;

namespace {

constexpr WorkRange kWorkRanges[] = {WorkRange::up_to_half, WorkRange::up_to_1, WorkRange::up_to_2, WorkRange::up_to_4,
                                     WorkRange::more};

struct Cell {
  Problem problem;
  ShapeBucket bucket;
  double ratio = 0;      // time of the default over that of the choice
  bool is_own = true;    // measured in this precision
  bool is_known = true;  // measured at all
};

// A share of the time that the default of the day took, where the record has it.
std::optional<double> share_of(const TuningRecord& record, const Variant& variant) {
  if (variant == record.chosen) return record.chosen_us / record.default_us;
  if (variant == record.default_variant) return 1;
  return {};
}

const TuningRecord& in_other_precision(const TuningRecord& record, const std::vector<TuningRecord>& records) {
  Problem problem = record.problem;
  problem.dtype = problem.dtype == DType::bf16 ? DType::f16 : DType::bf16;
  const auto found = std::find_if(records.begin(), records.end(), [&](const TuningRecord& other) {
    return other.problem == problem && other.bucket == record.bucket;
  });
  REQUIRE(found != records.end());
  REQUIRE(found->default_variant == record.default_variant);
  return *found;
}

// A record has the times of two variants. Where f16 and bf16 chose different ones, what the other measured counts too.
Cell make_cell(const TuningRecord& record, const std::vector<TuningRecord>& records) {
  const Architecture& architecture = find_architecture(record.device.architecture);
  const Variant variant = default_variant(record.problem, architecture, record.bucket);
  const std::optional<double> own = share_of(record, variant);
  const std::optional<double> share = own ? own : share_of(in_other_precision(record, records), variant);
  const double ratio = share.value_or(0) * record.default_us / record.chosen_us;
  return {record.problem, record.bucket, ratio, own.has_value(), share.has_value()};
}

std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  for (const std::string_view summary : runtime::builtin_records()) {
    const std::vector<TuningRecord> records = runtime::parse_summary(summary);
    for (const TuningRecord& record : records) cells.push_back(make_cell(record, records));
  }
  return cells;
}

struct Summary {
  int count = 0;
  double mean = 0, largest = 0;
};

template <class Wanted>
Summary summarize(const std::vector<Cell>& cells, const Wanted& wanted) {
  Summary summary;
  double sum = 0;
  for (const Cell& cell : cells) {
    if (!wanted(cell)) continue;
    ++summary.count;
    sum += cell.ratio;
    summary.largest = std::max(summary.largest, cell.ratio);
  }
  summary.mean = sum / summary.count;
  return summary;
}

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("each default was measured in its bucket, nearly all of them in the same precision") {
  const std::vector<Cell> cells = all_cells();
  REQUIRE(cells.size() == 4 * 224 + 160);
  for (const Cell& cell : cells) {
    CAPTURE(to_string(cell.problem));
    CAPTURE(to_string(cell.bucket));
    CHECK(cell.is_known);
  }
  CHECK(std::count_if(cells.begin(), cells.end(), [](const Cell& cell) { return !cell.is_own; }) <= 16);
}

TEST_CASE("in each range of work the defaults take at most 1.05 times as long as the choices, and nowhere 1.25 times") {
  const std::vector<Cell> cells = all_cells();
  for (const WorkRange work : kWorkRanges) {
    CAPTURE(to_string(ShapeBucket{QueryRange::more, KeyRange::more, work}));
    const Summary all = summarize(cells, [&](const Cell& cell) { return cell.bucket.work == work; });
    // Few rows and little work have had their keys split since the records were made, and so had they at head dim 128
    // whatever the work: the records know nothing of them.
    CHECK(all.count == (work == WorkRange::up_to_half ? 160 : 224));
    CHECK(all.mean <= 1.05);
    CHECK(all.largest <= 1.25);
    for (const Cell& of : cells) {
      if (!(of.bucket == ShapeBucket{})) continue;  // each problem once
      CAPTURE(to_string(of.problem));
      const auto alone = [&](const Cell& cell) { return cell.bucket.work == work && cell.problem == of.problem; };
      CHECK(summarize(cells, alone).mean <= 1.05);
    }
  }
}

TEST_CASE("the largest heads have defaults on each architecture, whatever features they have") {
  std::mt19937 random(21);
  const std::size_t rows = generator::features().size();
  for (int i = 0; i < 400; ++i) {
    Problem problem{.head_dim = 8 * (25 + static_cast<int>(random() % 8)), .head_dim_v = 256};
    const std::uint32_t features = i == 0 ? ~0u : random();
    for (std::size_t row = 0; row < rows; ++row)
      if ((features >> row & 1) != 0 && !tests::is_of_large_heads(generator::features()[row]))
        tests::ask(problem, generator::features()[row]);
    if (problem.e4m3_queries) problem.fast_sums = true, problem.head_dim -= problem.head_dim % 16;
    CAPTURE(to_string(problem));
    for (const Architecture& architecture : architectures()) {
      CAPTURE(std::string(architecture.name));
      Problem served = problem;
      const bool multiplies = generator::converts_to_8_bits(architecture);
      served.e4m3_queries &= multiplies, served.fast_sums &= multiplies, served.block_scales &= multiplies;
      served.values_transposed &= multiplies, served.out_e4m3 &= multiplies;
      if (served.block_scales) served.fast_sums = served.ragged = served.paged = false;
      if (architecture.name != std::string("sm_90a") && !served.e4m3_queries)
        served.e4m3 = served.token_scales = served.e5m2 = false;
      CHECK_NOTHROW(default_variants(served, architecture));
    }
  }
}

TEST_CASE("products of e4m3 are wgmma's on sm_90a, and mma.sync's where there is one") {
  const Problem problem{.e4m3 = true, .e4m3_queries = true};
  for (const Architecture& architecture : architectures()) {
    CAPTURE(std::string(architecture.name));
    if (generator::converts_to_8_bits(architecture)) {
      const bool by_wgmma = architecture.name == std::string("sm_90a");
      for (const Variant& variant : default_variants(problem, architecture))
        CHECK(std::holds_alternative<HopperVariant>(variant) == by_wgmma);
      continue;
    }
    CHECK_THROWS_WITH_AS(default_variants(problem, architecture),
                         doctest::Contains("products of e4m3 need sm_89 or a later architecture"), Error);
  }
}

TEST_CASE("keys and values of e4m3 beside other queries have tiles of 16 rows on sm_90a, and no kernel elsewhere") {
  const Problem problem{.e4m3 = true};
  for (const Architecture& architecture : architectures()) {
    CAPTURE(std::string(architecture.name));
    if (architecture.name == std::string("sm_90a")) {
      for (const Variant& variant : default_variants(problem, architecture)) CHECK(block_q(variant) == 16);
      continue;
    }
    CHECK_THROWS_WITH_AS(
        default_variants(problem, architecture),
        doctest::Contains("keys and values of e4m3 beside queries of 16 bits need the hopper family, of sm_90a"),
        Error);
  }
}

TEST_CASE("a problem has few default kernels, as preparing it compiles them all") {
  for (const Cell& cell : all_cells()) CHECK(default_variants(cell.problem, find_architecture("sm_90a")).size() <= 12);
}

TEST_CASE("docs/tuning.md has the figures of the defaults") {
  const std::vector<Cell> cells = all_cells();
  const std::string page = read_text(FLASHJIT_SOURCE_DIR "/docs/tuning.md");
  const auto check_row = [&](const std::string& name, const auto& wanted) {
    std::string row = "| " + name + " |";
    for (const WorkRange work : kWorkRanges) {
      const Summary of = summarize(cells, [&](const Cell& cell) { return wanted(cell) && cell.bucket.work == work; });
      row += of.count == 0 ? " |" : fmt::format(" {:.2f}, {:.2f} |", of.mean, of.largest);
    }
    CAPTURE(row);
    CHECK(page.find(row + "\n") != std::string::npos);
  };
  const auto with = [](QueryRange queries) { return [=](const Cell& cell) { return cell.bucket.queries == queries; }; };
  check_row("1 query", with(QueryRange::up_to_16));
  check_row("65 to 128 queries", with(QueryRange::up_to_128));
  check_row("more queries", with(QueryRange::more));
  check_row("all", [](const Cell&) { return true; });
}
