// SPDX-License-Identifier: Apache-2.0
// Launches that overlap (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization").
#pragma once

namespace ptx {

// griddepcontrol.launch_dependents;   a grid behind this one may start, once every block said so: PTX ISA 7.8, sm_90
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// griddepcontrol.wait;   until the grids before this one are done, and what they wrote is seen: PTX ISA 7.8, sm_90
__device__ __forceinline__ void wait_for_grids() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace ptx
