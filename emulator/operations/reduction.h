// SPDX-License-Identifier: Apache-2.0
// Reductions that asynchronous copies make (PTX ISA, "cp.reduce.async.bulk").
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "flashjit/emulator.h"

namespace flashjit::emulator {

enum class Reduction { none, add, min, max, inc, dec, bit_and, bit_or, bit_xor };

// By its modifier in an opcode.
std::optional<Reduction> find_reduction(std::string_view name);
std::optional<TensorElement> find_reduction_type(std::string_view name);

bool can_reduce(Reduction reduction, TensorElement element);
// Each element of `to` becomes the reduction of itself and that of `from`; none copies.
void reduce(Reduction reduction, TensorElement element, std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace flashjit::emulator
