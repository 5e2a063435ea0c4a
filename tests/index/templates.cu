// SPDX-License-Identifier: Apache-2.0
// The kernels with one configuration each, as the generator ends a rendered source. It is compiled for nobody: editors
// index it, so that names inside the templates lead somewhere, and a test sees that Clang understands all of it.
#include "kernels/hopper_ablation.cuh"
#include "kernels/hopper_forward.cuh"
#include "kernels/mma_ceiling.cuh"
#include "kernels/mma_forward.cuh"
#include "parts/mask/causal.cuh"
#include "parts/mask/window.cuh"

struct MmaLaunch {
  MmaArguments core;
  WindowArguments window;
};

struct MmaConfig {
  using Arguments = MmaLaunch;
  using Masks = AllOf<CausalMask, WindowMask>;
  using Element = BFloat16;
  static constexpr int kHeadDim = 64;
  static constexpr int kHeadDimV = 64;
  static constexpr int kBlockQ = 128;
  static constexpr int kBlockKv = 64;
  static constexpr int kWarps = 8;
  static constexpr int kKStages = 2;
  static constexpr int kVStages = 3;
  static constexpr Pipeline kPipeline = Pipeline::rotate;
  static constexpr bool kSwizzle = true;
  static constexpr int kLdmatrix = 4;
  static constexpr bool kQueryInRegisters = true;
  static constexpr bool kRareRescale = true;
  static constexpr bool kLongestFirst = true;
};

extern "C" __global__ void __launch_bounds__(256, 1) mma_forward(const __grid_constant__ MmaLaunch args) {
  extern __shared__ __align__(128) char smem[];
  ForwardMma<MmaConfig>(args, ptx::cvta_to_shared(smem), false).run();
}

// In place of the products that generator/wgmma.cpp writes for the shapes in use.
struct ScoreProduct {
  static __device__ void issue(float (&d)[32], const uint64 (&a)[4], const uint64 (&b)[4]);
};
struct OutputProduct {
  static __device__ void issue(float (&d)[32], const uint32 (&a)[16], const uint64 (&b)[4], uint32 adds);
};

struct HopperLaunch {
  HopperArguments core;
  WindowArguments window;
};

struct HopperConfig {
  using Arguments = HopperLaunch;
  using Masks = AllOf<CausalMask, WindowMask>;
  using Element = BFloat16;
  static constexpr int kHeadDim = 64;
  static constexpr int kHeadDimV = 64;
  static constexpr int kBlockQ = 128;
  static constexpr int kBlockKv = 64;
  static constexpr int kStages = 2;
  static constexpr int kQStages = 2;
  static constexpr OutputSlot kOutputSlot = OutputSlot::whole;
  static constexpr GemmSoftmax kOverlap = GemmSoftmax::two_stage;
  static constexpr PingPong kPingPong = PingPong::gemm;
  static constexpr bool kWarpSpecialized = true;
  static constexpr bool kProbabilitiesInRegisters = true;
  static constexpr int kCluster = 2;
  static constexpr Rescale kRescale = Rescale::lazy;
  static constexpr Scheduler kScheduler = Scheduler::dynamic;
  static constexpr bool kLongestFirst = true;
  static constexpr bool kFusedBoundary = true;
  using ScoreMma = ScoreProduct;
  using OutputMma = OutputProduct;
};

extern "C" __global__ void __launch_bounds__(384, 1) hopper_forward(const __grid_constant__ HopperLaunch args) {
  extern __shared__ __align__(1024) char smem[];
  forward_hopper<HopperConfig>(args, ptx::cvta_to_shared(smem));
}

extern "C" __global__ void __launch_bounds__(384, 1) hopper_ablation(const __grid_constant__ HopperLaunch args) {
  extern __shared__ __align__(1024) char smem[];
  forward_hopper_ablation<HopperConfig>(args, ptx::cvta_to_shared(smem));
}
