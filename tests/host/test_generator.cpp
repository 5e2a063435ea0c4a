// SPDX-License-Identifier: Apache-2.0
// Plans and sources. Nothing here needs NVRTC.
#include <doctest/doctest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "flashjit/error.h"
#include "generator/arguments.h"
#include "generator/comments.h"
#include "generator/features.h"
#include "generator/matrices.h"
#include "generator/plan.h"
#include "generator/source.h"
#include "generator/variant_space.h"
#include "tests/support/feature.h"
#include "tests/support/planted_faults.h"

namespace {

using namespace flashjit;
using namespace flashjit::generator;

Problem problem_of(int head_dim, int head_dim_v, bool causal = false, DType dtype = DType::bf16) {
  Problem problem;
  problem.dtype = dtype, problem.head_dim = head_dim, problem.head_dim_v = head_dim_v, problem.causal = causal;
  return problem;
}

const Architecture& sm_90a() { return find_architecture("sm_90a"); }

Plan plan_of(const char* variant, int head_dim, int head_dim_v) {
  return make_plan(problem_of(head_dim, head_dim_v), parse_variant(variant));
}

std::string render(const Problem& problem, const char* variant) {
  return render_forward({problem, parse_variant(variant), sm_90a()}).text();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// One legal variant of each family for any problem.
constexpr const char* kOfEachFamily[] = {"mma-q64-kv32", "hopper-q64-kv32-ppoff-whole"};
constexpr const char* kOfEachKernel[] = {kOfEachFamily[0], kOfEachFamily[1],
                                         "hopper-q16-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-splitkv",
                                         "hopper-q4-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-splitkv"};

}  // namespace

TEST_SUITE_BEGIN("generator");

// --- Plans -----------------------------------------------------------------------------------------------------------

TEST_CASE("the mma family pads head dims to the next multiple of 16 and no further") {
  const auto padded = [](int head_dim) { return head_dim % 16 == 0 ? head_dim : head_dim + 8; };
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    const int d = padded(head_dim), dv = padded(264 - head_dim);
    const Plan plan = plan_of("mma-q64-kv32-w4-k1-v1", head_dim, 264 - head_dim);
    CHECK(plan.smem_bytes == std::max(2 * ((64 + 32) * d + 32 * dv), 2 * 64 * dv));
    CHECK(plan.threads == 128);
    CHECK(plan.box_columns.q == 0);
  }
}

TEST_CASE("panels are as wide as the head dim needs, and cover it with less than one panel to spare") {
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    const Panels panels = panels_of(head_dim);
    CHECK(panels.columns == (head_dim <= 16 ? 16 : head_dim <= 32 ? 32 : 64));
    CHECK(panels.count * panels.columns >= head_dim);
    CHECK((panels.count - 1) * panels.columns < head_dim);
    CHECK(panels.row_bytes() == 2 * panels.count * panels.columns);
  }
}

TEST_CASE("the hopper plan of known variants") {
  constexpr int kBarriers = 256;
  const Plan plain = plan_of("hopper-q128-kv128-s2-qs1-oquery", 128, 128);
  CHECK(plain.threads == 384);
  CHECK(plain.smem_bytes == 32768 + 2 * (32768 + 32768) + kBarriers);
  CHECK(plain.registers == 64 + 32 + 64 + 36);
  CHECK(plain.box_columns.q == 64);
  CHECK(plain.box_columns.v == 64);

  // Rows of 80 and 24 elements lie in panels of 2 x 64 and 1 x 32.
  const Plan narrow = plan_of("hopper-q192-kv48-s3-qs2-whole", 80, 24);
  CHECK(narrow.threads == 512);
  CHECK(narrow.smem_bytes == 2 * 192 * 256 + 3 * 48 * (256 + 64) + 192 * 64 + kBarriers);
  CHECK(narrow.box_columns.q == 64);
  CHECK(narrow.box_columns.v == 32);

  // Half of 5 panels is 3.
  const Plan half = plan_of("hopper-q64-kv32-s1-half-ppoff-nows-single", 16, 256);
  CHECK(half.threads == 128);
  CHECK(half.smem_bytes == 64 * 32 + 32 * (32 + 512) + 64 * 256 + kBarriers);
  CHECK(plan_of("hopper-q64-kv32-s1-half-ppoff", 64, 136).smem_bytes ==
        64 * 128 + 32 * (128 + 384) + 64 * 2 * 128 + kBarriers);
}

