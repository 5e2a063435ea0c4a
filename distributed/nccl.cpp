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
  library.find("ncclGetUniqueId", of.ncclGetUniqueId);
  library.find("ncclCommInitRankConfig", of.ncclCommInitRankConfig);
  library.find("ncclCommFinalize", of.ncclCommFinalize);
  library.find("ncclCommDestroy", of.ncclCommDestroy);
  library.find("ncclCommAbort", of.ncclCommAbort);
  library.find("ncclCommGetAsyncError", of.ncclCommGetAsyncError);
  library.find("ncclCommCount", of.ncclCommCount);
  library.find("ncclCommUserRank", of.ncclCommUserRank);
  library.find("ncclCommCuDevice", of.ncclCommCuDevice);
  library.find("ncclGroupStart", of.ncclGroupStart);
  library.find("ncclGroupEnd", of.ncclGroupEnd);
  library.find("ncclSend", of.ncclSend);
  library.find("ncclRecv", of.ncclRecv);
  library.find("ncclGetErrorString", of.ncclGetErrorString);
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
