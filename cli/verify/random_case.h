// SPDX-License-Identifier: Apache-2.0
// A random combination of features, and a call of it: what flashjit verify --random compares. Both follow from a seed
// alone, so that what failed can be run again.
#pragma once

#include <flashjit/engine.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cli/io/text_options.h"
#include "cli/verify/cases.h"

namespace flashjit::cli {

struct RandomCase {
  Problem problem;
  CaseShape shape;
  CaseInputs inputs;
  Texts texts;
  std::optional<CallShape> block_mask;  // what it is to be made for; none where the problem has none
};
// with_e4m3: some have keys and values of e4m3, which not every architecture reads.
RandomCase random_case(std::uint64_t seed, bool with_e4m3 = true);

// One that can run the case, of either family where the architecture has both; or none, which leaves it to the library.
std::optional<Variant> random_variant(const Engine& engine, const RandomCase& random, std::string_view architecture,
                                      std::uint64_t seed);

// In one line: shape, options and texts.
std::string describe(const RandomCase& random);

}  // namespace flashjit::cli
