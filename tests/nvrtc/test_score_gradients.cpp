// SPDX-License-Identifier: Apache-2.0
// Gradients through scores that users write as text: kernels in the emulator against the reference, and the reference
// against finite differences.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/backward_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"

namespace {

using namespace flashjit;
using tests::code_of;
using tests::engine_for;

using Case = tests::BackwardCase;
using Sizes = tests::BackwardSizes;
using O = AttentionOptions;

// All that numbers of a text may be put to, without steps.
constexpr const char* kSmooth[] = {
    "score",
    "-score * 0.5f + 1",
    "score * score / 4 - score",
    "2 * tanh(score / 2) + tanhf(score)",
    "sigmoid(score) * 4",
    "exp(score * 0.3f) + exp2(-score) + expf(0.2f * score) + exp2f(score / 3)",
    "log(abs(score) + 1) + log2(score * score + 2) + logf(fabs(score) + 1) + log2f(fabsf(score) + 2)",
    "sqrt(score * score + 0.1f) + sqrtf(abs(score) + 1)",
    "rsqrt(score * score + 0.5f) + rsqrtf(2 + score * score)",
    "sin(score) + cos(2 * score)",
    "max(score, 0.2f) + min(0.3f, score) + fmaxf(score, -score) + fminf(score, 1)",
    "fmax(score, -score) + fmin(score, 0.5) + fdim(score, 0.2f)",
    "fma(score, score, 1.0f) - fmaf(2, score, score)",
    "fmod(score, 16.0f) + 0.3f * fmod(2.5f, abs(score) + 3)",
    "atan2(score, 1.5f) + atan2(1, score + 8)",
    "erf(score) + erff(score / 2) + expm1f(0.2f * score) + log1pf(fabsf(score)) + expm1(score / 4) + log1p(abs(score))",
    "score < 0 ? score * 0.1f : score",
    "score != 0 && key % 2 == 1 ? -score : +score",
    "isnan(score) || score == infinity ? 0.0f : 1.0f / (2 + score * score)",
    "score / (1 + abs(score)) + 0.2f * score / 3 - 1 / (score - 9)",
    "score * (query - key) * 0.01f + score * abs(query - key) / (key + 1)",
    "float x = score; if (x > 0.5f) x = 0.5f + 0.1f * (x - 0.5f); return x;",
    "const double half = 0.5; double x = score; x *= half; x += key % 3; x -= 1.0f; x /= 1.25; return 3 * tanh(x / 3);",
    "Number x = Number(score); if (!(x > 0)) return x * 0.2f; return x;",
    "const float factors[2] = {0.5f, 1.5f}; return score * factors[1] + float(query % 3) * factors[0];",
    "const auto bent = [](float x) { return x * x * 0.25f; }; return bent(score) - score;",
    "const float distance = abs(query - key); return score * exp(-0.05f * distance) - 0.01f * distance;",
    "score - 0.1f * sqrt(float(abs(query - key))) + 0.1f * atan2(float(key), float(query)) * exp(-sqrt(float(key)))",
    "float sum = 0; for (float t = 0; t < 3; ++t) sum += fmodf(score, 4 + t) + fdimf(score, t);"
    "return sum + atan2f(score, 2);",
};

// Of steps the derivative is 0, where there is one.
constexpr const char* kSteps[] = {
    "score + floor(score * 2) * 0.1f + rintf(score) * 0.1f + ceil(score) * 0.1f",
    "score + floorf(score) * 0.1f + rint(score) * 0.1f + ceilf(score) * 0.1f",
    "score + int(score * 4) % 3 * 0.1f",
};

const Sizes kSmall{
    .batch = 1, .seqlen_q = 20, .seqlen_kv = 40, .num_heads_q = 2, .num_heads_kv = 1, .head_dim = 16, .head_dim_v = 16};

double loss(Engine& engine, const Case& c) {
  const reference::Result result = engine.reference(c.q.view(), c.k.view(), c.v.view(), c.options);
  const std::vector<double> of_out = c.dout.to_doubles();
  double sum = 0;
  for (std::size_t i = 0; i < of_out.size(); ++i) sum += of_out[i] * result.out[i];
  return sum;
}

}  // namespace

