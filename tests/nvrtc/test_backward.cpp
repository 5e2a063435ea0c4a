// SPDX-License-Identifier: Apache-2.0
// Gradients by kernels in the emulator, against the reference.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "generator/backward.h"
#include "tests/nvrtc/kernel_requests.h"
#include "tests/support/backward_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;
using tests::code_of;
using tests::engine_for;

using Case = tests::BackwardCase;
using Sizes = tests::BackwardSizes;
using O = AttentionOptions;

}  // namespace

TEST_CASE("gradients by kernels for much shared memory and for little, of every kind of head dim") {
  tests::Sampler sampler;
  for (const char* architecture : {"sm_80", "sm_86", "sm_90a"})
    for (const auto& [head_dim, head_dim_v] :
         {std::pair{64, 64}, {128, 128}, {256, 256}, {8, 8}, {40, 24}, {80, 80}, {192, 128}, {24, 152}, {248, 200}})
      for (const DType dtype : {DType::bf16, DType::f16}) {
        if ((dtype == DType::f16 && head_dim > 64) || !sampler.takes_next()) continue;
        CAPTURE(head_dim);
        CAPTURE(head_dim_v);
        Sizes sizes;
        sizes.head_dim = head_dim, sizes.head_dim_v = head_dim_v;
        if (head_dim > 64) sizes.batch = 1;
        Case(sizes, dtype).check(engine_for(architecture));
      }
}

TEST_CASE("gradients by variants, of every way in which warps share out the products") {
  struct Way {
    const char* variant;
    int head_dim, head_dim_v;
  };
  for (const auto& [variant, head_dim, head_dim_v] : {Way{"q64-kv128-w8-r2-s1", 128, 128},
                                                      {"q128-kv128-w8-r2-s1", 64, 64},
                                                      {"q64-kv64-w8-r2-s1", 256, 200},
                                                      {"q32-kv64-w4-r2-s2", 40, 72},
                                                      {"q32-kv128-w4-r2-s2", 64, 24},
                                                      {"q64-kv32-w4-r1-s2", 80, 80},
                                                      {"q16-kv64-w4-r1-s1", 64, 128}}) {
    CAPTURE(std::string(variant));
    Case c({.batch = 1, .head_dim = head_dim, .head_dim_v = head_dim_v});
    c.variant = parse_backward_variant(variant);
    c.options.causal = true, c.options.window.left = 45;
    c.options.softcap = 5, c.options.dropout = {0.3, 99, 7};
    c.values(&O::documents, DType::i32, {1, 100}, [](std::int64_t i) { return i / 60; });
    c.check(engine_for("sm_80"));
  }
}

TEST_CASE("gradients by Hopper's kernels, of several tiles of keys and under many schedules") {
  tests::Sampler sampler;
  struct Way {
    const char* variant;
    int head_dim, head_dim_v;
  };
  for (const auto& [variant, head_dim, head_dim_v] : {Way{"hopper-q128-kv128", 64, 64},
                                                      {"hopper-q128-kv128", 48, 16},
                                                      {"hopper-q128-kv128", 16, 64},
                                                      {"hopper-q64-kv128", 128, 128},
                                                      {"hopper-q64-kv128", 72, 104},
                                                      {"hopper-q80-kv128", 128, 128},
                                                      {"hopper-q80-kv128", 104, 40},
                                                      {"hopper-q64-kv64", 256, 256},
                                                      {"hopper-q64-kv64", 200, 232}})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      if (!sampler.takes_next()) continue;
      CAPTURE(std::string(variant));
      CAPTURE(head_dim);
      CAPTURE(seed);
      EngineOptions options = tests::emulating("sm_90a");
      options.emulation.seed = seed;
      Engine engine(options);
      Case c({.batch = 1,
              .seqlen_q = 150,
              .seqlen_kv = head_dim > 128 ? 200 : 300,
              .num_heads_q = 2,
              .num_heads_kv = 1,
              .head_dim = head_dim,
              .head_dim_v = head_dim_v});
      c.variant = parse_backward_variant(variant);
      c.options.causal = seed % 2 == 0;
      if (seed % 4 == 3) c.options.window = {100, 10};
      if (seed % 5 == 4) c.options.softmax_scale = -0.2f;
      c.check(engine, seed % 3 == 0);
    }
}

