// SPDX-License-Identifier: Apache-2.0
#include "distributed/nccl_transport.h"

#include <algorithm>
#include <utility>

#include "distributed/reject.h"

namespace flashjit::distributed {
namespace {

constexpr unsigned kBesideDefaultStream = 1;  // CU_STREAM_NON_BLOCKING
constexpr std::chrono::milliseconds kLongestLook{50};
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

void check_timeout(std::chrono::milliseconds timeout) {
  if (timeout < std::chrono::milliseconds(1) || timeout > kLongestTimeout)
    reject("timeout: must be from 1 to {} ms, was {}", kLongestTimeout.count(), timeout.count());
}

int device_of(const NcclFunctions& nccl, ncclComm* communicator) {
  int device = 0;
  nccl.check(nccl.ncclCommCuDevice(communicator, &device), "ncclCommCuDevice");
  return device;
}

// Waits until a function that does not block has done its work, or some rank has failed to do its share in time.
void settle(const NcclFunctions& nccl, ncclComm* communicator, std::chrono::milliseconds timeout,
            const char* function) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  int state = kNcclInProgress;
  while (true) {
    nccl.check(nccl.ncclCommGetAsyncError(communicator, &state), "ncclCommGetAsyncError");
    if (state != kNcclInProgress) break;
    if (std::chrono::steady_clock::now() > end)
      throw Error(ErrorCode::communication,
                  fmt::format("{}: all ranks must do their share within {} ms, did not", function, timeout.count()));
    std::this_thread::yield();
  }
  nccl.check(state, function);
}

std::size_t bytes_of(const Tensor& tensor) {
  std::size_t bytes = size_of(tensor.dtype);
  for (const std::int64_t size : tensor.shape) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

}  // namespace

ncclComm* NcclTransport::make_communicator(const UniqueId& id, int rank, int size, const NcclOptions& options) {
  if (size < 1) reject("size: must be 1 or more, was {}", size);
  if (rank < 0 || rank >= size) reject("rank: must be from 0 to {}, was {}", size - 1, rank);
  check_timeout(options.timeout);
  const NcclFunctions& nccl = NcclFunctions::load();
  const DeviceContext context(options.device);
  const DeviceContext::Scope current(context);
  NcclConfig config;
  ncclComm* made = nullptr;
  nccl.check(nccl.ncclCommInitRankConfig(&made, size, id, rank, &config), "ncclCommInitRankConfig");
  try {
    settle(nccl, made, options.timeout, "ncclCommInitRankConfig");
  } catch (...) {
    nccl.ncclCommAbort(made);
    throw;
  }
  return made;
}

NcclTransport::NcclTransport(ncclComm* communicator, bool is_own, const NcclOptions& options)
    : nccl_(NcclFunctions::load()),
      context_(device_of(nccl_, communicator)),
      timeout_(options.timeout),
      is_own_(is_own),
      communicator_(communicator) {
  nccl_.check(nccl_.ncclCommUserRank(communicator, &rank_), "ncclCommUserRank");
  nccl_.check(nccl_.ncclCommCount(communicator, &size_), "ncclCommCount");
  const DeviceContext::Scope current(context_);
  const DriverFunctions& driver = context_.driver();
  // What an exchange brings is waited for: it goes before kernels that begin at the same time, and that would else hold
  // all multiprocessors until they end.
  int least = 0, greatest = 0;
  driver.check(driver.cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
  driver.check(driver.cuStreamCreateWithPriority(&stream_, kBesideDefaultStream, greatest),
               "cuStreamCreateWithPriority");
  watchdog_ = std::thread([this] { watch(); });
}

NcclTransport::~NcclTransport() {
  const DriverFunctions& driver = context_.driver();
  try {
    const DeviceContext::Scope current(context_);
    driver.cuStreamSynchronize(stream_);  // while the watchdog still sees to it that this ends
    stop_watchdog();
    started_.clear();
    driver.cuStreamDestroy_v2(stream_);
    if (!is_own_ || !communicator_) return;
    nccl_.check(nccl_.ncclCommFinalize(communicator_), "ncclCommFinalize");
    settle(nccl_, communicator_, timeout_, "ncclCommFinalize");
    nccl_.ncclCommDestroy(communicator_);
  } catch (const std::exception&) {  // a peer is gone: there is nobody to tell
    stop_watchdog();
    fail("the group ends");
  }
}

void NcclTransport::stop_watchdog() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ending_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

void NcclTransport::throw_if_failed() const {
  if (!failure_.empty()) throw Error(ErrorCode::communication, "group: " + failure_);
}

void NcclTransport::fail(const std::string& why) noexcept {
  if (!communicator_) return;
  failure_ = why;
  nccl_.ncclCommAbort(std::exchange(communicator_, nullptr));
}

// A group that was begun is ended, whatever fails in it.
void NcclTransport::enqueue(const Exchange& exchange) {
  nccl_.check(nccl_.ncclGroupStart(), "ncclGroupStart");
  int result = kNcclSuccess;
  const auto note = [&](int of_message) { result = result == kNcclSuccess ? of_message : result; };
  for (const auto& [peer, memory] : exchange.sends)
    note(nccl_.ncclSend(memory.data, bytes_of(memory), kNcclInt8, peer, communicator_, stream_));
  for (const auto& [peer, memory] : exchange.receives)
    note(nccl_.ncclRecv(memory.data, bytes_of(memory), kNcclInt8, peer, communicator_, stream_));
  const int of_group = nccl_.ncclGroupEnd();
  nccl_.check(result, "ncclSend or ncclRecv");
  nccl_.check(of_group, "ncclGroupEnd");
  settle(nccl_, communicator_, timeout_, "ncclGroupEnd");
}

std::uint64_t NcclTransport::start(const Exchange& exchange, Stream after) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  const DeviceContext::Scope current(context_);
  const DriverFunctions& driver = context_.driver();
  int is_capturing = 0;
  driver.check(driver.cuStreamIsCapturing(after, &is_capturing), "cuStreamIsCapturing");
  Started made{std::make_unique<Event>(driver), std::make_unique<Event>(driver), std::make_unique<Event>(driver),
               is_capturing != 0};
  made.ready->record(after);
  made.ready->hold(stream_);
  made.begun->record(stream_);
  try {
    enqueue(exchange);
  } catch (const Error& error) {
    fail(error.what());
    throw;
  }
  made.done->record(stream_);
  // A kernel that is ready at the same time would take all multiprocessors, and the exchange wait until it ends. Where
  // an earlier exchange may still run, kernels are not to wait for that.
  if (std::all_of(started_.begin(), started_.end(), [](const Started& of) { return of.is_finished; }))
    made.begun->hold(after);
  started_.push_back(std::move(made));
  return first_ + started_.size() - 1;
}

void NcclTransport::finish(std::uint64_t started, Stream before) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  const DeviceContext::Scope current(context_);
  Started& of = started_.at(started - first_);
  of.done->hold(before);
  of.is_finished = true;
  look_at_oldest();
}