TEST_CASE("gradients through every operation that texts may put a score to") {
  bool is_even = false;
  for (const auto& texts : {std::vector<const char*>(std::begin(kSmooth), std::end(kSmooth)),
                            std::vector<const char*>(std::begin(kSteps), std::end(kSteps))})
    for (const char* text : texts) {
      CAPTURE(std::string(text));
      Case c(kSmall);
      c.options.score = Score(text);
      c.check(engine_for((is_even = !is_even) ? "sm_80" : "sm_90a"));
    }
}

TEST_CASE("the reference's gradients through texts are those of finite differences") {
  constexpr double kStep = 1.0 / 512;
  Engine& engine = engine_for("sm_80");
  for (const char* text : kSmooth) {
    CAPTURE(std::string(text));
    Case c({.batch = 1,
            .seqlen_q = 3,
            .seqlen_kv = 5,
            .num_heads_q = 1,
            .num_heads_kv = 1,
            .head_dim = 4,
            .head_dim_v = 4},
           DType::f32);
    c.options.softcap = 4, c.options.score = Score(text);
    const auto exact = engine.reference_backward(c.dout.view(), c.q.view(), c.k.view(), c.v.view(), c.options);
    for (const auto& [tensor, gradient] : {std::pair{&c.q, &exact.dq}, {&c.k, &exact.dk}})
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(gradient->size()); i += 3) {
        const double value = load_element(tensor->data(), DType::f32, i);
        const auto at = [&](double moved) {
          store_element(tensor->data(), DType::f32, i, moved);
          const double moved_to = load_element(tensor->data(), DType::f32, i);
          const double made = loss(engine, c);
          store_element(tensor->data(), DType::f32, i, value);
          return std::pair{moved_to, made};
        };
        const auto [above, loss_above] = at(value + kStep);
        const auto [below, loss_below] = at(value - kStep);
        const double wanted = (loss_above - loss_below) / (above - below);
        CAPTURE(i);
        CHECK(std::abs((*gradient)[static_cast<std::size_t>(i)] - wanted) <= 5e-4 * (1 + std::abs(wanted)));
      }
  }
}

TEST_CASE("a power of the score, whose reference in f64 no emulator runs, is like the exponential of a logarithm") {
  Engine& engine = engine_for("sm_80");
  const auto gradients = [&](const char* text) {
    Case c(kSmall, DType::f16);
    c.options.score = Score(text);
    return c.make(engine, true).dk.to_doubles();
  };
  for (const auto& [power, like] :
       {std::pair{"pow(abs(score) + 0.5f, 1.5f)", "exp(1.5f * log(abs(score) + 0.5f))"},
        {"powf(1.5f, score)", "exp(score * log(1.5f))"},
        {"pow(score, 2) + pow(score, 0)", "score * score + 1"},
        {"pow(score, 1) - pow(abs(score) + 1, 0.1f * score)", "score - exp(0.1f * score * log(abs(score) + 1))"}}) {
    CAPTURE(std::string(power));
    const std::vector<double> got = gradients(power), wanted = gradients(like);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - wanted[i]) <= 4e-3);
  }
}

