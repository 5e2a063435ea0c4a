// SPDX-License-Identifier: Apache-2.0
// The cells of the benchmarks are those of bench/, whose records have them.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "cli/bench/cells.h"

using namespace flashjit;
using namespace flashjit::cli;
using nlohmann::json;

namespace {

// Rows of a step of a GPU's record.
json recorded(const std::string& device, const std::string& step) {
  std::ifstream file(std::filesystem::path(FLASHJIT_SOURCE_DIR) / "bench" / "results" / (device + ".json"));
  return json::parse(file).at("steps").at(step).at("rows");
}

}  // namespace

TEST_CASE("the cells of the grid decode are those that were recorded") {
  std::vector<json> cells;
  for (const DecodeCell& cell : decode_grid())
    cells.push_back({{"group", cell.group},
                     {"batch", cell.batch},
                     {"heads", cell.heads},
                     {"heads_kv", cell.heads_kv},
                     {"context", cell.context},
                     {"queries", cell.queries},
                     {"cache_bytes", static_cast<std::int64_t>(cell.cache_bytes())}});
  json rows;  // but for those of caches of e4m3, which the command's grid does not have
  for (const json& row : recorded("nvidia-h200", "decode"))
    if (row.at("group") != "e4m3") rows.push_back(row);
  REQUIRE(cells.size() == rows.size());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    CAPTURE(cells[i].dump());
    for (const auto& [name, value] : cells[i].items()) CHECK(rows[i].at(name) == value);
    CHECK(rows[i].at("us").contains("pages_16") == decode_grid()[i].has_pages());
  }
}

TEST_CASE("the cells of the grid ragged are those that were recorded") {
  const json rows = recorded("nvidia-h100-80gb-hbm3", "ragged");
  const std::vector<RaggedCell> cells = ragged_grid();
  REQUIRE(cells.size() == rows.size());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    CAPTURE(cells[i].batch);
    CHECK(rows[i].at("batch") == cells[i].batch);
    CHECK(rows[i].at("head_dim") == cells[i].head_dim);
    CHECK(rows[i].at("heads") == cells[i].heads());
    CHECK(rows[i].at("sequences") == cells[i].lengths.size());
    CHECK(rows[i].at("longest") == cells[i].longest());
    CHECK(std::accumulate(cells[i].lengths.begin(), cells[i].lengths.end(), std::int64_t{0}) == RaggedCell::kTokens);
  }
}

TEST_CASE("the window that was recorded is among those of its grid, with the same share of the blocks") {
  int compared = 0;
  for (const json& row : recorded("nvidia-h200", "window")) {
    for (const auto& [family, values] : row.at("families").items()) {
      const WindowCell cell{row.at("head_dim"), 1024};
      CHECK(share_of_blocks(cell, parse_variant(values.at("variant").get<std::string>())) ==
            doctest::Approx(values.at("share_of_blocks").get<double>()));
      ++compared;
    }
  }
  CHECK(compared > 0);
}

TEST_CASE("a quick grid has some of the cells") {
  CHECK(decode_grid(true).size() == 4);
  CHECK(ragged_grid(true).size() == 4);
  CHECK(window_grid(true).size() == 2);
}

TEST_CASE("what the dense kernel takes is exact at its lengths and follows a power between them") {
  constexpr double kTokens = RaggedCell::kTokens;
  std::map<std::int64_t, double> us_at;
  for (const std::int64_t length : kDenseLengths) us_at[length] = 1000 + static_cast<double>(length);
  CHECK(dense_microseconds(std::vector<std::int32_t>(128, 512), us_at) == doctest::Approx(1512));
  CHECK(dense_microseconds(std::vector<std::int32_t>(4, 16384), us_at) == doctest::Approx(1000 + 16384));
  // Where each pair takes the same, times are squares of lengths, within the lengths that were timed and without.
  for (const std::int64_t length : kDenseLengths) us_at[length] = 1e-3 * kTokens * static_cast<double>(length);
  CHECK(dense_microseconds({700, 20, 16384}, us_at) ==
        doctest::Approx(1e-3 * (700.0 * 700 + 20.0 * 20 + 16384.0 * 16384)));
  // The time of a pair is 1 at 512 and 4 at 1024: 2 between them by the geometric mean.
  us_at = {{512, kTokens * 512}, {1024, 4 * kTokens * 1024}};
  CHECK(dense_microseconds({724}, us_at) == doctest::Approx(2 * 724.0 * 724).epsilon(1e-3));
}

TEST_CASE("packed sequences count their own pairs") {
  const RaggedCell cell{"some", 64, {100, 300}};
  CHECK(cell.flops() == doctest::Approx(2 * 32 * (100.0 * 100 + 300.0 * 300) * 64));
}
