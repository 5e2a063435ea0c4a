// SPDX-License-Identifier: Apache-2.0
// What of NCCL is used, declared here as in NCCL 2.14 and later.
#pragma once

#include <cstddef>

#include "flashjit/distributed.h"

namespace flashjit::distributed {

// ncclConfig_t, as long as it was in 2.14. Later ones take it for what it says it is.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
};

// NCCL's functions return numbers of ncclResult_t.
inline constexpr int kNcclSuccess = 0, kNcclInProgress = 7;
inline constexpr int kNcclInt8 = 0;  // of ncclDataType_t

struct NcclFunctions {
  // ncclUniqueId is a struct of 128 bytes, which travels as UniqueId does.
  int (*ncclGetUniqueId)(UniqueId* id) = nullptr;
  int (*ncclCommInitRankConfig)(ncclComm** made, int size, UniqueId id, int rank, NcclConfig* config) = nullptr;
  int (*ncclCommFinalize)(ncclComm* of) = nullptr;
  int (*ncclCommDestroy)(ncclComm* of) = nullptr;
  int (*ncclCommAbort)(ncclComm* of) = nullptr;
  int (*ncclCommGetAsyncError)(ncclComm* of, int* result) = nullptr;
  int (*ncclCommCount)(ncclComm* of, int* size) = nullptr;
  int (*ncclCommUserRank)(ncclComm* of, int* rank) = nullptr;
  int (*ncclCommCuDevice)(ncclComm* of, int* device) = nullptr;
  int (*ncclGroupStart)() = nullptr;
  int (*ncclGroupEnd)() = nullptr;
  int (*ncclSend)(const void* memory, std::size_t count, int dtype, int peer, ncclComm* of, Stream stream) = nullptr;
  int (*ncclRecv)(void* memory, std::size_t count, int dtype, int peer, ncclComm* of, Stream stream) = nullptr;
  const char* (*ncclGetErrorString)(int result) = nullptr;

  // Opened once. Throws Error(communication).
  static const NcclFunctions& load();
  // Throws Error(communication) unless the result is success, or that it goes on.
  void check(int result, const char* function) const;
};

}  // namespace flashjit::distributed
