// SPDX-License-Identifier: Apache-2.0
#include "flashjit/c_api.h"

#include <fmt/format.h>

#include <exception>
#include <string>

#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "flashjit/version.h"

namespace {

constexpr int kMaxRank = 4;
constexpr int kUnknownFailure = 1 + static_cast<int>(flashjit::ErrorCode::driver);

// The interface promises the message of this thread's last failure.
thread_local std::string last_error;

[[noreturn]] void reject(const std::string& message) {
  throw flashjit::Error(flashjit::ErrorCode::invalid_argument, message);
}

flashjit::DType to_dtype(const char* name, std::int32_t dtype) {
  switch (dtype) {
    case FLASHJIT_F16:
      return flashjit::DType::f16;
    case FLASHJIT_BF16:
      return flashjit::DType::bf16;
    case FLASHJIT_F32:
      return flashjit::DType::f32;
    default:
      reject(fmt::format("{}: dtype must be 0 (f16), 1 (bf16) or 2 (f32), was {}", name, dtype));
  }
}

flashjit::Tensor to_tensor(const char* name, const flashjit_tensor* tensor) {
  if (!tensor) reject(fmt::format("{}: must point to a tensor, was null", name));
  if (tensor->rank < 0 || tensor->rank > kMaxRank) {
    reject(fmt::format("{}: rank must be from 0 to {}, was {}", name, kMaxRank, tensor->rank));
  }
  const auto rank = static_cast<std::size_t>(tensor->rank);
  return {tensor->data, to_dtype(name, tensor->dtype), flashjit::Dims(tensor->shape, rank),
          flashjit::Dims(tensor->strides, rank)};
}

flashjit::AttentionOptions to_options(const flashjit_attention_options* options) {
  flashjit::AttentionOptions result;
  if (!options) return result;
  result.causal = options->causal != 0;
  if (options->has_softmax_scale) result.softmax_scale = options->softmax_scale;
  if (options->lse) result.lse = to_tensor("lse", options->lse);
  result.stream = static_cast<flashjit::Stream>(options->stream);
  if (options->variant) result.variant = flashjit::parse_variant(options->variant);
  return result;
}

// No exception leaves the library through C. 0, or what the header promises.
template <typename Work>
int guarded(Work work) noexcept {
  try {
    last_error.clear();
    work();
    return 0;
  } catch (const flashjit::Error& error) {
    last_error = error.what();
    return 1 + static_cast<int>(error.code());
  } catch (const std::exception& error) {
    last_error = error.what();
    return kUnknownFailure;
  } catch (...) {
    last_error = "unknown failure";
    return kUnknownFailure;
  }
}

}  // namespace

extern "C" {

int flashjit_attention(const flashjit_tensor* q, const flashjit_tensor* k, const flashjit_tensor* v,
                       const flashjit_tensor* out, const flashjit_attention_options* options) {
  return guarded([&] {
    flashjit::attention(to_tensor("q", q), to_tensor("k", k), to_tensor("v", v), to_tensor("out", out),
                        to_options(options));
  });
}

const char* flashjit_last_error(void) { return last_error.c_str(); }

const char* flashjit_version(void) { return flashjit::version(); }

double flashjit_measure_mma_ceiling(void) {
  double tflops = -1;
  guarded([&] { tflops = flashjit::default_engine().measure_mma_ceiling(); });
  return tflops;
}

}  // extern "C"