// With 240 rows in a job of these, and boxes, LSE and row sums that end with a tile.
TEST_CASE("gradients by steps of 80 queries, of lengths that end anywhere in a step, below every mask that is a span") {
  const std::vector<std::function<void(Case&)>> masks{
      [](Case&) {},
      [](Case& c) { c.options.causal = true; },
      [](Case& c) {
        c.options.window = {70, 20};
      },
      [](Case& c) { c.options.causal = true, c.options.window.left = 33; },
      [](Case& c) { c.options.chunk = 50; },
      [](Case& c) { c.values(&O::prefix, DType::i32, {c.sizes.batch}, [](std::int64_t i) { return 20. + 90. * i; }); }};
  const std::vector<int> lengths{1, 79, 80, 81, 159, 160, 161, 239, 240, 241, 330}, keys{200, 5, 127, 128, 129};
  const std::vector<int> head_dims{128, 72, 80, 88, 96, 104, 112, 120}, head_dims_v{128, 8, 64, 16, 120, 40, 72};
  tests::Sampler sampler;
  std::size_t i = 0;
  for (const int seqlen_q : lengths)
    for (std::size_t mask = 0; mask < masks.size(); ++mask, ++i) {
      if (!sampler.takes_next()) continue;
      CAPTURE(seqlen_q);
      CAPTURE(mask);
      const auto one_of = [i](const std::vector<int>& list) { return list[i % list.size()]; };
      Case c({.batch = 2,
              .seqlen_q = seqlen_q,
              .seqlen_kv = one_of(keys),
              .num_heads_q = 2,
              .num_heads_kv = i % 3 == 0 ? 2 : 1,
              .head_dim = one_of(head_dims),
              .head_dim_v = one_of(head_dims_v)},
             i % 2 == 0 ? DType::bf16 : DType::f16);
      CAPTURE(c.sizes.seqlen_kv);
      CAPTURE(c.sizes.head_dim);
      CAPTURE(c.sizes.head_dim_v);
      c.variant = parse_backward_variant("hopper-q80-kv128");
      c.deterministic = i % 4 == 1;
      if (i % 3 == 1) c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 8);
      masks[mask](c);
      c.check(engine_for("sm_90a"), i % 5 == 0);
    }
}

TEST_CASE("gradients by Hopper's kernels do not depend on how many blocks run at once") {
  tests::Sampler sampler;
  struct Way {
    const char* variant;
    int head_dim;
  };
  for (const auto& [variant, head_dim] :
       {Way{"hopper-q128-kv128", 64}, {"hopper-q64-kv128", 128}, {"hopper-q80-kv128", 128}, {"hopper-q64-kv64", 256}})
    for (const int blocks : {1, 3, 24}) {  // with fewer heads of keys in a section, and with one section for all
      if (!sampler.takes_next()) continue;
      CAPTURE(std::string(variant));
      CAPTURE(blocks);
      EngineOptions options = tests::emulating("sm_90a");
      options.emulation.resident_blocks = blocks, options.emulation.seed = blocks;
      options.emulation.most_instructions = 100'000'000;  // where blocks would wait for each other for ever
      Engine engine(options);
      Case c({.batch = 2,
              .seqlen_q = 300,
              .seqlen_kv = 280,
              .num_heads_q = 6,
              .num_heads_kv = 3,
              .head_dim = head_dim,
              .head_dim_v = head_dim});
      c.variant = parse_backward_variant(variant);
      if (blocks == 3) c.options.causal = true;
      c.check(engine, blocks == 1);
    }
}

