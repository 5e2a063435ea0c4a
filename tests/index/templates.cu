// SPDX-License-Identifier: Apache-2.0
// The kernels with one configuration each, as the generator ends a rendered source. It is compiled for nobody: editors
// index it, so that names inside the templates lead somewhere, and a test sees that Clang understands all of it.
#include "kernels/append.cuh"
#include "kernels/append_scaled.cuh"
#include "kernels/batch_plan.cuh"
#include "kernels/block_mask.cuh"
#include "kernels/combine.cuh"
#include "kernels/function_scores.cuh"
#include "kernels/function_slopes.cuh"
#include "kernels/hopper_ablation.cuh"
#include "kernels/hopper_decode.cuh"
#include "kernels/hopper_forward.cuh"
#include "kernels/hopper_large.cuh"
#include "kernels/merge.cuh"
#include "kernels/mma_ceiling.cuh"
#include "kernels/mma_forward.cuh"
#include "kernels/mma_large.cuh"
#include "kernels/sum.cuh"
#include "parts/blocks/block_mask.cuh"
#include "parts/format/e5m2.cuh"
#include "parts/keys/paged.cuh"
#include "parts/keys/rotary.cuh"
#include "parts/mask/causal.cuh"
#include "parts/mask/chunk.cuh"
#include "parts/mask/prefix.cuh"
#include "parts/mask/window.cuh"
#include "parts/predicate/function.cuh"
#include "parts/probability/dropout.cuh"
#include "parts/probability/dropout_mask.cuh"
#include "parts/products/block_scales.cuh"
#include "parts/products/e4m3.cuh"
#include "parts/products/fast_sums.cuh"
#include "parts/score/alibi.cuh"
#include "parts/score/curved_function.cuh"
#include "parts/score/fetched_bias.cuh"
#include "parts/score/function.cuh"
#include "parts/score/softcap.cuh"
#include "parts/sequences/ragged.cuh"
#include "parts/softmax/sinks.cuh"
#include "parts/stored/e4m3.cuh"
#include "parts/stored/token_scales.cuh"
#include "parts/values/latent.cuh"
#include "parts/values/transposed.cuh"
#include "parts/written/e4m3.cuh"

// In place of the functions that generator/functions.cpp makes of texts.
namespace text {
struct BiasText {
  Tensor<F16, 4, true> bias;
};
struct ScoreText {
  Tensor<F16, 4, true> bias;
  float slope;
  template <class Number>
  __device__ Number operator()(Number score, int batch, int head, RowPosition query, Position key, int, int) const {
    return score - slope * abs(query - key) + bias(batch, head, query, key);
  }
};
struct MaskText {
  Tensor<I32, 1, false> document;
  __device__ bool operator()(int, int, RowPosition query, Position key, int, int) const {
    return document(query) == document(key);
  }
};
}  // namespace text

struct MmaLaunch {
  MmaArguments core;
  SplitArguments splits;
  WindowArguments window;
  ChunkArguments chunk;
  SoftcapArguments softcap;
  HeadArguments alibi;
  HeadArguments sinks;
  PrefixArguments prefix;
  BlockMaskArguments blocks;
  TextArguments<text::ScoreText> score;
  TextArguments<text::MaskText> mask;
  DropoutArguments dropout;
  RaggedArguments ragged;
  PagedArguments paged;
  E4m3Arguments e4m3;
  E4m3QueryArguments e4m3_queries;
  OutScaleArguments out_e4m3;
};

struct MmaConfig {
  using Arguments = MmaLaunch;
  using Masks = AllOf<CausalMask, WindowMask, ChunkMask, PrefixMask>;
  using ScoreParts = InTurn<Softcap, AlibiSlopes, ScoreFunction<text::ScoreText, &MmaLaunch::score>>;
  using Predicates = AllSee<MaskFunction<text::MaskText, &MmaLaunch::mask>>;
  using Blocks = BlocksBy<BlockMask>;
  using SoftmaxParts = Additions<Sinks>;
  using Dropouts = Dropping<Dropout, DropoutMask<text::MaskText, &MmaLaunch::mask>>;
  using Sequences = SequencesBy<RaggedSequences>;
  using Keys = KeysBy<PagedKeys>;
  using Values = ValuesBy<>;
  using Stored = StoredAs<>;
  using Products = ProductsOf<>;
  using Format = FormatOf<>;
  using Written = WrittenAs<>;
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
  static constexpr bool kSplitKv = true;
};