void NcclTransport::wait() {
  const DeviceContext::Scope current(context_);
  const DriverFunctions& driver = context_.driver();
  driver.check(driver.cuStreamSynchronize(stream_), "cuStreamSynchronize");
  const std::lock_guard lock(mutex_);
  throw_if_failed();
}

void NcclTransport::abort() noexcept {
  const std::lock_guard lock(mutex_);
  fail(fmt::format("rank {} gave up", rank_));
}

// Exchanges run one after the other. Events of a capture are nobody's to ask.
void NcclTransport::look_at_oldest() {
  const RelaxedCapture relaxed(context_.driver());
  while (!started_.empty() && started_.front().is_finished &&
         (started_.front().is_captured || started_.front().done->has_passed())) {
    started_.pop_front();
    ++first_;
  }
  const auto running = std::find_if(started_.begin(), started_.end(),
                                    [](const Started& of) { return !of.is_captured && !of.done->has_passed(); });
  if (running == started_.end() || !running->ready->has_passed()) return;
  const Clock::time_point now = Clock::now();
  running->since = std::min(running->since, now);
  if (now - running->since > timeout_) fail(fmt::format("a rank was not heard of for {} ms", timeout_.count()));
}

void NcclTransport::watch() noexcept {
  std::unique_lock lock(mutex_);
  const auto pause = std::clamp(timeout_ / 10, std::chrono::milliseconds(1), kLongestLook);
  while (!ending_.wait_for(lock, pause, [this] { return is_ending_; })) {
    try {
      if (!communicator_) continue;
      const DeviceContext::Scope current(context_);
      look_at_oldest();
      int state = kNcclSuccess;
      if (communicator_) nccl_.check(nccl_.ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
      nccl_.check(state, "ncclCommGetAsyncError");
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }
}

Group Group::from_nccl(ncclComm* communicator, const NcclOptions& options) {
  if (!communicator) reject("communicator: must be given, was null");
  check_timeout(options.timeout);
  return Group(std::make_unique<NcclTransport>(communicator, false, options));
}

Group Group::from_unique_id(const UniqueId& id, int rank, int size, const NcclOptions& options) {
  ncclComm* made = NcclTransport::make_communicator(id, rank, size, options);
  std::unique_ptr<NcclTransport> transport;
  try {
    transport = std::make_unique<NcclTransport>(made, true, options);
  } catch (...) {  // nobody owns it yet
    NcclFunctions::load().ncclCommAbort(made);
    throw;
  }
  return Group(std::move(transport));
}

}  // namespace flashjit::distributed