TEST_CASE("an output of e4m3 has half of the room on its way") {
  Problem problem = problem_of(64, 160);
  problem.e4m3 = problem.e4m3_queries = problem.out_e4m3 = true;
  const Plan plan = make_plan(problem, parse_variant("hopper-q128-kv64-s2-qs1-whole-2stage-ppoff-dynamic"));
  CHECK(plan.smem_bytes == 128 * 64 + 2 * 64 * (64 + 2 * 128 + 160) + 128 * 2 * 128 + 256 + 64);
  CHECK(plan.box_columns.out == 128);
  CHECK(make_plan(problem, parse_variant("mma-q128-kv32-w4-k1-v1")).smem_bytes == 128 * 160);
}

TEST_CASE("values that come transposed have one ring, of panels as wide as divide a block's keys") {
  constexpr int kBarriers = 256;
  const auto plan = [](const char* variant, bool transposed) {
    Problem problem = problem_of(128, 48);
    problem.e4m3 = problem.e4m3_queries = true, problem.values_transposed = transposed;
    return make_plan(problem, parse_variant(variant));
  };
  constexpr const char* kVariant = "hopper-q128-kv96-s2-qs1-whole-2stage-ppoff-dynamic";
  const int q_and_out = 128 * 128 + 128 * 64 * 2;
  CHECK(plan(kVariant, false).smem_bytes == q_and_out + 2 * 96 * (128 + 64 + 48) + kBarriers + 64);
  CHECK(plan(kVariant, true).smem_bytes == q_and_out + 2 * 96 * (128 + 48) + kBarriers);
  CHECK(plan(kVariant, true).box_columns.v == 32);
  CHECK(plan("hopper-q128-kv128-s2-qs1-whole-2stage-ppoff-dynamic", true).box_columns.v == 128);
  CHECK(plan("hopper-q64-kv256-s1-qs1-whole-serial-ppoff-single", true).box_columns.v == 128);
}

TEST_CASE("the plan of tiles whose warps share rows, of 16 bits and of 8") {
  constexpr int kBarriers = 256 + 32;
  // What four warps and seven other blocks of a cluster have made, a row's maximum and sum among it.
  const auto parts = [](int columns) { return 11 * 16 * (columns * 4 + 32 + 8); };
  const Variant variant = parse_variant("hopper-q16-kv64-s4-qs1-whole-serial-ppoff-rare-fixed-splitkv");
  Problem problem = problem_of(128, 128);
  CHECK(make_plan(problem, variant).smem_bytes == 16 * 256 + 4 * 64 * 2 * 256 + kBarriers);
  problem.e4m3 = true;
  const Plan stored = make_plan(problem, variant);
  CHECK(stored.smem_bytes == 16 * 256 + parts(128) + kBarriers);  // keys and values have less: 4 * 64 * 2 * 128
  CHECK(stored.box_columns.q == 64);
  CHECK(stored.box_columns.k == 128);
  // The query's 512 bytes leave the keys a place where swizzles begin; 32 and 192 bytes of a row are panels of 32 and
  // two of 128.
  problem.head_dim = 16, problem.head_dim_v = 192;
  const Plan narrow = make_plan(problem, variant);
  CHECK(narrow.smem_bytes == 1024 + parts(192) + kBarriers);
  CHECK(narrow.box_columns.k == 32);
  CHECK(narrow.box_columns.v == 128);
  CHECK(narrow.box_columns.out == 64);
  // What warps have made of fewer rows takes less; where rings are short that counts.
  const auto shortest = [](const char* rows) {
    return plan_of(("hopper-" + std::string(rows) + "-kv64-s1-qs1-whole-serial-ppoff-rare-fixed-splitkv").c_str(), 8,
                   256)
        .smem_bytes;
  };
  CHECK(shortest("q16") == 1024 + parts(256) + kBarriers);
  CHECK(shortest("q8") == 1024 + 11 * 8 * (256 * 4 + 8) + kBarriers);
  CHECK(shortest("q4") == 1024 + 11 * 4 * (256 * 4 + 8) + kBarriers);
}

