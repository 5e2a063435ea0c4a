// SPDX-License-Identifier: Apache-2.0
// The C interface without a compiler and without a GPU: what it refuses, and structs of other versions.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flashjit.h"
#include "flashjit/error.h"
#include "flashjit/reference.h"
#include "flashjit/version.h"
#include "tests/support/dlpack_view.h"

namespace {

using namespace flashjit;
using tests::DlpackView;

std::string last_error() { return flashjit_last_error(); }

struct Destroy {
  void operator()(flashjit_engine* engine) const { flashjit_engine_destroy(engine); }
};
using EnginePointer = std::unique_ptr<flashjit_engine, Destroy>;

// An architecture to emulate, or "" for the GPU.
EnginePointer make_engine(const char* emulate) {
  flashjit_engine_options options = FLASHJIT_ENGINE_OPTIONS_INIT;
  options.policy = "compile";
  options.cache_directory = "";
  options.bundles = "";
  options.emulate = emulate;
  options.nvrtc_path = "/nowhere/libnvrtc.so.13";
  flashjit_engine* engine = nullptr;
  REQUIRE_MESSAGE(flashjit_engine_create(&options, &engine) == FLASHJIT_OK, last_error());
  return EnginePointer(engine);
}

// A good call, up to the compiler that is not there.
struct Call {
  HostTensor q_host{DType::bf16, {1, 5, 2, 64}}, k_host{DType::bf16, {1, 7, 1, 64}}, v_host{DType::bf16, {1, 7, 1, 64}},
      out_host{DType::bf16, {1, 5, 2, 64}}, lse_host{DType::f32, {1, 2, 5}};
  DlpackView q{q_host.view(), kDLCPU}, k{k_host.view(), kDLCPU}, v{v_host.view(), kDLCPU}, out{out_host.view(), kDLCPU},
      lse{lse_host.view(), kDLCPU};
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;

  flashjit_status operator()(const EnginePointer& engine) const {
    return flashjit_attention(engine.get(), &q, &k, &v, &out, &options);
  }
};

// The message of the call that change has spoilt.
template <typename Change>
std::string refusal(Change change, const char* emulate = "sm_90a") {
  Call call;
  change(call);
  CHECK(call(make_engine(emulate)) == FLASHJIT_INVALID_ARGUMENT);
  return last_error();
}

}  // namespace

TEST_CASE("every error code has a status of its name") {
  int codes = 0;
  for (int status = 1; status < FLASHJIT_FAILURE; ++status) {
    const std::string name = flashjit_status_name(static_cast<flashjit_status>(status));
    if (name == "?") continue;
    CHECK(name == to_string(static_cast<ErrorCode>(codes)));
    ++codes;
  }
  CHECK(codes == static_cast<int>(ErrorCode::communication) + 1);
  CHECK(std::string(flashjit_status_name(FLASHJIT_OK)) == "ok");
  CHECK(std::string(flashjit_status_name(FLASHJIT_FAILURE)) == "failure");
  CHECK(std::string(flashjit_version()) == version());
}

TEST_CASE("a good call reaches the compiler") {
  const EnginePointer engine = make_engine("sm_90a");
  Call call;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  CHECK(last_error().find("/nowhere/libnvrtc.so.13") != std::string::npos);
  call.q.strides = call.k.strides = call.v.strides = call.out.strides = nullptr;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  CHECK(flashjit_attention(engine.get(), &call.q, &call.k, &call.v, &call.out, nullptr) == FLASHJIT_NO_COMPILER);
}