extern "C" __global__ void __launch_bounds__(256, 1) mma_forward(const __grid_constant__ MmaLaunch args) {
  extern __shared__ __align__(128) char smem[];
  ForwardMma<MmaConfig>(args, ptx::cvta_to_shared(smem), false).run();
}

struct LargeMmaConfig : MmaConfig {
  static constexpr int kHeadDim = 512;
  static constexpr int kHeadDimV = 512;
  static constexpr int kBlockQ = 32;
  static constexpr int kBlockKv = 128;
  static constexpr bool kQueryInRegisters = false;
};

extern "C" __global__ void __launch_bounds__(256, 1) mma_large(const __grid_constant__ MmaLaunch args) {
  extern __shared__ __align__(128) char smem[];
  LargeForwardMma<LargeMmaConfig>(args, ptx::cvta_to_shared(smem), false).run();
}

struct E4m3MmaConfig : MmaConfig {
  using Dropouts = Dropping<>;
  using Stored = StoredAs<E4m3>;
  using Products = ProductsOf<E4m3Products, BlockScales>;
};

extern "C" __global__ void __launch_bounds__(256, 1) mma_e4m3(const __grid_constant__ MmaLaunch args) {
  extern __shared__ __align__(128) char smem[];
  ForwardMma<E4m3MmaConfig>(args, ptx::cvta_to_shared(smem), false).run();
}

struct TransposedE4m3MmaConfig : E4m3MmaConfig {
  using Sequences = SequencesBy<>;
  using Keys = KeysBy<>;
  using Values = ValuesBy<TransposedValues>;
  using Format = FormatOf<E5m2>;
  using Written = WrittenAs<E4m3Output>;
};

extern "C" __global__ void __launch_bounds__(256, 1) mma_transposed(const __grid_constant__ MmaLaunch args) {
  extern __shared__ __align__(128) char smem[];
  ForwardMma<TransposedE4m3MmaConfig>(args, ptx::cvta_to_shared(smem), false).run();
}

// In place of the matrices that generator/matrices.cpp writes for the shapes in use.
struct ScoreMatrix {
  static constexpr int kColumns = 64;
  static __device__ void declare();
  static __device__ void issue(const uint64 (&q)[4], const uint64 (&k)[4]);
  static __device__ void clear();
  static __device__ void add(const uint32 (&q)[4], SmemAddress keys);
  static __device__ void hide(const uint32 (&hidden)[2][1]);
  template <class Upper, class Lower>
  static __device__ void transform(Upper upper, Lower lower);
  template <class Upper, class Lower>
  static __device__ void exponentiate(float scale, const float (&shift)[2], float (&sum)[2], Upper upper, Lower lower,
                                      uint32 flips);
  static __device__ void maximum(float (&seen)[2]);
  static __device__ void subtract(const float (&x)[2]);
  static __device__ void exponentiate(float scale, const float (&shift)[2], float (&sum)[2]);
};
struct ProbabilityMatrix {
  static __device__ void declare();
  static __device__ void keep();
};
struct OutputMatrix {
  static __device__ void declare();
  static __device__ void issue(const uint64 (&v)[4], uint32 adds);
  static __device__ void multiply(const float (&factor)[2]);
  static __device__ void pack(uint32 (&pairs)[16]);
  static __device__ void read(float (&values)[32]);
};

struct HopperLaunch {
  HopperArguments core;
  SplitArguments splits;
  WindowArguments window;
  ChunkArguments chunk;
  SoftcapArguments softcap;
  HeadArguments alibi;
  HeadArguments sinks;
  PrefixArguments prefix;
  BlockMaskArguments blocks;
  TextArguments<text::BiasText> bias;
  TextArguments<text::ScoreText> score;
  TextArguments<text::MaskText> mask;
  DropoutArguments dropout;
  E4m3Arguments e4m3;
  E4m3QueryArguments e4m3_queries;
  OutScaleArguments out_e4m3;
};