TEST_CASE("what a way of a hopper variant takes at least") {
  const int two_stage = plan_of("hopper-kv96", 128, 64).registers;
  CHECK(plan_of("hopper-kv96-3stage", 128, 64).registers >= two_stage + 96 / 2);    // a second S
  CHECK(plan_of("hopper-kv96", 128, 128).registers >= two_stage + (128 - 64) / 2);  // a wider O
  CHECK(plan_of("hopper-kv96-psmem", 128, 64).smem_bytes == plan_of("hopper-kv96", 128, 64).smem_bytes + 128 * 96 * 2);
}

TEST_CASE("tiles are counted for each head, and refused where a launch cannot have so many blocks") {
  CHECK(tile_count({.batch = 2, .heads = 3, .tiles_per_head = 5}) == 30);
  CHECK(tile_count({.batch = 0, .heads = 3, .tiles_per_head = 5}) == 0);
  CHECK(tile_count({.batch = 1, .heads = 1, .tiles_per_head = 0x7fffffff}) == 0x7fffffff);
  CHECK_THROWS_AS(tile_count({.batch = 2, .heads = 1, .tiles_per_head = 0x40000000}), Error);
  CHECK_THROWS_WITH_AS(
      tile_count({.batch = std::int64_t{1} << 40, .heads = std::int64_t{1} << 40, .tiles_per_head = 1}),
      doctest::Contains("at most 2147483647, was 1099511627776 * 1099511627776 * 1"), Error);
}

// --- Sources ---------------------------------------------------------------------------------------------------------

TEST_CASE("equal inputs render equal bytes, and every input shows in them") {
  const Problem problem = problem_of(128, 128);
  for (const char* variant : kOfEachFamily) {
    CAPTURE(std::string(variant));
    const std::string text = render(problem, variant);
    CHECK(render(problem, variant) == text);
    CHECK(render(problem_of(128, 128, true), variant) != text);
    CHECK(render(problem_of(128, 128, false, DType::f16), variant) != text);
    CHECK(render(problem_of(128, 112), variant) != text);
    std::string other = variant;
    other.replace(other.find("kv32"), 4, "kv16");
    CHECK(render(problem, other.c_str()) != text);
  }
  const Variant mma = parse_variant(kOfEachFamily[0]);
  CHECK(render_forward({problem, mma, find_architecture("sm_80")}).text() !=
        render_forward({problem, mma, find_architecture("sm_90a")}).text());
}

TEST_CASE("a source is one file: each template once, no include left, lines that point into templates/") {
  for (const char* variant : kOfEachFamily) {
    CAPTURE(std::string(variant));
    const std::string text = render(problem_of(64, 64), variant);
    CHECK_FALSE(contains(text, "#include"));
    CHECK_FALSE(contains(text, "#pragma once"));
    CHECK(count(text, "#line 1 \"templates/types.cuh\"") == 1);
    CHECK(count(text, "#line 1 \"templates/abi.cuh\"") == 1);
    CHECK(count(text, "flashjit_forward(") == 1);
    CHECK(count(text, "struct Config {") == 1);
  }
}

TEST_CASE("a template that is not there is named") {
  for (const char* variant : kOfEachFamily) {
    Templates::Files files = embedded_templates().files();
    files.erase("types.cuh");
    CHECK_THROWS_WITH_AS(render_forward({problem_of(64, 64), parse_variant(variant), sm_90a()}, Templates(files)),
                         doctest::Contains("types.cuh"), Error);
  }
}

TEST_CASE("the faults that tests on a GPU plant have their place in the templates") {
  for (const flashjit::tests::PlantedFault& fault : flashjit::tests::kPlantedFaults)
    CHECK_NOTHROW(flashjit::tests::templates_with(fault));
}