TEST_CASE("tensors that are no views are named") {
  const EnginePointer engine = make_engine("sm_90a");
  const Call good;
  CHECK(flashjit_attention(engine.get(), nullptr, &good.k, &good.v, &good.out, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "q: must point to a tensor, was null");
  CHECK(flashjit_attention(engine.get(), &good.q, &good.k, &good.v, nullptr, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "out: must point to a tensor, was null");

  CHECK(refusal([](Call& c) { c.k.ndim = 9; }) == "k: ndim must be from 0 to 8, was 9");
  CHECK(refusal([](Call& c) { c.k.ndim = -1; }) == "k: ndim must be from 0 to 8, was -1");
  CHECK(refusal([](Call& c) { c.v.shape = nullptr; }) == "v: shape must point to 4 sizes, was null");
  CHECK(refusal([](Call& c) { c.v.ndim = 3; }) == "v: rank must be 4, was 3 with shape [1, 7, 1]");
  CHECK(refusal([](Call& c) { c.out.data = nullptr; }).find("out: must point to") == 0);
  CHECK(refusal([](Call& c) { c.q.byte_offset = 8; }).find("q: must be aligned to 16 bytes") == 0);
  CHECK(refusal([](Call& c) { c.k.byte_offset = ~std::uint64_t{15}; }).find("k: byte_offset must stay within") == 0);
  CHECK(refusal([](Call& c) {
          c.k.data = nullptr;
          c.q.ndim = 9;
        }).substr(0, 2) == "q:");
}

TEST_CASE("types that attention does not take are named as DLPack has them") {
  const auto with_q = [](std::uint8_t code, std::uint8_t bits, std::uint16_t lanes) {
    return refusal([=](Call& c) { c.q.dtype = {code, bits, lanes}; });
  };
  CHECK(with_q(kDLFloat, 64, 1) == "q: dtype must be f16, bf16, e4m3 or e5m2, was f64");
  CHECK(with_q(kDLFloat, 32, 1) == "q: dtype must be f16, bf16, e4m3 or e5m2, was f32");
  CHECK(with_q(kDLInt, 8, 1) == "q: dtype must be f16, bf16, e4m3 or e5m2, was int8");
  CHECK(with_q(kDLInt, 32, 1) == "q: dtype must be f16, bf16, e4m3 or e5m2, was i32");
  CHECK(with_q(kDLInt, 64, 1) == "q: dtype must be f16, bf16, e4m3 or e5m2, was i64");
  CHECK(with_q(tests::kDlpackBool, 8, 1) == "q: dtype must be f16, bf16, e4m3 or e5m2, was boolean");
  CHECK(with_q(tests::kDlpackBool, 16, 1) == "q: dtype must be f16, bf16, e4m3 or e5m2, was bool16");
  CHECK(with_q(kDLUInt, 32, 1) == "q: dtype must be f16, bf16, e4m3 or e5m2, was uint32");
  CHECK(with_q(kDLFloat, 16, 2) == "q: dtype must be f16, bf16, e4m3 or e5m2, was float16x2");
  CHECK(with_q(17, 4, 2) == "q: dtype must be f16, bf16, e4m3 or e5m2, was DLPack's type 17 of 4x2 bits");
  CHECK(with_q(kDLFloat, 16, 1) == "k: dtype must be f16 like that of q, e4m3 or e5m2, was bf16");
}

TEST_CASE("tensors lie where the engine computes") {
  CHECK(refusal([](Call& c) { c.v.device.device_type = kDLCUDA; }) ==
        "v: must be in host memory (kDLCPU) for an engine that emulates, was in the memory of a GPU (kDLCUDA)");
  const std::string on_gpu = refusal([](Call&) {}, "");
  CHECK(on_gpu ==
        "q: must be in the memory of a GPU (kDLCUDA), was in host memory (kDLCPU); copy it there, or use an "
        "engine that emulates");
  const std::string of_other = refusal([](Call& c) { c.q.device.device_type = kDLROCM; }, "");
  CHECK(of_other.find("was in memory of DLPack's device type 10;") != std::string::npos);
}

TEST_CASE("options are checked like tensors") {
  const auto with_lse = [](auto change) {
    return refusal([&](Call& c) {
      c.options.lse = &c.lse;
      change(c.lse);
    });
  };
  CHECK(with_lse([](DLTensor& lse) { lse.dtype.bits = 64; }) == "lse: dtype must be f32, was f64");
  CHECK(with_lse([](DLTensor& lse) { lse.dtype.bits = 16; }) == "lse: dtype must be f32, was f16");
  CHECK(with_lse([](DLTensor& lse) { lse.ndim = 2; }).find("lse: rank must be 3, was 2") == 0);
  CHECK(refusal([](Call& c) { c.options.causal = 2; }) == "causal: must be 0 or 1, was 2");
  CHECK(refusal([](Call& c) { c.options.has_softmax_scale = -1; }) == "has_softmax_scale: must be 0 or 1, was -1");
  CHECK_FALSE(refusal([](Call& c) { c.options.variant = "fast-please"; }).empty());
  const std::string endless(1'000'000, 'x');
  CHECK(refusal([&](Call& c) { c.options.variant = endless.c_str(); }) ==
        "variant: must have at most 200 characters, had 1000000");
  CHECK(refusal([](Call& c) { c.options.stream = &c; }).find("stream: must be null") == 0);
}

TEST_CASE("a window is none, or two sides of at least -1") {
  const auto status = [](const flashjit_window* window) {
    Call call;
    call.options.window = window;
    return call(make_engine("sm_90a"));
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(status(nullptr) == FLASHJIT_NO_COMPILER);
  for (const flashjit_window& window :
       {flashjit_window{-1, -1}, flashjit_window{0, 0}, flashjit_window{-1, 3}, flashjit_window{kMost, kMost}}) {
    CAPTURE(window.left);
    CHECK(status(&window) == FLASHJIT_NO_COMPILER);
  }
  const auto refused = [](flashjit_window window) { return refusal([&](Call& c) { c.options.window = &window; }); };
  CHECK(refused({-2, 0}) == "window: left must be at least 0, or -1 for all keys, was -2");
  CHECK(refused({0, -2}) == "window: right must be at least 0, or -1 for all keys, was -2");
  CHECK(refused({-1, std::numeric_limits<std::int64_t>::min()}) ==
        "window: right must be at least 0, or -1 for all keys, was -9223372036854775808");
}

TEST_CASE("a cap is none, or within its bounds") {
  const auto with_cap = [](float softcap) { return [=](Call& c) { c.options.softcap = softcap; }; };
  for (const float softcap : {0.0f, -0.0f, 1e-6f, 30.0f, 1e6f}) {
    CAPTURE(softcap);
    Call call;
    with_cap(softcap)(call);
    CHECK(call(make_engine("sm_90a")) == FLASHJIT_NO_COMPILER);
  }
  CHECK(refusal(with_cap(-30)) == "softcap: must be from 1e-06 to 1000000, or 0 for none, was -30");
  CHECK(refusal(with_cap(1e-7f)) == "softcap: must be from 1e-06 to 1000000, or 0 for none, was 1e-07");
  CHECK(refusal(with_cap(std::numeric_limits<float>::infinity())).find("softcap: must be from") == 0);
  CHECK(refusal(with_cap(std::numeric_limits<float>::quiet_NaN())).find("softcap: must be from") == 0);
  CHECK(refusal([](Call& c) { c.options.reserved = 1; }) == "reserved: must be 0, was 1");
}

TEST_CASE("a chunk is none, or of at least one key") {
  const auto with_chunk = [](std::int64_t chunk) { return [=](Call& c) { c.options.chunk = chunk; }; };
  for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{1}, std::numeric_limits<std::int64_t>::max()}) {
    CAPTURE(chunk);
    Call call;
    with_chunk(chunk)(call);
    CHECK(call(make_engine("sm_90a")) == FLASHJIT_NO_COMPILER);
  }
  CHECK(refusal(with_chunk(-1)) == "chunk: must be at least 1, or 0 for none, was -1");
}

TEST_CASE("slopes and sinks are of the heads, or of batch entries and heads") {
  constexpr struct {
    std::string_view name;
    const DLTensor* flashjit_attention_options::*field;
  } kOptions[] = {{"alibi_slopes", &flashjit_attention_options::alibi_slopes},
                  {"sinks", &flashjit_attention_options::sinks}};
  const HostTensor of_heads(DType::f32, {2}), of_batch(DType::f32, {1, 2}), of_others(DType::f32, {3});
  const HostTensor in_f16(DType::f16, {2});
  const auto as_it_is = [](DLTensor&) {};
  for (const auto& option : kOptions) {
    CAPTURE(option.name);
    for (const HostTensor* tensor : {&of_heads, &of_batch}) {
      const DlpackView view(tensor->view(), kDLCPU);
      Call call;
      call.options.*option.field = &view;
      CHECK(call(make_engine("sm_90a")) == FLASHJIT_NO_COMPILER);
    }
    const auto is_refused = [&](const HostTensor& tensor, auto change, std::string_view message) {
      DlpackView view(tensor.view(), kDLCPU);
      change(view);
      const std::string refused = refusal([&](Call& c) { c.options.*option.field = &view; });
      CHECK_MESSAGE(refused.find(fmt::format("{}: {}", option.name, message)) == 0, refused);
    };
    is_refused(of_others, as_it_is, "num_heads must be 2 like that of q, was 3");
    is_refused(in_f16, as_it_is, "dtype must be f32, was f16");
    is_refused(
        of_heads, [](DLTensor& view) { view.dtype.bits = 64; }, "dtype must be f32, was f64");
    is_refused(
        of_heads, [](DLTensor& view) { view.ndim = 0; }, "must be [num_heads] or");
    is_refused(
        of_heads, [](DLTensor& view) { view.device.device_type = kDLCUDA; }, "must be in host memory (kDLCPU)");
    is_refused(
        of_heads, [](DLTensor& view) { view.data = nullptr; }, "must point to");
  }
}

TEST_CASE("tensors of scores and masks are checked by their names") {
  const struct {
    const char* name;
    const DLTensor* flashjit_attention_options::*field;
    DType dtype;
    Dims shape;
    const char* dtypes;
  } kOptions[] = {{"bias", &flashjit_attention_options::bias, DType::f32, {1, 2, 5, 7}, "f16, bf16 or f32"},
                  {"bias", &flashjit_attention_options::bias, DType::bf16, {1, 1, 1, 7}, "f16, bf16 or f32"},
                  {"boolean_mask", &flashjit_attention_options::boolean_mask, DType::boolean, {1, 1, 5, 7}, "boolean"},
                  {"documents", &flashjit_attention_options::documents, DType::i32, {1, 7}, "i32"},
                  {"prefix", &flashjit_attention_options::prefix, DType::i32, {1}, "i32"},
                  {"tree", &flashjit_attention_options::tree, DType::i64, {1, 5, 1}, "i64"}};
  for (const auto& option : kOptions) {
    CAPTURE(option.name);
    const HostTensor tensor(option.dtype, option.shape);
    DlpackView view(tensor.view(), kDLCPU);
    Call call;
    call.options.*option.field = &view;
    CHECK(call(make_engine("sm_90a")) == FLASHJIT_NO_COMPILER);
    const auto refused = [&] { return refusal([&](Call& c) { c.options.*option.field = &view; }); };
    view.dtype = {kDLUInt, 8, 1};
    CHECK(refused() == fmt::format("{}: dtype must be {}, was uint8", option.name, option.dtypes));
    view.dtype = {kDLInt, static_cast<std::uint8_t>(option.dtype == DType::i64 ? 32 : 64), 1};
    CHECK(refused() == fmt::format("{}: dtype must be {}, was {}", option.name, option.dtypes,
                                   option.dtype == DType::i64 ? "i32" : "i64"));
    view.device.device_type = kDLCUDA;
    CHECK(refused().find(fmt::format("{}: must be in host memory (kDLCPU)", option.name)) == 0);
  }
}

namespace {

// A text with one capture, up to the compiler.
struct FunctionCall {
  HostTensor tensor_host{DType::f32, {2}};
  DlpackView tensor{tensor_host.view(), kDLCPU};
  std::string text = "score - slope(head)";
  flashjit_capture capture = {"slope", &tensor, 0, 0, 0};
  flashjit_function function = FLASHJIT_FUNCTION_INIT;
  const flashjit_function* flashjit_attention_options::*field = &flashjit_attention_options::score;

  template <typename Change>
  explicit FunctionCall(Change change) {
    function.captures = &capture;
    function.capture_count = 1;
    change(*this);
    if (function.text_size == 0) function.text_size = text.size();
  }
  flashjit_status operator()() {
    function.text = text.data();
    Call call;
    call.options.*field = &function;
    return call(make_engine("sm_90a"));
  }
};

template <typename Change>
std::string function_refusal(Change change) {
  CHECK(FunctionCall(change)() == FLASHJIT_INVALID_ARGUMENT);
  return last_error();
}

}  // namespace

TEST_CASE("a text has captures that are tensors and numbers") {
  const auto reaches_compiler = [](auto change) { return FunctionCall(change)() == FLASHJIT_NO_COMPILER; };
  CHECK(reaches_compiler([](FunctionCall&) {}));
  CHECK(reaches_compiler([](FunctionCall& c) {
    c.text = "score - slope";
    c.capture = {"slope", nullptr, 0.5, 0, 0};
  }));
  for (const double number : {-2147483648.0, 0.0, 2147483647.0})
    CHECK(reaches_compiler([=](FunctionCall& c) {
      c.text = "query - key < width";
      c.capture = {"width", nullptr, number, 1, 0};
      c.field = &flashjit_attention_options::mask;
    }));
  CHECK(reaches_compiler([](FunctionCall& c) {
    c.text = "2 * score";
    c.function.captures = nullptr;
    c.function.capture_count = 0;
  }));
}

TEST_CASE("a text or a capture that cannot be is named") {
  using Options = flashjit_attention_options;
  CHECK(function_refusal([](FunctionCall& c) { c.capture.name = "slop"; }) ==
        "score: capture slop: must be used in the text, was not");
  CHECK(function_refusal([](FunctionCall& c) { c.capture.name = "head"; }) ==
        "score: capture head: must not be a name that texts have already");
  CHECK(function_refusal([](FunctionCall& c) { c.capture.name = nullptr; }).find("score: capture name: must be an") ==
        0);
  CHECK(function_refusal([](FunctionCall& c) { c.tensor.dtype.bits = 64; }) ==
        "score: capture slope: dtype must be f16, bf16, f32, i32, i64 or boolean, was f64");
  CHECK(function_refusal([](FunctionCall& c) {
          c.tensor.device.device_type = kDLCUDA;
        }).find("score: capture slope: must be in host memory (kDLCPU)") == 0);
  CHECK(function_refusal([](FunctionCall& c) { c.tensor.data = nullptr; }).find("score: capture slope: must point") ==
        0);
  CHECK(function_refusal([](FunctionCall& c) { c.capture.reserved = 1; }) ==
        "score: capture slope: reserved: must be 0, was 1");
  CHECK(function_refusal([](FunctionCall& c) { c.text[3] = '\0'; }) == "score: must not have NUL, had one at byte 3");
  CHECK(function_refusal([](FunctionCall& c) { c.text = "slope(head"; }).find("score: must have balanced") == 0);
  CHECK(function_refusal([](FunctionCall& c) { c.function.capture_count = 17; }) ==
        "score: must have at most 16 captures, had 17");
  CHECK(function_refusal([](FunctionCall& c) { c.function.captures = nullptr; }) ==
        "score: captures must not be null, as there are 1");
  CHECK(function_refusal([](FunctionCall& c) { c.function.struct_size = 8; }) ==
        "struct_size: must be sizeof(flashjit_function), was 8");

  const auto with_number = [](double number, int is_integer) {
    return function_refusal([=](FunctionCall& c) {
      c.text = "key < width";
      c.capture = {"width", nullptr, number, is_integer, 0};
      c.field = &Options::mask;
    });
  };
  CHECK(with_number(1.5, 1) == "mask: capture width: must be a whole number of 32 bits, was 1.5");
  CHECK(with_number(2147483648.0, 1) == "mask: capture width: must be a whole number of 32 bits, was 2147483648");
  CHECK(with_number(std::numeric_limits<double>::quiet_NaN(), 1).find("mask: capture width: must be a whole") == 0);
  CHECK(with_number(1e39, 0) == "mask: capture width: must be a number of f32, was 1e+39");
  CHECK(with_number(1, 2) == "mask: capture width: is_integer: must be 0 or 1, was 2");

  flashjit_function no_text = FLASHJIT_FUNCTION_INIT;
  no_text.text_size = 4;
  CHECK(refusal([&](Call& c) { c.options.score = &no_text; }) == "score: text must not be null, as there are 4");
  const HostTensor offsets(DType::i32, {1});
  const DlpackView view(offsets.view(), kDLCPU);
  CHECK(refusal([&](Call& c) { c.options.query_offsets = &view; }) ==
        "query_offsets: must not be given without score or mask, which see them");
  CHECK(refusal([&](Call& c) { c.options.key_offsets = &view; }).find("key_offsets: must not be given") == 0);
  CHECK(refusal([&](Call& c) { c.options.block_mask = &view; }).find("block_mask: must not be given without") == 0);
}

TEST_CASE("dropout that no call may have is refused through C") {
  CHECK(refusal([](Call& c) { c.options.dropout = 1; }) ==
        "dropout: probability must be at least 0 and below 1, was 1");
  const HostTensor numbers(DType::i32, {2});
  const DlpackView view(numbers.view(), kDLCPU);
  CHECK(refusal([&](Call& c) { c.options.dropout_state = &view; }) == "dropout_state: dtype must be i64, was i32");
  CHECK(refusal([&](Call& c) { c.options.dropout_mask = &view; }).find("dropout_mask: dtype must be bool") == 0);
  flashjit_mask_shape shape = {1, 2, 3, 4};
  std::uint8_t kept[24];
  CHECK(flashjit_dropout_mask(0.5, 1, 2, &shape, kept) == FLASHJIT_OK);
  CHECK(flashjit_dropout_mask(0.5, 1, 2, &shape, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "kept: must not be null");
  CHECK(flashjit_dropout_mask(0.5, 1, 2, nullptr, kept) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(flashjit_dropout_mask(-0.5, 1, 2, &shape, kept) == FLASHJIT_INVALID_ARGUMENT);
  shape.seqlen_kv = -4;
  CHECK(flashjit_dropout_mask(0.5, 1, 2, &shape, kept) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "shape: seqlen_kv must be from 0 to 1073741824, was -4");
}

TEST_CASE("where the sequences of a ragged batch lie is checked by its names") {
  const struct {
    const char* name;
    const DLTensor* flashjit_attention_options::*field;
    std::int64_t size;  // for one sequence
    const char* wrong_size;
  } kOptions[] = {
      {"cu_seqlens_q", &flashjit_attention_options::cu_seqlens_q, 2, "k: batch must be 2 like that of cu_seqlens_q"},
      {"cu_seqlens_kv", &flashjit_attention_options::cu_seqlens_kv, 2, "cu_seqlens_kv: "},
      {"seqused_q", &flashjit_attention_options::seqused_q, 1, "seqused_q: "},
      {"seqused_kv", &flashjit_attention_options::seqused_kv, 1, "seqused_kv: "},
      {"leftpad_kv", &flashjit_attention_options::leftpad_kv, 1, "leftpad_kv: "},
      {"batch_indices_kv", &flashjit_attention_options::batch_indices_kv, 1, "batch_indices_kv: "}};
  for (const auto& option : kOptions) {
    CAPTURE(option.name);
    const HostTensor tensor(DType::i32, {option.size}), longer(DType::i32, {option.size + 1});
    DlpackView view(tensor.view(), kDLCPU);
    const DlpackView longer_view(longer.view(), kDLCPU);
    Call call;
    call.options.*option.field = &view;
    CHECK(call(make_engine("sm_90a")) == FLASHJIT_NO_COMPILER);
    CHECK(refusal([&](Call& c) { c.options.*option.field = &longer_view; }).find(option.wrong_size) == 0);
    const auto refused = [&] { return refusal([&](Call& c) { c.options.*option.field = &view; }); };
    view.dtype = {kDLInt, 64, 1};
    CHECK(refused() == fmt::format("{}: dtype must be i32, was i64", option.name));
    view.dtype = {kDLUInt, 32, 1};
    CHECK(refused() == fmt::format("{}: dtype must be i32, was uint32", option.name));
    view.device.device_type = kDLCUDA;
    CHECK(refused().find(fmt::format("{}: must be in host memory (kDLCPU)", option.name)) == 0);
  }
}

TEST_CASE("a table of pages is checked by its name, and says how many sequences there are keys of") {
  const HostTensor table(DType::i32, {2, 4}), of_batch(DType::i32, {1});
  DlpackView view(table.view(), kDLCPU);
  const DlpackView of_batch_view(of_batch.view(), kDLCPU);
  const EnginePointer engine = make_engine("sm_90a");
  Call call;
  call.options.page_table = &view;
  call.options.batch_indices_kv = &of_batch_view;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  const auto refused = [&] { return refusal([&](Call& c) { c.options.page_table = &view; }); };
  CHECK(refused() == "page_table: batch must be 1 like that of q, was 2");
  view.shape[0] = 1;
  call.options.batch_indices_kv = nullptr;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  call.options.leftpad_kv = &of_batch_view;
  CHECK(call(engine) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "leftpad_kv: must not be given beside page_table, which says where keys lie");
  view.strides[1] = 2;
  CHECK(refused() == "page_table: the last dimension must be contiguous (stride 1), its stride was 2");
  view.ndim = 1;
  CHECK(refused().find("page_table: rank must be 2, was 1") == 0);
  view.dtype = {kDLInt, 64, 1};
  CHECK(refused() == "page_table: dtype must be i32, was i64");
  view.dtype = {kDLUInt, 32, 1};
  CHECK(refused() == "page_table: dtype must be i32, was uint32");
  view.device.device_type = kDLCUDA;
  CHECK(refused().find("page_table: must be in host memory (kDLCPU)") == 0);
}

TEST_CASE("packed tensors lack the dimension of batches where offsets say what their rows are") {
  const HostTensor offsets(DType::i32, {4});
  const DlpackView view(offsets.view(), kDLCPU);
  Call call;
  for (DLTensor* const tensor : {&call.q, &call.k, &call.v, &call.out, &call.lse}) {
    --tensor->ndim;
    ++tensor->shape;
    ++tensor->strides;
  }
  call.options.lse = &call.lse;
  const EnginePointer engine = make_engine("sm_90a");
  CHECK(call(engine) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error().find("q: rank must be 4, was 3") == 0);
  call.options.cu_seqlens_q = &view;
  CHECK(call(engine) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error().find("k: rank must be 4, was 3") == 0);
  call.options.cu_seqlens_kv = &view;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  call.options.max_seqlen_q = 3;
  call.options.max_seqlen_kv = 1'000'000;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  call.options.max_seqlen_kv = -1;
  CHECK(call(engine) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "max_seqlen_kv: must be at least 0, was -1");
}

TEST_CASE("bounds of lengths are for ragged batches") {
  for (const auto& [name, field] : {std::pair{"max_seqlen_q", &flashjit_attention_options::max_seqlen_q},
                                    std::pair{"max_seqlen_kv", &flashjit_attention_options::max_seqlen_kv}}) {
    const auto refused = [field = field](std::int64_t bound) {
      return refusal([&](Call& c) { c.options.*field = bound; });
    };
    CHECK(refused(-1) == fmt::format("{}: must be at least 0, was -1", name));
    CHECK(refused(5) == fmt::format("{}: must not be given for a batch whose sequences are equally long", name));
  }
}

namespace {

// A good call for a plan, up to the compiler that is not there.
struct PlanCall : Call {
  HostTensor lengths_host{DType::i32, {1}}, memory_host{DType::i32, {64}};
  DlpackView lengths{lengths_host.view(), kDLCPU}, memory{memory_host.view(), kDLCPU};
  EnginePointer engine = make_engine("sm_90a");

  PlanCall() { options.seqused_kv = &lengths; }
  flashjit_status create(flashjit_plan** plan) const {
    return flashjit_plan_create(engine.get(), &q, &k, &v, &options, &memory, plan);
  }
  flashjit_status words(std::int64_t* words) const {
    return flashjit_plan_words(engine.get(), &q, &k, &v, &options, words);
  }
};

template <typename Change>
std::string plan_refusal(Change change) {
  PlanCall call;
  change(call);
  auto* plan = reinterpret_cast<flashjit_plan*>(&call);
  CHECK(call.create(&plan) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(plan == nullptr);
  return last_error();
}

}  // namespace

TEST_CASE("what a plan is made for is checked like a call, and a failure makes none") {
  PlanCall good;
  auto* plan = reinterpret_cast<flashjit_plan*>(&good);
  CHECK(good.create(&plan) == FLASHJIT_NO_COMPILER);
  CHECK(plan == nullptr);
  std::int64_t words = 0;
  CHECK(good.words(&words) == FLASHJIT_NO_COMPILER);
  CHECK(flashjit_plan_create(good.engine.get(), &good.q, &good.k, &good.v, &good.options, nullptr, &plan) ==
        FLASHJIT_NO_COMPILER);
  CHECK(plan_refusal([](PlanCall& c) { c.k.ndim = 9; }) == "k: ndim must be from 0 to 8, was 9");
  CHECK(plan_refusal([](PlanCall& c) {
          c.v.data = nullptr;
          c.q.ndim = 9;
        }).find("q: ") == 0);
  CHECK(plan_refusal([](PlanCall& c) { c.options.causal = 2; }) == "causal: must be 0 or 1, was 2");
  CHECK(plan_refusal([](PlanCall& c) { c.options.struct_size = 8; }).find("struct_size: must be sizeof") == 0);
  CHECK(plan_refusal([](PlanCall& c) {
          c.memory.dtype = {kDLUInt, 32, 1};
        }) == "memory: dtype must be i32, was uint32");
  CHECK(plan_refusal([](PlanCall& c) {
          c.memory.device.device_type = kDLCUDA;
        }).find("memory: must be in host memory (kDLCPU)") == 0);
}

TEST_CASE("what a plan needs must not be null, but for its memory") {
  const PlanCall call;
  flashjit_plan* plan = nullptr;
  std::int64_t words = 0;
  CHECK(call.create(nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "plan: must not be null");
  CHECK(call.words(nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "words: must not be null");
  flashjit_engine* const engine = call.engine.get();
  CHECK(flashjit_plan_words(engine, &call.q, nullptr, &call.v, &call.options, &words) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "k: must point to a tensor, was null");
  CHECK(flashjit_plan_create(engine, nullptr, &call.k, &call.v, &call.options, nullptr, &plan) ==
        FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "q: must point to a tensor, was null");
  CHECK(flashjit_plan_update(engine, nullptr, &call.q, &call.k, &call.v, &call.options) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "plan: must not be null");
  flashjit_plan_info info = FLASHJIT_PLAN_INFO_INIT;
  CHECK(flashjit_get_plan_info(nullptr, &info) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "plan: must not be null");
  flashjit_plan_destroy(nullptr);
}

TEST_CASE("block masks have shapes, and are made of something") {
  const EnginePointer engine = make_engine("sm_90a");
  flashjit_mask_shape shape = {1, 2, 65, 513};
  std::int64_t dims[FLASHJIT_BLOCK_MASK_RANK];
  CHECK(flashjit_block_mask_dims(&shape, dims) == FLASHJIT_OK);
  CHECK(Dims(dims, FLASHJIT_BLOCK_MASK_RANK) == Dims{1, 2, 2, 2, 2});
  HostTensor mask(DType::i32, Dims(dims, FLASHJIT_BLOCK_MASK_RANK));
  const HostTensor documents(DType::i32, {1, 513});
  const DlpackView view(documents.view(), kDLCPU);
  DlpackView into(mask.view(), kDLCPU);
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  const auto refused = [&] {
    CHECK(flashjit_block_mask(engine.get(), &options, &shape, &into) == FLASHJIT_INVALID_ARGUMENT);
    return last_error();
  };
  CHECK(refused() == "block_mask: must be made of boolean_mask, documents, tree or mask, had none of them");
  options.documents = &view;
  CHECK(flashjit_block_mask(engine.get(), &options, &shape, &into) == FLASHJIT_NO_COMPILER);
  into.dtype.bits = 64;
  CHECK(refused() == "into: dtype must be i32, was i64");
  into.dtype.bits = 32;
  shape.seqlen_q = 129;
  CHECK(refused().find("into: must have the shape [1, 2, 3, 2, 2]") == 0);
  shape.seqlen_q = -1;
  CHECK(refused() == "shape: seqlen_q must be from 0 to 1073741824, was -1");
  CHECK(flashjit_block_mask_dims(&shape, dims) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(flashjit_block_mask_dims(nullptr, dims) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "shape: must not be null");
  shape.seqlen_q = 65;
  CHECK(flashjit_block_mask_dims(&shape, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "dims: must not be null");
  CHECK(flashjit_block_mask(engine.get(), &options, &shape, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "into: must point to a tensor, was null");
}

namespace {

// A good call for gradients, up to the compiler that is not there.
struct BackwardCall : Call {
  HostTensor dout_host{DType::bf16, {1, 5, 2, 64}}, dlse_host{DType::f32, {1, 2, 5}},
      dq_host{DType::bf16, {1, 5, 2, 64}}, dk_host{DType::f32, {1, 7, 1, 64}}, dv_host{DType::f32, {1, 7, 1, 64}};
  DlpackView dout{dout_host.view(), kDLCPU}, dlse{dlse_host.view(), kDLCPU}, dq{dq_host.view(), kDLCPU},
      dk{dk_host.view(), kDLCPU}, dv{dv_host.view(), kDLCPU};
  flashjit_gradients into = FLASHJIT_GRADIENTS_INIT;

  BackwardCall() { into.dq = &dq, into.dk = &dk, into.dv = &dv; }
  flashjit_status operator()(const EnginePointer& engine) const {
    return flashjit_attention_backward(engine.get(), &dout, &q, &k, &v, &out, &lse, &dlse, &into, &options);
  }
};

template <typename Change>
std::string backward_refusal(Change change, flashjit_status status = FLASHJIT_INVALID_ARGUMENT) {
  BackwardCall call;
  change(call);
  CHECK(call(make_engine("sm_90a")) == status);
  return last_error();
}

}  // namespace

TEST_CASE("a call for gradients reaches the compiler, whichever it asks for") {
  const EnginePointer engine = make_engine("sm_90a");
  BackwardCall call;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  call.into.dq = nullptr;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  call.into.dk = call.into.dv = nullptr;
  CHECK(call(engine) == FLASHJIT_OK);
  flashjit_gradients of_queries = FLASHJIT_GRADIENTS_INIT;
  of_queries.dq = &call.dq;
  CHECK(flashjit_attention_backward(engine.get(), &call.dout, &call.q, &call.k, &call.v, &call.out, &call.lse, nullptr,
                                    &of_queries, nullptr) == FLASHJIT_NO_COMPILER);
  const HostTensor sinks(DType::f32, {2}), dsinks(DType::f32, {2});
  const DlpackView of_options(sinks.view(), kDLCPU), gradient(dsinks.view(), kDLCPU);
  call.options.sinks = &of_options, call.into.dsinks = &gradient;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  call.into.deterministic = 1;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  call.into.struct_size = 32;  // of a version that had none for options
  CHECK(call(engine) == FLASHJIT_OK);
}

TEST_CASE("tensors of a call for gradients are checked by their names") {
  const EnginePointer engine = make_engine("sm_90a");
  const BackwardCall good;
  CHECK(flashjit_attention_backward(engine.get(), &good.dout, &good.q, &good.k, &good.v, &good.out, &good.lse, nullptr,
                                    nullptr, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "into: must not be null");
  CHECK(flashjit_attention_backward(engine.get(), &good.dout, &good.q, &good.k, &good.v, &good.out, nullptr, nullptr,
                                    &good.into, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "lse: must point to a tensor, was null");
  CHECK(backward_refusal([](BackwardCall& c) { c.dout.dtype.code = kDLFloat; }) == "dout: dtype must be bf16, was f16");
  CHECK(backward_refusal([](BackwardCall& c) { c.dq.dtype = {kDLFloat, 32, 1}; }) == "dq: dtype must be bf16, was f32");
  CHECK(backward_refusal([](BackwardCall& c) {
          c.dk.dtype = {kDLInt, 32, 1};
        }) == "dk: dtype must be bf16 or f32, was i32");
  CHECK(backward_refusal([](BackwardCall& c) {
          c.dv.dtype = {kDLBfloat, 16, 1};
        }) == "dv: dtype must be f32 like that of dk, was bf16");
  CHECK(backward_refusal([](BackwardCall& c) { c.dlse.ndim = 2; }).find("dlse: rank must be 3, was 2") == 0);
  CHECK(backward_refusal([](BackwardCall& c) { c.dv.device.device_type = kDLCUDA; }).find("dv: must be in host") == 0);
  CHECK(backward_refusal([](BackwardCall& c) { c.into.struct_size = 8; }) ==
        "struct_size: must be sizeof(flashjit_gradients), was 8");
  CHECK(backward_refusal([](BackwardCall& c) { c.options.variant = "v3"; }) ==
        "variant: 'v3' must be like mma-q64-kv128-w8-r1-s1, which has no 'v3'");
  CHECK(backward_refusal([](BackwardCall& c) { c.options.lse = &c.lse; }).find("lse: must not be given among") == 0);
  CHECK(backward_refusal([](BackwardCall& c) { c.into.dbias = &c.dq; }) ==
        "dbias: must not be given without bias, of which it is the gradient");
  CHECK(backward_refusal([](BackwardCall& c) { c.into.deterministic = 2; }) == "deterministic: must be 0 or 1, was 2");
  CHECK(backward_refusal([](BackwardCall& c) { c.into.reserved = 1; }).find("reserved: ") == 0);
  BackwardCall of_reference;
  of_reference.into.reserved = 1;
  CHECK(flashjit_reference_backward(engine.get(), &good.dout, &good.q, &good.k, &good.v, nullptr, &of_reference.into,
                                    nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error().find("reserved: ") == 0);
}

TEST_CASE("what has no backward kernels is unsupported through C") {
  HostTensor entries(DType::i32, {1});
  const DlpackView of_keys(entries.view(), kDLCPU);
  CHECK(backward_refusal([&](BackwardCall& c) { c.options.batch_indices_kv = &of_keys; }, FLASHJIT_UNSUPPORTED) ==
        "batch_indices_kv: must not be given, it has no backward kernels yet");
}

TEST_CASE("the reference through C is that of C++, in doubles") {
  const EnginePointer engine = make_engine("");  // without a GPU and without a compiler
  const auto doubles = [](const Dims& shape, std::uint64_t seed) {
    return HostTensor::random_normal(DType::f32, shape, seed).converted_to(DType::f64);
  };
  const Dims of_q{1, 5, 2, 6}, of_k{1, 7, 1, 6}, of_v{1, 7, 1, 3}, of_out{1, 5, 2, 3}, of_lse{1, 2, 5};
  const HostTensor q = doubles(of_q, 1), k = doubles(of_k, 2), v = doubles(of_v, 3), dout = doubles(of_out, 4),
                   dlse = doubles(of_lse, 5);
  HostTensor out(DType::f64, of_out), lse(DType::f64, of_lse), dq(DType::f64, of_q), dk(DType::f64, of_k),
      dv(DType::f64, of_v);
  const DlpackView c_q(q.view(), kDLCPU), c_k(k.view(), kDLCPU), c_v(v.view(), kDLCPU), c_dout(dout.view(), kDLCPU),
      c_dlse(dlse.view(), kDLCPU), c_out(out.view(), kDLCPU), c_lse(lse.view(), kDLCPU), c_dq(dq.view(), kDLCPU),
      c_dk(dk.view(), kDLCPU), c_dv(dv.view(), kDLCPU);
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.causal = 1, options.softcap = 2;
  REQUIRE_MESSAGE(flashjit_reference(engine.get(), &c_q, &c_k, &c_v, &c_out, &c_lse, &options) == FLASHJIT_OK,
                  last_error());
  const HostTensor bias = doubles({1, 1, 1, 7}, 6).converted_to(DType::f32);
  HostTensor dbias(DType::f64, {1, 1, 1, 7});
  const DlpackView c_bias(bias.view(), kDLCPU), c_dbias(dbias.view(), kDLCPU);
  flashjit_gradients into = FLASHJIT_GRADIENTS_INIT;
  into.dq = &c_dq, into.dk = &c_dk, into.dv = &c_dv, into.dbias = &c_dbias;
  CHECK(flashjit_reference_backward(engine.get(), &c_dout, &c_q, &c_k, &c_v, &c_dlse, &into, &options) ==
        FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "dbias: must not be given without bias, of which it is the gradient");
  options.bias = &c_bias;
  REQUIRE_MESSAGE(
      flashjit_reference_backward(engine.get(), &c_dout, &c_q, &c_k, &c_v, &c_dlse, &into, &options) == FLASHJIT_OK,
      last_error());
  AttentionOptions opts;
  opts.causal = true, opts.softcap = 2;
  const auto expected = reference::attention(q.view(), k.view(), v.view(), opts);
  opts.bias = bias.view();
  const auto gradients = reference::attention_backward(dout.view(), q.view(), k.view(), v.view(), opts, dlse.view());
  const auto is = [](const HostTensor& got, const std::vector<double>& values) {
    return got.element_count() == values.size() &&
           std::memcmp(got.data(), values.data(), values.size() * sizeof(double)) == 0;
  };
  CHECK(is(out, expected.out));
  CHECK(is(lse, expected.lse));
  CHECK(is(dq, gradients.dq));
  CHECK(is(dk, gradients.dk));
  CHECK(is(dv, gradients.dv));
  CHECK(is(dbias, gradients.dbias));

  const auto refused = [&](const DLTensor* to, const DLTensor* to_lse) {
    CHECK(flashjit_reference(engine.get(), &c_q, &c_k, &c_v, to, to_lse, nullptr) == FLASHJIT_INVALID_ARGUMENT);
    return last_error();
  };
  CHECK(flashjit_reference(engine.get(), &c_q, &c_k, &c_v, &c_out, nullptr, nullptr) == FLASHJIT_OK);
  CHECK(refused(nullptr, nullptr) == "out: must not be null");
  CHECK(refused(&c_q, nullptr) == "out: shape must be [1, 5, 2, 3], was [1, 5, 2, 6]");
  CHECK(refused(&c_out, &c_out) == "lse: shape must be [1, 2, 5], was [1, 5, 2, 3]");
  DlpackView on_gpu(q.view(), kDLCUDA), flat(q.view(), kDLCPU);
  flat.ndim = 1;
  CHECK(flashjit_reference(engine.get(), &on_gpu, &c_k, &c_v, &c_out, nullptr, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "q: must be in host memory (kDLCPU) for the reference, was in the memory of a GPU (kDLCUDA)");
  CHECK(flashjit_reference(engine.get(), &flat, &c_k, &c_v, &c_out, nullptr, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error().find("q: rank must be 4, was 1") == 0);
  const Call in_16_bits;
  CHECK(refused(&in_16_bits.out, nullptr) == "out: dtype must be f64, was bf16");
  options.lse = &c_lse;
  CHECK(flashjit_reference_backward(engine.get(), &c_dout, &c_q, &c_k, &c_v, nullptr, &into, &options) ==
        FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error().find("lse: must not be given among") == 0);
}

TEST_CASE("engine options are checked, and a failure makes no engine") {
  const auto message = [](const char* flashjit_engine_options::*field, const char* value) {
    flashjit_engine_options options = FLASHJIT_ENGINE_OPTIONS_INIT;
    options.*field = value;
    auto* engine = reinterpret_cast<flashjit_engine*>(&options);
    CHECK(flashjit_engine_create(&options, &engine) == FLASHJIT_INVALID_ARGUMENT);
    CHECK(engine == nullptr);
    return last_error();
  };
  CHECK(message(&flashjit_engine_options::policy, "fast").find("policy: must be") == 0);
  CHECK(message(&flashjit_engine_options::tuning, "fast").find("tuning: must be") == 0);
  CHECK(message(&flashjit_engine_options::emulate, "sm_42").find("emulate: must be one of") == 0);
  CHECK(flashjit_engine_create(nullptr, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "engine: must not be null");
  flashjit_engine_destroy(nullptr);
}

TEST_CASE("what is prepared is checked") {
  const EnginePointer engine = make_engine("sm_90a");
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  CHECK(flashjit_prepare(engine.get(), &problem, -1) == FLASHJIT_NO_COMPILER);
  CHECK(flashjit_prepare(engine.get(), &problem, 0) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error().find("device: ") == 0);
  problem.head_dim = 12;
  CHECK(flashjit_prepare(engine.get(), &problem, -1) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "head_dim: must be a multiple of 8 from 8 to 576, was 12");
  problem.dtype = {kDLInt, 32, 1};
  CHECK(flashjit_prepare(engine.get(), &problem, -1) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "dtype: must be f16 or bf16, was i32");
  problem.dtype = {kDLInt, 16, 1};
  CHECK(flashjit_prepare(engine.get(), &problem, -1) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "dtype: must be f16 or bf16, was int16");
  constexpr struct {
    const char* name;
    std::int32_t flashjit_problem::*field;
  } kFeatures[] = {{"window", &flashjit_problem::window},
                   {"softcap", &flashjit_problem::softcap},
                   {"alibi", &flashjit_problem::alibi},
                   {"sinks", &flashjit_problem::sinks},
                   {"chunk", &flashjit_problem::chunk},
                   {"dropout", &flashjit_problem::dropout},
                   {"dropout_mask", &flashjit_problem::dropout_mask},
                   {"boolean_mask", &flashjit_problem::boolean_mask},
                   {"documents", &flashjit_problem::documents},
                   {"prefix", &flashjit_problem::prefix},
                   {"tree", &flashjit_problem::tree},
                   {"ragged", &flashjit_problem::ragged}};
  for (const auto& feature : kFeatures) {
    CAPTURE(feature.name);
    problem = FLASHJIT_PROBLEM_INIT;
    problem.*feature.field = 1;
    CHECK(flashjit_prepare(engine.get(), &problem, -1) == FLASHJIT_NO_COMPILER);
    problem.*feature.field = 2;
    CHECK(flashjit_prepare(engine.get(), &problem, -1) == FLASHJIT_INVALID_ARGUMENT);
    CHECK(last_error() == std::string(feature.name) + ": must be 0 or 1, was 2");
  }
  CHECK(flashjit_prepare(engine.get(), nullptr, -1) == FLASHJIT_INVALID_ARGUMENT);
}

TEST_CASE("what is prepared of gradients is checked") {
  const EnginePointer engine = make_engine("sm_90a");
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  flashjit_gradient_kinds kinds = FLASHJIT_GRADIENT_KINDS_INIT;
  const auto status = [&] { return flashjit_prepare_backward(engine.get(), &problem, &kinds, -1); };
  CHECK(status() == FLASHJIT_NO_COMPILER);
  CHECK(flashjit_prepare_backward(engine.get(), &problem, nullptr, -1) == FLASHJIT_NO_COMPILER);
  CHECK(flashjit_prepare_backward(engine.get(), nullptr, &kinds, -1) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(flashjit_prepare_backward(engine.get(), &problem, &kinds, 0) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error().find("device: ") == 0);
  constexpr struct {
    const char* name;
    std::int32_t flashjit_gradient_kinds::*kind;
    std::int32_t flashjit_problem::*option;  // that it wants
  } kKinds[] = {{"f32", &flashjit_gradient_kinds::f32, nullptr},
                {"deterministic", &flashjit_gradient_kinds::deterministic, nullptr},
                {"dslopes", &flashjit_gradient_kinds::dslopes, &flashjit_problem::alibi},
                {"dsinks", &flashjit_gradient_kinds::dsinks, &flashjit_problem::sinks}};
  for (const auto& each : kKinds) {
    CAPTURE(each.name);
    kinds = FLASHJIT_GRADIENT_KINDS_INIT, problem = FLASHJIT_PROBLEM_INIT;
    kinds.*each.kind = 1;
    if (each.option) {
      CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
      CHECK(last_error().find(std::string(each.name) + ": must be false without ") == 0);
      problem.*each.option = 1;
    }
    CHECK(status() == FLASHJIT_NO_COMPILER);
    kinds.*each.kind = 2;
    CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
    CHECK(last_error() == std::string(each.name) + ": must be 0 or 1, was 2");
  }
  kinds = FLASHJIT_GRADIENT_KINDS_INIT, problem = FLASHJIT_PROBLEM_INIT;
  kinds.dbias = 1;
  CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
  problem.bias = {kDLFloat, 32, 1};
  CHECK(status() == FLASHJIT_NO_COMPILER);
  problem.ragged = 1;
  CHECK(status() == FLASHJIT_NO_COMPILER);
  problem.paged = 1;
  CHECK(status() == FLASHJIT_UNSUPPORTED);
  kinds = FLASHJIT_GRADIENT_KINDS_INIT, problem = FLASHJIT_PROBLEM_INIT;
  kinds.reserved = 1;
  CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
}

TEST_CASE("prepared pages are those of ragged batches") {
  const EnginePointer engine = make_engine("sm_90a");
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  const auto status = [&] { return flashjit_prepare(engine.get(), &problem, -1); };
  problem.paged = problem.ragged = 1;
  CHECK(status() == FLASHJIT_NO_COMPILER);
  problem.ragged = 0;
  CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error().find("paged: must not be true without ragged") == 0);
  problem.paged = 2;
  CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "paged: must be 0 or 1, was 2");
  problem.paged = 0;
  problem.reserved = 1;
  CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "reserved: must be 0, was 1");
}

TEST_CASE("prepared scales of tokens are those of e4m3") {
  const EnginePointer engine = make_engine("sm_90a");
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  const auto status = [&] { return flashjit_prepare(engine.get(), &problem, -1); };
  problem.e4m3 = problem.token_scales = 1;
  CHECK(status() == FLASHJIT_NO_COMPILER);
  problem.e4m3 = 0;
  CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "token_scales: must not be true without e4m3, which has scales");
  problem.e4m3 = 2;
  CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "e4m3: must be 0 or 1, was 2");
  problem.e4m3 = problem.e4m3_queries = 1, problem.token_scales = 0;
  CHECK(status() == FLASHJIT_NO_COMPILER);
  problem.fast_sums = 1;
  CHECK(status() == FLASHJIT_NO_COMPILER);
  problem.e4m3_queries = 0;
  CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "fast_sums: must not be true without e4m3_queries, whose sums they are");
  problem.e4m3_queries = problem.block_scales = 1;
  CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "fast_sums: must not be true beside block_scales");
  problem.fast_sums = 0;
  CHECK(status() == FLASHJIT_NO_COMPILER);
}

TEST_CASE("a prepared bias has a dtype, and a prepared block mask is made of something") {
  const EnginePointer engine = make_engine("sm_90a");
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  const auto status = [&] { return flashjit_prepare(engine.get(), &problem, -1); };
  const auto refused = [&] {
    CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
    return last_error();
  };
  for (const DLDataType& dtype : {DLDataType{kDLFloat, 16, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 32, 1}}) {
    problem.bias = dtype;
    CHECK(status() == FLASHJIT_NO_COMPILER);
  }
  problem.bias = {kDLInt, 32, 1};
  CHECK(refused() == "bias: must be f16, bf16 or f32, or all 0 for none, was i32");
  problem.bias = {kDLFloat, 64, 1};
  CHECK(refused() == "bias: must be f16, bf16 or f32, or all 0 for none, was f64");
  problem.bias = {kDLFloat, 0, 0};
  CHECK(refused().find("bias: must be f16, bf16 or f32") == 0);
  problem.bias = {};
  problem.block_mask = 1;
  CHECK(refused().find("block_mask: must not be given without boolean_mask, documents, tree or mask") == 0);
  problem.documents = 1;
  CHECK(status() == FLASHJIT_NO_COMPILER);
  problem.block_mask = 2;
  CHECK(refused() == "block_mask: must be 0 or 1, was 2");
  problem.block_mask = problem.ragged = 1;
  CHECK(refused() == "block_mask: must not be given for a batch whose sequences are not equally long");
}

TEST_CASE("prepared functions are checked like those of calls, but for the memory of captures") {
  const EnginePointer engine = make_engine("sm_90a");
  const HostTensor host(DType::f32, {2});
  DlpackView tensor(host.view(), kDLCPU);
  tensor.data = nullptr;
  tensor.device = {};
  flashjit_capture capture = {"slope", &tensor, 0, 0, 0};
  constexpr std::string_view kText = "score - slope(head)";
  const flashjit_function function = {sizeof function, kText.data(), kText.size(), &capture, 1};
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  const auto status = [&] { return flashjit_prepare(engine.get(), &problem, -1); };
  const auto refused = [&] {
    CHECK(status() == FLASHJIT_INVALID_ARGUMENT);
    return last_error();
  };
  problem.score = &function;
  CHECK(status() == FLASHJIT_NO_COMPILER);
  problem.mask = &function;
  CHECK(status() == FLASHJIT_NO_COMPILER);
  problem.score = nullptr;
  capture.name = "slop";
  CHECK(refused() == "mask: capture slop: must be used in the text, was not");
  capture.name = "slope";
  tensor.dtype.bits = 64;
  CHECK(refused() == "mask: capture slope: dtype must be f16, bf16, f32, i32, i64 or boolean, was f64");
  tensor.dtype.bits = 32;
  tensor.shape = nullptr;
  CHECK(refused() == "mask: capture slope: shape must point to 1 sizes, was null");
  const flashjit_function nothing = FLASHJIT_FUNCTION_INIT;
  problem.mask = &nothing;
  CHECK(refused() == "mask: must have a text, was empty");
}

TEST_CASE("a struct of a later version is taken as long as it sets nothing new") {
  const EnginePointer engine = make_engine("sm_90a");
  struct {
    flashjit_attention_options known = FLASHJIT_ATTENTION_OPTIONS_INIT;
    std::uint64_t later = 0;
  } options;
  options.known.struct_size = sizeof options;
  const Call call;
  const auto attend = [&] {
    return flashjit_attention(engine.get(), &call.q, &call.k, &call.v, &call.out, &options.known);
  };
  CHECK(attend() == FLASHJIT_NO_COMPILER);
  options.later = 1;
  CHECK(attend() == FLASHJIT_UNSUPPORTED);
  CHECK(last_error().find("flashjit_attention_options: sets a field that this library, version ") == 0);
}

TEST_CASE("a struct without its size is refused") {
  const EnginePointer engine = make_engine("sm_90a");
  flashjit_counters counters = FLASHJIT_COUNTERS_INIT;
  flashjit_engine* none = nullptr;
  for (const std::size_t size : {std::size_t{0}, std::size_t{23}, ~std::size_t{0}}) {
    CAPTURE(size);
    CHECK(refusal([=](Call& c) { c.options.struct_size = size; }) ==
          "struct_size: must be sizeof(flashjit_attention_options), was " + std::to_string(size));
    counters.struct_size = size;
    CHECK(flashjit_get_counters(engine.get(), &counters) == FLASHJIT_INVALID_ARGUMENT);
    flashjit_engine_options options = FLASHJIT_ENGINE_OPTIONS_INIT;
    options.struct_size = size;
    CHECK(flashjit_engine_create(&options, &none) == FLASHJIT_INVALID_ARGUMENT);
    flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
    problem.struct_size = size;
    CHECK(flashjit_prepare(engine.get(), &problem, -1) == FLASHJIT_INVALID_ARGUMENT);
  }
}

// What lies behind a struct of the caller's size is not looked at.
TEST_CASE("options of every version are taken for ever") {
  constexpr std::size_t kFirst = 48, kWithWindow = 56, kWithScores = 88, kWithFunctions = 168, kWithDropout = 208,
                        kWithRagged = 272, kWithPages = 280, kWithPlan = 288, kWithFixedSplits = 296, kWithScales = 312,
                        kWithProducts = 328, kWithRotaryKeys = 336, kWithOutScale = 344;
  static_assert(sizeof(flashjit_engine_options) >= 56 && sizeof(flashjit_counters) >= 64);
  static_assert(sizeof(flashjit_function) >= 40 && sizeof(flashjit_capture) == 32);
  static_assert(sizeof(flashjit_attention_options) >= kWithOutScale && sizeof(flashjit_plan_info) >= 32);
  static_assert(sizeof(flashjit_append_options) >= 144);
  static_assert(offsetof(flashjit_append_options, reserved) + sizeof(std::int32_t) == 112);
  static_assert(offsetof(flashjit_attention_options, cu_seqlens_q) == kWithDropout);
  static_assert(offsetof(flashjit_attention_options, max_seqlen_kv) + sizeof(std::int64_t) == kWithRagged);
  static_assert(offsetof(flashjit_attention_options, page_table) + sizeof(void*) == kWithPages);
  static_assert(offsetof(flashjit_attention_options, plan) + sizeof(void*) == kWithPlan);
  static_assert(offsetof(flashjit_attention_options, fixed_split_size) + sizeof(std::int64_t) == kWithFixedSplits);
  static_assert(offsetof(flashjit_attention_options, v_scale) + sizeof(void*) == kWithScales);
  static_assert(offsetof(flashjit_attention_options, out_dtype) + sizeof(DLDataType) == kWithProducts);
  static_assert(offsetof(flashjit_attention_options, k_rotary) + sizeof(void*) == kWithRotaryKeys);
  static_assert(offsetof(flashjit_attention_options, out_scale) + sizeof(void*) == kWithOutScale);
  const EnginePointer engine = make_engine("sm_90a");
  Call call;
  const auto status = [&](std::size_t size) {
    call.options.struct_size = size;
    return call(engine);
  };
  call.options.out_scale = &call.q;
  CHECK(status(kWithOutScale) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "out_scale: must not be given unless q is of e4m3 or e5m2, which was of bf16");
  CHECK(status(kWithRotaryKeys) == FLASHJIT_NO_COMPILER);
  call.options.k_rotary = &call.q;
  CHECK(status(kWithRotaryKeys) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error().rfind("k_rotary: ", 0) == 0);
  CHECK(status(kWithProducts) == FLASHJIT_NO_COMPILER);
  call.options.fast_sums = 1, call.options.out_dtype = {kDLInt, 4, 1};
  CHECK(status(kWithProducts) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "out_dtype: must be f16, bf16 or e4m3, or all 0 for bf16, was int4");
  call.options.out_dtype = {0, 0, 0};
  CHECK(status(kWithProducts) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "accumulate: must not be given unless q is of e4m3 or e5m2, which was of bf16");
  CHECK(status(kWithScales) == FLASHJIT_NO_COMPILER);
  call.options.fixed_split_size = -1;
  CHECK(status(kWithFixedSplits) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "fixed_split_size: must be at least 1, or 0 for none, was -1");
  CHECK(status(kWithPlan) == FLASHJIT_NO_COMPILER);
  call.options.page_table = &call.q;
  CHECK(status(kWithPages) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "page_table: dtype must be i32, was bf16");
  CHECK(status(kWithRagged) == FLASHJIT_NO_COMPILER);
  call.options.max_seqlen_q = -1;
  CHECK(status(kWithRagged) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "max_seqlen_q: must be at least 0, was -1");
  CHECK(status(kWithDropout) == FLASHJIT_NO_COMPILER);
  call.options.softcap = -1;
  call.options.chunk = -1;
  call.options.reserved = 1;
  const flashjit_function nothing = FLASHJIT_FUNCTION_INIT;
  call.options.mask = &nothing;
  CHECK(status(kWithFunctions) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithScores) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithWindow) == FLASHJIT_NO_COMPILER);
  call.options.softcap = 0;
  call.options.chunk = call.options.reserved = 0;
  CHECK(status(kWithFunctions) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(last_error() == "mask: must have a text, was empty");
  CHECK(status(kWithScores) == FLASHJIT_NO_COMPILER);
  constexpr flashjit_window kRefused{-2, -2};
  call.options.window = &kRefused;
  CHECK(status(kWithWindow) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kFirst) == FLASHJIT_NO_COMPILER);
}

TEST_CASE("problems of every version are taken for ever") {
  constexpr std::size_t kFirst = 24, kWithWindow = 32, kWithScores = 48, kWithDropout = 56, kWithFunctions = 96,
                        kWithPages = 104, kWithE4m3 = 112, kWithProducts = 120, kWithBlockScales = 128,
                        kWithLatent = 136, kWithOutput = 144;
  static_assert(sizeof(flashjit_problem) >= kWithOutput);
  static_assert(offsetof(flashjit_problem, e5m2) + sizeof(std::int32_t) == kWithOutput);
  static_assert(offsetof(flashjit_problem, values_transposed) + sizeof(std::int32_t) == kWithLatent);
  static_assert(offsetof(flashjit_problem, k_rotary) + sizeof(std::int32_t) == kWithBlockScales);
  static_assert(offsetof(flashjit_problem, fast_sums) + sizeof(std::int32_t) == kWithProducts);
  static_assert(offsetof(flashjit_problem, token_scales) + sizeof(std::int32_t) == kWithE4m3);
  static_assert(offsetof(flashjit_problem, bias) == kWithDropout);
  static_assert(offsetof(flashjit_problem, mask) + sizeof(void*) == kWithFunctions);
  static_assert(offsetof(flashjit_problem, reserved) + sizeof(std::int32_t) == kWithPages);
  const EnginePointer engine = make_engine("sm_90a");
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  const auto status = [&](std::size_t size) {
    problem.struct_size = size;
    return flashjit_prepare(engine.get(), &problem, -1);
  };
  problem.out_e4m3 = problem.e5m2 = 7;
  CHECK(status(kWithOutput) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithLatent) == FLASHJIT_NO_COMPILER);
  problem.latent = problem.values_transposed = 7;
  CHECK(status(kWithLatent) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithBlockScales) == FLASHJIT_NO_COMPILER);
  problem.block_scales = problem.k_rotary = 7;
  CHECK(status(kWithBlockScales) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithProducts) == FLASHJIT_NO_COMPILER);
  problem.e4m3_queries = problem.fast_sums = 7;
  CHECK(status(kWithProducts) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithE4m3) == FLASHJIT_NO_COMPILER);
  problem.e4m3 = problem.token_scales = 7;
  CHECK(status(kWithE4m3) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithPages) == FLASHJIT_NO_COMPILER);
  problem.paged = problem.reserved = 7;
  CHECK(status(kWithPages) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithFunctions) == FLASHJIT_NO_COMPILER);
  problem.boolean_mask = problem.documents = problem.prefix = problem.tree = problem.block_mask = 7;
  CHECK(status(kWithFunctions) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithDropout) == FLASHJIT_NO_COMPILER);
  problem.dropout = problem.dropout_mask = 7;
  CHECK(status(kWithDropout) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithScores) == FLASHJIT_NO_COMPILER);
  problem.softcap = problem.alibi = problem.sinks = problem.chunk = 7;
  CHECK(status(kWithScores) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kWithWindow) == FLASHJIT_NO_COMPILER);
  problem.window = problem.ragged = 7;
  CHECK(status(kWithWindow) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(status(kFirst) == FLASHJIT_NO_COMPILER);
}

