// SPDX-License-Identifier: Apache-2.0
// What a key/value block costs a warp in the loop without a mask, and that shared memory is read and written without
// bank conflicts: counted in the emulator, for default variants. A change here is a change of the kernel's speed.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <tuple>

#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "tests/support/kept_kernels.h"

namespace {

using namespace flashjit;

constexpr int kQueries = 256;  // one tile, or several that are alike

// Waits and branches are left out: try_wait may give up and be tried again.
std::uint64_t steady_instructions(const emulator::Report& report) {
  std::uint64_t count = 0;
  for (const auto& [op_class, warps] : report.counters.by_class)
    if (op_class != "mbarrier" && op_class != "control") count += warps;
  return count;
}

emulator::Report run(Engine& engine, int head_dim, std::int64_t seqlen_kv, const char* variant) {
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, kQueries, 1, head_dim}, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, {1, seqlen_kv, 1, head_dim}, 2);
  const HostTensor v = HostTensor::random_normal(DType::bf16, {1, seqlen_kv, 1, head_dim}, 3);
  const HostTensor out(DType::bf16, {1, kQueries, 1, head_dim});
  AttentionOptions options;
  options.variant =
      engine.variants({DType::bf16, head_dim, head_dim, false}, engine.system().devices[0].architecture)[0];
  options.variant = parse_variant(variant, *options.variant);
  const emulator::Report report = engine.emulate(q.view(), k.view(), v.view(), out.view(), options);
  CHECK_MESSAGE(report.clean(), to_string(report));
  const auto& counts = report.counters.by_class;
  const bool few_rows = block_q(*options.variant) < 16;
  CHECK((counts.contains("mma") || counts.contains("wgmma")) == !few_rows);
  return report;
}

// Of one warp that computes, for one block of keys; with its share of what the producer does.
double per_block(const char* architecture, int head_dim, const char* variant, int block_kv, int warps) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = architecture;
  Engine engine(options);
  constexpr int kMoreBlocks = 3;  // together so few keys that no cluster splits them
  const std::int64_t few = 4 * block_kv, many = few + kMoreBlocks * block_kv;
  const emulator::Report of_many = run(engine, head_dim, many, variant), of_few = run(engine, head_dim, few, variant);
  // Where warps have shared 8 rows, they read two states of four from the same banks in the end.
  CHECK(of_few.counters.bank_conflicts == (block_q(parse_variant(variant)) == 8 ? kQueries : 0));
  CHECK(of_many.counters.bank_conflicts == of_few.counters.bank_conflicts);
  return static_cast<double>(steady_instructions(of_many) - steady_instructions(of_few)) / (kMoreBlocks * warps);
}

}  // namespace

TEST_CASE("the clean loop of the default variants has this many PTX instructions for a block, and no bank conflicts") {
  const std::string nvrtc = Engine().system().nvrtc_version;
  if (nvrtc != "13.0") {
    MESSAGE("skipped: the figures are of NVRTC 13.0, this is ", nvrtc);
    return;
  }
  CHECK(per_block("sm_90a", 64, "hopper-q256-kv64-s4-qs2-whole-2stage-ppoff-lazy-fixed-fused", 64, 16) <= 200);
  CHECK(per_block("sm_90a", 128, "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-lazy-fixed-fused", 128, 16) <= 352);
  CHECK(per_block("sm_90a", 256, "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-rare-fixed-split", 64, 16) <= 289);
  CHECK(per_block("sm_80", 64, "mma-q128-kv64-w4-k1-v1-c2-overlap-swizzle-x4-qregs-rare", 64, 8) == 592);
}

TEST_CASE(
    "without tensor cores a block has this many PTX instructions for a tile of 4 and of 8 rows, and no conflicts") {
  const std::string nvrtc = Engine().system().nvrtc_version;
  if (nvrtc != "13.0") {
    MESSAGE("skipped: the figures are of NVRTC 13.0, this is ", nvrtc);
    return;
  }
  constexpr int kWarps = 4;
  for (const auto& [rows, head_dim, most] :
       {std::tuple{4, 64, 655}, {4, 128, 1117}, {4, 256, 2045}, {8, 64, 1016}, {8, 128, 1785}, {8, 256, 3309}}) {
    CAPTURE(rows);
    CAPTURE(head_dim);
    const std::string variant = fmt::format("hopper-q{}-kv64-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv", rows);
    CHECK(per_block("sm_90a", head_dim, variant.c_str(), 64, kQueries / rows * kWarps) <= most);
  }
}
