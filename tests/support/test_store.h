// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/kernels/cache_layers.h"
#include "runtime/kernels/kernel_store.h"
#include "tests/support/fake_compiler.h"

namespace flashjit::tests {

// The store of an engine, on its user directory alone, and numbered kernels to ask it for.
class TestStore {
 public:
  static constexpr std::chrono::milliseconds kLongWait{600'000};  // a test's own time-out comes first

  TestStore(runtime::CacheLayers layers, runtime::Compiler& compiler, std::chrono::milliseconds wait = kLongWait)
      : log_([this](LogLevel level, const std::string&) { warnings_ += level == LogLevel::warning; }),
        store_({Policy::compile, layers.user, layers.all, wait}, compiler, log_) {}
  TestStore(const std::filesystem::path& directory, runtime::Compiler& compiler,
            std::chrono::milliseconds wait = kLongWait, cache::FileSystem& files = cache::system_calls())
      : TestStore(layers_in(directory, files), compiler, wait) {}

  // Whether the kernel is what a FakeCompiler makes of its source.
  bool gets(int kernel) {
    const std::string number = std::to_string(kernel), source = "source " + number;
    const runtime::KernelRequest request{source_of("kernel-" + number, source), "sm_90a", {}};
    return store_.get(request).image->bytes == FakeCompiler::image_of(source, "sm_90a");
  }
  Counters counters() const { return store_.counters(); }
  int warnings() const { return warnings_; }
  // As at the end of the store, however long others keep it waiting: a busy machine is no fault.
  void flush_totals() { store_.flush_totals(kLongWait); }

 private:
  static runtime::CacheLayers layers_in(const std::filesystem::path& directory, cache::FileSystem& files) {
    const auto user = std::make_shared<cache::UserDirectoryLayer>(directory, cache::UserDirectoryOptions{}, files);
    return {user, {{CacheLayer::user, user}}};
  }

  std::atomic<int> warnings_{0};
  runtime::Logger log_;
  runtime::KernelStore store_;
};

}  // namespace flashjit::tests
