// SPDX-License-Identifier: Apache-2.0
// What of NCCL can be known without a GPU: that it is what is declared of it, and errors where it or the driver is not.
#include <doctest/doctest.h>

#include <string>
#include <type_traits>

#include "distributed/nccl.h"
#include "flashjit/distributed.h"
#include "tests/support/error_code.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>

static_assert(ncclSuccess == flashjit::distributed::kNcclSuccess);
static_assert(ncclInProgress == flashjit::distributed::kNcclInProgress);
static_assert(ncclInt8 == flashjit::distributed::kNcclInt8);
static_assert(sizeof(ncclUniqueId) == sizeof(flashjit::distributed::UniqueId));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(flashjit::distributed::NcclConfig, blocking));
static_assert(offsetof(ncclConfig_t, version) == offsetof(flashjit::distributed::NcclConfig, version));

namespace {

// Numbers, handles and ids travel alike, and so do functions that are the same but for what these are called.
template <typename T>
struct AsDeclared {
  using Type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <>
struct AsDeclared<ncclUniqueId> {
  using Type = flashjit::distributed::UniqueId;
};
template <>
struct AsDeclared<ncclUniqueId*> {
  using Type = flashjit::distributed::UniqueId*;
};
template <>
struct AsDeclared<ncclConfig_t*> {
  using Type = flashjit::distributed::NcclConfig*;
};
template <>
struct AsDeclared<ncclResult_t*> {
  using Type = int*;
};
template <typename Function>
struct FunctionAsDeclared;
template <typename Result, typename... Args>
struct FunctionAsDeclared<Result (*)(Args...)> {
  using Type = typename AsDeclared<Result>::Type (*)(typename AsDeclared<Args>::Type...);
};

}  // namespace

#define FLASHJIT_IS_AS_DECLARED(name)                                                 \
  static_assert(std::is_same_v<FunctionAsDeclared<decltype(&::name)>::Type,           \
                               decltype(flashjit::distributed::NcclFunctions::name)>, \
                #name " must be as nccl.h has it")
FLASHJIT_IS_AS_DECLARED(ncclGetUniqueId);
FLASHJIT_IS_AS_DECLARED(ncclCommInitRankConfig);
FLASHJIT_IS_AS_DECLARED(ncclCommFinalize);
FLASHJIT_IS_AS_DECLARED(ncclCommDestroy);
FLASHJIT_IS_AS_DECLARED(ncclCommAbort);
FLASHJIT_IS_AS_DECLARED(ncclCommGetAsyncError);
FLASHJIT_IS_AS_DECLARED(ncclCommCount);
FLASHJIT_IS_AS_DECLARED(ncclCommUserRank);
FLASHJIT_IS_AS_DECLARED(ncclCommCuDevice);
FLASHJIT_IS_AS_DECLARED(ncclGroupStart);
FLASHJIT_IS_AS_DECLARED(ncclGroupEnd);
FLASHJIT_IS_AS_DECLARED(ncclSend);
FLASHJIT_IS_AS_DECLARED(ncclRecv);
FLASHJIT_IS_AS_DECLARED(ncclGetErrorString);
#endif

namespace {

using namespace flashjit;
using namespace flashjit::distributed;

}  // namespace

TEST_CASE("a group over NCCL says what is missing where there is no NCCL or no driver") {
  std::string message;
  CHECK(tests::code_of([] { Group::from_nccl(nullptr); }, &message) == ErrorCode::invalid_argument);
  CHECK(message == "communicator: must be given, was null");
  CHECK(tests::code_of([] { Group::from_unique_id({}, 2, 2); }, &message) == ErrorCode::invalid_argument);
  CHECK(message == "rank: must be from 0 to 1, was 2");
  CHECK(tests::code_of([] { Group::from_unique_id({}, 0, 0); }, &message) == ErrorCode::invalid_argument);
  CHECK(message == "size: must be 1 or more, was 0");
  const NcclOptions forever{0, std::chrono::milliseconds::max()};
  CHECK(tests::code_of([&] { Group::from_unique_id({}, 0, 1, forever); }, &message) == ErrorCode::invalid_argument);
  CHECK(message.find("timeout: must be from 1 to 31536000000 ms, was ") == 0);
  CHECK(tests::code_of([] { Group(nullptr); }, &message) == ErrorCode::invalid_argument);
  if (!Engine().system().devices.empty()) return;
  const ErrorCode code = tests::code_of([] { Group::from_unique_id({}, 0, 1); }, &message);
  CHECK((code == ErrorCode::communication || code == ErrorCode::no_driver || code == ErrorCode::driver));
  CHECK((message.find("libnccl.so.2: must be loadable, was not") == 0 ||
         message.find("libcuda.so.1: must be loadable, was not") == 0 || message.find("cuInit failed") == 0));
}
