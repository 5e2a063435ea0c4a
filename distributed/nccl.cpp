// SPDX-License-Identifier: Apache-2.0
#include "distributed/nccl.h"

#include <string>
#include <type_traits>

#include "distributed/opened_library.h"

namespace flashjit::distributed {
namespace {

static_assert(std::is_trivially_copyable_v<UniqueId> && sizeof(UniqueId) == 128);

NcclFunctions open() {
  const OpenedLibrary library("libnccl.so.2", ErrorCode::communication);
  NcclFunctions of;
#define FLASHJIT_FIND(result, name, parameters) library.find(#name, of.name);
  FLASHJIT_NCCL_FUNCTIONS(FLASHJIT_FIND)
#undef FLASHJIT_FIND
  return of;
}

}  // namespace

const NcclFunctions& NcclFunctions::load() {
  static const NcclFunctions opened = open();
  return opened;
}

void NcclFunctions::check(int result, const char* function) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  throw Error(ErrorCode::communication, std::string(function) + " failed: " + ncclGetErrorString(result));
}

UniqueId make_unique_id() {
  const NcclFunctions& nccl = NcclFunctions::load();
  UniqueId id{};
  nccl.check(nccl.ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

}  // namespace flashjit::distributed