struct HopperConfig {
  using Arguments = HopperLaunch;
  using Masks = AllOf<CausalMask, WindowMask, ChunkMask, PrefixMask>;
  using ScoreParts = InTurn<Softcap, AlibiSlopes, FetchedBias<text::BiasText, &HopperLaunch::bias>,
                            ScoreFunction<text::ScoreText, &HopperLaunch::score>>;
  using Predicates = AllSee<MaskFunction<text::MaskText, &HopperLaunch::mask>>;
  using Blocks = BlocksBy<BlockMask>;
  using SoftmaxParts = Additions<Sinks>;
  using Dropouts = Dropping<Dropout, DropoutMask<text::MaskText, &HopperLaunch::mask>>;
  using Sequences = SequencesBy<>;
  using Keys = KeysBy<>;
  using Values = ValuesBy<>;
  using Stored = StoredAs<>;
  using Products = ProductsOf<>;
  using Format = FormatOf<>;
  using Written = WrittenAs<>;
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
  static constexpr bool kSplitKv = true;
  using Scores = ScoreMatrix;
  using Probabilities = ProbabilityMatrix;
  using Output = OutputMatrix;
};

extern "C" __global__ void __launch_bounds__(384, 1) hopper_forward(const __grid_constant__ HopperLaunch args) {
  extern __shared__ __align__(1024) char smem[];
  forward_hopper<HopperConfig>(args, ptx::cvta_to_shared(smem));
}

extern "C" __global__ void __launch_bounds__(384, 1) hopper_ablation(const __grid_constant__ HopperLaunch args) {
  extern __shared__ __align__(1024) char smem[];
  forward_hopper_ablation<HopperConfig>(args, ptx::cvta_to_shared(smem));
}

// Products of e4m3 with scales of blocks, and sums of them apart from the output.
struct E4m3ScoreMatrix : ScoreMatrix {
  static __device__ void issue(const uint64 (&q)[2], const uint64 (&k)[2]);
  static __device__ void multiply(const float (&factor)[2]);
};
struct E4m3OutputMatrix : OutputMatrix {
  static constexpr int kPieces = 2, kColumnsOfPiece = 32;
  template <int kPiece>
  static __device__ void issue(const uint64 (&v)[2]);
  template <int kPiece>
  static __device__ void add(float factor);
  static __device__ void clear();
};
struct E4m3Config : HopperConfig {
  using Dropouts = Dropping<>;
  using Stored = StoredAs<E4m3>;
  using Products = ProductsOf<E4m3Products, BlockScales>;
  static constexpr int kCluster = 1;
  using Scores = E4m3ScoreMatrix;
  using Output = E4m3OutputMatrix;
};

extern "C" __global__ void __launch_bounds__(384, 1) hopper_e4m3(const __grid_constant__ HopperLaunch args) {
  extern __shared__ __align__(1024) char smem[];
  forward_hopper<E4m3Config>(args, ptx::cvta_to_shared(smem));
}

// The same of values that come transposed, and an output of 8 bits.
struct TransposedE4m3Config : E4m3Config {
  using Values = ValuesBy<TransposedValues>;
  using Format = FormatOf<E5m2>;
  using Written = WrittenAs<E4m3Output>;
  struct Output : E4m3OutputMatrix {
    static __device__ void pack(uint32 (&words)[8]);
  };
};

extern "C" __global__ void __launch_bounds__(384, 1) hopper_transposed(const __grid_constant__ HopperLaunch args) {
  extern __shared__ __align__(1024) char smem[];
  forward_hopper<TransposedE4m3Config>(args, ptx::cvta_to_shared(smem));
}

// Large heads, whose keys and values come piece by piece.
struct LargeScoreMatrix : ScoreMatrix {
  template <bool kAdds, int kSteps>
  static __device__ void issue(const uint64 (&q)[kSteps], const uint64 (&k)[kSteps]);
};
struct LargeProbabilityMatrix : ProbabilityMatrix {
  static __device__ void read(uint32 (&pairs)[16]);
};
struct LargeOutputMatrix : OutputMatrix {
  template <int kPiece>
  static __device__ void issue(const uint64 (&v)[1], uint32 adds);
  static __device__ void issue(const uint64 (&p)[1], const uint64 (&v)[1], uint32 adds);
  static __device__ void pack(uint32 (&pairs)[64]);
};
struct LargeConfig : HopperConfig {
  using ScoreParts = InTurn<Softcap, AlibiSlopes, ScoreFunction<text::ScoreText, &HopperLaunch::score>>;
  static constexpr int kHeadDim = 512;
  static constexpr int kHeadDimV = 512;
  static constexpr int kBlockQ = 64;
  static constexpr int kCluster = 1;
  static constexpr Rescale kRescale = Rescale::rare;
  static constexpr bool kSplitKv = false;
  static constexpr int kPieces = 9;
  using Values = ValuesBy<LatentValues>;
  using Scores = LargeScoreMatrix;
  using Probabilities = LargeProbabilityMatrix;
  using Output = LargeOutputMatrix;
};