TEST_CASE("gradients through a text beside options, captures, offsets and variants") {
  const std::vector<std::function<void(Case&)>> ways{
      [](Case& c) {
        const Tensor table =
            c.captured(DType::bf16, {4, 200}, [](std::int64_t i) { return static_cast<double>(i * 7 % 13) * .1; });
        c.options.causal = true;
        c.options.score =
            Score("score * gain + table(head, query - key + seqlen_kv)", {{"gain", 0.75}, {"table", table}});
      },
      [](Case& c) {
        c.options.softcap = 2, c.options.window = {30, 9}, c.options.dropout = {0.3, 99, 7};
        c.options.score = Score("score * score / 2 + slope * key", {{"slope", 0.01}});
        c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 8);
      },
      [](Case& c) {  // a slope, behind what is curved
        c.options.softcap = 3;
        c.options.score = Score("score - 0.05f * (query - key)");
      },
      [](Case& c) {
        c.values(&O::query_offsets, DType::i32, {2}, [](std::int64_t i) { return 40. * i; });
        c.values(&O::key_offsets, DType::i32, {2}, [](std::int64_t i) { return 3. - i; });
        c.options.mask = Mask("(query + key) % 4 != 1");
        c.options.score = Score("query > 60 ? 2 * tanh(score) : score * 0.5f + 0.01f * key");
      },
      [](Case& c) {
        c.options.softmax_scale = -0.3f, c.deterministic = true;
        c.values(&O::sinks, DType::f32, {4}, [](std::int64_t i) { return 2. - i; });
        c.options.score = Score("score * 0.3f * score");
      },
      [](Case& c) {
        const Tensor gate =
            c.captured(DType::f32, {2, 3}, [](std::int64_t i) { return 0.5 + 0.1 * static_cast<double>(i); });
        c.values(&O::documents, DType::i32, {1, 100}, [](std::int64_t i) { return i / 30 % 2; });
        // The index is of a score, and has no derivative.
        c.options.score = Score("score * gate(batch, max(min(score + 1, 2), 0))", {{"gate", gate}});
      }};
  for (std::size_t i = 0; i < ways.size(); ++i)
    for (const int head_dim : {32, 136}) {
      if (head_dim == 136 && i % 3 != 1) continue;
      CAPTURE(i);
      CAPTURE(head_dim);
      Case c({.head_dim = head_dim, .head_dim_v = head_dim});
      ways[i](c);
      if (i % 2 == 1 && head_dim == 32) c.variant = parse_backward_variant("q64-kv64-w8-r2-s1");
      c.check(engine_for(i % 2 == 0 ? "sm_90a" : "sm_80"), i % 4 == 0);
    }
}

TEST_CASE("gradients through the gallery's texts") {
  struct Entry {
    const char* text;
    std::vector<const char*> captures;
  };
  for (const auto& [text, names] : {Entry{"score - slope(head) * abs(query - key)", {"slope"}},
                                    {"cap * tanh(score / cap)", {"cap"}},
                                    {"score + abs(query - key)", {}},
                                    {"score + table(head, query - key + seqlen_kv)", {"table"}},
                                    {"const int distance = abs(query - key);\n"
                                     "const int far = 8 + int(log2(float(max(distance, 1)) / 8) * 8 / log2(16.0f));\n"
                                     "return score + table(head, distance < 8 ? distance : min(far, 15));",
                                     {"table"}},
                                    {"score + log2(float(gate(head))) * abs(query - key)", {"gate"}},
                                    {"score * log(float(query + 2))", {}},
                                    {"score * gate(head)", {"gate"}},
                                    {"(query - key) % 2 == 0 ? score * 0.5f : score", {}},
                                    {"score + slope(head) + table(head, key)", {"slope", "table"}}}) {
    CAPTURE(std::string(text));
    Case c(kSmall);
    std::vector<Capture> captures;
    for (const std::string name : names) {
      if (name == "cap") captures.push_back({name, 20.0});
      if (name == "slope")
        captures.push_back({name, c.captured(DType::f32, {2}, [](std::int64_t i) { return 0.25 / (1. + 3. * i); })});
      if (name == "gate")
        captures.push_back({name, c.captured(DType::f32, {2}, [](std::int64_t i) { return 0.9 + 0.07 * i; })});
      if (name == "table")
        captures.push_back({name, c.captured(DType::bf16, {2, 80}, [](std::int64_t i) { return i * 7 % 13 * .1; })});
    }
    c.options.score = Score(text, captures);
    c.check(engine_for("sm_90a"));
  }
}

