// SPDX-License-Identifier: Apache-2.0
// Tells on stderr how far long work is. Never touches stdout.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace flashjit::cli {

// Silent for the first second. Then, on a terminal, one line that is rewritten and vanishes at the end; elsewhere a
// line now and then, ever more seldom. Thread-safe.
class ProgressLine {
 public:
  // total 0: the amount of work is not known, only the time is shown.
  explicit ProgressLine(std::string label, int total = 0);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // What is being done now.
  void show(const std::string& item);
  // One more piece is done.
  void advance();

 private:
  using Clock = std::chrono::steady_clock;
  void draw_until_done();
  std::string line() const;

  const std::string label_;
  const int total_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable done_;
  bool finished_ = false;
  int count_ = 0;
  std::string item_;
  std::thread drawer_;
};

}  // namespace flashjit::cli
