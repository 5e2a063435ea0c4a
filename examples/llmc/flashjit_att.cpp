// SPDX-License-Identifier: Apache-2.0
// llm.c's attention, by flashjit: the functions that train_gpt2.cu and test_gpt2.cu call where ENABLE_CUDNN is defined.
// It takes the place of the object file of llmc/cudnn_att.cpp and is compiled with the same definitions; CUDA's headers
// are not needed.
#include <flashjit/flashjit.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

// floatX of llm.c. What the functions are called in object files has CUDA's name of the type in it; its elements are
// touched by kernels alone.
#if defined(ENABLE_FP32)
#error "flashjit computes in 16 bits: PRECISION must be BF16 or FP16"
#elif defined(ENABLE_FP16)
struct __half;
using floatX = __half;
constexpr flashjit::DType kDType = flashjit::DType::f16;
#else
struct __nv_bfloat16;
using floatX = __nv_bfloat16;
constexpr flashjit::DType kDType = flashjit::DType::bf16;
#endif

namespace {

using namespace flashjit;

struct Heads {
  Tensor q, k, v;
};

// packed: (B, T, 3, NH, HS), C = NH * HS.
Heads heads_of(floatX* packed, std::int64_t B, std::int64_t T, std::int64_t NH, std::int64_t C) {
  if (C % NH != 0) {
    const std::string of = "C: must be a multiple of NH, " + std::to_string(NH);
    throw Error(ErrorCode::invalid_argument, of + ", was " + std::to_string(C));
  }
  const Dims shape{B, T, NH, C / NH}, strides{T * 3 * C, 3 * C, C / NH, 1};
  auto* bytes = reinterpret_cast<unsigned char*>(packed);
  const std::size_t step = static_cast<std::size_t>(C) * size_of(kDType);
  return {{bytes, kDType, shape, strides},
          {bytes + step, kDType, shape, strides},
          {bytes + 2 * step, kDType, shape, strides}};
}

AttentionOptions causal_on(Stream stream) {
  AttentionOptions options;
  options.causal = true;
  options.stream = stream;
  return options;
}

// There is no result that could tell of an error: it ends the program, as all errors do in llm.c.
template <typename Work>
void or_exit(const char* function, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s by flashjit: %s\n%s", function, error.what(), error.log().c_str());
    std::exit(EXIT_FAILURE);
  }
}

}  // namespace

// Makes the engine, so that a wrong FLASHJIT_* variable is told before anything is computed.
void create_cudnn() {
  or_exit(__func__, [] { default_engine(); });
}

// The engine lives as long as the process, and memory of calls is freed in the order of their stream.
void destroy_cudnn() {}

// Causal attention with a scale of 1 / sqrt(HS), enqueued on the stream. All memory is the caller's.
//   out    (B, T, NH, HS)
//   stats  (B, NH, T): log(sum(exp(score))) of each row, natural logarithm, for the backward below. Null: not written
//   inp    (B, T, 3, NH, HS): q, k and v of each token
// HS is a multiple of 8 up to 256. The first call of a head size makes or loads its kernel. Thread-safe.
void attention_forward_cudnn(floatX* out, float* stats, floatX* inp, int B, int T, int NH, int C, Stream stream) {
  or_exit(__func__, [&] {
    const Heads of = heads_of(inp, B, T, NH, C);
    AttentionOptions options = causal_on(stream);
    if (stats != nullptr) options.lse = Tensor(stats, DType::f32, {B, NH, T});
    attention(of.q, of.k, of.v, Tensor(out, kDType, of.q.shape), options);
  });
}

// Writes the gradients of q, k and v to dqkvr, from what the forward call had and gave, and from the gradient of its
// output, dout. They are the same bits in every run, as llm.c asks of cuDNN.
//   dqkvr, qkvr  (B, T, 3, NH, HS)
//   dout, o      (B, T, NH, HS)
//   stats        (B, NH, T)
void attention_backward_cudnn(floatX* dqkvr, floatX* dout, floatX* qkvr, floatX* o, float* stats, int B, int T, int NH,
                              int C, Stream stream) {
  or_exit(__func__, [&] {
    const Heads of = heads_of(qkvr, B, T, NH, C), gradients = heads_of(dqkvr, B, T, NH, C);
    BackwardOptions backward;
    backward.deterministic = true;
    attention_backward(Tensor(dout, kDType, of.q.shape), of.q, of.k, of.v, Tensor(o, kDType, of.q.shape),
                       Tensor(stats, DType::f32, {B, NH, T}), {gradients.q, gradients.k, gradients.v},
                       causal_on(stream), backward);
  });
}
