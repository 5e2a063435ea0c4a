// SPDX-License-Identifier: Apache-2.0
// Where the lanes of a load, a store or an atomic operation find their bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "emulator/machine/cluster.h"

namespace flashjit::emulator {

enum class AccessSpace { generic, global, shared_cta, shared_cluster, parameter };

struct MemoryAccess {
  AccessSpace space = AccessSpace::generic;
  Decoding::Address address;
  std::uint32_t bytes = 0;  // of a lane; its address must be a multiple
  bool reads = false, writes = false;
};

// Null for lanes that are not active, and for those whose access has been reported and does not happen.
using Places = std::array<std::byte*, kLanes>;

// Accesses of shared memory are recorded, and their bank conflicts counted.
Places find_places(Warp& warp, const MemoryAccess& access, LaneMask active);

// --- Decoding --------------------------------------------------------------------------------------------------------

// The state space, if one is named, between modifiers that have no meaning here: there are no caches, and whether one
// thread sees what another has written is decided by barriers alone.
AccessSpace take_space(Decoding& decoding);
void skip_hints(Decoding& decoding);

OpClass class_of(AccessSpace space);

// 1, or the number of elements that .v2 or .v4 says.
std::size_t take_vector_size(Decoding& decoding);

// Operations on memory that change it and give what it was: operations_atomic.cpp.
void add_atomic_operations(OperationTable& table);

}  // namespace flashjit::emulator
