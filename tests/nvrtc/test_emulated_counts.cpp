// SPDX-License-Identifier: Apache-2.0
// What a key/value block costs a warp in the loop without a mask, and that shared memory is read and written without
// bank conflicts: counted in the emulator, for default variants. A change here is a change of the kernel's speed.
#include <doctest/doctest.h>

#include <string>

#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"

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
  CHECK(report.counters.bank_conflicts == 0);
  return report;
}

// Of one warp that computes, for one block of keys; with its share of what the producer does.
double per_block(const char* architecture, int head_dim, const char* variant, int block_kv, int warps) {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  options.emulate = architecture;
  Engine engine(options);
  constexpr int kMoreBlocks = 8;
  const std::int64_t few = 4 * block_kv, many = few + kMoreBlocks * block_kv;
  const std::uint64_t more = steady_instructions(run(engine, head_dim, many, variant)) -
                             steady_instructions(run(engine, head_dim, few, variant));
  return static_cast<double>(more) / (kMoreBlocks * warps);
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
