// SPDX-License-Identifier: Apache-2.0
// What a kernel is given for a call.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "runtime/forward_arguments.h"

namespace {

using flashjit::AttentionOptions;
using flashjit::DType;
using flashjit::Tensor;
using flashjit::generator::ForwardArguments;

void* address(std::uintptr_t index) { return reinterpret_cast<void*>(index << 40); }

struct Call {
  Call()
      : q(address(1), DType::bf16, {2, 70, 8, 64}),
        k(address(2), DType::bf16, {2, 4096, 2, 64}),
        v(address(3), DType::bf16, {2, 4096, 2, 32}),
        out(address(4), DType::bf16, {2, 70, 8, 32}) {}
  Tensor q, k, v, out;
  AttentionOptions opts;

  ForwardArguments arguments() const {
    auto call = flashjit::runtime::validate_inputs(q, k, v, opts);
    flashjit::runtime::validate_out(call, out);
    return flashjit::runtime::make_forward_arguments(call, 64);
  }
};

}  // namespace

TEST_CASE("pointers, sizes and byte strides of a packed call") {
  const ForwardArguments a = Call().arguments();
  CHECK(a.q == address(1));
  CHECK(a.k == address(2));
  CHECK(a.v == address(3));
  CHECK(a.out == address(4));
  CHECK(a.lse == nullptr);
  CHECK(a.q_strides.batch == 70 * 8 * 64 * 2);
  CHECK(a.q_strides.row == 8 * 64 * 2);
  CHECK(a.q_strides.head == 64 * 2);
  CHECK(a.v_strides.row == 2 * 32 * 2);
  CHECK(a.out_strides.head == 32 * 2);
  CHECK(a.batch == 2);
  CHECK(a.seqlen_q == 70);
  CHECK(a.seqlen_kv == 4096);
  CHECK(a.num_heads_q == 8);
  CHECK(a.heads_per_group == 4);
  CHECK(a.num_q_tiles == 2);
}

TEST_CASE("the strides of the LSE are those of batch, row and head") {
  Call call;
  call.opts.lse = Tensor(address(5), DType::f32, {2, 8, 70});
  const ForwardArguments a = call.arguments();
  CHECK(a.lse == address(5));
  CHECK(a.lse_strides.batch == 8 * 70 * 4);
  CHECK(a.lse_strides.head == 70 * 4);
  CHECK(a.lse_strides.row == 4);
}

TEST_CASE("the stride of a dimension of size one is zero, whatever the view says") {
  Call call;
  for (Tensor* tensor : {&call.q, &call.k, &call.v, &call.out}) {
    tensor->shape[0] = 1;
    tensor->strides[0] = std::numeric_limits<std::int64_t>::max();
  }
  CHECK(call.arguments().k_strides.batch == 0);
}

TEST_CASE("the scale goes to base 2 without its sign, and never as zero") {
  const auto with_scale = [](float scale) {
    Call call;
    call.opts.softmax_scale = scale;
    return call.arguments();
  };
  CHECK(Call().arguments().scale_log2 == doctest::Approx(1.4426950408889634 / 8));
  CHECK(with_scale(0.5f).scale_log2 == doctest::Approx(1.4426950408889634 / 2));
  CHECK(with_scale(0.5f).query_sign == 0);
  CHECK(with_scale(-0.5f).scale_log2 == doctest::Approx(1.4426950408889634 / 2));
  CHECK(with_scale(-0.5f).query_sign == 0x80008000);
  CHECK(with_scale(0.0f).scale_log2 > 0);
  CHECK(std::isinf(with_scale(0.0f).scale_log2 * -std::numeric_limits<float>::infinity()));
}

TEST_CASE("a section is as many query heads as share 32 MiB of keys and values, and at least one group") {
  const auto with_keys = [](std::int64_t seqlen_kv, std::int64_t heads_kv) {
    Call call;
    call.k = Tensor(address(2), DType::bf16, {2, seqlen_kv, heads_kv, 64});
    call.v = Tensor(address(3), DType::bf16, {2, seqlen_kv, heads_kv, 32});
    return call.arguments().heads_per_section;
  };
  CHECK(with_keys(1 << 16, 8) == 2);  // 12 MiB a head
  CHECK(with_keys(1 << 16, 2) == 8);  // a group of 4 query heads, two groups fit
  CHECK(with_keys(1 << 20, 2) == 4);  // one head is larger than that
  CHECK(with_keys(16, 4) == 8);       // no more heads than there are
  CHECK(with_keys(0, 4) == 8);
}
