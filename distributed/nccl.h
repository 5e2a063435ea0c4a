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

// What is found in the library, and as what. ncclUniqueId is a struct of 128 bytes, which travels as UniqueId does.
#define FLASHJIT_NCCL_FUNCTIONS(X)                                              \
  X(int, ncclGetUniqueId, (UniqueId*))                                          \
  X(int, ncclCommInitRankConfig, (ncclComm**, int, UniqueId, int, NcclConfig*)) \
  X(int, ncclCommFinalize, (ncclComm*))                                         \
  X(int, ncclCommDestroy, (ncclComm*))                                          \
  X(int, ncclCommAbort, (ncclComm*))                                            \
  X(int, ncclCommGetAsyncError, (ncclComm*, int*))                              \
  X(int, ncclCommCount, (ncclComm*, int*))                                      \
  X(int, ncclCommUserRank, (ncclComm*, int*))                                   \
  X(int, ncclCommCuDevice, (ncclComm*, int*))                                   \
  X(int, ncclGroupStart, ())                                                    \
  X(int, ncclGroupEnd, ())                                                      \
  X(int, ncclSend, (const void*, std::size_t, int, int, ncclComm*, Stream))     \
  X(int, ncclRecv, (void*, std::size_t, int, int, ncclComm*, Stream))           \
  X(const char*, ncclGetErrorString, (int))

struct NcclFunctions {
#define FLASHJIT_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  FLASHJIT_NCCL_FUNCTIONS(FLASHJIT_DECLARE)
#undef FLASHJIT_DECLARE

  // Opened once. Throws Error(communication).
  static const NcclFunctions& load();
  // Throws Error(communication) unless the result is success, or that it goes on.
  void check(int result, const char* function) const;
};

}  // namespace flashjit::distributed