TEST_CASE("kernels of a family share their device code") {
  const auto device_code = [](const char* variant, const Templates& templates) {
    return render_forward({problem_of(64, 64), parse_variant(variant), sm_90a()}, templates).device_code;
  };
  const Templates same = embedded_templates(), others(embedded_templates().files());
  for (const char* variant : kOfEachFamily) {
    const auto code = device_code(variant, embedded_templates());
    CHECK(code == device_code(variant, same));
    CHECK(code != device_code(variant, others));
    CHECK(*code == *device_code(variant, others));
  }
}

TEST_CASE("a part is in the text of the problems that have it, and of no others") {
  std::set<std::string> parts;
  for (const FeatureRow& row : features())
    for (const char* part : {row.file, row.fetched.file})
      if (part) parts.insert(part);
  for (const std::string& part : parts) {
    CAPTURE(part);
    Templates::Files files = embedded_templates().files();
    REQUIRE(files.contains(part));
    files[part] += "struct Added {};\n";
    const Templates changed(files);
    for (const FeatureRow& row : features()) {
      Problem problem = problem_of(64, 64);
      for (const bool asked : {false, true}) {
        flashjit::tests::ask(problem, row, asked);
        for (const char* name : kOfEachKernel) {
          const Variant variant = parse_variant(name);
          const bool fetches = std::holds_alternative<HopperVariant>(variant) && block_q(variant) > 16;
          const bool has_part = std::any_of(features().begin(), features().end(), [&](const FeatureRow& other) {
            return other.is_in(problem) && part_of(other, problem, parts_for_attention(fetches)).file == part;
          });
          if (problem.k_rotary || problem.latent) continue;  // of other head dims
          if (problem.e4m3_queries && !why_illegal(problem, variant, sm_90a()).empty()) continue;
          if (problem.e4m3 && !problem.e4m3_queries && block_q(variant) != 16) continue;
          const KernelSpec spec(problem, variant, sm_90a());
          CHECK((render_forward(spec, changed).text() != render_forward(spec).text()) == has_part);
        }
      }
    }
  }
}

TEST_CASE("the parts of a slot stand in it in their order, with their arguments") {
  for (const char* variant : kOfEachFamily) {
    CAPTURE(std::string(variant));
    Problem problem = problem_of(64, 64);
    CHECK(contains(render(problem, variant), "using ScoreParts = InTurn<>;"));
    CHECK_FALSE(contains(render(problem, variant), "parts/score/"));
    problem.alibi = true;
    CHECK(contains(render(problem, variant), "using ScoreParts = InTurn<AlibiSlopes>;"));
    CHECK(contains(render(problem, variant), "HeadArguments alibi;"));
    CHECK_FALSE(contains(render(problem, variant), "SoftcapArguments softcap;"));
    problem.softcap = true;
    CHECK(contains(render(problem, variant), "using ScoreParts = InTurn<Softcap, AlibiSlopes>;"));
    CHECK(contains(render(problem, variant), "SoftcapArguments softcap;"));
    CHECK(contains(render(problem, variant), "using Masks = AllOf<>;"));
    CHECK(contains(render(problem, variant), "using SoftmaxParts = Additions<>;"));
    problem.causal = problem.chunk = problem.sinks = true;
    CHECK(contains(render(problem, variant), "using Masks = AllOf<CausalMask, ChunkMask>;"));
    CHECK(contains(render(problem, variant), "ChunkArguments chunk;"));
    CHECK(contains(render(problem, variant), "using SoftmaxParts = Additions<Sinks>;"));
    CHECK(contains(render(problem, variant), "HeadArguments sinks;"));
  }
}

