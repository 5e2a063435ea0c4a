// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "flashjit/c_api.h"
#include "tests/gpu/attention_case.h"

namespace {

using namespace flashjit;
using tests::AttentionCase;

flashjit_tensor to_c(const Tensor& tensor) {
  flashjit_tensor result{};
  result.data = tensor.data;
  result.dtype = tensor.dtype == DType::f32 ? FLASHJIT_F32 : tensor.dtype == DType::f16 ? FLASHJIT_F16 : FLASHJIT_BF16;
  result.rank = tensor.shape.size();
  for (int i = 0; i < result.rank; ++i) {
    result.shape[i] = tensor.shape[i];
    result.strides[i] = tensor.strides[i];
  }
  return result;
}

}  // namespace

TEST_CASE("a call through C computes with its options") {
  const AttentionCase c;
  const DeviceTensor out = c.poisoned_out(), lse = c.poisoned_lse();
  const flashjit_tensor q = to_c(c.q), k = to_c(c.k), v = to_c(c.v), o = to_c(out), l = to_c(lse);
  CHECK(flashjit_attention(&q, &k, &v, &o, nullptr) == 0);
  CHECK(std::string(flashjit_last_error()).empty());
  c.check_out(out);

  flashjit_attention_options options{};
  options.causal = 1;
  options.has_softmax_scale = 1;
  options.softmax_scale = 0.25f;
  options.lse = &l;
  options.variant = "v3";
  CHECK(flashjit_attention(&q, &k, &v, &o, &options) == 0);
  AttentionOptions opts;
  opts.causal = true;
  opts.softmax_scale = 0.25f;
  c.check_out(out, opts);
  c.check_lse(lse, opts);
}

TEST_CASE("errors come as a code and a message, and a good call clears them") {
  const AttentionCase c;
  const DeviceTensor out = c.poisoned_out();
  const flashjit_tensor q = to_c(c.q), k = to_c(c.k), v = to_c(c.v), o = to_c(out);
  const int invalid = 1 + static_cast<int>(ErrorCode::invalid_argument);
  CHECK(flashjit_attention(nullptr, &k, &v, &o, nullptr) == invalid);
  CHECK(std::string(flashjit_last_error()) == "q: must point to a tensor, was null");
  flashjit_tensor bad = k;
  bad.rank = 5;
  CHECK(flashjit_attention(&q, &bad, &v, &o, nullptr) == invalid);
  CHECK(std::string(flashjit_last_error()) == "k: rank must be from 0 to 4, was 5");
  bad = v;
  bad.dtype = 9;
  CHECK(flashjit_attention(&q, &k, &bad, &o, nullptr) == invalid);
  CHECK(std::string(flashjit_last_error()).substr(0, 9) == "v: dtype ");
  flashjit_attention_options options{};
  options.variant = "fast-please";
  CHECK(flashjit_attention(&q, &k, &v, &o, &options) == invalid);
  CHECK_FALSE(std::string(flashjit_last_error()).empty());
  CHECK(flashjit_attention(&q, &k, &v, &o, nullptr) == 0);
  CHECK(std::string(flashjit_last_error()).empty());
  c.check_out(out);
  CHECK(std::string(flashjit_version()) == version());
}
