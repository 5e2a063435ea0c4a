// SPDX-License-Identifier: Apache-2.0
// Where the memory behind a call's pointers is, as the driver knows it.
#pragma once

#include "runtime/call/operands.h"
#include "runtime/cuda/driver.h"

namespace flashjit::runtime {

// The device that holds the memory of every tensor of the call; -1 when none has elements. Managed memory is taken on
// any device, and so is unknown memory while the call's stream is captured: what a graph allocates is not known before
// the graph runs. Throws Error(invalid_argument) for host memory, other unknown memory and tensors on different
// devices.
int common_device(const Driver& driver, const Operands& operands, Stream stream);

// The device whose memory an address is of; -1 for managed and any other memory.
int device_of_memory(const Driver& driver, std::uintptr_t address);

}  // namespace flashjit::runtime
