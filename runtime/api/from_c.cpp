// SPDX-License-Identifier: Apache-2.0
#include "flashjit_from_c.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "flashjit/version.h"
#include "runtime/api/c_arguments.h"
#include "runtime/api/c_errors.h"
#include "runtime/api/c_struct.h"

namespace flashjit::runtime {

void require_plausible_size(const StructFacts& facts, std::size_t size) {
  constexpr std::size_t kLargest = 4096;
  if (size < facts.first_size || size > kLargest) reject("struct_size: must be sizeof({}), was {}", facts.name, size);
}

}  // namespace flashjit::runtime

namespace flashjit::from_c {

Engine& engine_of(flashjit_engine* engine) { return runtime::engine_of(engine); }

Tensor tensor_of(const char* name, const DLTensor* tensor, const Engine& engine, const char* dtypes) {
  return runtime::to_tensor(name, tensor, runtime::memory_of(engine), dtypes);
}

AttentionOptions attention_options_of(const flashjit_attention_options* options, const Engine& engine) {
  return runtime::to_attention_options(options, runtime::memory_of(engine));
}

GivenGradients gradients_of(const flashjit_gradients* gradients, const Engine& engine) {
  const flashjit_gradients given = runtime::read_struct(runtime::require("into", gradients));
  const auto view = [&](const char* name, const DLTensor* tensor, const char* dtypes) {
    return tensor ? std::optional(tensor_of(name, tensor, engine, dtypes)) : std::nullopt;
  };
  constexpr const char* kKeyGradients = "f16, bf16 or f32";
  return {{view("dq", given.dq, runtime::kRowDTypes), view("dk", given.dk, kKeyGradients),
           view("dv", given.dv, kKeyGradients), view("dbias", given.dbias, kKeyGradients),
           view("dslopes", given.dslopes, "f32"), view("dsinks", given.dsinks, "f32")},
          runtime::is_deterministic(given)};
}

// What a newer header's version has beyond this one's must be left at its default: it would have no effect.
void read_struct(const StructFacts& facts, const void* given, void* known, std::size_t known_size) {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  runtime::require_plausible_size(facts, size);
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (std::any_of(bytes + std::min(known_size, size), bytes + size, [](unsigned char byte) { return byte != 0; }))
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: sets a field that this library, version {}, does not have", facts.name, version()));
  std::memcpy(known, given, std::min(known_size, size));
}

flashjit_status guarded(const std::function<void()>& work) noexcept { return runtime::guarded(work); }

}  // namespace flashjit::from_c