TEST_CASE("functions stand in the slot behind what the library has there, and their texts as they were written") {
  const std::string text = "// twice\nconst float twice = 2 * score;\nreturn twice;";
  for (const char* variant : kOfEachFamily) {
    CAPTURE(std::string(variant));
    Problem problem = problem_of(64, 64);
    problem.alibi = true;
    problem.score = flashjit::Score(text).source();
    problem.mask = flashjit::Mask("key < limit", {{"limit", 5}}).source();
    problem.bias = &library_function(FunctionKind::bias, DType::f16);
    problem.documents = &library_function(FunctionKind::documents, DType::i32);
    const std::string source = render(problem, variant);
    const bool fetches = std::holds_alternative<HopperVariant>(parse_variant(variant));
    CHECK(contains(source, std::string("using ScoreParts = InTurn<AlibiSlopes, ") +
                               (fetches ? "FetchedBias" : "ScoreFunction") +
                               "<text::BiasText, &::Arguments::bias>, "
                               "ScoreFunction<text::ScoreText, &::Arguments::score>>;"));
    CHECK(contains(source,
                   "AllSee<MaskFunction<text::DocumentsText, &::Arguments::documents>, "
                   "MaskFunction<text::MaskText, &::Arguments::mask>>;"));
    CHECK(contains(source, "#line 1 \"score\"\n" + text + "\n"));
    CHECK(contains(source, "#line 1 \"mask\"\nkey < limit\n"));
    CHECK(contains(source, "int limit;"));
    CHECK(contains(source, "Tensor<F16, 4, true> bias;"));
  }
}

TEST_CASE("comments leave code and line numbers as they are") {
  CHECK(without_comments("int a;  // one\n\n// two\nint b;") == "int a;\n\n\nint b;");
  CHECK(without_comments("a/* one */b /* two\nlines */ c\n") == "a b\n c\n");
  CHECK(without_comments("asm(\"// \\\" /* kept\"); // gone\nc = '\"'; // gone") ==
        "asm(\"// \\\" /* kept\");\nc = '\"';");
  CHECK(without_comments("a / b; a /") == "a / b; a /");
  CHECK(without_comments("a; /* without an end") == "a;");
  CHECK(without_comments("a = \"without an end") == "a = \"without an end");
  CHECK(without_comments("") == "");
}

TEST_CASE("a kernel's text does not depend on comments") {
  Templates::Files files = embedded_templates().files();
  for (auto& [path, text] : files) {
    CAPTURE(path);
    REQUIRE(text.starts_with("\n"));  // a line that is a comment
    text.insert(0, "// A word more.");
  }
  for (const char* variant : kOfEachFamily) {
    const auto render_with = [&](const Templates& templates) {
      return render_forward({problem_of(64, 64), parse_variant(variant), sm_90a()}, templates).text();
    };
    CHECK(render_with(Templates(files)) == render_with(embedded_templates()));
  }
}

TEST_CASE("each template serves its family") {
  CHECK(contains(render(problem_of(64, 64), kOfEachFamily[0]), "templates/kernels/mma_forward.cuh"));
  CHECK_FALSE(contains(render(problem_of(64, 64), kOfEachFamily[0]), "templates/kernels/hopper_forward.cuh"));
  CHECK(contains(render(problem_of(64, 64), kOfEachFamily[1]), "templates/kernels/hopper_forward.cuh"));
  CHECK_FALSE(contains(render(problem_of(64, 64), kOfEachFamily[1]), "templates/kernels/mma_forward.cuh"));
}

TEST_CASE("Config names every choice of a hopper variant") {
  const std::string text = render(problem_of(96, 40, true, DType::f16),
                                  "hopper-q192-kv80-s2-qs2-whole-serial-ppsoftmax-psmem-always-fixed-longest-split");
  for (const char* line : {"using Element = Half;",
                           "int kHeadDim = 96;",
                           "int kHeadDimV = 40;",
                           "using Masks = AllOf<CausalMask>;",
                           "int kBlockQ = 192;",
                           "int kBlockKv = 80;",
                           "int kStages = 2;",
                           "int kQStages = 2;",
                           "OutputSlot kOutputSlot = OutputSlot::whole;",
                           "GemmSoftmax kOverlap = GemmSoftmax::serial;",
                           "PingPong kPingPong = PingPong::softmax;",
                           "bool kWarpSpecialized = true;",
                           "bool kProbabilitiesInRegisters = false;",
                           "int kCluster = 1;",
                           "Rescale kRescale = Rescale::always;",
                           "Scheduler kScheduler = Scheduler::fixed;",
                           "bool kLongestFirst = true;",
                           "bool kFusedBoundary = false;",
                           "using Scores = ScoreMatrix;",
                           "using Output = OutputMatrix;"})
    CHECK_MESSAGE(contains(text, line), std::string(line));
  CHECK(contains(text, "__launch_bounds__(512, 1)\n"));
  CHECK(contains(text, "HopperShape<Config>::kThreads == 512"));
  CHECK(contains(text, "sizeof(Arguments) == " + std::to_string(sizeof(HopperArguments))));
}

