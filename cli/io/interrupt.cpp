// SPDX-License-Identifier: Apache-2.0
#include "cli/io/interrupt.h"

#include <stdexcept>

namespace flashjit::cli {

InterruptGuard::InterruptGuard() {
  sigset_t interrupt;
  sigemptyset(&interrupt);
  struct sigaction action = {};
  sigaction(SIGINT, nullptr, &action);
  // A shell that starts a background job has it ignore Ctrl-C; blocked, it would be pending all the same.
  if (action.sa_handler != SIG_IGN) sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, &previous_);
}

InterruptGuard::~InterruptGuard() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

bool InterruptGuard::pending() {
  sigset_t signals;
  sigemptyset(&signals);
  sigpending(&signals);
  return sigismember(&signals, SIGINT) == 1;
}

void InterruptGuard::check() const {
  if (pending()) throw std::runtime_error("interrupted");
}

}  // namespace flashjit::cli
