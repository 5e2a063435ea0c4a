// SPDX-License-Identifier: Apache-2.0
// Other processes, and pipes to them, for tests of what happens between processes.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace flashjit::tests {

// A child process that runs work and exits with 0 when it returned true. It ends with this object, and with the parent
// however that ends. Make it before any thread: of several threads only the one that forks lives on in the child.
class Child {
 public:
  explicit Child(const std::function<bool()>& work) {
    std::fflush(nullptr);  // or the child says again what this process has said
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("cannot fork");
    if (pid_ == 0) ::_exit(run(work) ? 0 : 1);
  }
  ~Child() {
    if (!reaped_) kill();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool running() {
    if (!reaped_) wait(WNOHANG);
    return !reaped_;
  }
  // Waits for its end.
  bool succeeded() {
    if (!reaped_) wait(0);
    return WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
  }
  bool was_killed() {
    if (!reaped_) wait(0);
    return WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL;
  }
  void kill() {
    signal(SIGKILL);
    succeeded();
  }
  // Waits until every thread of it stands still. False when it has ended instead.
  bool stop() {
    signal(SIGSTOP);
    return wait_until_stopped();
  }
  // For one that stops itself.
  bool wait_until_stopped() {
    if (!reaped_) wait(WUNTRACED);
    return !reaped_;
  }
  void resume() { signal(SIGCONT); }

 private:
  static bool run(const std::function<bool()>& work) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      return work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child process: %s\n", error.what());
      return false;
    }
  }
  void signal(int number) {
    if (!reaped_) ::kill(pid_, number);  // afterwards the number may be another process's
  }
  void wait(int options) {
    int status = 0;
    pid_t result;
    do {
      result = ::waitpid(pid_, &status, options);
    } while (result < 0 && errno == EINTR);
    if (result != pid_ || WIFSTOPPED(status)) return;
    status_ = status;
    reaped_ = true;
  }

  pid_t pid_ = -1;
  int status_ = 0;
  bool reaped_ = false;
};

// From one process to another. Whoever only reads must close_writer(), to see when the last writer is gone.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  }
  ~Pipe() {
    ::close(ends_[0]);
    close_writer();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  // Arrives in one piece: it is shorter than a pipe's buffer.
  template <typename Message>
  bool send(const Message& message) const {
    static_assert(std::is_trivially_copyable_v<Message> && sizeof message <= 4096);
    return ::write(ends_[1], &message, sizeof message) == sizeof message;
  }
  // Waits. False at the end, or when what came is no such message.
  template <typename Message>
  bool receive(Message& message) const {
    static_assert(std::is_trivially_copyable_v<Message>);
    ssize_t bytes;
    do {
      bytes = ::read(ends_[0], &message, sizeof message);
    } while (bytes < 0 && errno == EINTR);
    return bytes == sizeof message;
  }
  // A message without content.
  bool signal() const { return send('.'); }
  bool wait() const {
    char byte;
    return receive(byte);
  }
  void close_writer() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  int ends_[2];
};

}  // namespace flashjit::tests