TEST_CASE("deterministic gradients have the same bits under every schedule, with any number of blocks") {
  tests::Sampler sampler;
  struct Way {
    const char *architecture, *variant;
    int head_dim;
  };
  for (const auto& [architecture, variant, head_dim] : {Way{"sm_80", "mma-q64-kv64-w8-r1-s1", 64},
                                                        {"sm_86", "mma-q32-kv32-w4-r1-s1", 200},
                                                        {"sm_90a", "mma-q64-kv128-w8-r1-s1", 72},
                                                        {"sm_90a", "hopper-q128-kv128", 64},
                                                        {"sm_90a", "hopper-q64-kv128", 128},
                                                        {"sm_90a", "hopper-q80-kv128", 128},
                                                        {"sm_90a", "hopper-q64-kv64", 256}})
    for (const int mask : {0, 1, 2}) {
      if (!sampler.takes_next()) continue;
      CAPTURE(architecture);
      CAPTURE(variant);
      CAPTURE(mask);
      const bool has_heads = head_dim == 64;  // of keys, several in a section
      Case c({.batch = has_heads ? 2 : 1,
              .seqlen_q = has_heads ? 140 : 290,
              .seqlen_kv = has_heads ? 260 : 330,
              .num_heads_q = has_heads ? 3 : 2,
              .num_heads_kv = has_heads ? 3 : 1,
              .head_dim = head_dim,
              .head_dim_v = head_dim},
             DType::f16);  // whose last bits tell more
      c.variant = parse_backward_variant(variant);
      c.deterministic = true;
      if (mask == 1) c.options.causal = true;
      if (mask == 2) c.options.window = {100, 30};
      std::vector<double> first;
      for (const int blocks : {1, 2, 5, 24}) {
        CAPTURE(blocks);
        EngineOptions options = tests::emulating(architecture);
        options.emulation.resident_blocks = blocks, options.emulation.seed = 7 * mask + blocks;
        options.emulation.most_instructions = 100'000'000;  // where blocks would wait for each other for ever
        Engine engine(options);
        if (first.empty()) {
          c.check(engine);
          first = c.make(engine).dq.to_doubles();
        } else {
          CHECK(c.make(engine).dq.to_doubles() == first);
        }
      }
    }
}

TEST_CASE("what Hopper's kernels cannot read or do not have goes to the mma family") {
  const Architecture& hopper = find_architecture("sm_90a");
  Problem problem;
  problem.head_dim = problem.head_dim_v = 128;
  const auto family_of = [&](bool has_tensor_maps = true) {
    return to_string(generator::default_backward_variant(problem, hopper, generator::kManyQueries, has_tensor_maps))
        .substr(0, 3);
  };
  CHECK(family_of() == "hop");
  CHECK(family_of(false) == "mma");
  problem.ragged = true;
  CHECK(family_of() == "hop");
  problem.ragged = false;
  problem.softcap = true;
  CHECK(family_of() == "mma");
  problem.softcap = false;
  problem.head_dim = 160;
  CHECK(family_of() == "mma");
  // Rows that lie on each other have no tensor map.
  Case c({.batch = 1, .num_heads_q = 2, .num_heads_kv = 2});
  const auto gradients = [&](const std::optional<BackwardVariant>& variant) {
    Engine& engine = engine_for("sm_90a");
    HostTensor out(DType::bf16, c.dout.shape()), lse(DType::f32, c.lse_shape()), dq(DType::bf16, c.q.shape());
    Tensor dout = c.dout.view();
    dout.strides[1] = 0;
    AttentionOptions options;
    options.lse = lse.view();
    engine.attention(c.q.view(), c.k.view(), c.v.view(), out.view(), options);
    engine.attention_backward(dout, c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(), {dq.view(), {}, {}}, {},
                              {{}, variant});
  };
  gradients(std::nullopt);
  std::string message;
  CHECK(code_of([&] { gradients(parse_backward_variant("hopper-q128-kv128")); }, &message) ==
        ErrorCode::invalid_argument);
  CHECK(message.find("dout: the stride of seqlen must be from 1 to") == 0);
}

