// SPDX-License-Identifier: Apache-2.0
// What tuning records and their summaries have in common as JSON, and how fields are read: whatever is not as it must
// be is an Error which names the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashjit/tuning.h"

namespace flashjit::runtime {

using Environment = std::vector<std::pair<std::string, std::string>>;

// An object's fields. One that is unknown is of no interest: a later release may have added it.
class Fields {
 public:
  // path: the name of the object, as in "candidates[3]"; empty for that which holds all others.
  Fields(const nlohmann::json& object, std::string path);

  const nlohmann::json& at(const char* name) const;
  std::string text(const char* name) const;
  double number(const char* name) const;      // finite, 0 and more
  std::int64_t size(const char* name) const;  // 0 and more
  int count(const char* name) const;          // 0 and more
  Fields object(const char* name) const;
  std::vector<Fields> objects(const char* name) const;  // of a list
  Problem problem(const char* name) const;
  ShapeBucket bucket(const char* name) const;
  Variant variant(const char* name) const;  // throws Error(unsupported) for one that this release does not know
  BackwardProblem backward_problem(const char* name) const;
  BackwardVariant backward_variant(const char* name) const;  // likewise
  [[noreturn]] void refuse(const char* name, const char* requirement) const;

 private:
  std::string path_to(const char* name) const;

  const nlohmann::json* object_;
  std::string path_;
};

// Throws Error(invalid_argument) when it is no JSON.
nlohmann::json parse_json(std::string_view text);
// Throws Error(unsupported) for a later format.
void require_format(const Fields& fields, int format);

// Throws Error(unsupported) when the text is none that this release spells so.
Variant require_variant(const std::string& text);

nlohmann::ordered_json describe(const DeviceIdentity& device);
DeviceIdentity parse_device(const Fields& fields);
nlohmann::ordered_json describe(const Environment& environment);
Environment parse_environment(const Fields& fields);

// One line of JSON; bytes that are no UTF-8, as in a compiler's message, are replaced.
std::string line_of(const nlohmann::ordered_json& json);
// The list with a line for each element, indented by as many spaces and two more.
std::string lines_of(const nlohmann::ordered_json& list, int indent);

}  // namespace flashjit::runtime
