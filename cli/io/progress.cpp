// SPDX-License-Identifier: Apache-2.0
#include "cli/io/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

constexpr std::chrono::milliseconds kSilence{1000};
constexpr std::chrono::milliseconds kRedraw{200};
constexpr std::chrono::milliseconds kLongestPause{60000};
// Short enough for the narrowest usual terminal: a line that wraps cannot be rewritten.
constexpr std::size_t kTerminalColumns = 79;

}  // namespace

ProgressLine::ProgressLine(std::string label, int total)
    : label_(std::move(label)), total_(total), terminal_(isatty(STDERR_FILENO) == 1) {
  drawer_ = std::thread([this] { draw_until_done(); });
}

ProgressLine::~ProgressLine() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  done_.notify_all();
  drawer_.join();
}

void ProgressLine::show(const std::string& item) {
  const std::lock_guard lock(mutex_);
  item_ = item;
}

void ProgressLine::advance() {
  const std::lock_guard lock(mutex_);
  ++count_;
}

std::string ProgressLine::line() const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  std::string text = total_ > 0 ? fmt::format("{} {}/{}, {:.0f} s", label_, count_, total_, seconds)
                                : fmt::format("{}, {:.0f} s", label_, seconds);
  if (!item_.empty()) text += ": " + item_;
  return text;
}

void ProgressLine::draw_until_done() {
  std::unique_lock lock(mutex_);
  std::chrono::milliseconds pause = kSilence;
  bool drawn = false;
  while (!done_.wait_for(lock, pause, [this] { return finished_; })) {
    if (terminal_) {
      write_message("\r\033[K" + line().substr(0, kTerminalColumns));
      pause = kRedraw;
    } else {
      write_message(line() + "\n");
      pause = std::min(pause * 2, kLongestPause);
    }
    drawn = true;
  }
  if (terminal_ && drawn) write_message("\r\033[K");
}

}  // namespace flashjit::cli
