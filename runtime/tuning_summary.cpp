// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "cache/digest.h"
#include "flashjit/error.h"
#include "runtime/record_json.h"

namespace flashjit {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using runtime::Environment;
using runtime::Fields;

constexpr int kFormat = 1;
constexpr const char* kDate = "date";

const std::string* find(const Environment& environment, const std::string& name) {
  for (const auto& [key, value] : environment) {
    if (key == name) return &value;
  }
  return nullptr;
}

// What is the same for all, and the last date: days are written so that text sorts as they do.
Environment common_environment(const std::vector<TuningRecord>& records) {
  Environment common;
  for (const auto& [name, value] : records.front().environment) {
    const auto has_it = [&name = name, &value = value](const TuningRecord& record) {
      const std::string* const found = find(record.environment, name);
      return found && *found == value;
    };
    if (name != kDate && std::all_of(records.begin(), records.end(), has_it)) common.emplace_back(name, value);
  }
  std::string date;
  for (const TuningRecord& record : records) {
    if (const std::string* const found = find(record.environment, kDate)) date = std::max(date, *found);
  }
  if (!date.empty()) common.emplace_back(kDate, date);
  return common;
}

// By number in a list, which is much shorter than their spellings.
std::vector<std::string> variants_of(const std::vector<TuningRecord>& records) {
  std::vector<std::string> variants;
  for (const TuningRecord& record : records) {
    variants.push_back(to_string(record.chosen));
    variants.push_back(to_string(record.default_variant));
  }
  std::sort(variants.begin(), variants.end());
  variants.erase(std::unique(variants.begin(), variants.end()), variants.end());
  return variants;
}

// A row: bucket, chosen, default, their microseconds, and the shape that was measured.
ordered_json row_of(const TuningRecord& record, const std::vector<std::string>& variants) {
  const auto number_of = [&](const Variant& variant) {
    return std::lower_bound(variants.begin(), variants.end(), to_string(variant)) - variants.begin();
  };
  const auto rounded = [](double us) { return std::round(us * 100) / 100; };
  const CallShape& shape = record.shape;
  return ordered_json::array({to_string(record.bucket), number_of(record.chosen), number_of(record.default_variant),
                              rounded(record.chosen_us), rounded(record.default_us), shape.batch, shape.seqlen_q,
                              shape.seqlen_kv, shape.num_heads_q, shape.num_heads_kv});
}

// By name, each bucket of a problem once.
std::map<std::string, ordered_json> rows_by_problem(const std::vector<TuningRecord>& records,
                                                    const std::vector<std::string>& variants) {
  std::map<std::string, std::map<std::string, ordered_json>> sorted;
  for (const TuningRecord& record : records) {
    sorted[to_string(record.problem)][to_string(record.bucket)] = row_of(record, variants);
  }
  std::map<std::string, ordered_json> rows;
  for (auto& [problem, by_bucket] : sorted) {
    rows[problem] = ordered_json::array();
    for (auto& [bucket, row] : by_bucket) rows[problem].push_back(std::move(row));
  }
  return rows;
}

void require_one_device(const std::vector<TuningRecord>& records) {
  if (records.empty()) throw Error(ErrorCode::invalid_argument, "records: must be one or more, were none");
  for (const TuningRecord& record : records) {
    if (record.device == records.front().device) continue;
    throw Error(ErrorCode::invalid_argument, fmt::format("records: must be of one device, were of {} and {}",
                                                         slug(records.front().device), slug(record.device)));
  }
}

// Of what it says, however it is written.
std::string digest_of(json summary) {
  summary.erase("digest");
  return cache::digest_of(runtime::line_of(summary)).hex();
}

bool is_row(const json& row) {
  constexpr std::size_t kCells = 10, kFirstTime = 3, kFirstSize = 5;
  if (!row.is_array() || row.size() != kCells || !row[0].is_string()) return false;
  for (std::size_t i = 1; i < kCells; ++i) {
    const bool is_time = i >= kFirstTime && i < kFirstSize;
    if (!(is_time ? row[i].is_number() : row[i].is_number_unsigned())) return false;
  }
  return true;
}

TuningRecord parse_row(const json& row, const std::vector<Variant>& variants) {
  const auto refuse = [&row](const char* what) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tuning record: records: must have {}, has {}", what, runtime::line_of(row)));
  };
  if (!is_row(row)) refuse("a bucket and nine numbers in each row");
  const auto variant_at = [&](std::size_t i) {
    const auto number = row[i].get<std::size_t>();
    if (number >= variants.size()) refuse("the numbers of variants in the list");
    return variants[number];
  };
  const auto size = [&row](std::size_t i) { return row[i].get<std::int64_t>(); };
  TuningRecord record;
  record.bucket = parse_shape_bucket(row[0].get<std::string>());
  record.chosen = variant_at(1);
  record.default_variant = variant_at(2);
  record.chosen_us = row[3].get<double>();
  record.default_us = row[4].get<double>();
  record.shape = {size(5), size(6), size(7), size(8), size(9)};
  return record;
}

std::vector<Variant> parse_variants(const Fields& fields) {
  const json& list = fields.at("variants");
  if (!list.is_array()) fields.refuse("variants", "a list of texts");
  std::vector<Variant> variants;
  for (const json& variant : list) {
    if (!variant.is_string()) fields.refuse("variants", "a list of texts");
    variants.push_back(runtime::require_variant(variant.get<std::string>()));
  }
  return variants;
}

}  // namespace

std::string summarize(const std::vector<TuningRecord>& records) {
  require_one_device(records);
  const std::vector<std::string> variants = variants_of(records);
  const std::map<std::string, ordered_json> rows = rows_by_problem(records, variants);
  ordered_json summary = {{"format", kFormat},
                          {"device", runtime::describe(records.front().device)},
                          {"environment", runtime::describe(common_environment(records))},
                          {"variants", variants},
                          {"records", rows}};
  std::vector<std::string> problems;
  for (const auto& [problem, of_problem] : rows) {
    problems.push_back(fmt::format("  \"{}\": {}", problem, runtime::lines_of(of_problem, 2)));
  }
  return fmt::format(
      "{{\n\"format\": {},\n\"digest\": \"{}\",\n\"device\": {},\n\"environment\": {},\n\"variants\": {},\n"
      "\"records\": {{\n{}\n}}\n}}\n",
      kFormat, digest_of(json(summary)), runtime::line_of(summary["device"]),
      runtime::lines_of(summary["environment"], 0), runtime::lines_of(summary["variants"], 0),
      fmt::join(problems, ",\n"));
}

namespace runtime {

std::vector<TuningRecord> parse_summary(std::string_view text) {
  const json summary = parse_json(text);
  const Fields fields(summary, "");
  require_format(fields, kFormat);
  if (fields.text("digest") != digest_of(summary)) fields.refuse("digest", "that of the rest");
  const DeviceIdentity device = parse_device(fields);
  const Environment environment = parse_environment(fields);
  const std::vector<Variant> variants = parse_variants(fields);
  std::vector<TuningRecord> records;
  const json& by_problem = fields.at("records");
  if (!by_problem.is_object()) fields.refuse("records", "an object");
  for (const auto& [name, rows] : by_problem.items()) {
    const Problem problem = parse_problem(name);
    for (const json& row : rows) {
      TuningRecord& record = records.emplace_back(parse_row(row, variants));
      record.device = device;
      record.environment = environment;
      record.problem = problem;
    }
  }
  return records;
}

}  // namespace runtime
}  // namespace flashjit
