// SPDX-License-Identifier: Apache-2.0
// What calls say in memory of sequences, looked at by the host: EngineOptions::check_pages.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/call/validate.h"

namespace flashjit::runtime {

struct AppendCall;

// The i32 elements that an operand of a call spans.
using ReadInts = std::function<std::vector<std::int32_t>(const MemoryRange& range)>;

// Both throw Error(invalid_argument) which names the argument and the sequence, and of a page table the entry.
void check_sequences(const ForwardCall& call, const ReadInts& read);
void check_tokens(const AppendCall& call, const ReadInts& read);

}  // namespace flashjit::runtime
