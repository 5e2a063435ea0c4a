// SPDX-License-Identifier: Apache-2.0
// Bad input that shows without a GPU: what each gets, and that the good call beside it passes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "flashjit/error.h"
#include "generator/functions.h"
#include "runtime/call/validate.h"

namespace {

using flashjit::AttentionOptions;
using flashjit::Dims;
using flashjit::DType;
using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::Tensor;
using flashjit::runtime::ForwardCall;

constexpr std::int64_t kHuge = std::int64_t{1} << 31;

// Addresses far apart; nothing here reads them.
void* address(std::uintptr_t index, std::uintptr_t offset = 0) {
  return reinterpret_cast<void*>((index << 40) + offset);
}

struct Call {
  Call()
      : q(address(1), DType::bf16, {2, 5, 8, 64}),
        k(address(2), DType::bf16, {2, 7, 4, 64}),
        v(address(3), DType::bf16, {2, 7, 4, 32}),
        out(address(4), DType::bf16, {2, 5, 8, 32}) {}
  Tensor q, k, v, out;
  AttentionOptions opts;

  ForwardCall validate() const {
    ForwardCall call = flashjit::runtime::validate_inputs(q, k, v, opts);
    flashjit::runtime::validate_out(call, out);
    return call;
  }
};

Tensor good_lse() { return {address(5), DType::f32, {2, 8, 5}}; }
Tensor good_slopes() { return {address(6), DType::f32, {8}}; }

// The message of the error that the changed call gets; "" when it passes.
std::string refusal(const std::function<void(Call&)>& change) {
  Call call;
  change(call);
  try {
    call.validate();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "";
}

void set_shape(Tensor& tensor, const Dims& shape) { tensor = Tensor(tensor.data, tensor.dtype, shape); }

}  // namespace

TEST_CASE("a good call passes and is described") {
  Call call;
  call.opts.causal = true;
  call.opts.lse = good_lse();
  const ForwardCall checked = call.validate();
  CHECK(checked.problem == flashjit::Problem{DType::bf16, 64, 32, true});
  CHECK(checked.batch == 2);
  CHECK(checked.seqlen_q == 5);
  CHECK(checked.seqlen_kv == 7);
  CHECK(checked.num_heads_q == 8);
  CHECK(checked.num_heads_kv == 4);
  CHECK(checked.softmax_scale == doctest::Approx(0.125));
  CHECK_FALSE(checked.nothing_to_do());
  CHECK(checked.out_shape() == Dims{2, 5, 8, 32});
}

TEST_CASE("a wrong rank is named with the rank it must have") {
  CHECK(refusal([](Call& c) { set_shape(c.q, {5, 8, 64}); }) == "q: rank must be 4, was 3 with shape [5, 8, 64]");
  CHECK(refusal([](Call& c) { set_shape(c.k, {1, 2, 7, 4, 64}); }).starts_with("k: rank must be 4, was 5"));
  CHECK(refusal([](Call& c) { set_shape(c.v, {}); }).starts_with("v: rank must be 4, was 0"));
  CHECK(refusal([](Call& c) { set_shape(c.out, {5, 8, 32}); }).starts_with("out: rank must be 4, was 3"));
  CHECK(refusal([](Call& c) {
          c.opts.lse = Tensor(address(5), DType::f32, {2, 8, 5, 1});
        }).starts_with("lse: rank must be 3"));
  CHECK(refusal([](Call& c) { c.q.strides = {1}; }) == "q: must have 4 strides like its shape, had 1");
}

TEST_CASE("a ragged batch has as many sequences as its tensors say, each no longer than there are rows") {
  Call call;
  call.q = Tensor(address(1), DType::bf16, {1, 50, 8, 64});
  call.out = Tensor(address(4), DType::bf16, {1, 50, 8, 32});
  call.k = Tensor(address(2), DType::bf16, {5, 70, 4, 64});
  call.v = Tensor(address(3), DType::bf16, {5, 70, 4, 32});
  call.opts.lse = Tensor(address(5), DType::f32, {1, 8, 50});
  call.opts.cu_seqlens_q = Tensor(address(6), DType::i32, {4});
  call.opts.batch_indices_kv = Tensor(address(7), DType::i32, {3});
  call.opts.seqused_kv = Tensor(address(8), DType::i32, {3});
  call.opts.max_seqlen_kv = 60;
  call.opts.alibi_slopes = Tensor(address(9), DType::f32, {3, 8});
  call.opts.bias = Tensor(address(10), DType::f16, {3, 1, 50, 60});
  const ForwardCall checked = call.validate();
  CHECK(checked.problem.ragged);
  CHECK(checked.batch == 3);
  CHECK(checked.seqlen_q == 50);
  CHECK(checked.seqlen_kv == 60);
  CHECK(checked.usual_seqlen_q == 17);
  CHECK(checked.out_shape() == Dims{1, 50, 8, 32});
}

TEST_CASE("a paged call has as many keys as the pages of a row hold, and any number of pages") {
  Call call;
  call.k = Tensor(address(2), DType::bf16, {90, 16, 4, 64});
  call.v = Tensor(address(3), DType::bf16, {90, 16, 4, 32});
  call.opts.page_table = Tensor(address(6), DType::i32, {2, 12}, {40, 1});
  call.opts.seqused_kv = Tensor(address(7), DType::i32, {2});
  const ForwardCall checked = call.validate();
  CHECK(checked.problem.ragged);
  CHECK(checked.problem.paged);
  CHECK(checked.batch == 2);
  CHECK(checked.seqlen_kv == 192);
  call.opts.max_seqlen_kv = 100;
  CHECK(call.validate().seqlen_kv == 100);
}

TEST_CASE("pages are refused by name when they cannot be") {
  const auto paged = [](Call& c, const Dims& table, const Dims& pages = {90, 16, 4, 64}) {
    set_shape(c.k, pages), set_shape(c.v, {pages[0], pages[1], pages[2], 32});
    c.opts.page_table = Tensor(address(6), DType::i32, table);
  };
  CHECK(refusal([&](Call& c) { paged(c, {2, 5}); }) == "");
  CHECK(refusal([&](Call& c) { paged(c, {3, 5}); }) == "page_table: batch must be 2 like that of q, was 3");
  CHECK(refusal([&](Call& c) { paged(c, {10}); }).starts_with("page_table: rank must be 2, was 1"));
  CHECK(refusal([&](Call& c) {
          paged(c, {2, 5});
          c.opts.page_table->dtype = DType::i64;
        }) == "page_table: dtype must be i32, was i64");
  CHECK(refusal([&](Call& c) {
          paged(c, {2, 5}, {0, 16, 4, 64});
        }) == "k: pages must be at least 1 beside page_table, was 0");
  CHECK(refusal([&](Call& c) { paged(c, {2, 5}, {7, 0, 4, 64}); }) == "k: page_size must be at least 1, was 0");
  CHECK(refusal([&](Call& c) {
          paged(c, {2, std::int64_t{1} << 27});
        }) == "page_table: entries * page_size must be at most 1073741824, was 134217728 * 16");
  const auto of_batch = [](std::int64_t size) { return Tensor(address(7), DType::i32, {size}); };
  CHECK(refusal([&](Call& c) {
          paged(c, {2, 5});
          c.opts.cu_seqlens_kv = of_batch(3);
        }) == "cu_seqlens_kv: must not be given beside page_table, which says where keys lie");
  CHECK(refusal([&](Call& c) {
          paged(c, {2, 5});
          c.opts.leftpad_kv = of_batch(2);
        }) == "leftpad_kv: must not be given beside page_table, which says where keys lie");
  CHECK(refusal([&](Call& c) {
          paged(c, {0, 5});
          c.opts.batch_indices_kv = of_batch(2);
        }) == "page_table: batch must be at least 1 beside batch_indices_kv, was 0");
}

TEST_CASE("what says where sequences lie is refused by name when it cannot be") {
  const auto of_batch = [](const Dims& shape, DType dtype = DType::i32) { return Tensor(address(6), dtype, shape); };
  const auto packed = [&](Call& c, const Dims& offsets) {
    set_shape(c.q, {1, 5, 8, 64}), set_shape(c.out, {1, 5, 8, 32});
    c.opts.cu_seqlens_q = of_batch(offsets);
  };
  CHECK(refusal([&](Call& c) { packed(c, {3}); }) == "");
  CHECK(refusal([&](Call& c) { packed(c, {4}); }) == "k: batch must be 3 like that of cu_seqlens_q, was 2");
  CHECK(refusal([&](Call& c) { packed(c, {0}); }) == "cu_seqlens_q: must have batch + 1 elements, had 0");
  CHECK(refusal([&](Call& c) { c.opts.cu_seqlens_q = of_batch({3}); }) ==
        "q: batch must be 1, or not be there, beside cu_seqlens_q, was 2");
  CHECK(refusal([&](Call& c) {
          packed(c, {3});
          c.opts.cu_seqlens_q->dtype = DType::i64;
        }) == "cu_seqlens_q: dtype must be i32, was i64");
  CHECK(refusal([&](Call& c) {
          set_shape(c.k, {1, 7, 4, 64}), set_shape(c.v, {1, 7, 4, 32});
          c.opts.cu_seqlens_kv = of_batch({4});
        }) == "cu_seqlens_kv: must have 3 elements, one more than q has sequences, had 4");
  CHECK(refusal([&](Call& c) { c.opts.seqused_q = of_batch({3}); }) ==
        "seqused_q: batch must be 2 like that of q, was 3");
  CHECK(refusal([&](Call& c) {
          c.opts.seqused_kv = of_batch({2, 1});
        }).starts_with("seqused_kv: rank must be 1, was 2"));
  CHECK(refusal([&](Call& c) { c.opts.leftpad_kv = of_batch({2}, DType::f32); }) ==
        "leftpad_kv: dtype must be i32, was f32");
  CHECK(refusal([&](Call& c) { c.opts.batch_indices_kv = of_batch({1}); }) ==
        "batch_indices_kv: batch must be 2 like that of q, was 1");
  CHECK(refusal([&](Call& c) {
          set_shape(c.k, {0, 7, 4, 64}), set_shape(c.v, {0, 7, 4, 32});
          c.opts.batch_indices_kv = of_batch({2});
        }) == "k: batch must be at least 1 beside batch_indices_kv, was 0");
  CHECK(refusal([&](Call& c) {
          set_shape(c.k, {1, 7, 4, 64}), set_shape(c.v, {1, 7, 4, 32});
          c.opts.cu_seqlens_kv = of_batch({3});
          c.opts.batch_indices_kv = Tensor(address(7), DType::i32, {2});
        }) == "batch_indices_kv: must not be given beside cu_seqlens_kv, which says where keys lie");
  CHECK(refusal([&](Call& c) {
          c.opts.seqused_q = of_batch({2});
          c.opts.max_seqlen_q = -1;
        }) == "max_seqlen_q: must be at least 0, was -1");
  CHECK(refusal([](Call& c) { c.opts.max_seqlen_kv = 7; }) ==
        "max_seqlen_kv: must not be given for a batch whose sequences are equally long");
  CHECK(refusal([&](Call& c) {
          c.opts.seqused_q = of_batch({2});
          c.opts.documents = Tensor(address(7), DType::i32, {2, 7});
          c.opts.block_mask = Tensor(address(8), DType::i32, {2, 8, 1, 2, 1});
        }) == "block_mask: must not be given for a batch whose sequences are not equally long");
}

TEST_CASE("of a ragged batch tensors of heads, queries and keys are told what they have to be like") {
  const auto of_three = [](const std::function<void(Call&)>& change) {
    return refusal([&](Call& c) {
      set_shape(c.q, {1, 5, 8, 64}), set_shape(c.out, {1, 5, 8, 32});
      set_shape(c.k, {3, 7, 4, 64}), set_shape(c.v, {3, 7, 4, 32});
      c.opts.cu_seqlens_q = Tensor(address(6), DType::i32, {4});
      change(c);
    });
  };
  CHECK(of_three([](Call& c) {
          c.opts.alibi_slopes = Tensor(address(7), DType::f32, {1, 8});
        }) == "alibi_slopes: batch must be 3 like that of cu_seqlens_q, was 1");
  CHECK(of_three([](Call& c) {
          c.opts.bias = Tensor(address(7), DType::f16, {3, 1, 4, 7});
        }).starts_with("bias: max_seqlen_q must be 5, or 1 for all, was 4"));
  CHECK(of_three([](Call& c) {
          c.opts.documents = Tensor(address(7), DType::i32, {3, 6});
        }).starts_with("documents: max_seqlen_kv must be 7, was 6"));
}

TEST_CASE("a wrong dtype is named with the dtype it must have") {
  CHECK(refusal([](Call& c) { c.q.dtype = DType::f32; }) == "q: dtype must be f16, bf16, e4m3 or e5m2, was f32");
  CHECK(refusal([](Call& c) { c.k.dtype = DType::f16; }) ==
        "k: dtype must be bf16 like that of q, e4m3 or e5m2, was f16");
  CHECK(refusal([](Call& c) { c.v.dtype = DType::f32; }) == "v: dtype must be bf16 like that of q, was f32");
  CHECK(refusal([](Call& c) { c.out.dtype = DType::f16; }) == "out: dtype must be bf16 like that of q, was f16");
  CHECK(refusal([](Call& c) {
          c.opts.lse = Tensor(address(5), DType::bf16, {2, 8, 5});
        }) == "lse: dtype must be f32, was bf16");
}

TEST_CASE("keys and values of e4m3 go with scales for all, for heads or for tokens, in one form") {
  Call call;
  call.k.dtype = call.v.dtype = DType::e4m3;
  const auto set = [&](const Dims& of_k, const Dims& of_v) {
    call.opts.k_scale = Tensor(address(7), DType::f32, of_k), call.opts.v_scale = Tensor(address(8), DType::f32, of_v);
  };
  CHECK(to_string(call.validate().problem) == "fwd-bf16-d64-v32-e4m3");
  CHECK(call.validate().k_scale.data == nullptr);
  set({1}, {4});
  const ForwardCall of_heads = call.validate();
  CHECK(to_string(of_heads.problem) == "fwd-bf16-d64-v32-e4m3");
  CHECK(of_heads.problem == flashjit::problem_of(DType::bf16, 64, 32, call.opts, DType::e4m3));
  CHECK(of_heads.k_scale.strides == Dims{0, 0, 0});
  CHECK(of_heads.v_scale.strides == Dims{0, 0, 1});
  set({2, 7, 4}, {2, 7, 4});
  const ForwardCall of_tokens = call.validate();
  CHECK(to_string(of_tokens.problem) == "fwd-bf16-d64-v32-e4m3-token_scales");
  CHECK(of_tokens.k_scale.strides == Dims{28, 4, 1});
  CHECK(of_tokens.v_scale.data == address(8));
  call.opts.page_table = Tensor(address(9), DType::i32, {2, 3});
  CHECK(to_string(call.validate().problem) == "fwd-bf16-d64-v32-ragged-paged-e4m3-token_scales");
}

TEST_CASE("queries of e4m3 have scales of all, of heads or of heads of sequences, and an output of 16 bits") {
  Call call;
  call.q.dtype = call.k.dtype = call.v.dtype = DType::e4m3;
  CHECK(to_string(call.validate().problem) == "fwd-bf16-d64-v32-e4m3-e4m3_queries");
  call.opts.q_scale = Tensor(address(7), DType::f32, {2, 8}), call.opts.k_scale = Tensor(address(8), DType::f32, {4});
  call.opts.v_scale = Tensor(address(9), DType::f32, {1});
  call.opts.accumulate = flashjit::Accumulate::fast, call.opts.out_dtype = call.out.dtype = DType::f16;
  const ForwardCall made = call.validate();
  CHECK(to_string(made.problem) == "fwd-f16-d64-v32-e4m3-e4m3_queries-fast_sums");
  CHECK(made.problem == flashjit::problem_of(DType::e4m3, 64, 32, call.opts, DType::e4m3));
  CHECK(made.problem == flashjit::parse_problem(to_string(made.problem)));
  CHECK(made.q_scale.strides == Dims{8, 0, 1});
  CHECK(made.k_scale.strides == Dims{0, 0, 1});
  CHECK(made.v_scale.strides == Dims{0, 0, 0});
  CHECK_THROWS_WITH_AS(flashjit::parse_problem("fwd-bf16-d64-e4m3-e4m3_queries-fast_sums-fast_sums"),
                       doctest::Contains("problem:"), Error);
  CHECK_THROWS_WITH_AS(flashjit::parse_problem("fwd-bf16-d64-fast_sums"),
                       doctest::Contains("fast_sums: must not be true without"), Error);
  CHECK_THROWS_WITH_AS(flashjit::parse_problem("fwd-bf16-d24-e4m3-e4m3_queries"),
                       "head_dim: must be a multiple of 16 for queries of e4m3, was 24", Error);
}

TEST_CASE("beside queries of e4m3 the output may be of e4m3, with a scale") {
  Call call;
  call.q.dtype = call.k.dtype = call.v.dtype = call.out.dtype = DType::e4m3;
  call.opts.out_dtype = DType::e4m3;
  CHECK(to_string(call.validate().problem) == "fwd-bf16-d64-v32-e4m3-e4m3_queries-out_e4m3");
  call.opts.out_scale = Tensor(address(9), DType::f32, {1});
  const ForwardCall made = call.validate();
  CHECK(made.problem == flashjit::parse_problem("fwd-bf16-d64-v32-e4m3-e4m3_queries-out_e4m3"));
  CHECK(made.problem == flashjit::problem_of(DType::e4m3, 64, 32, call.opts, DType::e4m3));
  CHECK(flashjit::tuning_class(made.problem) == flashjit::parse_problem("fwd-bf16-d64-v32-e4m3-e4m3_queries"));
  CHECK(made.out_scale == &*call.opts.out_scale);
  call.out.dtype = DType::bf16;
  CHECK_THROWS_WITH_AS(call.validate(), "out: dtype must be e4m3, which is out_dtype, was bf16", Error);
  CHECK_THROWS_WITH_AS(flashjit::parse_problem("fwd-f16-d64-e4m3-e4m3_queries-out_e4m3"),
                       "dtype: must be bf16 beside out_e4m3, was f16", Error);
  CHECK_THROWS_WITH_AS(flashjit::parse_problem("fwd-bf16-d64-out_e4m3"),
                       doctest::Contains("out_e4m3: must not be true without e4m3_queries"), Error);
}

TEST_CASE("values of e4m3 are found out to come transposed by their strides") {
  Call call;
  call.q.dtype = call.k.dtype = call.v.dtype = DType::e4m3;
  const std::int64_t keys = call.v.shape[1], heads = call.v.shape[2], dims = call.v.shape[3], pitch = 32;
  REQUIRE(keys < pitch);
  call.v.strides = {heads * dims * pitch, 1, dims * pitch, pitch};
  const ForwardCall made = call.validate();
  CHECK(to_string(made.problem) == "fwd-bf16-d64-v32-e4m3-e4m3_queries-values_transposed");
  CHECK(made.problem == flashjit::parse_problem(to_string(made.problem)));
  CHECK(flashjit::tuning_class(made.problem) == flashjit::parse_problem("fwd-bf16-d64-v32-e4m3-e4m3_queries"));
  call.v.strides[3] = pitch + 1;
  CHECK_THROWS_WITH_AS(call.validate(), "v: the stride of head_dim must be a multiple of 16 elements, was 33", Error);
  call.v.strides[3] = pitch, call.v.strides[1] = 2;
  CHECK_THROWS_WITH_AS(call.validate(), "v: the last dimension must be contiguous (stride 1), its stride was 32",
                       Error);
  CHECK_THROWS_WITH_AS(flashjit::parse_problem("fwd-bf16-d64-e4m3-values_transposed"),
                       doctest::Contains("values_transposed: must not be true without e4m3_queries"), Error);
  CHECK_THROWS_WITH_AS(flashjit::parse_problem("fwd-bf16-d64-ragged-e4m3-e4m3_queries-values_transposed"),
                       "ragged: must not be true beside values_transposed", Error);
}

namespace {

// As MLA's absorbed decode has them.
void set_latent_cache(Call& call) {
  set_shape(call.q, {2, 5, 8, 576}), set_shape(call.k, {2, 7, 4, 512}), set_shape(call.v, {2, 7, 4, 512});
  set_shape(call.out, {2, 5, 8, 512});
  call.opts.k_rotary = Tensor(address(9), DType::bf16, {2, 7, 4, 64});
}

}  // namespace

TEST_CASE("the last columns of keys may stand in a tensor of their own, whatever the others are stored as") {
  Call call;
  set_latent_cache(call);
  CHECK(to_string(call.validate().problem) == "fwd-bf16-d576-v512-k_rotary");
  CHECK(call.validate().k_rotary->data == address(9));
  call.k.dtype = call.v.dtype = DType::e4m3;
  call.opts.k_scale = call.opts.v_scale = Tensor(address(7), DType::f32, {2, 7, 4});
  call.v.data = call.k.data;
  const ForwardCall made = call.validate();
  CHECK(to_string(made.problem) == "fwd-bf16-d576-v512-e4m3-token_scales-k_rotary");
  CHECK(made.problem == flashjit::problem_of(DType::bf16, 576, 512, call.opts, DType::e4m3));
  CHECK(made.problem == flashjit::parse_problem(to_string(made.problem)));
  call.opts.page_table = Tensor(address(8), DType::i32, {2, 3});
  CHECK(to_string(call.validate().problem) == "fwd-bf16-d576-v512-ragged-paged-e4m3-token_scales-k_rotary");
}

TEST_CASE("keys in two tensors that do not fit each other, or other arguments, are named") {
  const auto apart = [](const auto& change) {
    return refusal([&](Call& c) {
      set_latent_cache(c);
      change(c);
    });
  };
  CHECK(apart([](Call&) {}) == "");
  CHECK(apart([](Call& c) { c.opts.k_rotary->dtype = DType::f16; }) ==
        "k_rotary: dtype must be bf16 like that of q, was f16");
  CHECK(apart([](Call& c) {
          set_shape(*c.opts.k_rotary, {2, 8, 4, 64});
        }) == "k_rotary: seqlen must be 7 like that of k, was 8");
  CHECK(apart([](Call& c) {
          set_shape(*c.opts.k_rotary, {2, 7, 1, 64});
        }) == "k_rotary: num_heads must be 4 like that of k, was 1");
  CHECK(apart([](Call& c) {
          set_shape(*c.opts.k_rotary, {2, 7, 4, 60});
        }) == "k_rotary: head_dim must be a multiple of 8, was 60");
  CHECK(apart([](Call& c) {
          set_shape(*c.opts.k_rotary, {2, 7, 4, 56});
        }) == "q: head_dim must be 568, the 512 of k and the 56 of k_rotary, was 576");
  CHECK(apart([](Call& c) { set_shape(*c.opts.k_rotary, {7, 4, 64}); }).starts_with("k_rotary: rank must be 4, was 3"));
  CHECK(apart([](Call& c) { set_shape(c.k, {2, 7, 4, 576}); }) == "k: head_dim must be 512 like that of v, was 576");
  CHECK(apart([](Call& c) {
          set_shape(c.q, {2, 5, 8, 328}), set_shape(c.k, {2, 7, 4, 264}), set_shape(c.v, {2, 7, 4, 264});
        }) == "v: head_dim must be a multiple of 16 beside k_rotary, was 264");
  CHECK(apart([](Call& c) {
          set_shape(c.q, {2, 5, 8, 192}), set_shape(c.k, {2, 7, 4, 128}), set_shape(c.v, {2, 7, 4, 128});
        }) == "q: head_dim must be above 256 beside k_rotary, was 192");
  CHECK(apart([](Call& c) { c.q.dtype = c.k.dtype = c.v.dtype = DType::e4m3; }) ==
        "k_rotary: must not be given beside q of e4m3");
  CHECK(apart([](Call& c) {
          c.k.dtype = c.v.dtype = DType::e4m3;
          c.opts.fixed_split_size = 64;
        }) == "fixed_split_size: must be 0 where k and v are of e4m3, was 64");
  const auto problem = [](const char* spelling) {
    try {
      flashjit::parse_problem(spelling);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(problem("fwd-bf16-d576-v512-e4m3-k_rotary") == "");
  CHECK(problem("fwd-bf16-d512-k_rotary") ==
        "head_dim: must be more than the 512 of v, and than 256 beside k_rotary, was 512");
  CHECK(problem("fwd-bf16-d192-v128-k_rotary") ==
        "head_dim: must be more than the 128 of v, and than 256 beside k_rotary, was 192");
  CHECK(problem("fwd-bf16-d328-v264-k_rotary") == "head_dim_v: must be a multiple of 16 beside k_rotary, was 264");
  CHECK(problem("fwd-bf16-d576-v512-e4m3-e4m3_queries-k_rotary") ==
        "k_rotary: must not be true beside queries of e4m3");
}

TEST_CASE("scales that do not fit, and what does not go with e4m3, are named") {
  const auto stored = [](const auto& change) {
    return refusal([&](Call& c) {
      c.k.dtype = c.v.dtype = DType::e4m3;
      change(c);
    });
  };
  const auto scales = [&](const Tensor& of_k, const Tensor& of_v) {
    return stored([&](Call& c) { c.opts.k_scale = of_k, c.opts.v_scale = of_v; });
  };
  const auto f32 = [](int at, const Dims& shape) {
    return Tensor(address(static_cast<std::uintptr_t>(at)), DType::f32, shape);
  };
  CHECK(stored([](Call&) {}) == "");
  CHECK(stored([](Call& c) { c.v.dtype = DType::bf16; }) == "v: dtype must be e4m3 like that of k, was bf16");
  CHECK(stored([](Call& c) { c.k.strides[2] = 72; }) ==
        "k: the stride of num_heads must be a multiple of 16 elements, was 72");
  CHECK(stored([](Call& c) {
          set_shape(c.q, {2, 5, 8, 264}), set_shape(c.k, {2, 7, 4, 264});
        }) == "q: head_dim must be a multiple of 8 from 8 to 256 beside k of e4m3, was 264");
  CHECK(stored([](Call& c) {
          set_shape(c.v, {2, 7, 4, 512});
        }) == "v: head_dim must be a multiple of 8 from 8 to 256 beside k of e4m3, was 512");
  CHECK(stored([](Call& c) { c.out.dtype = DType::e4m3; }) == "out: dtype must be bf16 like that of q, was e4m3");
  CHECK(refusal([](Call& c) { c.q.dtype = DType::e4m3; }) == "k: dtype must be e4m3 like that of q, was bf16");
  CHECK(stored([](Call& c) { c.opts.fixed_split_size = 64; }) ==
        "fixed_split_size: must be 0 where k and v are of e4m3, was 64");
  CHECK(refusal([&](Call& c) { c.opts.k_scale = c.opts.v_scale = f32(7, {1}); }) ==
        "k_scale: must not be given unless k is of e4m3 or e5m2, which was of bf16");
  CHECK(stored([&](Call& c) { c.opts.k_scale = f32(7, {1}); }) == "v_scale: must be given beside k_scale, was not");
  CHECK(scales(f32(7, {2}), f32(8, {1})) == "k_scale: must have 1 element, or one for each of the 4 heads of k, had 2");
  CHECK(scales(f32(7, {7, 4}), f32(8, {7, 4})) ==
        "k_scale: must be [1], [num_heads], or k without its last dimension, had rank 2 with shape [7, 4]");
  CHECK(scales(f32(7, {2, 7, 4}), f32(8, {2, 7, 1})) == "v_scale: num_heads must be 4 like that of k, was 1");
  CHECK(scales(f32(7, {2, 7, 4}), f32(8, {4})) ==
        "v_scale: must have one number for each token like k_scale, or neither, had the shapes [4] and [2, 7, 4]");
  CHECK(scales(Tensor(address(7), DType::bf16, {1}), f32(8, {1})) == "k_scale: dtype must be f32, was bf16");
  CHECK(scales(Tensor(nullptr, DType::f32, {1}), f32(8, {1})) == "k_scale: must point to its elements, was null");
}

TEST_CASE("sizes that do not fit together are named") {
  CHECK(refusal([](Call& c) { set_shape(c.k, {2, 7, 4, 32}); }) == "k: head_dim must be 64 like that of q, was 32");
  CHECK(refusal([](Call& c) { set_shape(c.k, {3, 7, 4, 64}); }) == "k: batch must be 2 like that of q, was 3");
  CHECK(refusal([](Call& c) { set_shape(c.v, {1, 7, 4, 32}); }) == "v: batch must be 2 like that of q, was 1");
  CHECK(refusal([](Call& c) { set_shape(c.v, {2, 6, 4, 32}); }) == "v: seqlen must be 7 like that of k, was 6");
  CHECK(refusal([](Call& c) { set_shape(c.v, {2, 7, 8, 32}); }) == "v: num_heads must be 4 like that of k, was 8");
  CHECK(refusal([](Call& c) { set_shape(c.out, {2, 5, 8, 64}); }) == "out: head_dim must be 32 like that of v, was 64");
  CHECK(refusal([](Call& c) { set_shape(c.out, {2, 6, 8, 32}); }) == "out: seqlen must be 5 like that of q, was 6");
  CHECK(refusal([](Call& c) { set_shape(c.out, {2, 5, 4, 32}); }) == "out: num_heads must be 8 like that of q, was 4");
  CHECK(refusal([](Call& c) {
          c.opts.lse = Tensor(address(5), DType::f32, {2, 5, 8});
        }) == "lse: num_heads must be 8 like that of q, was 5");
}

TEST_CASE("head counts that do not divide are named") {
  const auto with_kv_heads = [](std::int64_t heads) {
    return refusal([heads](Call& c) {
      set_shape(c.k, {2, 7, heads, 64});
      set_shape(c.v, {2, 7, heads, 32});
    });
  };
  CHECK(with_kv_heads(3) == "k: num_heads must divide the 8 of q, was 3");
  CHECK(with_kv_heads(16) == "k: num_heads must divide the 8 of q, was 16");
  CHECK(with_kv_heads(0) == "k: num_heads must divide the 8 of q, was 0");
  CHECK(with_kv_heads(1) == "");
  CHECK(with_kv_heads(8) == "");
}

TEST_CASE("head dims are multiples of 8 from 8 to 576, those of v to 512") {
  const auto with_head_dim = [](std::int64_t head_dim) {
    return refusal([head_dim](Call& c) {
      set_shape(c.q, {2, 5, 8, head_dim});
      set_shape(c.k, {2, 7, 4, head_dim});
    });
  };
  for (const std::int64_t bad : {0, 4, 12, 63, 257, 584, 1 << 20}) {
    CAPTURE(bad);
    CHECK(with_head_dim(bad) == "q: head_dim must be a multiple of 8 from 8 to 576, was " + std::to_string(bad));
  }
  for (std::int64_t good = 8; good <= 576; good += 8) CHECK(with_head_dim(good) == "");
  CHECK(refusal([](Call& c) {
          set_shape(c.v, {2, 7, 4, 20});
        }) == "v: head_dim must be a multiple of 8 from 8 to 512, was 20");
}

TEST_CASE("strides that a kernel cannot follow are named") {
  CHECK(refusal([](Call& c) {
          c.q.strides = {2560, 512, 1, 8};
        }) == "q: the last dimension must be contiguous (stride 1), its stride was 8");
  CHECK(refusal([](Call& c) { c.k.strides[1] = 260; }) ==
        "k: the stride of seqlen must be a multiple of 8 elements, was 260");
  CHECK(refusal([](Call& c) { c.v.strides[2] = -32; }) == "v: the stride of num_heads must not be negative, was -32");
  CHECK(refusal([](Call& c) { c.out.strides[0] = 1281; }) ==
        "out: the stride of batch must be a multiple of 8 elements, was 1281");
  CHECK(refusal([](Call& c) {
          c.opts.lse = Tensor(address(5), DType::f32, {2, 8, 5}, {1, 2, 16});
        }) == "lse: the last dimension must be contiguous (stride 1), its stride was 16");
}

TEST_CASE("strides of dimensions of size one are never looked at") {
  CHECK(refusal([](Call& c) {
          set_shape(c.q, {1, 5, 8, 64});
          set_shape(c.k, {1, 7, 4, 64});
          set_shape(c.v, {1, 7, 4, 32});
          set_shape(c.out, {1, 5, 8, 32});
          c.q.strides[0] = std::numeric_limits<std::int64_t>::max();
          c.out.strides[0] = -3;
        }) == "");
}

TEST_CASE("views of memory in (batch, heads, seqlen, dim) order and broadcast keys pass") {
  CHECK(refusal([](Call& c) {
          c.q.strides = {8 * 5 * 64, 64, 5 * 64, 1};
          c.out.strides = {8 * 5 * 32, 32, 5 * 32, 1};
          c.k.strides[0] = 0;
          c.v.strides[0] = 0;
        }) == "");
}

TEST_CASE("null and misaligned pointers are named") {
  CHECK(refusal([](Call& c) { c.q.data = nullptr; }) == "q: must point to its elements, was null");
  CHECK(refusal([](Call& c) { c.k.data = nullptr; }) == "k: must point to its elements, was null");
  CHECK(refusal([](Call& c) { c.v.data = nullptr; }) == "v: must point to its elements, was null");
  CHECK(refusal([](Call& c) { c.out.data = nullptr; }) == "out: must point to its elements, was null");
  CHECK(refusal([](Call& c) {
          c.opts.lse = Tensor(nullptr, DType::f32, {2, 8, 5});
        }) == "lse: must point to its elements, was null");
  CHECK(refusal([](Call& c) { c.q.data = address(1, 8); }).starts_with("q: must be aligned to 16 bytes, was at 0x"));
  CHECK(refusal([](Call& c) { c.out.data = address(4, 2); }).starts_with("out: must be aligned to 16 bytes"));
  CHECK(refusal([](Call& c) {
          c.opts.lse = Tensor(address(5, 2), DType::f32, {2, 8, 5});
        }).starts_with("lse: must be aligned to 4 bytes"));
  CHECK(refusal([](Call& c) { c.opts.lse = Tensor(address(5, 4), DType::f32, {2, 8, 5}); }) == "");
}

TEST_CASE("a scale that is no number is refused, any other is taken") {
  const auto with_scale = [](float scale) { return refusal([scale](Call& c) { c.opts.softmax_scale = scale; }); };
  CHECK(with_scale(std::nanf("")).starts_with("softmax_scale: must be finite"));
  CHECK(with_scale(INFINITY).starts_with("softmax_scale: must be finite"));
  CHECK(with_scale(-INFINITY).starts_with("softmax_scale: must be finite"));
  CHECK(with_scale(3e38f).starts_with("softmax_scale: must be finite"));
  CHECK(with_scale(0.0f) == "");
  CHECK(with_scale(-1.5f) == "");
}

TEST_CASE("a window makes the problem that its masks make, whatever its size") {
  const auto checked = [](const flashjit::Window& window, bool causal = false) {
    Call call;
    call.opts.causal = causal;
    call.opts.window = window;
    return call.validate();
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(checked({-1, -1}).problem == flashjit::Problem{DType::bf16, 64, 32});
  CHECK(checked({-1, 0}).problem == flashjit::Problem{DType::bf16, 64, 32, true});
  CHECK(checked({3, 0}).problem == flashjit::Problem{DType::bf16, 64, 32, true, true});
  CHECK(checked({3, kMost}, true).problem == flashjit::Problem{DType::bf16, 64, 32, true, true});
  CHECK(checked({kMost, 2}).problem == flashjit::Problem{DType::bf16, 64, 32, false, true});
  CHECK(checked({3, 0}).masks.window == flashjit::Window{3, -1});
  CHECK(checked({3, 2}).masks.window == flashjit::Window{3, 2});
}

TEST_CASE("a side of a window below -1 is named") {
  const auto with_window = [](const flashjit::Window& window) {
    return refusal([&](Call& c) { c.opts.window = window; });
  };
  CHECK(with_window({-2, 0}) == "window: left must be at least 0, or -1 for all keys, was -2");
  CHECK(with_window({0, -2}) == "window: right must be at least 0, or -1 for all keys, was -2");
  CHECK(with_window({std::numeric_limits<std::int64_t>::min(), -1}) ==
        "window: left must be at least 0, or -1 for all keys, was -9223372036854775808");
  CHECK(with_window({0, 0}) == "");
}

TEST_CASE("a softcap and slopes make the problem, whatever their values") {
  const auto checked = [](float softcap, bool slopes) {
    Call call;
    call.opts.softcap = softcap;
    if (slopes) call.opts.alibi_slopes = good_slopes();
    const flashjit::Problem problem = call.validate().problem;
    CHECK(problem == flashjit::problem_of(DType::bf16, 64, 32, call.opts));
    return problem;
  };
  flashjit::Problem expected{DType::bf16, 64, 32};
  CHECK(checked(0, false) == expected);
  CHECK(checked(-0.0f, false) == expected);
  expected.softcap = true;
  for (const float softcap : {1e-6f, 30.0f, 1e6f}) CHECK(checked(softcap, false) == expected);
  expected.alibi = true;
  CHECK(checked(30, true) == expected);
  expected.softcap = false;
  CHECK(checked(0, true) == expected);
}

TEST_CASE("a softcap out of range is named") {
  const auto with_cap = [](float softcap) {
    const std::string message = refusal([=](Call& c) { c.opts.softcap = softcap; });
    AttentionOptions options;
    options.softcap = softcap;
    CHECK_THROWS_WITH_AS(flashjit::problem_of(DType::bf16, 64, 64, options), message.c_str(), Error);
    return message;
  };
  CHECK(with_cap(-30) == "softcap: must be from 1e-06 to 1000000, or 0 for none, was -30");
  CHECK(with_cap(9e-7f) == "softcap: must be from 1e-06 to 1000000, or 0 for none, was 9e-07");
  CHECK(with_cap(1.5e6f) == "softcap: must be from 1e-06 to 1000000, or 0 for none, was 1500000");
  CHECK(with_cap(std::nanf("")) == "softcap: must be from 1e-06 to 1000000, or 0 for none, was nan");
  CHECK(with_cap(INFINITY) == "softcap: must be from 1e-06 to 1000000, or 0 for none, was inf");
}

TEST_CASE("a scale that a softcap or slopes cannot go with is named") {
  const auto with_scale = [](float scale, float softcap, bool slopes) {
    return refusal([=](Call& c) {
      c.opts.softmax_scale = scale;
      c.opts.softcap = softcap;
      if (slopes) c.opts.alibi_slopes = good_slopes();
    });
  };
  CHECK(with_scale(-1e35f, 1e-6f, false) ==
        "softmax_scale: must be below 3.4e38 times softcap in magnitude, was -1e+35 with a cap of 1e-06");
  CHECK(with_scale(-1e35f, 1, false) == "");
  CHECK(with_scale(1e32f, 1e-6f, false) == "");
  CHECK(with_scale(0, 0, true) == "softmax_scale: must be at least 2^-64 in magnitude with alibi_slopes, was 0");
  CHECK(with_scale(-0x1p-65f, 0, true).starts_with("softmax_scale: must be at least 2^-64 in magnitude"));
  CHECK(with_scale(-0x1p-64f, 0, true) == "");
  // Slopes are divided by the cap then.
  CHECK(with_scale(0, 1, true) == "");
}

TEST_CASE("slopes are f32 of the heads, or of batch entries and heads") {
  const auto with_slopes = [](const Tensor& slopes) { return refusal([&](Call& c) { c.opts.alibi_slopes = slopes; }); };
  const auto packed = [&](const Dims& shape, DType dtype = DType::f32) {
    return with_slopes(Tensor(address(6), dtype, shape));
  };
  CHECK(packed({8}) == "");
  CHECK(packed({2, 8}) == "");
  CHECK(packed({8}, DType::bf16) == "alibi_slopes: dtype must be f32, was bf16");
  CHECK(packed({}) == "alibi_slopes: must be [num_heads] or [batch, num_heads], had rank 0 with shape []");
  CHECK(packed({2, 8, 1}) ==
        "alibi_slopes: must be [num_heads] or [batch, num_heads], had rank 3 with shape [2, 8, 1]");
  CHECK(packed({4}) == "alibi_slopes: num_heads must be 8 like that of q, was 4");
  CHECK(packed({2, 4}) == "alibi_slopes: num_heads must be 8 like that of q, was 4");
  CHECK(packed({8, 2}) == "alibi_slopes: batch must be 2 like that of q, was 8");
  CHECK(packed({1, 8}) == "alibi_slopes: batch must be 2 like that of q, was 1");
  CHECK(packed({-8}) == "alibi_slopes: num_heads must be from 0 to 1073741824, was -8");
}

TEST_CASE("slopes that a kernel cannot read are named") {
  const auto with_slopes = [](void* data, const Dims& shape, const Dims& strides) {
    return refusal([&](Call& c) { c.opts.alibi_slopes = Tensor(data, DType::f32, shape, strides); });
  };
  void* const good = address(6, 4);
  CHECK(with_slopes(good, {8}, {1}) == "");
  CHECK(with_slopes(good, {2, 8}, {0, 1}) == "");
  CHECK(with_slopes(good, {2, 8}, {13, 1}) == "");
  CHECK(with_slopes(nullptr, {8}, {1}) == "alibi_slopes: must point to its elements, was null");
  CHECK(with_slopes(address(6, 2), {8}, {1}).starts_with("alibi_slopes: must be aligned to 4 bytes, was at 0x"));
  CHECK(with_slopes(good, {8}, {8, 1}) == "alibi_slopes: must have 1 strides like its shape, had 2");
  CHECK(with_slopes(good, {8}, {2}) ==
        "alibi_slopes: the last dimension must be contiguous (stride 1), its stride was 2");
  CHECK(with_slopes(good, {2, 8}, {1, 2}) ==
        "alibi_slopes: the last dimension must be contiguous (stride 1), its stride was 2");
  CHECK(with_slopes(good, {2, 8}, {-8, 1}) == "alibi_slopes: the stride of batch must not be negative, was -8");
}

TEST_CASE("nothing is written over slopes, which others of the inputs may be") {
  const auto at = [](void* data) {
    return refusal([=](Call& c) {
      c.opts.alibi_slopes = Tensor(data, DType::f32, {2, 8});
      c.opts.lse = good_lse();
    });
  };
  CHECK(at(address(5)).starts_with("lse: must not overlap alibi_slopes"));
  CHECK(at(address(5, 4 * 2 * 8 * 5 - 4)).starts_with("lse: must not overlap alibi_slopes"));
  CHECK(at(address(5, 4 * 2 * 8 * 5)) == "");
  CHECK(at(address(4, 64)).starts_with("out: must not overlap alibi_slopes"));
  CHECK(at(address(1)) == "");
}

TEST_CASE("chunks and sinks make the problem, whatever their values") {
  const auto checked = [](std::int64_t chunk, bool sinks) {
    Call call;
    call.opts.chunk = chunk;
    if (sinks) call.opts.sinks = good_slopes();
    const flashjit::Problem problem = call.validate().problem;
    CHECK(problem == flashjit::problem_of(DType::bf16, 64, 32, call.opts));
    return problem;
  };
  flashjit::Problem expected{DType::bf16, 64, 32};
  CHECK(checked(0, false) == expected);
  expected.chunk = true;
  for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{30}, std::numeric_limits<std::int64_t>::max()})
    CHECK(checked(chunk, false) == expected);
  expected.sinks = true;
  CHECK(checked(30, true) == expected);
  expected.chunk = false;
  CHECK(checked(0, true) == expected);
}

TEST_CASE("a negative chunk is named") {
  const auto with_chunk = [](std::int64_t chunk) { return refusal([=](Call& c) { c.opts.chunk = chunk; }); };
  CHECK(with_chunk(-1) == "chunk: must be at least 1, or 0 for none, was -1");
  CHECK(with_chunk(std::numeric_limits<std::int64_t>::min()) ==
        "chunk: must be at least 1, or 0 for none, was -9223372036854775808");
}

TEST_CASE("sinks are refused as slopes are, by their own name") {
  const auto with_sinks = [](const Tensor& sinks) {
    return refusal([&](Call& c) {
      c.opts.sinks = sinks;
      c.opts.lse = good_lse();
    });
  };
  CHECK(with_sinks(Tensor(address(6), DType::f32, {2, 8})) == "");
  CHECK(with_sinks(Tensor(address(6, 4), DType::f32, {2, 8}, {0, 1})) == "");
  CHECK(with_sinks(Tensor(address(6), DType::bf16, {8})) == "sinks: dtype must be f32, was bf16");
  CHECK(with_sinks(Tensor(address(6), DType::f32, {4})) == "sinks: num_heads must be 8 like that of q, was 4");
  CHECK(with_sinks(Tensor(address(6), DType::f32, {1, 8})) == "sinks: batch must be 2 like that of q, was 1");
  CHECK(with_sinks(Tensor(nullptr, DType::f32, {8})) == "sinks: must point to its elements, was null");
  CHECK(with_sinks(Tensor(address(6, 2), DType::f32, {8})).starts_with("sinks: must be aligned to 4 bytes, was at 0x"));
  CHECK(with_sinks(Tensor(address(6), DType::f32, {8}, {2})) ==
        "sinks: the last dimension must be contiguous (stride 1), its stride was 2");
  CHECK(with_sinks(Tensor(address(6), DType::f32, {2, 8}, {-8, 1})) ==
        "sinks: the stride of batch must not be negative, was -8");
  CHECK(with_sinks(Tensor(address(5), DType::f32, {8})).starts_with("lse: must not overlap sinks"));
  CHECK(with_sinks(Tensor(address(4, 64), DType::f32, {8})).starts_with("out: must not overlap sinks"));
}

TEST_CASE("tensors that scores are functions of make the problem, by their dtypes") {
  using flashjit::generator::FunctionKind, flashjit::generator::library_function;
  Call call;
  call.opts.bias = Tensor(address(6), DType::f32, {1, 8, 1, 7});
  call.opts.boolean_mask = Tensor(address(7), DType::boolean, {2, 1, 5, 7}, {100, 0, 11, 1});
  call.opts.documents = Tensor(address(8), DType::i32, {1, 7});
  call.opts.prefix = Tensor(address(9), DType::i32, {2});
  call.opts.tree = Tensor(address(10), DType::i64, {2, 5, 1});
  call.opts.causal = true;
  const ForwardCall checked = call.validate();
  flashjit::Problem expected{DType::bf16, 64, 32};
  expected.prefix = true;
  expected.bias = &library_function(FunctionKind::bias, DType::f32);
  expected.boolean_mask = &library_function(FunctionKind::boolean_mask, DType::boolean);
  expected.documents = &library_function(FunctionKind::documents, DType::i32);
  expected.tree = &library_function(FunctionKind::tree, DType::i64);
  CHECK(checked.problem == expected);
  CHECK(checked.problem == flashjit::problem_of(DType::bf16, 64, 32, call.opts));
  CHECK(checked.bias.shape == Dims{2, 8, 5, 7});
  CHECK(checked.bias.strides == Dims{0, 7, 0, 1});
  CHECK(checked.documents.shape == Dims{2, 7});
  CHECK(checked.prefix == &*call.opts.prefix);
}

TEST_CASE("dropout makes the problem, but not by its numbers") {
  Call call;
  CHECK_FALSE(call.validate().problem.dropout);
  call.opts.dropout = {0.25, 1, 2};
  CHECK(call.validate().problem.dropout);
  CHECK(call.validate().dropout == call.opts.dropout);
  call.opts.dropout_state = Tensor(address(6), DType::i64, {2});
  CHECK(call.validate().dropout_state == &*call.opts.dropout_state);
  call.opts.dropout_state.reset();
  call.opts.dropout_mask = Tensor(address(6), DType::boolean, {2, 1, 5, 7});
  CHECK(call.validate().problem.dropout_mask ==
        &flashjit::generator::library_function(flashjit::generator::FunctionKind::dropout_mask, DType::boolean));
  CHECK(call.validate().dropout_mask.shape == Dims{2, 8, 5, 7});
}

TEST_CASE("dropout that no call may have is named") {
  CHECK(refusal([](Call& c) { c.opts.dropout.probability = 1; }) ==
        "dropout: probability must be at least 0 and below 1, was 1");
  const auto with_state = [](const Tensor& state) {
    return refusal([&](Call& c) { c.opts.dropout_state = state, c.opts.dropout.probability = 0.5; });
  };
  CHECK(with_state(Tensor(address(6), DType::i64, {2})) == "");
  CHECK(with_state(Tensor(address(6), DType::i32, {2})) == "dropout_state: dtype must be i64, was i32");
  CHECK(with_state(Tensor(address(6), DType::i64, {3})) ==
        "dropout_state: seed and offset must be 2, was 3 with shape [3]");
  CHECK(with_state(Tensor(address(6), DType::i64, {2, 1})) != "");
  CHECK(with_state(Tensor(address(6), DType::i64, {2}, {2})) != "");
  const auto with_mask = [](const Tensor& mask) { return refusal([&](Call& c) { c.opts.dropout_mask = mask; }); };
  CHECK(with_mask(Tensor(address(6), DType::boolean, {1, 8, 5, 7})) == "");
  CHECK(with_mask(Tensor(address(6), DType::f32, {1, 8, 5, 7})) == "dropout_mask: dtype must be boolean, was f32");
  CHECK(with_mask(Tensor(address(6), DType::boolean, {1, 8, 5, 1})) ==
        "dropout_mask: seqlen_kv must be 7, was 1 with shape [1, 8, 5, 1]");
  CHECK(refusal([](Call& c) {
          c.opts.dropout_mask = Tensor(address(6), DType::boolean, {1, 8, 5, 7});
          c.opts.dropout_state = Tensor(address(7), DType::i64, {2});
        }) == "dropout_state: must not be given beside dropout_mask, which takes its place");
}

TEST_CASE("a bias or boolean mask that a kernel cannot read is named") {
  const auto with_bias = [](const Tensor& bias) { return refusal([&](Call& c) { c.opts.bias = bias; }); };
  CHECK(with_bias(Tensor(address(6), DType::f16, {2, 8, 5, 7}, {1000, 64, 9, 1})) == "");
  CHECK(with_bias(Tensor(address(6), DType::i32, {2, 8, 5, 7})) == "bias: dtype must be f16, bf16 or f32, was i32");
  CHECK(with_bias(Tensor(address(6), DType::f32, {5, 7})) == "bias: rank must be 4, was 2 with shape [5, 7]");
  CHECK(with_bias(Tensor(address(6), DType::f32, {2, 8, 5, 7}, {1})) ==
        "bias: must have 4 strides like its shape, had 1");
  CHECK(with_bias(Tensor(address(6), DType::f32, {3, 8, 5, 7})) ==
        "bias: batch must be 2, or 1 for all, was 3 with shape [3, 8, 5, 7]");
  CHECK(with_bias(Tensor(address(6), DType::f32, {2, 4, 5, 7})) ==
        "bias: num_heads must be 8, or 1 for all, was 4 with shape [2, 4, 5, 7]");
  CHECK(with_bias(Tensor(address(6), DType::f32, {2, 8, 6, 7})) ==
        "bias: seqlen_q must be 5, or 1 for all, was 6 with shape [2, 8, 6, 7]");
  CHECK(with_bias(Tensor(address(6), DType::f32, {2, 8, 5, 1})) ==
        "bias: seqlen_kv must be 7, was 1 with shape [2, 8, 5, 1]");
  CHECK(with_bias(Tensor(nullptr, DType::f32, {1, 1, 1, 7})) == "bias: must point to its elements, was null");
  CHECK(
      with_bias(Tensor(address(6, 2), DType::f32, {1, 1, 1, 7})).starts_with("bias: must be aligned to 4 bytes, was"));
  CHECK(with_bias(Tensor(address(6, 2), DType::bf16, {1, 1, 1, 7})) == "");
  CHECK(with_bias(Tensor(address(6), DType::f32, {1, 1, 5, 7}, {1, 1, 14, 2})) ==
        "bias: the last dimension must be contiguous (stride 1), its stride was 2");
  CHECK(with_bias(Tensor(address(6), DType::f32, {1, 8, 1, 7}, {1, -7, 7, 1})) ==
        "bias: the stride of dimension 1 must not be negative, was -7");
  CHECK(with_bias(Tensor(address(4, 64), DType::f32, {1, 1, 1, 7})).starts_with("out: must not overlap bias"));
  const auto with_mask = [](const Tensor& mask) { return refusal([&](Call& c) { c.opts.boolean_mask = mask; }); };
  CHECK(with_mask(Tensor(address(6, 1), DType::boolean, {2, 8, 5, 7})) == "");
  CHECK(with_mask(Tensor(address(6), DType::f32, {2, 8, 5, 7})) == "boolean_mask: dtype must be boolean, was f32");
  CHECK(with_mask(Tensor(address(6), DType::boolean, {2, 8, 5, 8})) ==
        "boolean_mask: seqlen_kv must be 7, was 8 with shape [2, 8, 5, 8]");
}

TEST_CASE("documents, prefixes and trees that a kernel cannot read are named") {
  const auto with_documents = [](const Tensor& tensor) { return refusal([&](Call& c) { c.opts.documents = tensor; }); };
  CHECK(with_documents(Tensor(address(6), DType::i32, {2, 7}, {9, 1})) == "");
  CHECK(with_documents(Tensor(address(6), DType::i64, {2, 7})) == "documents: dtype must be i32, was i64");
  CHECK(with_documents(Tensor(address(6), DType::i32, {7})) == "documents: rank must be 2, was 1 with shape [7]");
  CHECK(with_documents(Tensor(address(6), DType::i32, {2, 5})) ==
        "documents: seqlen_kv must be 7, was 5 with shape [2, 5]");
  const auto with_prefix = [](const Tensor& tensor) { return refusal([&](Call& c) { c.opts.prefix = tensor; }); };
  CHECK(with_prefix(Tensor(address(6), DType::i32, {2})) == "");
  CHECK(with_prefix(Tensor(address(6), DType::f32, {2})) == "prefix: dtype must be i32, was f32");
  CHECK(with_prefix(Tensor(address(6), DType::i32, {1})) == "prefix: batch must be 2 like that of q, was 1");
  CHECK(with_prefix(Tensor(address(6), DType::i32, {2}, {2}))
            .starts_with("prefix: the last dimension must be contiguous"));
  for (const std::int64_t right : {0, 1, 25})
    CHECK(refusal([=](Call& c) {
            c.opts.prefix = Tensor(address(6), DType::i32, {2});
            c.opts.window = {3, right};
          }) ==
          "window: right must be -1 with prefix, which shows keys behind the query, was " + std::to_string(right));
  const auto with_tree = [](const Tensor& tensor) { return refusal([&](Call& c) { c.opts.tree = tensor; }); };
  CHECK(with_tree(Tensor(address(6), DType::i64, {1, 5, 3})) == "");
  CHECK(with_tree(Tensor(address(6), DType::i32, {1, 5, 1})) == "tree: dtype must be i64, was i32");
  CHECK(with_tree(Tensor(address(6), DType::i64, {1, 1, 1})) == "tree: seqlen_q must be 5, was 1 with shape [1, 1, 1]");
  CHECK(with_tree(Tensor(address(6), DType::i64, {1, 5, 0})) ==
        "tree: words must be 1 or more, was 0 with shape [1, 5, 0]");
  CHECK(refusal([](Call& c) {
          set_shape(c.k, {2, 4, 4, 64});
          set_shape(c.v, {2, 4, 4, 32});
          c.opts.tree = Tensor(address(6), DType::i64, {1, 5, 1});
        }) == "tree: seqlen_q must be at most seqlen_kv, as its queries have the last keys, was 5 with 4 keys");
}

TEST_CASE("captures that a kernel cannot read are named with their text") {
  const auto with_slope = [](const Tensor& slope) {
    return refusal([&](Call& c) { c.opts.score = flashjit::Score("score - slope(head)", {{"slope", slope}}); });
  };
  CHECK(with_slope(Tensor(address(6), DType::f32, {8})) == "");
  CHECK(with_slope(Tensor(address(6), DType::f32, {3}, {5})) == "");
  CHECK(with_slope(Tensor(nullptr, DType::f32, {0})) == "");
  CHECK(with_slope(Tensor(nullptr, DType::f32, {8})) == "score: capture slope: must point to its elements, was null");
  CHECK(with_slope(Tensor(address(6), DType::f32, {8}, {1, 1})) ==
        "score: capture slope: must have 1 strides like its shape, had 2");
  CHECK(with_slope(Tensor(address(6), DType::f32, {8}, {-1})) ==
        "score: capture slope: the stride of dimension 0 must not be negative, was -1");
  CHECK(
      with_slope(Tensor(address(6), DType::f32, {-8})).starts_with("score: capture slope: dimension 0 must be from 0"));
  CHECK(with_slope(Tensor(address(6, 2), DType::f32, {8})).starts_with("score: capture slope: must be aligned to 4"));
  CHECK(with_slope(Tensor(address(4, 64), DType::f32, {8})).starts_with("out: must not overlap score: capture slope"));
  CHECK(refusal([](Call& c) {
          c.opts.mask = flashjit::Mask("seen()", {{"seen", Tensor(nullptr, DType::boolean, Dims{})}});
        }) == "mask: capture seen: must point to its elements, was null");
}

TEST_CASE("offsets are i32 of batch entries, and stand beside a text that sees them") {
  const Tensor good(address(6), DType::i32, {2});
  for (auto option : {&AttentionOptions::query_offsets, &AttentionOptions::key_offsets}) {
    const std::string name = option == &AttentionOptions::query_offsets ? "query_offsets" : "key_offsets";
    const auto beside = [&](const Tensor& offsets, bool score, bool mask) {
      return refusal([&](Call& c) {
        c.opts.*option = offsets;
        if (score) c.opts.score = flashjit::Score("score");
        if (mask) c.opts.mask = flashjit::Mask("true");
      });
    };
    CHECK(beside(good, true, false) == "");
    CHECK(beside(good, false, true) == "");
    CHECK(beside(good, false, false) == name + ": must not be given without score or mask, which see them");
    CHECK(beside(Tensor(address(6), DType::i64, {2}), true, true) == name + ": dtype must be i32, was i64");
    CHECK(beside(Tensor(address(6), DType::i32, {1}), true, true) == name + ": batch must be 2 like that of q, was 1");
    CHECK(beside(Tensor(address(6), DType::i32, {2, 1}), true, true) ==
          name + ": rank must be 1, was 2 with shape [2, 1]");
    CHECK(beside(Tensor(nullptr, DType::i32, {2}), true, true) == name + ": must point to its elements, was null");
  }
}

TEST_CASE("a block mask is of the lengths of the call, and stands beside a predicate") {
  const auto with_blocks = [](const Tensor& blocks, bool predicate = true) {
    return refusal([&](Call& c) {
      c.opts.block_mask = blocks;
      if (predicate) c.opts.mask = flashjit::Mask("key < query");
    });
  };
  const Tensor good(address(6), DType::i32, {2, 8, 1, 2, 1});
  CHECK(flashjit::block_mask_dims({2, 5, 7, 8, 4}) == Dims{2, 8, 1, 2, 1});
  CHECK(with_blocks(good) == "");
  CHECK(with_blocks(Tensor(address(6), DType::i32, {1, 1, 1, 2, 1})) == "");
  CHECK(with_blocks(good, false) ==
        "block_mask: must not be given without boolean_mask, documents, tree or mask, which it is made of");
  CHECK(with_blocks(Tensor(address(6), DType::f32, {2, 8, 1, 2, 1})) == "block_mask: dtype must be i32, was f32");
  CHECK(with_blocks(Tensor(address(6), DType::i32, {2, 8, 2})) ==
        "block_mask: rank must be 5, was 3 with shape [2, 8, 2]");
  CHECK(
      with_blocks(Tensor(address(6), DType::i32, {2, 8, 2, 2, 1})) ==
      "block_mask: must have the shape [2, 8, 1, 2, 1] of Engine::block_mask for this call, batch and num_heads 1 for "
      "all, had [2, 8, 2, 2, 1]");
  CHECK(with_blocks(Tensor(nullptr, DType::i32, {2, 8, 1, 2, 1})) ==
        "block_mask: must point to its elements, was null");
}

TEST_CASE("a scale of 0 goes with sinks") {
  CHECK(refusal([](Call& c) {
          c.opts.sinks = good_slopes();
          c.opts.softmax_scale = 0.0f;
        }) == "");
}

TEST_CASE("a variant is chosen by the keys that a query sees") {
  const auto key_range = [](const flashjit::Window& window, bool causal = false) {
    Call call;
    set_shape(call.k, {2, 16384, 4, 64});
    set_shape(call.v, {2, 16384, 4, 32});
    call.opts.window = window;
    call.opts.causal = causal;
    const flashjit::CallShape shape = flashjit::runtime::tuning_shape(call.validate());
    CHECK(shape.batch == 2);
    CHECK(shape.seqlen_q == 5);
    CHECK(shape.num_heads_q == 8);
    CHECK(shape.num_heads_kv == 4);
    CHECK(shape.seqlen_kv == flashjit::keys_of_query(call.opts, 16384));
    return flashjit::shape_bucket(shape, 132).keys;
  };
  using flashjit::KeyRange;
  CHECK(key_range({-1, -1}) == KeyRange::more);
  CHECK(key_range({-1, -1}, true) == KeyRange::more);
  CHECK(key_range({1022, 0}) == KeyRange::below_1k);
  CHECK(key_range({1023, 5}, true) == KeyRange::below_2k);
  CHECK(key_range({1023, 1024}) == KeyRange::below_8k);
  CHECK(key_range({100, -1}) == KeyRange::more);
  CHECK(key_range({std::numeric_limits<std::int64_t>::max(), 0}) == KeyRange::more);
}

TEST_CASE("sizes that overflow are named") {
  CHECK(refusal([](Call& c) { set_shape(c.q, {2, -5, 8, 64}); }) == "q: seqlen must be from 0 to 1073741824, was -5");
  CHECK(refusal([](Call& c) {
          set_shape(c.k, {2, kHuge, 4, 64});
        }).starts_with("k: seqlen must be from 0 to 1073741824, was 2147483648"));
  CHECK(refusal([](Call& c) {
          c.k.strides[0] = std::int64_t{1} << 62;
        }).starts_with("k: must span less than 2^63 bytes"));
  CHECK(refusal([](Call& c) {
          c.v.strides[1] = std::int64_t{1} << 61;
        }).starts_with("v: must span less than 2^63 bytes"));
  CHECK(refusal([](Call& c) {
          const std::int64_t most = std::int64_t{1} << 30;
          set_shape(c.q, {2, most, 64, 64});
          set_shape(c.k, {2, 7, 64, 64});
          set_shape(c.v, {2, 7, 64, 32});
        }).starts_with("q: batch * num_heads * ceil(seqlen / 16) must be at most 2147483647"));
}

TEST_CASE("outputs must not share memory with inputs or with each other") {
  CHECK(refusal([](Call& c) { c.out.data = c.q.data; }).starts_with("out: must not overlap q"));
  CHECK(refusal([](Call& c) { c.out.data = address(2, 64); }).starts_with("out: must not overlap k"));
  CHECK(refusal([](Call& c) { c.v.data = address(4, 512); }).starts_with("out: must not overlap v"));
  CHECK(refusal([](Call& c) {
          c.opts.lse = Tensor(address(3, 16), DType::f32, {2, 8, 5});
        }).starts_with("lse: must not overlap v"));
  CHECK(refusal([](Call& c) {
          c.opts.lse = Tensor(address(4, 16), DType::f32, {2, 8, 5});
        }).starts_with("out: must not overlap lse"));
}

TEST_CASE("slices that interleave in one buffer are no overlap") {
  CHECK(refusal([](Call& c) {
          set_shape(c.v, {2, 7, 4, 64});
          c.q = Tensor(address(1), DType::bf16, {2, 5, 8, 64}, {5 * 1024, 1024, 64, 1});
          c.out = Tensor(address(1, 1024), DType::bf16, {2, 5, 8, 64}, {5 * 1024, 1024, 64, 1});
        }) == "");
}

TEST_CASE("an output whose elements overlap each other is refused") {
  CHECK(refusal([](Call& c) { c.out.strides[0] = 0; }).starts_with("out: strides must not let elements overlap"));
  CHECK(refusal([](Call& c) { c.out.strides[2] = 24; }).starts_with("out: strides must not let elements overlap"));
  CHECK(refusal([](Call& c) {
          c.opts.lse = Tensor(address(5), DType::f32, {2, 8, 5}, {40, 4, 1});
        }).starts_with("lse: strides must not let elements overlap"));
}

TEST_CASE("tensors without elements need no memory") {
  Call call;
  set_shape(call.k, {2, 0, 4, 64});
  set_shape(call.v, {2, 0, 4, 32});
  call.k.data = call.v.data = nullptr;
  CHECK_FALSE(call.validate().nothing_to_do());

  Call empty;
  set_shape(empty.q, {2, 0, 8, 64});
  set_shape(empty.out, {2, 0, 8, 32});
  empty.q.data = empty.out.data = nullptr;
  CHECK(empty.validate().nothing_to_do());

  Call no_batch;
  for (Tensor* tensor : {&no_batch.q, &no_batch.k, &no_batch.v, &no_batch.out}) {
    tensor->shape[0] = 0;
    tensor->data = nullptr;
  }
  CHECK(no_batch.validate().nothing_to_do());
}
