// SPDX-License-Identifier: Apache-2.0
// A kernel as an entry of the cache: under which key, with which facts, and as a member of a bundle.
#pragma once

#include <string>

#include "cache/bundle.h"
#include "cache/layer.h"
#include "generator/source.h"
#include "runtime/kernels/compiler.h"

namespace flashjit::runtime {

class KernelRequest {
 public:
  // target: see Compiler::compile. facts: for people who look into the cache; the store adds its own.
  KernelRequest(generator::Source source, std::string target, cache::Facts facts);

  const generator::Source& source() const noexcept { return source_; }
  const std::string& target() const noexcept { return target_; }
  const cache::Facts& facts() const noexcept { return facts_; }
  // Without a compiler, as if any would do. Requests with equal inputs are of the same kernel.
  const cache::Key& key() const noexcept { return key_; }

 private:
  generator::Source source_;
  std::string target_;
  cache::Facts facts_;
  cache::Key key_;
};

// compiler_version: "13.0"
cache::Entry entry_of(const KernelRequest& request, CompiledImage compiled, const std::string& compiler_version);

// How long NVRTC took, in an entry's facts.
inline constexpr const char* kCompileTimeFact = "compile_ms";

// Without that time: two compilations of one source by one compiler agree on everything else, so that equal kernels
// give equal bundles.
cache::NewMember member_of(const cache::Key& key, cache::Entry entry);

}  // namespace flashjit::runtime
