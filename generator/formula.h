// SPDX-License-Identifier: Apache-2.0
// Scores that are formulas of few kinds, for which kernels have a shorter way than to compute a text for each score.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashjit::generator {

struct CaptureType;

// What a text says, with the parts of it that do not depend on the key: each an expression of C++ in what the text may
// use but score and key. Empty where the kind has no such part.
struct Formula {
  enum class Kind {
    none,     // or nothing that is known of it
    sloping,  // score + slope * (key + from) + rest, as ALiBi is
    capping,  // outer * tanh(inner * score), as softcap is; of captures and numbers alone
  };

  Kind kind = Kind::none;
  std::string slope, from, rest;
  bool of_query = false;  // slope or rest depend on the query
  std::string outer, inner;
};

// Of a text that is an expression. What it makes of a text has the value of the text but for rounding, or its kind is
// none: also for a text that does not compile, which is the compiler's to tell.
Formula formula_of(std::string_view text, const std::vector<CaptureType>& captures);

}  // namespace flashjit::generator
