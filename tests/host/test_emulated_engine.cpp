// SPDX-License-Identifier: Apache-2.0
// Engines that emulate, without a compiler and without a driver: what they accept, and how a kernel is launched there.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/emulator.h"
#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "generator/arguments.h"
#include "runtime/backends/emulated_backend.h"
#include "runtime/kernels/nvrtc.h"
#include "tests/support/error_code.h"

namespace {

using namespace flashjit;
using tests::code_of;

Stream some_stream() { return reinterpret_cast<Stream>(std::uintptr_t{0x1000}); }

EngineOptions emulating(const std::string& architecture = "sm_90a") {
  EngineOptions options;
  options.nvrtc_path = "/nowhere/libnvrtc.so.13";
  options.emulate = architecture;
  return options;
}

struct Tensors {
  explicit Tensors(std::int64_t batch = 1) : batch_(batch) {}

  std::int64_t batch_;
  HostTensor q{DType::bf16, {batch_, 5, 2, 64}}, k{DType::bf16, {batch_, 7, 1, 64}}, v{DType::bf16, {batch_, 7, 1, 64}},
      out{DType::bf16, {batch_, 5, 2, 64}}, lse{DType::f32, {batch_, 2, 5}};
};

// Serves the same PTX for every key, and remembers nothing.
class PtxLayer : public cache::Layer {
 public:
  explicit PtxLayer(std::string ptx) : ptx_(std::move(ptx)) {}

  cache::Lookup find(const cache::Key&) override {
    cache::Lookup lookup;
    lookup.entry = cache::Entry{{}, ptx_};
    return lookup;
  }
  std::vector<cache::StoredEntry> list() override { return {}; }
  std::string location() const override { return "fake"; }
  std::string problem() override { return {}; }

 private:
  const std::string ptx_;
};

// An emulated sm_80 whose kernel of the mma family is this one: a store to the first bytes of one of the tensors.
class StoringDevice {
 public:
  explicit StoringDevice(std::size_t pointer_offset) : store_(options_with(ptx(pointer_offset)), nvrtc_, log_) {}

  runtime::EmulatedBackend& operator*() { return device_; }

 private:
  static std::string ptx(std::size_t pointer_offset) {
    return fmt::format(R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry flashjit_forward(.param .align 8 .b8 arguments[{}])
{{
  .reg .b32 %r<2>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [arguments+{}];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, 1065369472;
  st.global.u32 [%rd2], %r1;
  ret;
}}
)",
                       sizeof(generator::MmaArguments), pointer_offset);
  }

  static runtime::KernelStoreOptions options_with(std::string ptx) {
    runtime::KernelStoreOptions options;
    options.layers = {{CacheLayer::system, std::make_shared<PtxLayer>(std::move(ptx))}};
    return options;
  }

  runtime::Nvrtc nvrtc_{{"/nowhere/libnvrtc.so.13", {}}};
  const runtime::Logger log_{nullptr};
  runtime::KernelStore store_;
  runtime::EmulatedBackend device_{find_architecture("sm_80"), generator::embedded_templates(), store_, nullptr, {}};
};

// A validated call with the views that it points to.
class Call {
 public:
  Call(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const AttentionOptions& opts = {})
      : q_(q), k_(k), v_(v), out_(out), opts_(opts), call_(runtime::validate_inputs(q_, k_, v_, opts_)) {
    runtime::validate_out(call_, out_);
  }
  explicit Call(Tensors& t, const AttentionOptions& opts = {})
      : Call(t.q.view(), t.k.view(), t.v.view(), t.out.view(), opts) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  operator const runtime::ForwardCall&() const { return call_; }
  const runtime::Operands& operands() const { return call_.operands; }

 private:
  const Tensor q_, k_, v_, out_;
  const AttentionOptions opts_;
  runtime::ForwardCall call_;
};

// Of a kernel whose arguments are MmaArguments alone.
AttentionOptions whole() {
  AttentionOptions opts;
  opts.variant = parse_variant("mma-q64-kv64");
  return opts;
}

}  // namespace

TEST_CASE("an engine names an architecture to emulate that exists") {
  CHECK(code_of([] { Engine engine(emulating("sm_42")); }) == ErrorCode::invalid_argument);
  CHECK(code_of([] { Engine engine(emulating("emulate")); }) == ErrorCode::invalid_argument);
  const Engine engine(emulating("sm_86"));
}

TEST_CASE("an engine that emulates has one device and asks no driver") {
  const SystemInfo system = Engine(emulating("sm_86")).system();
  REQUIRE(system.devices.size() == 1);
  CHECK(system.devices[0].ordinal == kHostMemory);
  CHECK(system.devices[0].name == "emulated sm_86");
  CHECK(system.devices[0].architecture == "sm_86");
  CHECK(system.devices[0].major == 8);
  CHECK(system.devices[0].minor == 6);
  CHECK(system.driver_version.empty());
  CHECK(system.driver_problem == "not looked for, as the engine emulates");
}

