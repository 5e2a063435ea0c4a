// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of a row on the CPU.
#pragma once

#include <cstdint>

#include "runtime/call/rotary.h"

namespace flashjit::reference {

// In place, in double precision, rounded once. A position outside of the tables is the nearest one inside.
void turn_row(void* row, DType dtype, const runtime::GivenRotary& rotary, std::int64_t position);

}  // namespace flashjit::reference
