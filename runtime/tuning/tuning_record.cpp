// SPDX-License-Identifier: Apache-2.0
// A tuning record as text.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cache/record_path.h"
#include "flashjit/error.h"
#include "flashjit/tuning.h"
#include "runtime/tuning/record_json.h"

namespace flashjit {
namespace {

using nlohmann::ordered_json;
using runtime::Fields;

constexpr int kRecordFormat = 1;
// Of gradients: a later one for releases that know none, which leave such a record as it is.
constexpr int kBackwardRecordFormat = 2;

ordered_json describe(const CallShape& shape) {
  return {{"batch", shape.batch},
          {"seqlen_q", shape.seqlen_q},
          {"seqlen_kv", shape.seqlen_kv},
          {"num_heads_q", shape.num_heads_q},
          {"num_heads_kv", shape.num_heads_kv}};
}

CallShape parse_shape(const Fields& fields) {
  const Fields shape = fields.object("shape");
  return {shape.size("batch"), shape.size("seqlen_q"), shape.size("seqlen_kv"), shape.size("num_heads_q"),
          shape.size("num_heads_kv")};
}

template <class OfPass>
ordered_json describe(const std::vector<TunedCandidateOf<OfPass>>& candidates) {
  ordered_json list = ordered_json::array();
  for (const auto& candidate : candidates) {
    list.push_back({{"variant", to_string(candidate.variant)},
                    {"outcome", to_string(candidate.outcome)},
                    {"why", candidate.why},
                    {"median_us", candidate.median_us},
                    {"dispersion", candidate.dispersion},
                    {"launches", candidate.launches}});
  }
  return list;
}

CandidateOutcome parse_outcome(const Fields& fields) {
  using Outcome = CandidateOutcome;
  const std::string text = fields.text("outcome");
  for (const Outcome outcome : {Outcome::measured, Outcome::stopped, Outcome::failed, Outcome::spills,
                                Outcome::duplicate, Outcome::wrong, Outcome::untried}) {
    if (text == to_string(outcome)) return outcome;
  }
  fields.refuse("outcome", "measured, stopped, failed, spills, duplicate, wrong or untried");
}

// A line for each field and each candidate: people read it, and compare two of them.
template <class Record>
std::string json_of(const Record& record, int format) {
  std::string text = "{";
  const auto add = [&text](const char* name, const std::string& value) {
    text += fmt::format("{}\n  \"{}\": {}", text.size() > 1 ? "," : "", name, value);
  };
  const auto add_line = [&add](const char* name, const ordered_json& value) { add(name, runtime::line_of(value)); };
  add_line("format", format);
  add_line("device", runtime::describe(record.device));
  add_line("problem", to_string(record.problem));
  add_line("bucket", to_string(record.bucket));
  add_line("shape", describe(record.shape));
  add_line("chosen", to_string(record.chosen));
  add_line("default", to_string(record.default_variant));
  add_line("chosen_us", record.chosen_us);
  add_line("default_us", record.default_us);
  add_line("noise", record.noise);
  add("environment", runtime::lines_of(runtime::describe(record.environment), 2));
  add("candidates", runtime::lines_of(describe(record.candidates), 2));
  return text + "\n}\n";
}

// Of both passes.
template <class Record, class Variant>
Record parse_record(const nlohmann::json& json, int format, Variant (Fields::*variant)(const char*) const) {
  const Fields fields(json, "");
  runtime::require_format(fields, format);
  Record record;
  record.device = runtime::parse_device(fields);
  record.bucket = fields.bucket("bucket");
  record.shape = parse_shape(fields);
  record.chosen = (fields.*variant)("chosen");
  record.default_variant = (fields.*variant)("default");
  record.chosen_us = fields.number("chosen_us");
  record.default_us = fields.number("default_us");
  record.noise = fields.number("noise");
  record.environment = runtime::parse_environment(fields);
  for (const Fields& each : fields.objects("candidates"))
    record.candidates.push_back({(each.*variant)("variant"), parse_outcome(each), each.text("why"),
                                 each.number("median_us"), each.number("dispersion"), each.count("launches")});
  return record;
}

template <class OfPass>
std::string path_of(const DeviceIdentity& device, const OfPass& problem, const ShapeBucket& bucket) {
  const std::string file =
      fmt::format("{}.{}{}", to_string(tuning_class(problem)), to_string(bucket), cache::kRecordSuffix);
  return cache::to_string(cache::RecordPath{slug(device), file});
}

}  // namespace

std::string record_path(const DeviceIdentity& device, const Problem& problem, const ShapeBucket& bucket) {
  return path_of(device, problem, bucket);
}
std::string record_path(const DeviceIdentity& device, const BackwardProblem& problem, const ShapeBucket& bucket) {
  return path_of(device, problem, bucket);
}

std::string to_json(const TuningRecord& record) { return json_of(record, kRecordFormat); }
std::string to_json(const BackwardTuningRecord& record) { return json_of(record, kBackwardRecordFormat); }

TuningRecord parse_tuning_record(std::string_view text) {
  const nlohmann::json json = runtime::parse_json(text);
  auto record = parse_record<TuningRecord>(json, kRecordFormat, &Fields::variant);
  record.problem = Fields(json, "").problem("problem");
  return record;
}

BackwardTuningRecord parse_backward_tuning_record(std::string_view text) {
  const nlohmann::json json = runtime::parse_json(text);
  auto record = parse_record<BackwardTuningRecord>(json, kBackwardRecordFormat, &Fields::backward_variant);
  record.problem = Fields(json, "").backward_problem("problem");
  return record;
}

}  // namespace flashjit
