// SPDX-License-Identifier: Apache-2.0
// A machine without a compiler: what still works, and what is said about the rest.
#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/kernels/nvrtc.h"
#include "tests/support/error_code.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using runtime::KernelRequest;
using runtime::KernelStore;
using runtime::Logger;
using runtime::Nvrtc;
using tests::code_of;

constexpr const char* kMissing = "/nowhere/libnvrtc.so.13";

EngineOptions without_nvrtc() {
  EngineOptions options;
  options.nvrtc_path = kMissing;
  return options;
}

// Has nothing, and remembers the compiler it was last asked for.
class EmptyLayer : public cache::Layer {
 public:
  cache::Lookup find(const cache::Key& key) override {
    last_compiler = key.compiler;
    return {};
  }
  std::vector<cache::StoredEntry> list() override { return {}; }
  std::string location() const override { return "fake"; }
  std::string problem() override { return {}; }
  std::string last_compiler = "never asked";
};

// Serves every key, as a cache does that was filled elsewhere.
class FullLayer : public EmptyLayer {
 public:
  cache::Lookup find(const cache::Key& key) override {
    cache::Lookup lookup = EmptyLayer::find(key);
    lookup.entry = cache::Entry{{{"registers", "168"}, {"compile_ms", "412.5"}}, "a cubin"};
    lookup.location = "/full/" + key.name;
    return lookup;
  }
};

runtime::KernelStoreOptions reading(Policy policy, std::shared_ptr<cache::Layer> layer) {
  runtime::KernelStoreOptions options;
  options.policy = policy;
  options.layers = {{CacheLayer::system, std::move(layer)}};
  return options;
}

const KernelRequest kRequest{tests::source_of("some-kernel", "source text"), "sm_90a", {{"variant", "v"}}};

}  // namespace

TEST_CASE("without NVRTC kernels are still rendered and variants still listed") {
  const Engine engine(without_nvrtc());
  const Problem problem;
  const Variant variant = engine.default_variant(problem, "sm_90a");
  CHECK_FALSE(engine.render(problem, variant, "sm_90a").empty());
  CHECK_FALSE(engine.variants(problem, "sm_80").empty());
}

TEST_CASE("without NVRTC a kernel that is in no cache gets an error which lists the places searched") {
  const tests::TemporaryDirectory directory;
  EngineOptions options = without_nvrtc();
  options.cache_directory = directory.path().string();
  Engine engine(options);
  const Problem problem;
  try {
    engine.compile(problem, engine.default_variant(problem, "sm_90a"), "sm_90a");
    FAIL("an Error was expected");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::no_compiler);
    CHECK(error.log() == kMissing);
    CHECK(std::string(error.what()).find(kMissing) != std::string::npos);
  }
  CHECK(engine.counters().misses == 1);
  CHECK(engine.counters().compiles == 0);
}

TEST_CASE("the description of the system says why there is no NVRTC") {
  const SystemInfo system = Engine(without_nvrtc()).system();
  CHECK(system.version == "0.1.0");
  CHECK(system.nvrtc_version.empty());
  CHECK(system.nvrtc_path.empty());
  CHECK(system.nvrtc_problem.find(kMissing) != std::string::npos);
}

TEST_CASE("a file that is no library is no NVRTC") {
  const tests::TemporaryDirectory directory;
  const auto file = directory.path() / "libnvrtc.so.13";
  std::ofstream(file) << "not an ELF file";
  EngineOptions options;
  options.nvrtc_path = file.string();
  CHECK(Engine(options).system().nvrtc_problem.find(file.string()) != std::string::npos);
}