TEST_CASE("a cluster is part of the entry, and only where there is one") {
  CHECK(contains(render(problem_of(64, 64), "hopper-cl2-fixed"), "__cluster_dims__(2, 1, 1)"));
  CHECK_FALSE(contains(render(problem_of(64, 64), "hopper-cl1-fixed"), "__cluster_dims__"));
}

// --- Instructions ----------------------------------------------------------------------------------------------------

TEST_CASE("a hopper source has its own matrices and no other") {
  const std::string text = render(problem_of(72, 48), "hopper-kv80");
  for (const char* matrix : {"struct ScoreMatrix {", "struct ProbabilityMatrix {", "struct OutputMatrix {"}) {
    CHECK(count(text, matrix) == 1);
    CHECK(text.find(matrix) < text.find("struct Config {"));
  }
  CHECK_FALSE(contains(text, "NextScoreMatrix"));
  // 72 elements and 80 keys are five steps each.
  CHECK(count(text, ".m64n80k16.f32.bf16.bf16 ") == 5);
  CHECK(count(text, ".m64n48k16.f32.bf16.bf16 ") == 5);
  CHECK(contains(text, "issue(const uint64 (&q)[5], const uint64 (&k)[5])"));
  CHECK(contains(text, "issue(const uint64 (&v)[5], uint32 adds)"));
  const std::string shared = render(problem_of(64, 48), "hopper-kv80-psmem");
  CHECK(contains(shared, "issue(const uint64 (&p)[5], const uint64 (&v)[5], uint32 adds)"));
  CHECK_FALSE(contains(shared, "struct ProbabilityMatrix {"));
  CHECK(contains(render(problem_of(64, 64), "hopper-3stage-kv64-s3-rare-split"), "struct NextScoreMatrix {"));
}

TEST_CASE("scores are changed one by one, and only where something changes them") {
  const char* const variants[] = {"hopper-q64-kv32-ppoff-whole", "hopper-kv64-whole-lazy", "hopper-kv64-whole-serial"};
  for (const char* variant : variants) {
    CAPTURE(std::string(variant));
    Problem problem = problem_of(64, 64);
    for (bool Problem::*feature : {&Problem::causal, &Problem::window}) {
      problem.*feature = true;
      CHECK(count(render(problem, variant), " transform(") == 0);
    }
    for (bool Problem::*feature : {&Problem::softcap, &Problem::alibi}) {
      Problem with = problem;
      with.*feature = true;
      CHECK(count(render(with, variant), " transform(") == 1);
    }
  }
  const auto matrix = [](bool transforms) {
    return generator::render(generator::ScoreMatrix{.type = "S",
                                                    .registers = "s",
                                                    .dtype = DType::bf16,
                                                    .keys = 32,
                                                    .steps = 1,
                                                    .key_row_bytes = 128,
                                                    .transforms = transforms});
  };
  const std::string text = matrix(true);
  CHECK_FALSE(contains(matrix(false), "transform"));
  // A lane has of each eight columns two of its upper row, and the same two of its lower one.
  for (int i = 0; i < 16; ++i) {
    const std::string name = "s" + std::to_string(i), row = i / 2 % 2 == 0 ? "upper" : "lower";
    CHECK(contains(text, "\"mov.f32 %0, " + name + ";\" : \"=f\"(x));\n    x = " + row + "(x, " +
                             std::to_string(i / 4 * 8 + i % 2) + ");\n    asm volatile(\"mov.f32 " + name + ", %0;\""));
  }
}

