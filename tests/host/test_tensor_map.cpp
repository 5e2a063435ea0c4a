// SPDX-License-Identifier: Apache-2.0
// Which tensors the copy engine can be told of, and in which terms.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <string>

#include "flashjit/error.h"
#include "generator/variant_space.h"
#include "runtime/backends/tensor_map_encoder.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/tensor_map.h"
#include "runtime/cuda/driver.h"

namespace {

using namespace flashjit;
using runtime::has_tensor_map;
using runtime::tensor_map_shape;

void* address(std::uintptr_t index) { return reinterpret_cast<void*>(index << 40); }

// Strides in elements, of [batch, seqlen, heads, head_dim].
Tensor with_strides(const Dims& shape, const Dims& strides) { return {address(1), DType::bf16, shape, strides}; }

struct Call {
  Tensor q{address(1), DType::bf16, {2, 70, 4, 64}};
  Tensor k{address(2), DType::bf16, {2, 90, 2, 64}};
  Tensor v{address(3), DType::bf16, {2, 90, 2, 64}};
  Tensor out{address(4), DType::bf16, {2, 70, 4, 64}};
  AttentionOptions opts;

  runtime::ForwardCall validated() const {
    runtime::ForwardCall call = runtime::validate_inputs(q, k, v, opts);
    runtime::validate_out(call, out);
    return call;
  }
  // Why this call has no tensor maps; empty when it has.
  std::string refusal() const {
    const runtime::ForwardCall call = validated();
    try {
      runtime::require_tensor_maps(call);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      CHECK_FALSE(runtime::has_tensor_maps(call));
      return error.what();
    }
    CHECK(runtime::has_tensor_maps(call));
    return "";
  }
};

}  // namespace

TEST_CASE("dimensions go innermost first, strides in bytes, in either layout") {
  const auto packed = tensor_map_shape(Tensor(address(1), DType::bf16, {3, 70, 4, 64}));
  CHECK(packed.sizes[0] == 64);
  CHECK(packed.sizes[1] == 4);
  CHECK(packed.sizes[2] == 70);
  CHECK(packed.sizes[3] == 3);
  CHECK(packed.strides[0] == 64 * 2);
  CHECK(packed.strides[1] == 4 * 64 * 2);
  CHECK(packed.strides[2] == 70 * 4 * 64 * 2);
  const auto heads_first = tensor_map_shape(with_strides({3, 70, 4, 64}, {4 * 70 * 64, 64, 70 * 64, 1}));
  CHECK(heads_first.strides[0] == 70 * 64 * 2);
  CHECK(heads_first.strides[1] == 64 * 2);
}

TEST_CASE("of what comes transposed the keys are innermost, and dims in the place of rows") {
  Tensor v = with_strides({3, 70, 4, 64}, {4 * 64 * 80, 1, 64 * 80, 80});
  v.dtype = DType::e4m3;
  const auto shape = tensor_map_shape(v);
  CHECK(shape == runtime::TensorMapShape{4, {70, 4, 64, 3}, {64 * 80, 80, 4 * 64 * 80}});
  CHECK(has_tensor_map(v));
  v.strides[3] = std::int64_t{1} << 40;
  CHECK_FALSE(has_tensor_map(v));
}

TEST_CASE("a dimension of size one gets a legal stride, whatever the view says") {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t any : {kAny, std::int64_t{0}, std::int64_t{-7}}) {
    const Tensor one = with_strides({1, 1, 1, 24}, {any, any, any, 1});
    CHECK(has_tensor_map(one));
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t stride = tensor_map_shape(one).strides[i];
      CHECK(stride % 16 == 0);
      CHECK(stride >= 24 * 2);
      CHECK(stride < std::uint64_t{1} << 40);
    }
  }
}

TEST_CASE("a map by the ends of sequences begins as many rows before the tensor as it has, and has each of its rows") {
  const Tensor tensor = with_strides({3, 70, 4, 64}, {70 * 512, 512, 64, 1});
  const auto ended = runtime::ended_tensor_map_shape(tensor);
  CHECK(ended.rank == 5);
  const std::uint64_t sizes[] = {64, 4, 70, 71, 3}, strides[] = {64 * 2, 512 * 2, 512 * 2, 70 * 512 * 2};
  CHECK(std::equal(std::begin(sizes), std::end(sizes), ended.sizes));
  CHECK(std::equal(std::begin(strides), std::end(strides), ended.strides));
  // Row 5 of a sequence of 9 rows that ends before row 30, in batch entry 2.
  const auto begin = reinterpret_cast<std::uintptr_t>(runtime::ended_tensor_map_address(tensor));
  const std::uintptr_t at = begin + (70 - 9 + 5) * strides[1] + 30 * strides[2] + 2 * strides[3];
  CHECK(at == reinterpret_cast<std::uintptr_t>(tensor.data) + (2 * 70 + 30 - 9 + 5) * std::uintptr_t{512 * 2});
}

