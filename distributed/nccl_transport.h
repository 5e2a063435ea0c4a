// SPDX-License-Identifier: Apache-2.0
// Exchanges by NCCL, on a stream of their own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "distributed/driver.h"
#include "distributed/nccl.h"

namespace flashjit::distributed {

class NcclTransport : public Transport {
 public:
  // is_own: it is destroyed with the transport.
  NcclTransport(ncclComm* communicator, bool is_own, const NcclOptions& options);
  ~NcclTransport() override;

  // A communicator whose functions do not block, so that a rank that does not come is an Error here, too.
  static ncclComm* make_communicator(const UniqueId& id, int rank, int size, const NcclOptions& options);

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  int device() const noexcept override { return context_.device(); }
  std::uint64_t start(const Exchange& exchange, Stream after) override;
  void finish(std::uint64_t started, Stream before) override;
  void wait() override;
  void abort() noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  // What was started: since when peers are waited for is known by the event before it.
  struct Started {
    std::unique_ptr<Event> ready, begun, done;
    bool is_captured = false, is_finished = false;
    Clock::time_point since = Clock::time_point::max();
  };

  void enqueue(const Exchange& exchange);
  void throw_if_failed() const;
  void fail(const std::string& why) noexcept;
  // The watchdog: aborts a communicator whose peers are not heard of. Threads that wait for its kernels go on then.
  void watch() noexcept;
  void stop_watchdog() noexcept;
  void look_at_oldest();

  const NcclFunctions& nccl_;
  const DeviceContext context_;
  const std::chrono::milliseconds timeout_;
  const bool is_own_;
  int rank_ = 0, size_ = 1;
  Stream stream_ = nullptr;

  mutable std::mutex mutex_;  // of all below
  ncclComm* communicator_;    // null once aborted
  std::string failure_;
  std::deque<Started> started_;  // whose events may still be waited for
  std::uint64_t first_ = 0;      // the number of the oldest of these
  bool is_ending_ = false;
  std::condition_variable ending_;
  std::thread watchdog_;
};

}  // namespace flashjit::distributed
