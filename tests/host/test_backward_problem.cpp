// SPDX-License-Identifier: Apache-2.0
// What calls for gradients are compiled for: spelled, read and checked.
#include <doctest/doctest.h>

#include <string>

#include "flashjit/backward.h"
#include "flashjit/error.h"
#include "tests/support/error_code.h"

using namespace flashjit;
using tests::code_of;

TEST_CASE("problems of gradients are spelled like those of attention, with what only gradients have behind them") {
  for (const char* text : {"bwd-bf16-d128", "bwd-f16-d192-v128-causal", "bwd-bf16-d64-alibi-f32-dslopes-deterministic",
                           "bwd-bf16-d64-bias.bf16-f32-dbias", "bwd-bf16-d64-bias.f32", "bwd-bf16-d64-sinks-dsinks",
                           "bwd-bf16-d64-deterministic"}) {
    CAPTURE(std::string(text));
    CHECK(to_string(parse_backward_problem(text)) == text);
  }
  const BackwardProblem all = parse_backward_problem("bwd-f16-d64-causal-alibi-f32-dslopes-deterministic");
  CHECK(all.attention == parse_problem("fwd-f16-d64-causal-alibi"));
  CHECK((all.f32 && all.slopes && all.deterministic && !all.bias && !all.sinks));
}

TEST_CASE("what is no problem of gradients is refused") {
  for (const char* text :
       {"", "bwd", "fwd-bf16-d128", "bwd-bf16-d128-dslopes", "bwd-bf16-d128-dbias", "bwd-bf16-d128-dsinks",
        "bwd-bf16-d128-deterministic-f32", "bwd-bf16-d12", "bwd-bf16-d64-"}) {
    CAPTURE(std::string(text));
    CHECK(code_of([&] { parse_backward_problem(text); }) == ErrorCode::invalid_argument);
  }
  for (const char* text : {"bwd-bf16-d64-ragged-paged", "bwd-bf16-d64-e4m3"}) {
    CAPTURE(std::string(text));
    CHECK(code_of([&] { parse_backward_problem(text); }) == ErrorCode::unsupported);
  }
}
