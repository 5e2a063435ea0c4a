// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/record_json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "cache/text.h"
#include "flashjit/error.h"

namespace flashjit::runtime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kMaxShown = 80;  // of what a field was

// A list or an object may be too deep to be written.
std::string shown(const json& value) {
  std::string text = value.is_structured() ? value.type_name() : line_of(value);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return cache::without_control_characters(std::move(text));
}

// Records come from others, and what they say is shown on terminals. A compiler's message may have several lines.
std::string text_of(const json& value) { return cache::without_control_characters(value.get<std::string>(), "\n"); }

[[noreturn]] void refuse_record(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("tuning record: {}", why));
}

}  // namespace

Fields::Fields(const json& object, std::string path) : object_(&object), path_(std::move(path)) {
  if (!object.is_object()) refuse_record(fmt::format("{}must be an object", path_.empty() ? "" : path_ + ": "));
}

std::string Fields::path_to(const char* name) const { return path_.empty() ? name : path_ + '.' + name; }

void Fields::refuse(const char* name, const char* requirement) const {
  const auto field = object_->find(name);
  if (field == object_->end()) refuse_record(fmt::format("{}: must be {}, is missing", path_to(name), requirement));
  refuse_record(fmt::format("{}: must be {}, was {}", path_to(name), requirement, shown(*field)));
}

const json& Fields::at(const char* name) const {
  const auto field = object_->find(name);
  if (field == object_->end()) refuse_record(fmt::format("{}: must be there, is missing", path_to(name)));
  return *field;
}

std::string Fields::text(const char* name) const {
  const json& value = at(name);
  if (!value.is_string()) refuse(name, "a text");
  return text_of(value);
}

double Fields::number(const char* name) const {
  const json& value = at(name);
  if (!value.is_number()) refuse(name, "a number");
  const auto number = value.get<double>();
  if (!std::isfinite(number) || number < 0) refuse(name, "a number of 0 and more");
  return number;
}

std::int64_t Fields::size(const char* name) const {
  const json& value = at(name);
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMax) refuse(name, "a whole number of 0 and more");
  return value.get<std::int64_t>();
}

int Fields::count(const char* name) const {
  const std::int64_t value = size(name);
  if (value > std::numeric_limits<int>::max()) refuse(name, "a whole number below 2^31");
  return static_cast<int>(value);
}

Fields Fields::object(const char* name) const { return {at(name), path_to(name)}; }

std::vector<Fields> Fields::objects(const char* name) const {
  const json& list = at(name);
  if (!list.is_array()) refuse(name, "a list");
  std::vector<Fields> objects;
  for (const json& element : list) {
    objects.emplace_back(element, fmt::format("{}[{}]", path_to(name), objects.size()));
  }
  return objects;
}

Problem Fields::problem(const char* name) const try { return parse_problem(text(name)); } catch (const Error&) {
  refuse(name, "a problem");
}

BackwardProblem Fields::backward_problem(const char* name) const try {
  return parse_backward_problem(text(name));
} catch (const Error& error) {
  if (error.code() == ErrorCode::unsupported) throw;
  refuse(name, "a problem of gradients");
}

ShapeBucket Fields::bucket(const char* name) const try { return parse_shape_bucket(text(name)); } catch (const Error&) {
  refuse(name, "a bucket");
}

Variant Fields::variant(const char* name) const { return require_variant(text(name)); }

json parse_json(std::string_view text) {
  json parsed = json::parse(text, nullptr, false);
  if (parsed.is_discarded()) refuse_record("must be JSON, is not");
  return parsed;
}

void require_format(const Fields& fields, int format) {
  const std::int64_t found = fields.size("format");
  if (found > format) {
    throw Error(ErrorCode::unsupported,
                fmt::format("tuning record: format: must be {}, was {}: of a later release", format, found));
  }
  if (found != format) fields.refuse("format", std::to_string(format).c_str());
}

namespace {

// Part of a spelling would do for parse.
template <class Parse>
auto require_whole(const std::string& text, Parse parse) try {
  const auto variant = parse(text);
  if (to_string(variant) != text) throw Error(ErrorCode::invalid_argument, "not in full");
  return variant;
} catch (const Error&) {
  throw Error(ErrorCode::unsupported,
              fmt::format("tuning record: must name variants that this release knows, names {}", shown(text)));
}

}  // namespace

Variant require_variant(const std::string& text) {
  return require_whole(text, [](const std::string& whole) { return parse_variant(whole); });
}

BackwardVariant Fields::backward_variant(const char* name) const {
  return require_whole(text(name), parse_backward_variant);
}

ordered_json describe(const DeviceIdentity& device) {
  return {{"name", device.name},
          {"architecture", device.architecture},
          {"sm_count", device.sm_count},
          {"memory_gib", device.memory_gib},
          {"l2_mib", device.l2_mib},
          {"sm_clock_mhz", device.sm_clock_mhz},
          {"memory_clock_mhz", device.memory_clock_mhz},
          {"memory_bus_bits", device.memory_bus_bits}};
}

DeviceIdentity parse_device(const Fields& fields) {
  const Fields device = fields.object("device");
  return {device.text("name"),
          device.text("architecture"),
          device.count("sm_count"),
          device.count("memory_gib"),
          device.count("l2_mib"),
          device.count("sm_clock_mhz"),
          device.count("memory_clock_mhz"),
          device.count("memory_bus_bits")};
}

ordered_json describe(const Environment& environment) {
  ordered_json list = ordered_json::array();
  for (const auto& [name, value] : environment) list.push_back(ordered_json::array({name, value}));
  return list;
}

Environment parse_environment(const Fields& fields) {
  const json& list = fields.at("environment");
  const auto is_pair = [](const json& pair) {
    return pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
  };
  Environment environment;
  if (!list.is_array()) fields.refuse("environment", "a list of pairs of texts");
  for (const json& pair : list) {
    if (!is_pair(pair)) fields.refuse("environment", "a list of pairs of texts");
    environment.emplace_back(text_of(pair[0]), text_of(pair[1]));
  }
  return environment;
}

std::string line_of(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string lines_of(const ordered_json& list, int indent) {
  if (list.empty()) return "[]";
  std::string text = "[";
  for (const ordered_json& element : list) {
    text += fmt::format("{}\n{:{}}{}", text.size() > 1 ? "," : "", "", indent + 2, line_of(element));
  }
  return text + fmt::format("\n{:{}}]", "", indent);
}

}  // namespace flashjit::runtime