extern "C" __global__ void __launch_bounds__(384, 1) hopper_large(const __grid_constant__ HopperLaunch args) {
  extern __shared__ __align__(1024) char smem[];
  forward_hopper_large<LargeConfig>(args, ptx::cvta_to_shared(smem));
}

// Few rows, which warps share.
struct DecodeConfig : HopperConfig {
  using ScoreParts = InTurn<Softcap, AlibiSlopes, ScoreFunction<text::ScoreText, &HopperLaunch::score>>;
  static constexpr int kBlockQ = 16;
  static constexpr int kBlockKv = 128;
  static constexpr int kQStages = 1;
  static constexpr GemmSoftmax kOverlap = GemmSoftmax::serial;
  static constexpr PingPong kPingPong = PingPong::off;
  static constexpr int kCluster = 1;
  static constexpr Rescale kRescale = Rescale::rare;
  static constexpr Scheduler kScheduler = Scheduler::fixed;
  static constexpr bool kFusedBoundary = false;
  using Stored = StoredAs<E4m3, TokenScales>;
};

extern "C" __global__ void __launch_bounds__(192, 2) hopper_decode(const __grid_constant__ HopperLaunch args) {
  extern __shared__ __align__(1024) char smem[];
  forward_hopper_decode<DecodeConfig>(args, ptx::cvta_to_shared(smem));
}

// Fewer, which are multiplied without tensor cores.
struct FmaDecodeConfig : DecodeConfig {
  static constexpr int kBlockQ = 4;
  using Stored = StoredAs<>;
};

extern "C" __global__ void __launch_bounds__(192, 2) hopper_fma_decode(const __grid_constant__ HopperLaunch args) {
  extern __shared__ __align__(1024) char smem[];
  forward_hopper_decode<FmaDecodeConfig>(args, ptx::cvta_to_shared(smem));
}

struct BlockMaskLaunch {
  BlockMaskMaker core;
  TextArguments<text::MaskText> mask;
};
struct BlockMaskConfig {
  using Arguments = BlockMaskLaunch;
  using Predicates = AllSee<MaskFunction<text::MaskText, &BlockMaskLaunch::mask>>;
};
extern "C" __global__ void __launch_bounds__(128) block_mask(const __grid_constant__ BlockMaskLaunch args) {
  BlockMaskGranules<BlockMaskConfig>(args).run();
}

struct FunctionScoresLaunch {
  FunctionScores core;
  TextArguments<text::BiasText> bias;
  TextArguments<text::ScoreText> score;
};
extern "C" __global__ void __launch_bounds__(128) function_scores(const __grid_constant__ FunctionScoresLaunch args) {
  FunctionScoresThread<FunctionScoresLaunch>{args}.run();
}
extern "C" __global__ void __launch_bounds__(128) function_slopes(const __grid_constant__ FunctionScoresLaunch args) {
  FunctionScoresThread<FunctionScoresLaunch, DualNumbers>{args}.run();
}

extern "C" __global__ void __launch_bounds__(kMergeThreads) merge(const __grid_constant__ MergeArguments args) {
  MergeRows<Single, BFloat16>(args).run();
}

extern "C" __global__ void __launch_bounds__(kSumThreads) sum(const __grid_constant__ SumArguments args) {
  SumRows<Single, BFloat16>(args).run();
}

extern "C" __global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ CombineArguments args) {
  __shared__ CombineShared<256> shared;
  CombineRows<BFloat16, 256, true>(args, shared).run();
}

extern "C" __global__ void __launch_bounds__(kAppendThreads) append(const __grid_constant__ AppendArguments args) {
  __shared__ AppendShared shared;
  AppendToken<BFloat16, Rotary::neighbours, Single>(args, shared).run();
}

extern "C" __global__ void __launch_bounds__(kAppendThreads)
    append_to_e4m3(const __grid_constant__ AppendScaledArguments args) {
  __shared__ AppendShared shared;
  AppendToken<BFloat16, Rotary::halves, Single, ScaledCache<E5m2Element>>(args.core, shared, {args.scales}).run();
}