TEST_CASE("without NVRTC a kernel comes from the cache, whatever compiler made it") {
  Nvrtc nvrtc({kMissing, {}});
  const Logger log(nullptr);
  const auto layer = std::make_shared<FullLayer>();
  KernelStore store(reading(Policy::compile, layer), nvrtc, log);
  const KernelStore::Result first = store.get(kRequest);
  CHECK(layer->last_compiler.empty());
  CHECK(first.image->bytes == "a cubin");
  CHECK(first.image->origin == KernelInfo::Origin::disk);
  CHECK(first.image->registers == 168);
  CHECK(first.image->compile_ms == doctest::Approx(412.5));
  CHECK_FALSE(first.from_memory);
  CHECK(store.get(kRequest).from_memory);
  CHECK(store.counters().system_hits == 1);
  CHECK(store.counters().memory_hits == 1);
  CHECK(store.counters().misses == 0);
}

TEST_CASE("a failure is not remembered") {
  Nvrtc nvrtc({kMissing, {}});
  const Logger log(nullptr);
  const auto layer = std::make_shared<EmptyLayer>();
  KernelStore store(reading(Policy::compile, layer), nvrtc, log);
  CHECK(code_of([&] { store.get(kRequest); }) == ErrorCode::no_compiler);
  CHECK(code_of([&] { store.get(kRequest); }) == ErrorCode::no_compiler);
  CHECK(store.counters().misses == 2);
  CHECK(store.counters().memory_hits == 0);
}

TEST_CASE("under policy cache_only a miss is an error, and under off the cache is not asked") {
  Nvrtc nvrtc({kMissing, {}});
  const Logger log(nullptr);
  const auto empty = std::make_shared<EmptyLayer>();
  KernelStore serving(reading(Policy::cache_only, empty), nvrtc, log);
  CHECK(code_of([&] { serving.get(kRequest); }) == ErrorCode::cache_miss);
  CHECK(empty->last_compiler.empty());

  const auto full = std::make_shared<FullLayer>();
  KernelStore off(reading(Policy::off, full), nvrtc, log);
  CHECK(code_of([&] { off.get(kRequest); }) == ErrorCode::no_compiler);
  CHECK(full->last_compiler == "never asked");
}

TEST_CASE("the second layer is asked when the first has nothing") {
  Nvrtc nvrtc({kMissing, {}});
  const Logger log(nullptr);
  runtime::KernelStoreOptions options = reading(Policy::cache_only, std::make_shared<EmptyLayer>());
  options.layers.push_back({CacheLayer::system, std::make_shared<FullLayer>()});
  KernelStore store(options, nvrtc, log);
  CHECK(store.get(kRequest).image->cache_file == "/full/some-kernel");
}

TEST_CASE("an unknown architecture, variant or problem is named before anything is compiled") {
  Engine engine(without_nvrtc());
  const Problem problem;
  const Variant variant = engine.default_variant(problem, "sm_90a");
  CHECK(code_of([&] { engine.compile(problem, variant, "sm_42"); }) == ErrorCode::invalid_argument);
  MmaVariant absurd_mma;
  HopperVariant absurd_hopper;
  absurd_mma.block_q = absurd_hopper.block_q = 7;
  for (const Variant& absurd : {Variant(absurd_mma), Variant(absurd_hopper)}) {
    CHECK(code_of([&] { engine.compile(problem, absurd, "sm_90a"); }) == ErrorCode::invalid_argument);
    CHECK(code_of([&] { engine.render(problem, absurd, "sm_90a"); }) == ErrorCode::invalid_argument);
  }
  Problem odd;
  odd.head_dim = 12;
  CHECK(code_of([&] { engine.compile(odd, variant, "sm_90a"); }) == ErrorCode::invalid_argument);
  CHECK(engine.counters().misses == 0);
}

TEST_CASE("templates are read from a directory, which must hold some") {
  const tests::TemporaryDirectory directory;
  EngineOptions options = without_nvrtc();
  options.template_directory = directory.path().string();
  CHECK(code_of([&] { Engine engine(options); }) == ErrorCode::io);
  options.template_directory = FLASHJIT_SOURCE_DIR "/templates";
  const Engine from_files(options), embedded(without_nvrtc());
  const Problem problem;
  const Variant variant = embedded.default_variant(problem, "sm_90a");
  const bool same = from_files.render(problem, variant, "sm_90a") == embedded.render(problem, variant, "sm_90a");
  CHECK(same);
}
