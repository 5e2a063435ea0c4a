// SPDX-License-Identifier: Apache-2.0
// Launches that are made once and moved to other tensors: they must be those that would have been made for them.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "generator/family.h"
#include "generator/variant_space.h"
#include "runtime/call/movable_operation.h"

namespace {

using namespace flashjit;
using runtime::MovableOperation;

constexpr runtime::DeviceLimits kLimits{132, 132};

// Where no other tensor of this program lies, nor lay.
void* new_address() {
  static std::uintptr_t next = 1;
  return reinterpret_cast<void*>(next++ << 41);
}

Tensor tensor(DType dtype, const Dims& shape) { return {new_address(), dtype, shape}; }
Tensor f32(const Dims& shape) { return tensor(DType::f32, shape); }
Tensor i32(const Dims& shape) { return tensor(DType::i32, shape); }

struct Call {
  std::string name;
  Tensor q = tensor(DType::bf16, {2, 3, 8, 64});
  Tensor k = tensor(DType::bf16, {2, 4096, 2, 64});
  Tensor v = tensor(DType::bf16, {2, 4096, 2, 32});
  Tensor out = tensor(DType::bf16, {2, 3, 8, 32});
  AttentionOptions opts;

  runtime::GivenCall given() const { return {q, k, v, out, opts}; }
};

// One by one, and together: each option that is a tensor.
std::vector<Call> calls_of_options() {
  std::vector<Call> calls(1);
  calls.front().name = "plain";
  using Option = std::optional<Tensor> AttentionOptions::*;
  const auto add = [&](const char* name, std::initializer_list<std::pair<Option, Tensor>> tensors) -> Call& {
    Call& call = calls.emplace_back();
    call.name = name;
    for (const auto& [option, given] : tensors) call.opts.*option = given;
    return call;
  };
  using O = AttentionOptions;
  add("lse", {{&O::lse, f32({2, 8, 3})}});
  add("alibi", {{&O::alibi_slopes, f32({8})}});
  add("sinks", {{&O::sinks, f32({2, 8})}, {&O::lse, f32({2, 8, 3})}});
  add("bias", {{&O::bias, tensor(DType::bf16, {1, 8, 3, 4096})}});
  add("mask", {{&O::boolean_mask, tensor(DType::boolean, {2, 1, 3, 4096})}});
  add("documents", {{&O::documents, i32({2, 4096})}, {&O::block_mask, i32({2, 1, 1, 2, 8})}});
  add("prefix", {{&O::prefix, i32({2})}});
  add("tree", {{&O::tree, tensor(DType::i64, {2, 3, 1})}});
  add("dropout", {{&O::dropout_state, tensor(DType::i64, {2})}}).opts.dropout.probability = 0.25;
  add("dropout mask", {{&O::dropout_mask, tensor(DType::boolean, {1, 1, 3, 4096})}}).opts.dropout.probability = 0.25;
  Call& functions = add("functions", {{&O::query_offsets, i32({2})}, {&O::key_offsets, i32({2})}});
  functions.opts.score = Score("score + slope(head) * w", {{"slope", f32({8})}, {"w", 0.5}});
  functions.opts.mask = Mask("table(key) != n", {{"table", i32({4096})}, {"n", 3}});
  add("lengths", {{&O::seqused_q, i32({2})}, {&O::seqused_kv, i32({2})}, {&O::leftpad_kv, i32({2})}});
  add("rows of a cache", {{&O::batch_indices_kv, i32({2})}});
  return calls;
}

Call paged(const Tensor& q, const Tensor& out, DType kv = DType::bf16) {
  Call call;
  call.name = std::string("pages of ") + to_string(kv);
  call.q = q, call.out = out;
  call.k = tensor(kv, {40, 64, 2, 64}), call.v = tensor(kv, {40, 64, 2, 32});
  call.opts.page_table = i32({2, 20}), call.opts.seqused_kv = i32({2});
  return call;
}

std::vector<Call> all_calls() {
  std::vector<Call> calls = calls_of_options();
  calls.push_back(paged(calls.front().q, calls.front().out));
  Call e4m3 = paged(tensor(DType::bf16, {2, 3, 8, 64}), tensor(DType::bf16, {2, 3, 8, 32}), DType::e4m3);
  e4m3.opts.k_scale = f32({40, 64, 2}), e4m3.opts.v_scale = f32({40, 64, 2});
  calls.push_back(e4m3);
  Call packed;
  packed.name = "packed, without batch";
  packed.q = tensor(DType::bf16, {9, 8, 64}), packed.out = tensor(DType::bf16, {9, 8, 32});
  packed.k = tensor(DType::bf16, {5000, 2, 64}), packed.v = tensor(DType::bf16, {5000, 2, 32});
  packed.opts.cu_seqlens_q = i32({3}), packed.opts.cu_seqlens_kv = i32({3}), packed.opts.lse = f32({8, 9});
  calls.push_back(packed);
  return calls;
}

using Addresses = std::vector<std::uintptr_t>;

Addresses new_addresses(const Call& call) {
  Addresses addresses;
  for (int i = 0; i < runtime::CallTensors(call.given()).size(); ++i)
    addresses.push_back(reinterpret_cast<std::uintptr_t>(new_address()));
  return addresses;
}

generator::KernelSpec kernel_of(const runtime::ForwardCall& call, const char* architecture, bool splits) {
  const Architecture& on = find_architecture(architecture);
  for (const Variant& variant : generator::legal_variants(call.problem, on))
    if (generator::splits_kv(variant) == splits) return {call.problem, variant, on};
  return {call.problem, generator::default_variants(call.problem, on).front(), on};
}

std::uintptr_t word(const std::byte* arguments, std::size_t offset) {
  std::uintptr_t value;
  std::memcpy(&value, arguments + offset, sizeof(value));
  return value;
}

bool is_in_map(const MovableOperation::MovableLaunch& launch, std::size_t offset) {
  for (const auto& map : launch.maps)
    if (offset >= map.of.offset && offset < map.of.offset + sizeof(generator::TensorMap)) return true;
  return false;
}

// Of arguments that were made for the tensors: how many addresses they have, all of which the moved ones must have too.
std::size_t same_addresses(const runtime::Launch& made, const MovableOperation::MovableLaunch& launch,
                           const std::byte* moved, const Addresses& addresses) {
  std::size_t found = 0;
  for (std::size_t at = 0; at < made.argument_bytes; at += sizeof(std::uintptr_t))
    for (const std::uintptr_t address : addresses) {
      if (is_in_map(launch, at) || word(made.arguments, at) >> 41 != address >> 41) continue;
      ++found;
      CHECK(word(moved, at) == word(made.arguments, at));
    }
  return found;
}

void check_moved(const Call& call, const generator::KernelSpec& kernel) {
  const MovableOperation movable(call.given(), kernel, kLimits);
  const Addresses addresses = new_addresses(call);
  const runtime::CallElsewhere elsewhere(call.given(), addresses);
  const runtime::CallWithBatch with(elsewhere.q, elsewhere.k, elsewhere.v, elsewhere.out, elsewhere.opts);
  runtime::ForwardCall validated = runtime::validate_inputs(with.q, with.k, with.v, with.opts);
  runtime::validate_out(validated, with.out);
  std::vector<std::byte> scratch(runtime::Operation::scratch_bytes(validated, kernel, kLimits));
  const runtime::Operation wanted(validated, kernel, kLimits, scratch.data());

  const runtime::CallTensors tensors(elsewhere.given());
  CHECK(movable.serves(elsewhere.given(), tensors));
  REQUIRE(movable.launches().size() == static_cast<std::size_t>(wanted.end() - wanted.begin()));
  std::size_t found = 0, maps = 0;
  const runtime::Launch* made = wanted.begin();
  for (const auto& launch : movable.launches()) {
    alignas(64) std::byte moved[runtime::Launch::kMaxBytes];
    launch.write(tensors, moved);
    found += same_addresses(*made, launch, moved, addresses);
    REQUIRE(launch.maps.size() == static_cast<std::size_t>(made->map_count));
    for (std::size_t i = 0; i < launch.maps.size(); ++i, ++maps)
      CHECK(tensors[launch.maps[i].tensor].data == made->maps[i].tensor->data);
    ++made;
  }
  // Each tensor has a place at least: a map, or an address.
  CHECK(found + maps >= addresses.size());
}

runtime::ForwardCall validated_of(const runtime::CallWithBatch& with) {
  return runtime::validate_inputs(with.q, with.k, with.v, with.opts);
}

TEST_CASE("moved launches have the addresses of launches that were made where they are moved to") {
  for (const Call& call : all_calls())
    for (const char* architecture : {"sm_80", "sm_90a"})
      for (const bool splits : {false, true}) {
        if (call.k.dtype == DType::e4m3 && std::string(architecture) == "sm_80") continue;  // has no kernels
        CAPTURE(call.name);
        CAPTURE(architecture);
        CAPTURE(splits);
        const runtime::CallWithBatch with(call.q, call.k, call.v, call.out, call.opts);
        check_moved(call, kernel_of(validated_of(with), architecture, splits));
      }
}

struct Served {
  Served()
      : made(call.given(), kernel_of(validated_of({call.q, call.k, call.v, call.out, call.opts}), "sm_90a", true),
             kLimits) {}
  bool by(const Call& other) const { return made.serves(other.given(), runtime::CallTensors(other.given())); }