TEST_CASE("variants that there are no kernels of are refused, and spelled variants are read") {
  Problem problem;
  const auto why = [&](const char* variant, const char* architecture = "sm_80") {
    for (const Architecture& each : architectures())
      if (each.name == std::string(architecture))
        return generator::why_illegal(problem, parse_backward_variant(variant), each);
    return std::string("no such architecture");
  };
  CHECK(why("mma-q64-kv128-w8-r2-s1") == "");
  CHECK(why("q64-kv128-w8-r2-s1", "sm_86") ==
        "variant: mma-q64-kv128-w8-r2-s1 must take at most 101376 bytes of shared memory on sm_86, takes 131072");
  CHECK(why("q72") == "variant: block_q must be a multiple of 16 from 16 to 128, was 72");
  CHECK(why("w6") == "variant: warps must be 4 or 8, was 6");
  CHECK(why("r3") == "variant: row_tiles must be 1 or 2, was 3");
  for (const char* apart : {"q48", "q16-r2", "kv48-w4", "q32-kv32-w4-r2", "q16-kv48-w4"})
    CHECK(why(apart).find("variant: warps must be such that they share out rows and columns alike, was mma-") == 0);
  CHECK(why("hopper-q64-kv128") == "variant: architecture of the hopper family must be sm_90a, was sm_80");
  problem.head_dim = problem.head_dim_v = 128;
  CHECK(why("hopper-q64-kv128", "sm_90a") == "");
  CHECK(why("hopper-q80-kv128", "sm_90a") == "");
  CHECK(why("hopper-q96", "sm_90a") == "variant: block_q must be 64 or 80 for these head dims, was 96");
  CHECK(why("hopper-q128", "sm_90a") == "variant: block_q must be 64 or 80 for these head dims, was 128");
  CHECK(why("hopper-q64-kv64", "sm_90a") == "variant: block_kv must be 128 for these head dims, was 64");
  problem.head_dim = problem.head_dim_v = 64;
  CHECK(why("hopper-q80", "sm_90a") == "variant: block_q must be 128 for these head dims, was 80");
  problem.head_dim = 200, problem.head_dim_v = 128;
  CHECK(why("hopper", "sm_90a") ==
        "variant: family must be mma for head dims that are not both up to 128 or both above 192, was hopper");
  problem.head_dim = problem.head_dim_v = 256;
  CHECK(why("hopper-kv64", "sm_90a") == "");
  CHECK(why("hopper-q80-kv64", "sm_90a") == "variant: block_q must be 64 for these head dims, was 80");
  problem.alibi = true;
  CHECK(why("hopper-kv64", "sm_90a").find("variant: family must be mma for fwd-bf16-d256-alibi, was hopper") == 0);
  for (const char* spelling :
       {"mma-q64-kv128-w8-r1-s1", "mma-q16-kv64-w4-r2-s2", "hopper-q128-kv128", "hopper-q80-kv128"})
    CHECK(to_string(parse_backward_variant(spelling)) == spelling);
  CHECK(parse_backward_variant("mma") == BackwardVariant{});
  CHECK(parse_backward_variant("hopper") == BackwardVariant(HopperBackwardVariant{}));
  for (const char* wrong : {"hopper-q64-w8", "hopper64", "mma-q64--kv64", "mma-", "q", "q64-x1"})
    CHECK_THROWS_AS(parse_backward_variant(wrong), Error);
}

TEST_CASE("gradients below masks that are spans, of any lengths") {
  const std::vector<std::function<void(Case&)>> masks{
      [](Case& c) { c.options.causal = true; }, [](Case& c) { c.options.causal = true, c.options.window.left = 20; },
      [](Case& c) {
        c.options.window = {30, 9};
      },
      [](Case& c) { c.options.chunk = 24; },
      [](Case& c) { c.values(&O::prefix, DType::i32, {c.sizes.batch}, [](std::int64_t i) { return 50. - 30. * i; }); }};
  tests::Sampler sampler;
  for (std::size_t i = 0; i < masks.size(); ++i)
    for (const auto& [queries, keys] : {std::pair{70, 100}, {130, 40}, {1, 129}, {64, 64}, {3, 5}}) {
      if (!sampler.takes_next()) continue;
      CAPTURE(i);
      CAPTURE(queries);
      CAPTURE(keys);
      Sizes sizes;
      sizes.seqlen_q = queries, sizes.seqlen_kv = keys, sizes.head_dim = sizes.head_dim_v = 32;
      Case c(sizes);
      masks[i](c);
      c.check(engine_for("sm_80"));
      sizes.head_dim = sizes.head_dim_v = i % 3 == 0 ? 32 : i % 3 == 1 ? 128 : 256;
      Case on_hopper(sizes);
      masks[i](on_hopper);
      on_hopper.variant = parse_backward_variant(i % 3 == 0   ? "hopper-q128"
                                                 : i % 3 == 1 ? "hopper-q64"
                                                              : "hopper-kv64");
      on_hopper.check(engine_for("sm_90a"));
    }
}

