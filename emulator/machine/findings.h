// SPDX-License-Identifier: Apache-2.0
// The findings of a launch: each kind once for each instruction.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {

// Thrown when a launch cannot or should not go on; its findings say why.
struct StopLaunch {};

class Findings {
 public:
  Findings(const Code& code, std::size_t most) : code_(code), most_(most) {}

  struct Who {
    Extent block;
    int warp;
    std::uint32_t instruction;
  };
  // message() is called when this is the first of its kind at the instruction. Throws StopLaunch when there are too
  // many.
  template <class Message>
  void add(FindingKind kind, const Who& who, const Message& message) {
    if (Finding* known = find(kind, who.instruction))
      ++known->times;
    else
      append(kind, who, message());
  }
  Place place(std::uint32_t instruction) const;
  // "hopper/store.cuh:88 (st.shared.b32)", to name another instruction in a message.
  std::string name(std::uint32_t instruction) const;

  std::vector<Finding> take() { return std::move(findings_); }
  bool empty() const { return findings_.empty(); }

 private:
  Finding* find(FindingKind kind, std::uint32_t instruction);
  void append(FindingKind kind, const Who& who, std::string message);

  const Code& code_;
  const std::size_t most_;
  std::vector<Finding> findings_;
  std::map<std::pair<FindingKind, std::uint32_t>, std::size_t> at_;
};

}  // namespace flashjit::emulator