TEST_CASE("counters are written as far as the caller has them") {
  const EnginePointer engine = make_engine("sm_90a");
  const Call call;
  CHECK(call(engine) == FLASHJIT_NO_COMPILER);
  struct {
    flashjit_counters known = FLASHJIT_COUNTERS_INIT;
    std::uint64_t later = 42;
  } counters;
  counters.known.struct_size = sizeof counters;
  CHECK(flashjit_get_counters(engine.get(), &counters.known) == FLASHJIT_OK);
  CHECK(counters.known.struct_size == sizeof counters);
  CHECK(counters.known.misses == 1);
  CHECK(counters.known.compiles == 0);
  CHECK(counters.later == 42);
  CHECK(flashjit_get_counters(engine.get(), nullptr) == FLASHJIT_INVALID_ARGUMENT);
}

TEST_CASE("the last error is of its thread, and a good call clears it") {
  const EnginePointer engine = make_engine("sm_90a");
  flashjit_counters counters = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine.get(), nullptr) == FLASHJIT_INVALID_ARGUMENT);
  std::string elsewhere = "not asked";
  std::thread([&] { elsewhere = last_error(); }).join();
  CHECK(elsewhere.empty());
  CHECK(last_error() == "counters: must not be null");
  CHECK(flashjit_get_counters(engine.get(), &counters) == FLASHJIT_OK);
  CHECK(last_error().empty());
}

TEST_CASE("an engine that emulates has no ceiling to measure") {
  const EnginePointer engine = make_engine("sm_90a");
  double tflops = 0;
  CHECK(flashjit_measure_mma_ceiling(engine.get(), &tflops) == FLASHJIT_UNSUPPORTED);
  CHECK(flashjit_measure_mma_ceiling(engine.get(), nullptr) == FLASHJIT_INVALID_ARGUMENT);
}