TEST_CASE("gradients of everything that changes scores and probabilities") {
  const auto changes = tests::changes_of_scores();
  tests::Sampler sampler;
  for (std::size_t i = 0; i < changes.size(); ++i)
    for (const int head_dim : {32, 136}) {
      if ((head_dim == 136 && i % 3 != 2) || !sampler.takes_next()) continue;  // tiles of 32
      CAPTURE(i);
      CAPTURE(head_dim);
      Sizes sizes;
      sizes.head_dim = sizes.head_dim_v = head_dim;
      Case c(sizes);
      changes[i](c);
      c.check(engine_for(i % 2 == 0 ? "sm_86" : "sm_90a"), i % 4 == 0);
    }
}

TEST_CASE("gradients of rows whose LSE is far from 0") {
  for (const double far : {-10000., 10000.}) {
    CAPTURE(far);
    Case c;
    c.values(&O::bias, DType::f32, {1, 1, 1, 100}, [&](std::int64_t) { return far; });
    c.check(engine_for("sm_80"));
  }
}

TEST_CASE("gradients of some of the tensors, and of empty ones") {
  Engine& engine = engine_for("sm_80");
  const Case c;
  const auto gradients_of = [&](GradientTensors into) {
    HostTensor out(DType::bf16, c.dout.shape()), lse(DType::f32, c.lse_shape());
    AttentionOptions options;
    options.lse = lse.view();
    engine.attention(c.q.view(), c.k.view(), c.v.view(), out.view(), options);
    engine.attention_backward(c.dout.view(), c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(), into);
  };
  HostTensor dq(DType::bf16, c.q.shape()), dk(DType::bf16, c.k.shape()), dv(DType::bf16, c.v.shape());
  gradients_of({dq.view(), dk.view(), dv.view()});
  HostTensor alone(DType::bf16, c.q.shape());
  gradients_of({alone.view(), {}, {}});
  CHECK(reference::compare(alone, dq.to_doubles(), dq.to_doubles()).max_error < 0.02);  // sums in any order
  HostTensor keys(DType::f32, c.k.shape()), values(DType::bf16, c.v.shape());
  gradients_of({{}, {}, values.view()});
  CHECK(values.to_doubles() == dv.to_doubles());
  gradients_of({{}, keys.view(), {}});
  CHECK(keys.converted_to(DType::bf16).to_doubles() == dk.to_doubles());
  Case no_keys({.seqlen_kv = 0}), no_queries({.seqlen_q = 0});
  no_keys.check(engine);
  no_queries.check(engine);
  Case no_heads({.num_heads_q = 0});
  no_heads.check(engine);
  gradients_of({});
}

TEST_CASE("a wrong call for gradients is refused by the name of what is wrong") {
  Engine& engine = engine_for("sm_80");
  Case c;
  HostTensor out(DType::bf16, c.dout.shape()), lse(DType::f32, c.lse_shape()), dq(DType::bf16, c.q.shape()),
      dk(DType::bf16, c.k.shape()), dv(DType::f32, c.v.shape());
  const HostTensor offsets = HostTensor(DType::i32, {3});
  std::string message;
  const auto code = [&](const Tensor& dout, const GradientTensors& into, const AttentionOptions& options = {}) {
    return code_of(
        [&] {
          engine.attention_backward(dout, c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(), into, options);
        },
        &message);
  };
  const auto name = [&] { return message.substr(0, message.find(':')); };
  CHECK(code(c.dout.view(), {{}, dk.view(), dv.view()}) == ErrorCode::invalid_argument);
  CHECK(name() == "dv");
  const HostTensor whole(DType::i32, c.k.shape());
  CHECK(code(c.dout.view(), {{}, whole.view(), dv.view()}) == ErrorCode::invalid_argument);
  CHECK(name() == "dk");
  CHECK(code(lse.view(), {dq.view(), {}, {}}) == ErrorCode::invalid_argument);
  CHECK(name() == "dout");
  CHECK(code(c.dout.view(), {c.q.view(), {}, {}}) == ErrorCode::invalid_argument);
  CHECK(name() == "dq");
  AttentionOptions options;
  options.batch_indices_kv = offsets.view();
  CHECK(code(c.dout.view(), {dq.view(), {}, {}}, options) == ErrorCode::unsupported);
  CHECK(name() == "batch_indices_kv");
  options = {};
  options.fixed_split_size = 64;
  CHECK(code(c.dout.view(), {dq.view(), {}, {}}, options) == ErrorCode::invalid_argument);
  CHECK(name() == "fixed_split_size");
}