  static Call call_with_lse() {
    Call with;
    with.opts.lse = f32({2, 8, 3});
    return with;
  }
  const Call call = call_with_lse();
  MovableOperation made;
};

TEST_CASE("a call that differs in more than addresses is not served") {
  const Served served;
  CHECK(served.by(served.call));
  Call streamed = served.call;
  streamed.opts.stream = static_cast<Stream>(new_address());
  CHECK(served.by(streamed));
  const auto refuses = [&](auto change) {
    Call other = served.call;
    change(other);
    return !served.by(other);
  };
  CHECK(refuses([](Call& c) { c.opts.causal = true; }));
  CHECK(refuses([](Call& c) { c.opts.window.left = 5; }));
  CHECK(refuses([](Call& c) { c.opts.chunk = 5; }));
  CHECK(refuses([](Call& c) { c.opts.softmax_scale = 0.5f; }));
  CHECK(refuses([](Call& c) { c.opts.softmax_scale = std::numeric_limits<float>::quiet_NaN(); }));
  CHECK(refuses([](Call& c) { c.opts.softcap = 5; }));
  CHECK(refuses([](Call& c) { c.opts.dropout.probability = 0.5; }));
  CHECK(refuses([](Call& c) { c.opts.max_seqlen_q = 2; }));
  CHECK(refuses([](Call& c) { c.opts.max_seqlen_kv = 2; }));
  CHECK(refuses([](Call& c) { c.opts.fixed_split_size = 64; }));
  CHECK(refuses([](Call& c) { c.opts.variant = parse_variant("mma-q64-kv32"); }));
  CHECK(refuses([](Call& c) { c.opts.lse.reset(); }));
  CHECK(refuses([](Call& c) { c.opts.lse->strides[1] = 4; }));
  CHECK(refuses([](Call& c) { c.opts.sinks = f32({8}); }));
  CHECK(refuses([](Call& c) { c.opts.score = Score("score + 1"); }));
  CHECK(refuses([](Call& c) { c.q.dtype = DType::f16; }));
  CHECK(refuses([](Call& c) { c.k.shape[1] = 4095; }));
  CHECK(refuses([](Call& c) { c.v.strides[1] = 128; }));
}

TEST_CASE("numbers that functions capture are compared bit by bit, tensors may be elsewhere") {
  const auto with_number = [](const Capture& number) {
    Call call;
    call.opts.score = Score("score * x + b(head)", {number, {"b", f32({8})}});
    return call;
  };
  const auto serves = [](const Call& made, const Call& other) {
    const generator::KernelSpec kernel =
        kernel_of(validated_of({made.q, made.k, made.v, made.out, made.opts}), "sm_90a", true);
    return MovableOperation(made.given(), kernel, kLimits).serves(other.given(), runtime::CallTensors(other.given()));
  };
  CHECK(serves(with_number({"x", 0.5}), with_number({"x", 0.5})));
  CHECK(!serves(with_number({"x", 0.5}), with_number({"x", 0.75})));
  CHECK(!serves(with_number({"x", 0.5}), with_number({"x", 1})));
  CHECK(!serves(with_number({"x", 0.0}), with_number({"x", -0.0})));
}

TEST_CASE("a call whose tensors lie where none may is not served") {
  const Served served;
  const auto refuses = [&](auto change) {
    Call other = served.call;
    change(other);
    return !served.by(other);
  };
  const auto moved = [](const Tensor& tensor, std::ptrdiff_t bytes) { return static_cast<char*>(tensor.data) + bytes; };
  CHECK(refuses([](Call& c) { c.k.data = nullptr; }));
  CHECK(refuses([&](Call& c) { c.k.data = moved(c.k, 8); }));
  CHECK(!refuses([&](Call& c) { c.k.data = moved(c.k, 16); }));
  CHECK(refuses([](Call& c) { c.out.data = c.q.data; }));
  CHECK(refuses([&](Call& c) { c.out.data = moved(c.v, 4096 * 2 * 2 * 32 * 2 - 16); }));
  CHECK(!refuses([&](Call& c) { c.out.data = moved(c.v, 4096 * 2 * 2 * 32 * 2); }));
  CHECK(refuses([](Call& c) { c.opts.lse->data = c.out.data; }));
  CHECK(refuses([](Call& c) { c.v.data = c.k.data; }));  // it may be of another problem then
}

}  // namespace