TEST_CASE("each step of a product names all accumulators and the operands of its own") {
  constexpr int kSteps = 3;
  const auto numbers = [](const char* before, int first, int end) {
    std::string list;
    for (int i = first; i < end; ++i) list += (i == first ? "" : ", ") + (before + std::to_string(i));
    return list;
  };
  for (const DType dtype : {DType::bf16, DType::f16})
    for (int n = 8; n <= 256; n += 8) {
      CAPTURE(n);
      const std::string type(to_string(dtype));
      const std::string name = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(n) + "k16.f32." + type + "." + type;
      const auto output = [&](const char* p) {
        return generator::render(generator::OutputMatrix{
            .type = "O", .registers = "o", .dtype = dtype, .columns = n, .steps = kSteps, .probabilities = p});
      };
      CHECK(count(output("p"), name) == kSteps);
      CHECK(contains(output("p"), ".reg .f32 o<" + std::to_string(n / 2) + ">;"));
      for (int step = 0; step < kSteps; ++step) {
        const std::string product = name + " {" + numbers("o", 0, n / 2) + "}, ", adds = step != 0 ? "1" : "adds";
        CHECK(contains(output("p"), product + "{" + numbers("p", 4 * step, 4 * step + 4) + "}, %" +
                                        std::to_string(step) + ", " + adds + ", 1, 1, 1;"));
        CHECK(contains(output(""), product + "%" + std::to_string(kSteps + step) + ", %" + std::to_string(step) + ", " +
                                       adds + ", 1, 1, 0, 1;"));
      }
      if (n % 16 != 0) continue;  // no kernel has so many keys
      const std::string scores = generator::render(generator::ScoreMatrix{
          .type = "S", .registers = "s", .dtype = dtype, .keys = n, .steps = kSteps, .key_row_bytes = 128});
      CHECK(count(scores, name) == kSteps);
      CHECK(contains(scores, ".reg .f32 s<" + std::to_string(n / 2) + ">;"));
      for (int step = 0; step < kSteps; ++step)
        CHECK(contains(scores, name + " {" + numbers("s", 0, n / 2) + "}, %" + std::to_string(step) + ", %" +
                                   std::to_string(kSteps + step) + (step != 0 ? ", 1" : ", 0") + ", 1, 1, 0, 0;"));
    }
}

// --- Problems --------------------------------------------------------------------------------------------------------

TEST_CASE("head dims out of range are refused") {
  for (const int head_dim : {0, -8, 7, 12, 584})
    CHECK_THROWS_WITH_AS(validate(problem_of(head_dim, 64)), doctest::Contains("head_dim: must be a multiple of 8"),
                         Error);
  for (const int head_dim_v : {4, 520})
    CHECK_THROWS_WITH_AS(validate(problem_of(64, head_dim_v)), doctest::Contains("head_dim_v"), Error);
  CHECK_THROWS_AS(validate(problem_of(64, 64, false, DType::f32)), Error);
}

TEST_CASE("features stand in a spelling in their order") {
  CHECK(to_string(Problem{DType::bf16, 64, 64, true, true}) == "fwd-bf16-d64-causal-window");
  CHECK(to_string(Problem{DType::f16, 192, 128, false, true}) == "fwd-f16-d192-v128-window");
  CHECK(parse_problem("fwd-bf16-d64-causal-window") == Problem{DType::bf16, 64, 64, true, true});
  CHECK(parse_problem("fwd-bf16-d64-window") == Problem{DType::bf16, 64, 64, false, true});
  Problem scores = problem_of(128, 128, true);
  scores.alibi = true;
  CHECK(to_string(scores) == "fwd-bf16-d128-causal-alibi");
  CHECK(parse_problem("fwd-bf16-d128-causal-alibi") == scores);
  scores.softcap = scores.window = true;
  CHECK(to_string(scores) == "fwd-bf16-d128-causal-window-softcap-alibi");
  CHECK(parse_problem("fwd-bf16-d128-causal-window-softcap-alibi") == scores);
  scores.chunk = scores.sinks = true;
  CHECK(to_string(scores) == "fwd-bf16-d128-causal-window-chunk-softcap-alibi-sinks");
  CHECK(parse_problem("fwd-bf16-d128-causal-window-chunk-softcap-alibi-sinks") == scores);
}