TEST_CASE("backward kernels compile for every target without spills") {
  std::vector<runtime::KernelRequest> all;
  for (const Architecture& architecture : architectures())
    for (const int head_dim : {64, 96, 128, 256})
      for (const bool many : {false, true}) {
        Problem problem;
        problem.head_dim = problem.head_dim_v = head_dim;
        problem.causal = problem.softcap = problem.dropout = many;
        const generator::PlainKernel kernel =
            generator::render_backward(problem, generator::default_backward_variant(problem, architecture),
                                       {.of_keys = DType::bf16, .deterministic = many}, architecture);
        all.emplace_back(kernel.source, architecture.name, cache::Facts{});
      }
  const HostTensor bias(DType::bf16, {1, 1, 1, 1}), slopes(DType::f32, {1});
  for (const Architecture& architecture : architectures())
    for (const int head_dim : {64, 128, 256})
      for (const bool of_slopes : {false, true}) {
        AttentionOptions options;
        options.causal = true;
        (of_slopes ? options.alibi_slopes : options.bias) = of_slopes ? slopes.view() : bias.view();
        const Problem problem = problem_of(DType::bf16, head_dim, head_dim, options);
        const generator::PlainKernel kernel =
            generator::render_backward(problem, generator::default_backward_variant(problem, architecture),
                                       {.of_keys = DType::bf16, .slopes = of_slopes, .bias = !of_slopes}, architecture);
        all.emplace_back(kernel.source, architecture.name, cache::Facts{});
      }
  for (const Architecture& architecture : architectures())
    for (const int head_dim : {64, 128, 256})
      for (const bool is_long : {false, true}) {
        AttentionOptions options;
        options.causal = true;
        if (is_long && head_dim < 256) options.softcap = 3;
        options.score =
            Score(is_long ? "key % 64 == 3 ? -infinity : score * sigmoid(score) - slope(head) * abs(query - key)"
                          : "2 * tanh(score / 2)",
                  is_long ? std::vector<Capture>{{"slope", slopes.view()}} : std::vector<Capture>{});
        const Problem problem = problem_of(DType::bf16, head_dim, head_dim, options);
        all.emplace_back(generator::render_backward(problem, generator::default_backward_variant(problem, architecture),
                                                    {.of_keys = DType::bf16}, architecture)
                             .source,
                         architecture.name, cache::Facts{});
      }
  const Architecture& hopper = find_architecture("sm_90a");
  for (const int head_dim : {40, 64, 96, 128, 256})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const bool has_window : {false, true}) {
        Problem problem;
        problem.dtype = dtype;
        problem.head_dim = problem.head_dim_v = head_dim;
        problem.causal = true, problem.window = has_window;
        const BackwardVariant variant = generator::default_backward_variant(problem, hopper);
        CHECK(std::holds_alternative<HopperBackwardVariant>(variant));
        for (const bool deterministic : {false, true}) {
          const generator::KernelGradients gradients{.of_keys = has_window ? DType::f32 : dtype,
                                                     .deterministic = deterministic};
          all.emplace_back(generator::render_backward(problem, variant, gradients, hopper).source, hopper.name,
                           cache::Facts{});
        }
      }
  for (const auto& [head_dim, head_dim_v] : {std::pair{72, 128}, {96, 96}, {120, 128}, {128, 40}, {128, 128}})
    for (const bool deterministic : {false, true}) {
      Problem problem;
      problem.head_dim = head_dim, problem.head_dim_v = head_dim_v;
      problem.causal = true;
      all.emplace_back(generator::render_backward(problem, parse_backward_variant("hopper-q80-kv128"),
                                                  {.of_keys = DType::bf16, .deterministic = deterministic}, hopper)
                           .source,
                       hopper.name, cache::Facts{});
    }
  tests::expect_no_spills(all);
}
