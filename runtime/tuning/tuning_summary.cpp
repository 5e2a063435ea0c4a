// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/tuning_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "cache/digest.h"
#include "flashjit/error.h"
#include "runtime/tuning/record_json.h"

namespace flashjit {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using runtime::Environment;
using runtime::Fields;

constexpr int kSummaryFormat = 1;
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

// variant_of: by number; throws Error when there are not so many.
TuningRecord parse_row(const json& row, const std::function<Variant(std::size_t)>& variant_of) {
  if (!is_row(row)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tuning record: records: must have a bucket and nine numbers in each row, has {}",
                            runtime::line_of(row)));
  }
  const auto size = [&row](std::size_t i) { return row[i].get<std::int64_t>(); };
  TuningRecord record;
  record.bucket = parse_shape_bucket(row[0].get<std::string>());
  record.chosen = variant_of(row[1].get<std::size_t>());
  record.default_variant = variant_of(row[2].get<std::size_t>());
  record.chosen_us = row[3].get<double>();
  record.default_us = row[4].get<double>();
  record.shape = {size(5), size(6), size(7), size(8), size(9)};
  return record;
}

[[noreturn]] void refuse_number(std::size_t number) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("tuning record: records: must have the numbers of variants in the list, has {}", number));
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

// What stands between the first two of these; empty when they are not there.
std::string_view between(std::string_view text, std::string_view begin, std::string_view end) {
  const std::size_t at = text.find(begin);
  if (at == text.npos) return {};
  const std::string_view rest = text.substr(at + begin.size());
  return rest.substr(0, rest.find(end));
}

// The text of that line of a list of texts.
std::string_view line_at(std::string_view list, std::size_t number) {
  std::size_t at = 0;
  for (std::size_t line = 0; line <= number; ++line) {
    at = list.find('\n', at);
    if (at == list.npos) refuse_number(number);
    ++at;
  }
  return between(list.substr(at), "\"", "\"");
}

}  // namespace

std::string summarize(const std::vector<TuningRecord>& records) {
  require_one_device(records);
  const std::vector<std::string> variants = variants_of(records);
  const std::map<std::string, ordered_json> rows = rows_by_problem(records, variants);
  ordered_json summary = {{"format", kSummaryFormat},
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
      kSummaryFormat, digest_of(json(summary)), runtime::line_of(summary["device"]),
      runtime::lines_of(summary["environment"], 0), runtime::lines_of(summary["variants"], 0),
      fmt::join(problems, ",\n"));
}

namespace runtime {

std::vector<TuningRecord> parse_summary(std::string_view text) {
  const json summary = parse_json(text);
  const Fields fields(summary, "");
  require_format(fields, kSummaryFormat);
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
      const auto variant_of = [&](std::size_t number) {
        if (number >= variants.size()) refuse_number(number);
        return variants[number];
      };
      TuningRecord& record = records.emplace_back(parse_row(row, variant_of));
      record.device = device;
      record.environment = environment;
      record.problem = problem;
    }
  }
  return records;
}

TuningSummary::TuningSummary(std::string_view text) : text_(text) {
  const json head = parse_json(fmt::format("{{\"format\": {}, \"device\": {}}}", between(text, "\"format\": ", ",\n"),
                                           between(text, "\"device\": ", ",\n")));
  const Fields fields(head, "");
  require_format(fields, kSummaryFormat);
  device_ = parse_device(fields);
}

std::optional<TuningRecord> TuningSummary::find(const Problem& problem, const ShapeBucket& bucket) const {
  const std::string_view rows = between(text_, fmt::format("\n  \"{}\": [", to_string(problem)), "\n  ]");
  const std::string row_begin = fmt::format("\n    [\"{}\",", to_string(bucket));
  if (rows.find(row_begin) == rows.npos) return std::nullopt;
  const json row = parse_json(row_begin + std::string(between(rows, row_begin, "]")) + ']');
  const std::string_view variants = between(text_, "\n\"variants\": [", "\n]");
  TuningRecord record =
      parse_row(row, [&](std::size_t number) { return require_variant(std::string(line_at(variants, number))); });
  const json tail = parse_json(fmt::format("{{\"environment\": {}]}}", between(text_, "\"environment\": ", "\n]")));
  record.device = device_;
  record.environment = parse_environment(Fields(tail, ""));
  record.problem = problem;
  return record;
}

}  // namespace runtime
}  // namespace flashjit
