// SPDX-License-Identifier: Apache-2.0
// Which texts are formulas, and of which parts.
#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "generator/formula.h"
#include "generator/functions.h"

namespace {

using flashjit::DType;
using flashjit::generator::CaptureType;
using flashjit::generator::Formula;

const std::vector<CaptureType> kCaptures = {{"a", DType::f32, CaptureType::kNumber},
                                            {"n", DType::i32, CaptureType::kNumber},
                                            {"slope", DType::bf16, 1},
                                            {"table", DType::f32, 2},
                                            {"start", DType::i32, 1},
                                            {"flag", DType::boolean, 1},
                                            {"wide", DType::i64, 1},
                                            {"cap", DType::f32, 0}};

Formula formula(const std::string& text) { return flashjit::generator::formula_of(text, kCaptures); }

struct Sloping {
  const char *text, *slope, *from, *rest;
  bool of_query = false;
};

struct Capping {
  const char *text, *outer, *inner;
};

}  // namespace

TEST_CASE("slopes") {
  for (const Sloping& each : {
           Sloping{"score + a * key", "a", "", ""},
           Sloping{"key * a + score", "a", "", ""},
           Sloping{"score + slope(head) * (key - query)", "slope(head)", "(-query)", ""},
           Sloping{"score - slope(head) * (query - key)  // ALiBi", "(-(-slope(head)))", "(-query)", ""},
           Sloping{"score - (query - key) * slope ( head )", "(-(-slope(head)))", "(-query)", ""},
           Sloping{"score - a * (seqlen_kv - n - key)", "(-(-a))", "(-(seqlen_kv - n))", ""},
           Sloping{"score + table(head, query) * key", "table(head, query)", "", "", true},
           Sloping{"score + a * (key - start(batch)) + table(0, query) - 1", "a", "(-start(batch))",
                   "(table(0, query) - 1)", true},
           Sloping{"score + (key + 3) / a * 2", "(2 * (1.f / a))", "3", ""},
           Sloping{"score + exp2(-0.5f * (head + 1)) * key", "exp2(((-0.5f) * (head + 1)))", "", ""},
           Sloping{"score - (a * (key - 2) + pi)", "(-a)", "(-2)", "(-pi)"},
           Sloping{"score + slope(head)", "0.f", "", "slope(head)"},
           Sloping{"2. + score", "0.f", "", "2."},
           Sloping{"score - head / 2 * 0.5", "0.f", "", "(-((head / 2) * 0.5))"},
       }) {
    CAPTURE(std::string(each.text));
    const Formula of = formula(each.text);
    REQUIRE(of.kind == Formula::Kind::sloping);
    CHECK(of.slope == each.slope);
    CHECK(of.from == each.from);
    CHECK(of.rest == each.rest);
    CHECK(of.of_query == each.of_query);
  }
}

TEST_CASE("caps") {
  for (const Capping& each : {
           Capping{"tanh(score)", "", ""},
           Capping{"a * tanh(score / a)", "a", "(1.f / a)"},
           Capping{"tanh(score * (1 / cap())) * cap()", "cap()", "(1 / cap())"},
           Capping{"-30.f * tanh(-(2 * score))", "(-30.f)", "(-2)"},
           Capping{"tanh(score) / 2 / a", "((1.f / a) * (1.f / 2))", ""},
       }) {
    CAPTURE(std::string(each.text));
    const Formula of = formula(each.text);
    REQUIRE(of.kind == Formula::Kind::capping);
    CHECK(of.outer == each.outer);
    CHECK(of.inner == each.inner);
  }
}

TEST_CASE("what is of no known kind, or not sure to be, is computed as it stands") {
  for (const std::string text : {
           // Other formulas.
           "score",
           "2.f * score",
           "score * score",
           "score + score",
           "-score + a * key",
           "2 * score + a * key",
           "score + a * key + a * key",
           "score + key",
           "score + a * key * key",
           "a * key",
           "a",
           "tanh(tanh(score))",
           "tanh(score + a)",
           "tanh(score) + a",
           "a * tanh(score) + key * a",
           "score / key",
           "a / score",
           "score + a * abs(key - query)",
           "score + n * (key - query)",
           "score + (key - query) / 2 * a",
           "score + a * (key - a)",
           "score + a / key",
           // Caps that differ along the tile.
           "slope(head) * tanh(score)",
           "tanh(score / table(head, query))",
           "a * tanh(score * seqlen_kv)",
           // Texts with more than an expression knows, or with what no formula has.
           "key < 5 ? score : score + a * key",
           "(score, a)",
           "score + (a, key)",
           "score + a * key ? 1 : 2",
           "score + table(head, key)",
           "score + a * (key % 2)",
           "score + flag(head) * a",
           "score + wide(head) * a",
           "score + a * !key",
           "score + a * ~n",
           "score + a * (key & 1)",
           "score + a * (key << 1)",
           "score + float(head) * key",
           "score + max(a, 1.f) * key",
           "exp(score)",
           // Signs that are halves of others, and numbers that are no plain ones.
           "score++ + a * key",
           "score + ++n * a",
           "score -- a",
           "score += a * key",
           "score ** a",
           "score + a *= key",
           "score + 1e3f * key",
           "score + 1e-3f * key",
           "score + 0x10 * a",
           "score + 010 * a",
           "score + 1u * a",
           "score + 2f * a",
           "score + 1.5.2 * a",
           "score + .5f * key",
           "score + 1'000 * a",
           // What does not compile.
           "",
           "score +",
           "+ score",
           "score + a *",
           "(score + a * key",
           "score + a * key)",
           "score + other * key",
           "score + slope * key",
           "score + slope(head, head) * key",
           "score + table(head) * key",
           "score + a(head) * key",
           "score + slope() * key",
           "score + exp2(head) * key",
           "score + exp2(a, a) * key",
           "score a",
           "score + a key",
           "score + pi() * key",
       }) {
    CAPTURE(text);
    CHECK(formula(text).kind == Formula::Kind::none);
  }
}

TEST_CASE("a text is read to some depth and length") {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '(') + "score" +
           std::string(static_cast<std::size_t>(depth), ')') + " + a";
  };
  CHECK(formula(nested(20)).kind == Formula::Kind::sloping);
  CHECK(formula(nested(40)).kind == Formula::Kind::none);
  CHECK(formula(nested(400)).kind == Formula::Kind::none);
  CHECK(formula("score + a" + std::string(2000, ' ')).kind == Formula::Kind::none);
}