TEST_CASE("gradients of slopes and of a bias are behind the cap and before the text") {
  for (const char* text : {"2 * tanh(score / 2)", "key % 3 == 1 ? -infinity : score * score / 4", "score - 0.1f * key"})
    for (const bool is_capped : {false, true}) {
      CAPTURE(std::string(text));
      CAPTURE(is_capped);
      Case c({.head_dim = 32, .head_dim_v = 32});
      c.of_options = true;
      if (is_capped) c.options.softcap = 3, c.options.causal = true;
      c.values(&O::bias, DType::bf16, {1, 4, 70, 100},
               [](std::int64_t i) { return static_cast<double>(i * 5 % 11) * .1; });
      c.values(&O::alibi_slopes, DType::f32, {4}, [](std::int64_t i) { return 0.03 * static_cast<double>(i); });
      c.options.score = Score(text);
      c.check(engine_for(is_capped ? "sm_80" : "sm_90a"));
    }
}

TEST_CASE("what a text hides has gradients of 0, whatever its value and its derivative are") {
  // Keys that nobody sees, whose derivative is infinite or NaN, and rows that see nothing.
  for (const char* text : {"key % 4 == 1 || query == 5 ? -infinity : score",
                           "log(key % 4 == 1 || query == 5 ? score * 0 : abs(score) + 1)",
                           "score - (key % 4 == 1 || query == 5 ? exp(abs(score) + 1000) : score * 0)"}) {
    CAPTURE(std::string(text));
    Case c(kSmall);
    c.options.score = Score(text);
    const Case::Made made = c.make(engine_for("sm_80"));
    CHECK(c.what_is_wrong(engine_for("sm_80")) == "");
    const std::vector<double> dq = made.dq.to_doubles(), dk = made.dk.to_doubles(), dv = made.dv.to_doubles();
    for (std::size_t i = 0; i < dq.size(); ++i) {
      CHECK(std::isfinite(dq[i]));
      if (i / 32 == 5) CHECK(dq[i] == 0);
    }
    for (std::size_t i = 0; i < dk.size(); ++i) {
      CHECK(std::isfinite(dk[i]));
      if (i / 16 % 4 == 1) CHECK((dk[i] == 0 && dv[i] == 0));
    }
  }
}

TEST_CASE("rows that do not exist add nothing, whatever a text makes of them") {
  for (const char* text : {"query < seqlen_q ? score : infinity", "score / (query < seqlen_q)", "1 / score"}) {
    CAPTURE(std::string(text));
    Case c(kSmall);
    c.options.score = Score(text);
    if (text[0] == '1') c.options.causal = true;
    for (const double value : c.make(engine_for("sm_90a")).dv.to_doubles()) CHECK(std::isfinite(value));
  }
}

TEST_CASE("what has no derivative is refused at its place in the text, and forward takes it") {
  Engine& engine = engine_for("sm_80");
  for (const auto& [text, message] : {std::pair{"1 + cbrtf(score)",
                                                "score: line 1, column 11: no suitable conversion function from "
                                                "\"text::Dual<float>\" to \"float\" exists"},
                                      {"float x = score;\nint whole = x;\nreturn whole;",
                                       "score: line 2, column 13: no suitable conversion "
                                       "function from \"text::Dual<float>\" to \"int\" exists"}}) {
    CAPTURE(std::string(text));
    Case c(kSmall);
    c.options.score = Score(text);
    HostTensor out(DType::bf16, c.dout.shape()), lse(DType::f32, c.lse_shape()), dq(DType::bf16, c.q.shape());
    AttentionOptions forward = c.options;
    forward.lse = lse.view();
    engine.attention(c.q.view(), c.k.view(), c.v.view(), out.view(), forward);
    std::string told;
    CHECK(code_of(
              [&] {
                engine.attention_backward(c.dout.view(), c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(),
                                          {dq.view(), {}, {}}, c.options);
              },
              &told) == ErrorCode::compile_failed);
    CHECK(told.starts_with(message));
  }
}

TEST_CASE("kernels of the Hopper family have no texts") {
  Case c;
  c.options.score = Score("score * 0.5f");
  c.variant = parse_backward_variant("hopper-q128-kv128");
  std::string message;
  CHECK(code_of([&] { c.make(engine_for("sm_90a")); }, &message) == ErrorCode::invalid_argument);
  CHECK(message.find("variant: family must be mma for fwd-bf16-d64-score.") == 0);
}