TEST_CASE("tensors without elements, repeated rows and far strides have no map") {
  constexpr std::int64_t kFar = std::int64_t{1} << 39;  // elements: 2^40 bytes
  CHECK(has_tensor_map(with_strides({2, 3, 4, 64}, {kFar - 8, 256, 64, 1})));
  CHECK_FALSE(has_tensor_map(with_strides({2, 3, 4, 64}, {kFar, 256, 64, 1})));
  CHECK_FALSE(has_tensor_map(with_strides({2, 3, 4, 64}, {0, 256, 64, 1})));
  CHECK_FALSE(has_tensor_map(with_strides({2, 3, 4, 64}, {768, 0, 64, 1})));
  CHECK_FALSE(has_tensor_map(with_strides({2, 3, 4, 64}, {768, 256, 0, 1})));
  CHECK_FALSE(has_tensor_map(with_strides({2, 0, 4, 64}, {768, 256, 64, 1})));
  CHECK_FALSE(has_tensor_map(with_strides({2, 3, 0, 64}, {768, 256, 64, 1})));
}

TEST_CASE("a call that has no tensor maps is told which tensor must be what") {
  CHECK(Call().refusal().empty());
  Call call;
  call.k.strides[0] = 0;
  CHECK(call.refusal() ==
        "k: the stride of batch must be from 1 to 549755813887 elements, was 0, for a variant of the hopper family");
  call = {};
  call.q.strides[0] = std::int64_t{1} << 39;
  CHECK(call.refusal().starts_with("q: the stride of batch must be from 1 to 549755813887 elements, was 549755813888"));
  call = {};
  call.v.strides[2] = 0;
  CHECK(call.refusal().starts_with("v: the stride of num_heads must be"));
  call = {};
  call.out.strides[0] = std::int64_t{1} << 39;
  CHECK(call.refusal().starts_with("out: the stride of batch must be"));
  call = {};
  call.k = Tensor(address(2), DType::bf16, {2, 0, 2, 64});
  call.v = Tensor(address(3), DType::bf16, {2, 0, 2, 64});
  CHECK(call.refusal() == "k: seqlen must be at least 1, was 0, for a variant of the hopper family");
}

TEST_CASE("boxes hold a tile of packed heads, a block's share of the keys, and a warp's rows of the output") {
  HopperVariant variant;
  variant.block_q = 128, variant.block_kv = 96, variant.cluster = 2;
  generator::Plan plan{};
  plan.box_columns = {64, 64, 32, 32};
  const runtime::TensorMapBoxes boxes = runtime::tensor_map_boxes({}, variant, plan, 2);
  const auto is = [](const runtime::TensorMapBox& box, int columns, int heads, int rows) {
    return box.columns == columns && box.heads == heads && box.rows == rows;
  };
  CHECK(is(boxes.q, 64, 4, 32));
  CHECK(is(boxes.k, 64, 1, 48));
  CHECK(is(boxes.v, 32, 1, 48));
  CHECK(is(boxes.out, 32, 4, 4));
  // Of pages, as many rows as both a page and a block have in whole numbers.
  variant.cluster = 1;
  for (const auto& [page_size, rows] : {std::pair{8, 8}, {24, 8}, {48, 16}, {64, 32}, {256, 32}}) {
    const Tensor pages(address(2), DType::bf16, {9, page_size, 2, 64});
    runtime::ForwardCall call;
    call.problem.ragged = call.problem.paged = true, call.k = &pages;
    CHECK(is(runtime::tensor_map_boxes(call, variant, plan, 0).k, 64, 1, rows));
  }
}

TEST_CASE("pages whose rows do not end where the swizzle does have no tensor map") {
  Call call;
  const auto refusal_of_pages = [&](std::int64_t page_size) {
    call.k = Tensor(address(2), DType::bf16, {9, page_size, 2, 64});
    call.v = Tensor(address(3), DType::bf16, {9, page_size, 2, 64});
    call.opts.page_table = Tensor(address(6), DType::i32, {2, 3});
    return call.refusal();
  };
  CHECK(refusal_of_pages(24).empty());
  CHECK(refusal_of_pages(12) == "k: page_size must be a multiple of 8 for a variant of the hopper family, was 12");
}

TEST_CASE("without tensor maps a call gets a kernel that reads any tensor, where others would be the default") {
  Call call;
  call.k = Tensor(address(2), DType::bf16, {2, 0, 2, 64});
  call.v = Tensor(address(3), DType::bf16, {2, 0, 2, 64});
  const auto takes_it = [&](const char* architecture, const AttentionOptions& opts = {}) {
    call.opts = opts;
    return runtime::takes_default_without_tma(call.validated(), find_architecture(architecture));
  };
  CHECK(takes_it("sm_90a"));
  CHECK_FALSE(takes_it("sm_80"));
  AttentionOptions opts;
  opts.variant = MmaVariant();
  CHECK_FALSE(takes_it("sm_90a", opts));
  opts.variant = HopperVariant();
  CHECK_THROWS_AS(takes_it("sm_90a", opts), Error);
  // What no other kernel reads is told so.
  call.k.dtype = call.v.dtype = DType::e4m3;
  CHECK_THROWS_WITH_AS(takes_it("sm_90a"), "k: seqlen must be at least 1, was 0, for a variant of the hopper family",
                       Error);
}