TEST_CASE("functions of a tensor are spelled with its dtype where there are several") {
  Problem problem = problem_of(64, 64, false, DType::f16);
  problem.bias = &library_function(FunctionKind::bias, DType::f16);
  problem.documents = &library_function(FunctionKind::documents, DType::i32);
  CHECK(to_string(problem) == "fwd-f16-d64-bias.f16-documents");
  CHECK(parse_problem("fwd-f16-d64-bias.f16-documents") == problem);
  problem.bias = &library_function(FunctionKind::bias, DType::bf16);
  CHECK(parse_problem("fwd-f16-d64-bias.bf16-documents") == problem);
  problem.prefix = true;
  problem.boolean_mask = &library_function(FunctionKind::boolean_mask, DType::boolean);
  problem.tree = &library_function(FunctionKind::tree, DType::i64);
  CHECK(parse_problem("fwd-f16-d64-prefix-bias.bf16-boolean_mask-documents-tree") == problem);
  CHECK(to_string(problem) == "fwd-f16-d64-prefix-bias.bf16-boolean_mask-documents-tree");
}

TEST_CASE("a user's function is spelled by a digest, from which no problem can be read") {
  Problem problem = problem_of(64, 64);
  problem.score = flashjit::Score("score / 2").source();
  CHECK(to_string(problem) == "fwd-bf16-d64-score." + problem.score->digest);
  CHECK(problem.score->digest.size() == 16);
  CHECK_THROWS_WITH_AS(parse_problem(to_string(problem)), doctest::Contains("problem: must be like"), Error);
  problem.score = nullptr;
  problem.mask = flashjit::Mask("key < query").source();
  CHECK_THROWS_WITH_AS(parse_problem(to_string(problem)), doctest::Contains("problem: must be like"), Error);
}

TEST_CASE("a problem is read from its own spelling and from no other") {
  for (const Problem& problem :
       {problem_of(128, 128), problem_of(64, 64, true), problem_of(192, 128, false, DType::f16),
        problem_of(8, 256, true, DType::f16), Problem{DType::f16, 192, 128, false, true},
        Problem{DType::bf16, 64, 64, true, true}}) {
    CHECK(parse_problem(to_string(problem)) == problem);
  }
  for (const char* text : {"",
                           "fwd",
                           "fwd-bf16",
                           "bf16-d64",
                           "fwd-f32-d64",
                           "fwd-bf16-d",
                           "fwd-bf16-d064",
                           "fwd-bf16-d64-v64",
                           "fwd-bf16-d64-causal-",
                           "fwd-bf16-d64-window-causal",
                           "fwd-bf16-d64-causal-window-window",
                           "fwd-bf16-d64-alibi-softcap",
                           "fwd-bf16-d64-softcap-causal",
                           "fwd-bf16-d64-softcap30",
                           "fwd-bf16-d64-alibi-alibi",
                           "fwd-bf16-d64-sinks-alibi",
                           "fwd-bf16-d64-chunk-window",
                           "fwd-bf16-d64-chunk9",
                           "fwd-bf16-d64-causalwindow",
                           "fwd-bf16-d64-window5",
                           "fwd-bf16-d64-bias",
                           "fwd-bf16-d64-bias.i32",
                           "fwd-bf16-d64-bias.f16-bias.bf16",
                           "fwd-bf16-d64-documents.i32",
                           "fwd-bf16-d64-tree-documents",
                           "fwd-bf16-d64-score",
                           "fwd-bf16-d64-v",
                           "fwd-bf16-d99999999999",
                           "fwd-bf16-d64 "}) {
    CHECK_THROWS_WITH_AS(parse_problem(text), doctest::Contains("problem: must be like"), Error);
  }
  for (const char* text : {"fwd-bf16-d12", "fwd-bf16-d-8", "fwd-bf16-d64-v520"}) {
    CHECK_THROWS_WITH_AS(parse_problem(text), doctest::Contains("head_dim"), Error);
  }
}

TEST_SUITE_END();
