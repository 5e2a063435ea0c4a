// SPDX-License-Identifier: Apache-2.0
// Ctrl-C during work that leaves something to clean up.
#pragma once

#include <csignal>

namespace flashjit::cli {

// While one exists, Ctrl-C does not end the process at once: check() notices it and throws, the stack is unwound
// (temporary files go away), and the guard's destructor lets the process die of the signal as usual. Make it before the
// threads and the engine of the work, which then inherit the blocked signal.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool pending();
  // Throws std::runtime_error when Ctrl-C was pressed.
  void check() const;

 private:
  sigset_t previous_;
};

}  // namespace flashjit::cli