TEST_CASE("the default without tensor maps reads any tensor: it is not of the hopper family") {
  for (const Architecture& architecture : architectures())
    for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
      Problem problem;
      problem.head_dim = problem.head_dim_v = head_dim;
      const Variant variant = generator::default_without_tma(problem, architecture);
      CHECK(std::holds_alternative<MmaVariant>(variant));
    }
}

// --- Encoding --------------------------------------------------------------------------------------------------------

namespace {

int encoded = 0, moved = 0;

// Leaves in a map what tells one from another.
struct FakeMap {
  const void* address;
  std::uint64_t rows;
};

runtime::Driver fake_driver() {
  encoded = moved = 0;
  runtime::Driver driver;
  driver.cuTensorMapEncodeTiled = [](CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void* address,
                                     const cuuint64_t* sizes, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                     CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                     CUtensorMapFloatOOBfill) {
    ++encoded;
    const FakeMap made{address, sizes[2]};
    std::memcpy(map, &made, sizeof(made));
    return address == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  };
  driver.cuTensorMapReplaceAddress = [](CUtensorMap* map, void* address) {
    ++moved;
    std::memcpy(map, &address, sizeof(address));
    return CUDA_SUCCESS;
  };
  driver.cuGetErrorName = [](CUresult, const char** name) { return *name = "ERROR", CUDA_SUCCESS; };
  driver.cuGetErrorString = [](CUresult, const char** text) { return *text = "error", CUDA_SUCCESS; };
  return driver;
}

FakeMap read(const generator::TensorMap& map) {
  FakeMap made;
  std::memcpy(&made, &map, sizeof(made));
  return made;
}

constexpr runtime::TensorMapBox kBox{64, 1, 128};

void encode(const runtime::Driver& driver, runtime::TensorMapEncoder& encoder, int place, const Tensor& tensor) {
  encoder.encode(driver, place, {0, &tensor, kBox, false});
}

}  // namespace

TEST_CASE("a map that differs in its address alone from the last one at its place is moved there, the same one stays") {
  const runtime::Driver driver = fake_driver();
  runtime::TensorMapEncoder encoder;
  const Dims shape{2, 90, 2, 64};
  const auto encode = [&](int place, const Tensor& tensor, const runtime::TensorMapBox& box = kBox) {
    const FakeMap made = read(encoder.encode(driver, place, {0, &tensor, box, false}));
    CHECK(made.address == tensor.data);
    CHECK(made.rows == static_cast<std::uint64_t>(tensor.shape[1]));
  };
  encode(0, {address(1), DType::bf16, shape});
  encode(0, {address(2), DType::bf16, shape});
  CHECK(encoded == 1);
  CHECK(moved == 1);
  encode(0, {address(2), DType::bf16, shape});
  CHECK(encoded == 1);
  CHECK(moved == 1);
  // Another place, and whatever else a map is made of.
  encode(1, {address(2), DType::bf16, shape});
  CHECK(encoded == 2);
  encode(0, {address(2), DType::f16, shape});
  CHECK(encoded == 3);
  encode(0, {address(2), DType::f16, {2, 91, 2, 64}});
  CHECK(encoded == 4);
  encode(0, {address(2), DType::f16, {2, 91, 2, 64}, {91 * 256, 256, 64, 1}});
  CHECK(encoded == 5);
  encode(0, {address(2), DType::f16, {2, 91, 2, 64}, {91 * 256, 256, 64, 1}}, {64, 1, 64});
  CHECK(encoded == 6);
  CHECK(moved == 1);
}

TEST_CASE("a map that could not be encoded is not taken for one") {
  const runtime::Driver driver = fake_driver();
  runtime::TensorMapEncoder encoder;
  const Dims shape{2, 90, 2, 64};
  encode(driver, encoder, 0, {address(1), DType::bf16, {1, 90, 2, 64}});
  CHECK_THROWS_AS(encode(driver, encoder, 0, {nullptr, DType::bf16, shape}), Error);
  encode(driver, encoder, 0, {address(1), DType::bf16, shape});
  CHECK(encoded == 3);
  CHECK(moved == 0);
}

TEST_CASE("drivers that cannot move a map encode each address, and those that know no maps say so") {
  runtime::Driver driver = fake_driver();
  driver.cuTensorMapReplaceAddress = nullptr;
  runtime::TensorMapEncoder encoder;
  const Dims shape{2, 90, 2, 64};
  encode(driver, encoder, 0, {address(1), DType::bf16, shape});
  encode(driver, encoder, 0, {address(2), DType::bf16, shape});
  CHECK(encoded == 2);
  encode(driver, encoder, 0, {address(2), DType::bf16, shape});
  CHECK(encoded == 2);
  driver.cuTensorMapEncodeTiled = nullptr;
  CHECK_THROWS_WITH_AS(encode(driver, encoder, 0, {address(3), DType::bf16, shape}),
                       doctest::Contains("must have cuTensorMapEncodeTiled"), Error);
}
