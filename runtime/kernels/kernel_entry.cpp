// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/kernel_entry.h"

#include <fmt/format.h>

#include "cache/entry_name.h"
#include "cache/name_character.h"
#include "flashjit/version.h"
#include "runtime/kernels/nvrtc.h"

namespace flashjit::runtime {
namespace {

constexpr const char* kSchema = "flashjit-kernel-2";  // a new one forgets every entry that was written before

// Cache names are [a-z0-9_.-]; kernel names are nearly that.
std::string cache_name(std::string name) {
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (!cache::is_name_character(c)) c = '_';
  }
  return name;
}

cache::Key key_of(const generator::Source& source, const std::string& target) {
  cache::Key key;
  key.name = cache_name(source.name);
  key.inputs = cache::Hasher()
                   .add("schema", kSchema)
                   .add("name", source.name)
                   .add("device code", *source.device_code)
                   .add("generated", source.generated)
                   .add("options", Nvrtc::options_for_key(target))
                   .add("target", target)
                   .finish();
  return key;
}

}  // namespace

KernelRequest::KernelRequest(generator::Source source, std::string target, cache::Facts facts)
    : source_(std::move(source)),
      target_(std::move(target)),
      facts_(std::move(facts)),
      key_(key_of(source_, target_)) {}

cache::Entry entry_of(const KernelRequest& request, CompiledImage compiled, const std::string& compiler_version) {
  cache::Entry entry{request.facts(), std::move(compiled.bytes)};
  entry.facts["name"] = request.source().name;
  entry.facts["entry"] = request.source().entry;
  entry.facts["architecture"] = request.target();
  entry.facts["version"] = version();
  entry.facts["nvrtc"] = compiler_version;
  entry.facts["registers"] = std::to_string(compiled.registers);
  entry.facts["spill_bytes"] = std::to_string(compiled.spill_bytes);
  entry.facts["stack_bytes"] = std::to_string(compiled.stack_bytes);
  entry.facts[kCompileTimeFact] = fmt::format("{:.3f}", compiled.milliseconds);
  return entry;
}

cache::NewMember member_of(const cache::Key& key, cache::Entry entry) {
  entry.facts.erase(kCompileTimeFact);
  return {cache::path_of(key), cache::encode(cache::with_key(std::move(entry), key))};
}

}  // namespace flashjit::runtime
