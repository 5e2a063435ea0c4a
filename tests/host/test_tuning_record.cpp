// SPDX-License-Identifier: Apache-2.0
// Tuning records as text, what tells devices apart, and the summaries inside the library.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "generator/variant_space.h"
#include "runtime/tuning/device_identity.h"
#include "runtime/tuning/tuning_records.h"
#include "runtime/tuning/tuning_summary.h"
#include "tests/support/tuning_records.h"

using namespace flashjit;
using namespace flashjit::tests;
using nlohmann::json;
using Outcome = TunedCandidate::Outcome;

namespace {

// "" when the text is read.
std::string refusal(const std::string& text, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    parse_tuning_record(text);
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// Every field of the format, and the objects that hold them.
const std::vector<std::string> kFields = {"/format",
                                          "/device",
                                          "/device/name",
                                          "/device/architecture",
                                          "/device/sm_count",
                                          "/device/memory_gib",
                                          "/device/l2_mib",
                                          "/device/sm_clock_mhz",
                                          "/device/memory_clock_mhz",
                                          "/device/memory_bus_bits",
                                          "/problem",
                                          "/bucket",
                                          "/shape",
                                          "/shape/batch",
                                          "/shape/seqlen_q",
                                          "/shape/seqlen_kv",
                                          "/shape/num_heads_q",
                                          "/shape/num_heads_kv",
                                          "/chosen",
                                          "/default",
                                          "/chosen_us",
                                          "/default_us",
                                          "/noise",
                                          "/environment",
                                          "/candidates",
                                          "/candidates/1/variant",
                                          "/candidates/1/outcome",
                                          "/candidates/1/why",
                                          "/candidates/1/median_us",
                                          "/candidates/1/dispersion",
                                          "/candidates/1/launches"};

std::string name_of(const std::string& field) { return field.substr(field.rfind('/') + 1); }

// Values of every type that JSON has, but for that of the value.
std::vector<json> of_other_types(const json& value) {
  std::vector<json> others = {nullptr, true, json::array({1}), json{{"a", 1}}};
  if (value.is_string()) others.push_back(7);
  if (value.is_number()) others.insert(others.end(), {json("7"), json(-1), json(-0.5)});
  if (value.is_number_integer()) others.insert(others.end(), {json(1.5), json(1e300), json(UINT64_MAX)});
  std::erase_if(others, [&](const json& other) { return other.type() == value.type() && !value.is_number(); });
  return others;
}

TuningRecord of_bucket(const ShapeBucket& bucket) {
  TuningRecord record = make_record();
  record.bucket = bucket;
  return record;
}

}  // namespace

TEST_CASE("a record is read as it was written") {
  const TuningRecord record = make_record();
  const TuningRecord read = parse_tuning_record(to_json(record));
  CHECK(read.device == record.device);
  CHECK(read.problem == record.problem);
  CHECK(read.bucket == record.bucket);
  CHECK(read.shape == record.shape);
  CHECK(read.chosen == record.chosen);
  CHECK(read.default_variant == record.default_variant);
  CHECK(read.chosen_us == record.chosen_us);
  CHECK(read.default_us == record.default_us);
  CHECK(read.noise == record.noise);
  CHECK(read.environment == record.environment);
  REQUIRE(read.candidates.size() == 3);
  CHECK(read.candidates[0].dispersion == record.candidates[0].dispersion);
  CHECK(read.candidates[1].median_us == record.candidates[1].median_us);
  CHECK(read.candidates[1].launches == 30);
  CHECK(read.candidates[2].outcome == Outcome::spills);
  CHECK(read.candidates[2].why == "spills 24 bytes");
  CHECK(to_json(read) == to_json(record));
}

TEST_CASE("numbers, outcomes and empty lists survive exactly") {
  TuningRecord record = make_record();
  record.chosen_us = 1.0 / 3;
  record.default_us = std::numeric_limits<double>::max();
  record.noise = std::numeric_limits<double>::denorm_min();
  record.shape.seqlen_kv = std::numeric_limits<std::int64_t>::max();
  record.candidates.clear();
  for (const Outcome outcome : {Outcome::measured, Outcome::stopped, Outcome::failed, Outcome::spills,
                                Outcome::duplicate, Outcome::wrong, Outcome::untried}) {
    record.candidates.push_back({record.chosen, outcome, to_string(outcome), 0, 0, 0});
  }
  const TuningRecord read = parse_tuning_record(to_json(record));
  CHECK(read.chosen_us == record.chosen_us);
  CHECK(read.default_us == record.default_us);
  CHECK(read.noise == record.noise);
  CHECK(read.shape == record.shape);
  REQUIRE(read.candidates.size() == 7);
  for (std::size_t i = 0; i < 7; ++i) CHECK(read.candidates[i].outcome == record.candidates[i].outcome);

  record.candidates.clear();
  record.environment.clear();
  CHECK(to_json(parse_tuning_record(to_json(record))) == to_json(record));
}

TEST_CASE("people can read it: a line for each field and each candidate") {
  const std::string text = to_json(make_record());
  CHECK(text.starts_with("{\n  \"format\": 1,\n"));
  CHECK(text.ends_with("\n}\n"));
  CHECK(mentions(text, "\n  \"problem\": \"fwd-bf16-d128\",\n"));
  CHECK(mentions(text, "\n  \"bucket\": \"qmore-kv8k-w2\",\n"));
  CHECK(mentions(text, "\n  \"chosen_us\": 412.5,\n"));
  CHECK(mentions(text, "\n    [\"date\",\"2026-11-21\"],\n"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 22);
}

TEST_CASE("a record without one of its fields is refused by the field's name") {
  const json whole = json::parse(to_json(make_record()));
  for (const std::string& field : kFields) {
    json less = whole;
    less.at(json::json_pointer(field).parent_pointer()).erase(name_of(field));
    CHECK_MESSAGE(mentions(refusal(less.dump()), name_of(field)), field);
  }
}

TEST_CASE("a field of another type is refused by its name") {
  const json whole = json::parse(to_json(make_record()));
  for (const std::string& field : kFields) {
    const json::json_pointer at(field);
    for (const json& other : of_other_types(whole.at(at))) {
      json changed = whole;
      changed.at(at) = other;
      CHECK_MESSAGE(mentions(refusal(changed.dump()), name_of(field)), field, ": ", other.dump());
    }
  }
}

TEST_CASE("the lists of fields above leave none out") {
  const json whole = json::parse(to_json(make_record()));
  std::size_t fields = whole.size() + whole.at("device").size() + whole.at("shape").size();
  fields += whole.at("candidates").at(1).size();
  CHECK(fields == kFields.size());
}

TEST_CASE("texts that mean nothing are refused") {
  const std::string text = to_json(make_record());
  CHECK(mentions(refusal(replaced(text, "fwd-bf16-d128", "fwd-bf16-d129")), "problem: must be a problem"));
  CHECK(mentions(refusal(replaced(text, "qmore-kv8k-w2", "qmore-kv8k-w3")), "bucket: must be a bucket"));
  CHECK(mentions(refusal(replaced(text, "\"spills\"", "\"spilled\"")), "candidates[2].outcome: must be"));
  CHECK(mentions(refusal(replaced(text, "[\"date\",", "[7,")), "environment: must be a list of pairs"));
  CHECK(mentions(refusal(replaced(text, "[\"date\",", "[\"date\",\"at\",")), "environment: must be a list of pairs"));
}

TEST_CASE("fields that this release does not know are skipped") {
  json more = json::parse(to_json(make_record()));
  more["mood"] = "good";
  more["device"]["colour"] = json::array({"green"});
  more["candidates"][0]["energy"] = 7;
  CHECK(to_json(parse_tuning_record(more.dump())) == to_json(make_record()));
}

TEST_CASE("every beginning of a record is refused") {
  const std::string text = to_json(make_record());
  for (std::size_t size = 0; size + 2 <= text.size(); ++size) {
    REQUIRE_MESSAGE(!refusal(text.substr(0, size)).empty(), size);
  }
  CHECK(mentions(refusal(text + "}"), "must be JSON, is not"));
  CHECK(mentions(refusal("[]"), "must be an object"));
}

TEST_CASE("a later format and unknown variants are another release's, an earlier format is damage") {
  const std::string text = to_json(make_record());
  CHECK(mentions(refusal(replaced(text, "\"format\": 1", "\"format\": 2"), ErrorCode::unsupported), "later release"));
  CHECK(mentions(refusal(replaced(text, "\"format\": 1", "\"format\": 0")), "format: must be 1, was 0"));
  for (const std::string variant : {"blackwell-q256", "kv32", "", "v1"}) {
    json changed = json::parse(text);
    changed["chosen"] = variant;
    CHECK(mentions(refusal(changed.dump(), ErrorCode::unsupported), "variants that this release knows"));
  }
}

TEST_CASE("numbers beyond all bounds and what is no number are refused") {
  const std::string text = to_json(make_record());
  for (const std::string number : {"1e999", "-1e999", "NaN", "Infinity", "-412.5", "0x10", "1.", "null"}) {
    CHECK_FALSE(refusal(replaced(text, "\"chosen_us\": 412.5", "\"chosen_us\": " + number)).empty());
  }
  for (const std::string number : {"99999999999999999999", "9223372036854775808", "1e3", "-1"}) {
    CHECK_FALSE(refusal(replaced(text, "\"batch\":4", "\"batch\":" + number)).empty());
  }
  CHECK(mentions(refusal(replaced(text, "\"sm_count\":132", "\"sm_count\":2147483648")), "device.sm_count"));
}

TEST_CASE("control characters in texts of others are read as spaces, so that no terminal obeys them") {
  TuningRecord record = make_record();
  record.environment = {{"complete\x1b[31m", "no\x9b\r\x7f\xc2\x9b"}};
  record.candidates[2].why = "spills\x1b]0;title\a\nand more";
  const TuningRecord read = parse_tuning_record(to_json(record));
  CHECK(read.environment == decltype(read.environment){{"complete [31m", "no\xef\xbf\xbd   "}});
  CHECK(read.candidates[2].why == "spills ]0;title \nand more");
}

TEST_CASE("what cannot be written does not become something else") {
  TuningRecord record = make_record();
  record.chosen_us = std::nan("");
  CHECK(mentions(refusal(to_json(record)), "chosen_us"));
  record = make_record();
  record.candidates[2].why = "bad byte \xff, quote \", line\nend";
  CHECK(parse_tuning_record(to_json(record)).candidates[2].why == "bad byte \xef\xbf\xbd, quote \", line\nend");
}

TEST_CASE("depth does no harm") {
  const std::string deep(100'000, '[');
  const std::string closed = deep + std::string(100'000, ']');
  CHECK_FALSE(refusal(deep).empty());
  CHECK(mentions(refusal(closed), "must be an object"));
  CHECK(mentions(refusal(replaced(to_json(make_record()), "412.5", closed)), "chosen_us: must be a number, was array"));
}

TEST_CASE("devices have names that directories can have") {
  CHECK(slug(make_h200()) == "nvidia-h200-sm_90a-132sm-140g-50m-1980mhz-3201mhz-6144b");
  DeviceIdentity slice = make_h200();
  slice.name = "NVIDIA H200 MIG 1g.18gb";
  slice.sm_count = 16;
  CHECK(slug(slice).starts_with("nvidia-h200-mig-1g.18gb-sm_90a-16sm-"));
  DeviceIdentity strange = make_h200();
  strange.name = "../A  (\xc3\xa9)/";
  CHECK(slug(strange).starts_with("a-sm_90a-"));
  strange.name.clear();
  CHECK(slug(strange).starts_with("gpu-sm_90a-"));
  strange.name.assign(1000, 'x');
  CHECK(slug(strange).size() < 200);
}

TEST_CASE("whatever tells two devices apart is in the name and in the comparison") {
  const DeviceIdentity h200 = make_h200();
  std::vector<DeviceIdentity> others(8, h200);
  others[0].name = "NVIDIA H20";
  others[1].architecture = "sm_100a";
  int* const numbers[] = {&others[2].sm_count,     &others[3].memory_gib,       &others[4].l2_mib,
                          &others[5].sm_clock_mhz, &others[6].memory_clock_mhz, &others[7].memory_bus_bits};
  for (int* const number : numbers) ++*number;
  for (const DeviceIdentity& other : others) {
    CHECK_FALSE(other == h200);
    CHECK(slug(other) != slug(h200));
  }
}

TEST_CASE("a device is identified by what the driver says, rounded") {
  DeviceInfo info;
  info.name = "NVIDIA H200";
  info.architecture = "sm_90a";
  info.sm_count = 132;
  info.memory_bytes = 150'109'880'320;  // some is reserved
  info.l2_bytes = 50 << 20;
  info.sm_clock_mhz = 1980;
  info.memory_clock_mhz = 3201;
  info.memory_bus_bits = 6144;
  CHECK(runtime::identify(info) == make_h200());
  info.memory_bytes -= 200 << 20;  // by another driver, more
  CHECK(runtime::identify(info) == make_h200());
}

TEST_CASE("a record's path names device, problem and bucket") {
  CHECK(path_of(make_record()) ==
        "tuning/nvidia-h200-sm_90a-132sm-140g-50m-1980mhz-3201mhz-6144b/fwd-bf16-d128.qmore-kv8k-w2.json");
}

TEST_CASE("policies have names") {
  for (const TuningPolicy policy :
       {TuningPolicy::off, TuningPolicy::recorded, TuningPolicy::on_first_use, TuningPolicy::frozen}) {
    CHECK(parse_tuning_policy(to_string(policy)) == policy);
  }
  CHECK_THROWS_WITH_AS(parse_tuning_policy("On"), "tuning: must be off, recorded, on_first_use or frozen, was On",
                       Error);
}

TEST_CASE("a summary keeps every choice, whatever the order of the records") {
  std::vector<TuningRecord> records = {of_bucket(shape_buckets().at(3)), of_bucket(shape_buckets().at(57))};
  records[1].chosen = records[1].default_variant;
  records[1].chosen_us = records[1].default_us = 10.123456;
  records[1].environment = {{"version", "0.1.0"}, {"date", "2026-12-01"}, {"complete", "budget"}};
  const std::string text = summarize(records);
  CHECK(summarize({records[1], records[0]}) == text);
  const std::vector<TuningRecord> read = runtime::parse_summary(text);
  REQUIRE(read.size() == 2);
  for (const TuningRecord& record : records) {
    const auto same = std::find_if(read.begin(), read.end(),
                                   [&](const TuningRecord& candidate) { return candidate.bucket == record.bucket; });
    REQUIRE(same != read.end());
    CHECK(same->device == record.device);
    CHECK(same->problem == record.problem);
    CHECK(same->shape == record.shape);
    CHECK(same->chosen == record.chosen);
    CHECK(same->default_variant == record.default_variant);
    CHECK(same->chosen_us == doctest::Approx(record.chosen_us).epsilon(0.001));
    CHECK(same->candidates.empty());
    const decltype(record.environment) common = {{"version", "0.1.0"}, {"date", "2026-12-01"}};
    CHECK(same->environment == common);
  }
  CHECK(summarize(read) == text);
}

TEST_CASE("a summary of all buckets of six problems is small") {
  std::vector<TuningRecord> records;
  for (const char* problem : {"fwd-bf16-d64", "fwd-bf16-d64-causal", "fwd-bf16-d128", "fwd-bf16-d128-causal"}) {
    for (const ShapeBucket& bucket : shape_buckets()) {
      if (records.size() == 200) break;
      records.push_back(of_bucket(bucket));
      records.back().problem = parse_problem(problem);
    }
  }
  REQUIRE(records.size() == 200);
  const std::string text = summarize(records);
  CHECK(text.size() < 15'000);
  CHECK(runtime::parse_summary(text).size() == 200);
}

TEST_CASE("a summary is of one device, and of something") {
  TuningRecord other = make_record();
  other.device.sm_count = 114;
  CHECK_THROWS_WITH_AS(summarize({}), "records: must be one or more, were none", Error);
  CHECK_THROWS_AS(summarize({make_record(), other}), Error);
}

TEST_CASE("a summary that was changed by hand or cut is refused") {
  const std::string text = summarize({make_record()});
  CHECK_THROWS_AS(runtime::parse_summary(replaced(text, "412.5", "312.5")), Error);
  CHECK_THROWS_AS(runtime::parse_summary(replaced(text, ",412.5", ",1,412.5")), Error);
  CHECK_THROWS_AS(runtime::parse_summary(replaced(text, "qmore", "q64")), Error);
  for (std::size_t size = 0; size + 2 <= text.size(); ++size) {
    CHECK_THROWS_AS(runtime::parse_summary(text.substr(0, size)), Error);
  }
}

TEST_CASE("one record is found in a summary as reading all of it gives it") {
  std::vector<TuningRecord> records = {of_bucket(shape_buckets().at(3)), of_bucket(shape_buckets().at(57))};
  records.push_back(of_bucket(shape_buckets().at(57)));
  records.back().problem.causal = true;
  records.back().chosen = parse_variant("hopper-q256-kv48");
  const std::string text = summarize(records);
  const runtime::TuningSummary summary(text);
  CHECK(summary.device() == records[0].device);
  for (const TuningRecord& each : runtime::parse_summary(text)) {
    const auto found = summary.find(each.problem, each.bucket);
    REQUIRE(found);
    CHECK(to_json(*found) == to_json(each));
  }
  CHECK_FALSE(summary.find(records[0].problem, shape_buckets().at(4)));
  CHECK_FALSE(summary.find({DType::f16}, shape_buckets().at(3)));
  CHECK_THROWS_AS(runtime::TuningSummary(""), Error);
  CHECK_THROWS_AS(runtime::TuningSummary(replaced(text, "\"format\": 1", "\"format\": 2")), Error);
  const std::string other_variant = replaced(text, "\"hopper-q256", "\"hopper-x256");
  CHECK_THROWS_AS(runtime::TuningSummary(other_variant).find(records[2].problem, records[2].bucket), Error);
}

TEST_CASE("what is inside the library can be read, and holds for its device") {
  for (const std::string_view summary : runtime::builtin_records()) {
    const runtime::TuningSummary by_line(summary);
    for (const TuningRecord& record : runtime::parse_summary(summary)) {
      const auto found = by_line.find(record.problem, record.bucket);
      REQUIRE(found);
      CHECK(to_json(*found) == to_json(record));
      const Architecture& architecture = find_architecture(record.device.architecture);
      CHECK(generator::why_illegal(record.problem, record.chosen, architecture).empty());
      CHECK(generator::why_illegal(record.problem, record.default_variant, architecture).empty());
    }
  }
}
