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

ordered_json describe(const TuningRecord& record, const std::vector<std::string>& variants) {
  const auto number_of = [&](const Variant& variant) {
    return std::lower_bound(variants.begin(), variants.end(), to_string(variant)) - variants.begin();
  };
  const auto rounded = [](double us) { return std::round(us * 100) / 100; };
  const TuneShape& shape = record.shape;
  return {{"problem", to_string(record.problem)},
          {"bucket", to_string(record.bucket)},
          {"chosen", number_of(record.chosen)},
          {"default", number_of(record.default_variant)},
          {"us", ordered_json::array({rounded(record.chosen_us), rounded(record.default_us)})},
          {"shape",
           ordered_json::array({shape.batch, shape.seqlen_q, shape.seqlen_kv, shape.num_heads_q, shape.num_heads_kv})}};
}

// Each problem and bucket once, by name.
ordered_json describe_all(const std::vector<TuningRecord>& records, const std::vector<std::string>& variants) {
  std::map<std::string, ordered_json> by_name;
  for (const TuningRecord& record : records) {
    by_name[to_string(record.problem) + '.' + to_string(record.bucket)] = describe(record, variants);
  }
  ordered_json list = ordered_json::array();
  for (auto& [name, described] : by_name) list.push_back(std::move(described));
  return list;
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

const json& require_numbers(const Fields& fields, const char* name, std::size_t size, bool whole) {
  const json& list = fields.at(name);
  const auto is_right = [&](const json& number) { return whole ? number.is_number_unsigned() : number.is_number(); };
  if (!list.is_array() || list.size() != size || !std::all_of(list.begin(), list.end(), is_right)) {
    fields.refuse(name, fmt::format("a list of {} {}numbers", size, whole ? "whole " : "").c_str());
  }
  return list;
}

Variant variant_at(const Fields& fields, const char* name, const std::vector<Variant>& variants) {
  const auto number = static_cast<std::size_t>(fields.count(name));
  if (number >= variants.size()) fields.refuse(name, "the number of a variant in the list");
  return variants[number];
}

TuningRecord parse_choice(const Fields& fields, const std::vector<Variant>& variants) {
  TuningRecord record;
  record.problem = fields.problem("problem");
  record.bucket = fields.bucket("bucket");
  record.chosen = variant_at(fields, "chosen", variants);
  record.default_variant = variant_at(fields, "default", variants);
  const json& us = require_numbers(fields, "us", 2, false);
  record.chosen_us = us[0].get<double>();
  record.default_us = us[1].get<double>();
  const json& shape = require_numbers(fields, "shape", 5, true);
  const auto size = [&shape](std::size_t i) { return shape[i].get<std::int64_t>(); };
  record.shape = {size(0), size(1), size(2), size(3), size(4)};
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
  ordered_json summary = {{"format", kFormat},
                          {"device", runtime::describe(records.front().device)},
                          {"environment", runtime::describe(common_environment(records))},
                          {"variants", variants},
                          {"records", describe_all(records, variants)}};
  return fmt::format(
      "{{\n\"format\": {},\n\"digest\": \"{}\",\n\"device\": {},\n\"environment\": {},\n\"variants\": {},\n"
      "\"records\": {}\n}}\n",
      kFormat, digest_of(json(summary)), runtime::line_of(summary["device"]),
      runtime::lines_of(summary["environment"], 0), runtime::lines_of(summary["variants"], 0),
      runtime::lines_of(summary["records"], 0));
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
  for (const Fields& choice : fields.objects("records")) {
    records.push_back(parse_choice(choice, variants));
    records.back().device = device;
    records.back().environment = environment;
  }
  return records;
}

}  // namespace runtime
}  // namespace flashjit