TEST_CASE("calls are validated as on a GPU, before a kernel is made") {
  Engine engine(emulating());
  Tensors t;
  std::string message;
  const Tensor wrong(t.v.data(), DType::bf16, {1, 7, 1, 32});
  CHECK(code_of([&] { engine.attention(t.q.view(), wrong, t.v.view(), t.out.view()); }, &message) ==
        ErrorCode::invalid_argument);
  CHECK(message == "k: head_dim must be 64 like that of q, was 32");
  CHECK(code_of([&] { engine.emulate(t.q.view(), t.k.view(), t.v.view(), t.q.view()); }, &message) ==
        ErrorCode::invalid_argument);
  CHECK(message.starts_with("out: must not overlap q"));
}

TEST_CASE("only the null stream and the emulated device are taken") {
  Engine engine(emulating());
  Tensors t;
  AttentionOptions opts;
  opts.stream = some_stream();
  std::string message;
  CHECK(code_of([&] { engine.attention(t.q.view(), t.k.view(), t.v.view(), t.out.view(), opts); }, &message) ==
        ErrorCode::invalid_argument);
  CHECK(message == "stream: must be null for an engine that emulates, was 0x1000");
  CHECK(code_of([&] { engine.attention(t.q.view(), t.k.view(), t.v.view(), opts); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { engine.prepare({}, 0); }, &message) == ErrorCode::invalid_argument);
  CHECK(message == "device: must be -1 for an engine that emulates, was 0");
  CHECK(code_of([&] { engine.prepare({}, kHostMemory); }) == ErrorCode::no_compiler);
}

TEST_CASE("a call without output elements needs no kernel") {
  Engine engine(emulating());
  const Tensors t(0);
  const DeviceTensor out = engine.attention(t.q.view(), t.k.view(), t.v.view());
  CHECK(out.device() == kHostMemory);
  CHECK(out.shape() == Dims{0, 5, 2, 64});
  CHECK(engine.counters().misses == 0);
  CHECK(engine.prepare(t.q.view(), t.k.view(), t.v.view(), t.out.view()).name.empty());
  CHECK(engine.counters().misses == 0);
}

TEST_CASE("a kernel is compiled for the call, and the lack of a compiler is said") {
  Engine engine(emulating());
  Tensors t;
  CHECK(code_of([&] { engine.attention(t.q.view(), t.k.view(), t.v.view()); }) == ErrorCode::no_compiler);
  AttentionOptions opts;
  opts.variant = parse_variant("hopper-q128-kv64-s2");
  CHECK(code_of([&] {
          Engine(emulating("sm_80")).attention(t.q.view(), t.k.view(), t.v.view(), t.out.view(), opts);
        }) == ErrorCode::invalid_argument);
}

TEST_CASE("what needs a GPU says so, and what needs the emulator too") {
  Engine engine(emulating());
  Tensors t;
  std::string message;
  CHECK(code_of([&] { engine.measure(t.q.view(), t.k.view(), t.v.view(), t.out.view()); }, &message) ==
        ErrorCode::unsupported);
  CHECK(message == "measure: needs a GPU, this engine emulates sm_90a");
  CHECK(code_of([&] { engine.measure_host_cost(t.q.view(), t.k.view(), t.v.view(), t.out.view()); }) ==
        ErrorCode::unsupported);
  CHECK(code_of([&] { engine.measure_mma_ceiling(); }) == ErrorCode::unsupported);
  EngineOptions on_gpu = emulating();
  on_gpu.emulate.clear();
  CHECK(code_of([&] { Engine(on_gpu).emulate(t.q.view(), t.k.view(), t.v.view(), t.out.view()); }) ==
        ErrorCode::unsupported);
  CHECK(code_of([&] {
          Engine(on_gpu).emulate_backward(t.out.view(), t.q.view(), t.k.view(), t.v.view(), t.out.view(), t.out.view(),
                                          {});
        }) == ErrorCode::unsupported);
}

TEST_CASE("host memory is a place for tensors, without a driver") {
  const HostTensor host = HostTensor::random_normal(DType::f16, {2, 3, 5}, 7);
  DeviceTensor tensor = host.to_device(nullptr, kHostMemory);
  CHECK(tensor.device() == kHostMemory);
  CHECK(tensor.data() != host.data());
  CHECK(HostTensor::from_device(tensor).to_doubles() == host.to_doubles());
  const void* const data = tensor.data();
  const DeviceTensor moved = std::move(tensor);
  CHECK(moved.data() == data);
  CHECK(moved.device() == kHostMemory);
  CHECK(DeviceTensor::allocate(DType::f32, {0, 3}, nullptr, kHostMemory).data() == nullptr);
  CHECK(code_of([] { DeviceTensor::allocate(DType::f32, {1}, some_stream(), kHostMemory); }) ==
        ErrorCode::invalid_argument);
}

TEST_CASE("a kernel may touch exactly the bytes that the tensors span") {
  Tensors t(2);
  const Tensor q = t.q.view();
  // Every second query of the second head.
  const Tensor thinned(static_cast<std::uint16_t*>(t.q.data()) + 64, DType::bf16, {2, 3, 1, 64},
                       {q.strides[0], 2 * q.strides[1], q.strides[2], 1});
  AttentionOptions opts;
  HostTensor out(DType::bf16, {2, 3, 1, 64}), lse(DType::f32, {2, 1, 3});
  opts.lse = lse.view();
  const emulator::Memory memory =
      runtime::memory_of(Call(thinned, t.k.view(), t.v.view(), out.view(), opts).operands());
  REQUIRE(memory.buffers().size() == 5);
  for (const auto& buffer : memory.buffers()) {
    CAPTURE(buffer.name);
    const std::size_t bytes = buffer.end - buffer.begin;
    CHECK(buffer.writable == (buffer.name == "out" || buffer.name == "lse"));
    if (buffer.name == "q") {
      CHECK(buffer.begin == reinterpret_cast<std::uintptr_t>(thinned.data));
      CHECK(bytes == static_cast<std::size_t>(2 * (q.strides[0] + 4 * q.strides[1] + 64)));
    } else if (buffer.name == "lse") {
      CHECK(bytes == 2 * 3 * sizeof(float));
    }
  }
}

TEST_CASE("tensors that share memory are one buffer, which may be written if any of them is") {
  std::vector<std::uint16_t> fused(2 * 4 * 3 * 64), other(2 * 4 * 64);
  const auto slice = [&](int part) {
    return Tensor(fused.data() + 64 * part, DType::bf16, {2, 4, 1, 64}, {4 * 3 * 64, 3 * 64, 64, 1});
  };
  const Tensor apart(other.data(), DType::bf16, {2, 4, 1, 64});
  const auto names = [](const runtime::ForwardCall& call) {
    std::vector<std::pair<std::string, bool>> found;
    const emulator::Memory memory = runtime::memory_of(call.operands);
    for (const auto& buffer : memory.buffers()) found.emplace_back(buffer.name, buffer.writable);
    std::sort(found.begin(), found.end());
    return found;
  };
  using Names = std::vector<std::pair<std::string, bool>>;
  CHECK(names(Call(slice(0), slice(1), slice(2), apart)) == Names{{"out", true}, {"q+k+v", false}});
  CHECK(names(Call(slice(0), slice(0), slice(1), slice(2))) == Names{{"q+k+v+out", true}});
  const Tensor no_keys(nullptr, DType::bf16, {2, 0, 1, 64});
  CHECK(names(Call(slice(0), no_keys, no_keys, apart)) == Names{{"out", true}, {"q", false}});
}

TEST_CASE("the kernel gets the call's arguments and writes the caller's memory") {
  StoringDevice device(offsetof(generator::MmaArguments, out));
  Tensors t;
  const Call call(t, whole());
  (*device).run(call, {});
  CHECK(load_element(t.out.data(), DType::bf16, 1) == 1.0);
  const emulator::Report report = (*device).emulate(call, {}, {});
  CHECK_MESSAGE(report.clean(), to_string(report));
  CHECK(report.counters.warp_instructions > 0);
}

TEST_CASE("a finding is an error that has them all, or stands in the report") {
  StoringDevice device(offsetof(generator::MmaArguments, k));
  Tensors t;
  const Call call(t, whole());
  const emulator::Report report = (*device).emulate(call, {}, {});
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].kind == emulator::FindingKind::global_out_of_bounds);
  CHECK(t.k.to_doubles() == std::vector<double>(t.k.element_count(), 0.0));
  try {
    (*device).run(call, {});
    FAIL("an Error was expected");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kernel_fault);
    CHECK(std::string(error.what()).starts_with("global_out_of_bounds: "));
    CHECK(error.log().find(error.what()) != std::string::npos);
  }
}

TEST_CASE("the target of a kernel's PTX is the virtual architecture of the same name") {
  CHECK(runtime::ptx_target("sm_80") == "compute_80");
  CHECK(runtime::ptx_target("sm_90a") == "compute_90a");
  CHECK(runtime::Nvrtc::options_for_key("compute_90a") != runtime::Nvrtc::options_for_key("sm_90a"));
}
