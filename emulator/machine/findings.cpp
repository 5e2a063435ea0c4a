// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/findings.h"

#include <fmt/format.h>

namespace flashjit::emulator {

Finding* Findings::find(FindingKind kind, std::uint32_t instruction) {
  const auto it = at_.find({kind, instruction});
  return it == at_.end() ? nullptr : &findings_[it->second];
}

void Findings::append(FindingKind kind, const Who& who, std::string message) {
  at_[{kind, who.instruction}] = findings_.size();
  Finding& finding = findings_.emplace_back();
  finding.kind = kind;
  finding.message = std::move(message);
  finding.place = place(who.instruction);
  finding.block = who.block;
  finding.warp = who.warp;
  if (findings_.size() >= most_) throw StopLaunch();
}

Place Findings::place(std::uint32_t instruction) const {
  const auto& statements = code_.kernel->statements;
  if (instruction >= statements.size()) return {};
  return place_of(*code_.module, statements[instruction].ptx_line, statements[instruction].location);
}

std::string Findings::name(std::uint32_t instruction) const {
  const auto& statements = code_.kernel->statements;
  if (instruction >= statements.size()) return "the end of the kernel";
  const Place at = place(instruction);
  const std::string where =
      at.file.empty() ? fmt::format("PTX line {}", at.ptx_line) : fmt::format("{}:{}", at.file, at.line);
  return fmt::format("{} at {}", statements[instruction].opcode, where);
}

const char* to_string(FindingKind kind) noexcept {
  switch (kind) {
    case FindingKind::unwritten_register:
      return "unwritten_register";
    case FindingKind::unwritten_shared:
      return "unwritten_shared";
    case FindingKind::race:
      return "race";
    case FindingKind::register_in_flight:
      return "register_in_flight";
    case FindingKind::missing_wgmma_fence:
      return "missing_wgmma_fence";
    case FindingKind::missing_proxy_fence:
      return "missing_proxy_fence";
    case FindingKind::mbarrier_not_initialised:
      return "mbarrier_not_initialised";
    case FindingKind::mbarrier_phase:
      return "mbarrier_phase";
    case FindingKind::mbarrier_transaction:
      return "mbarrier_transaction";
    case FindingKind::shared_out_of_bounds:
      return "shared_out_of_bounds";
    case FindingKind::global_out_of_bounds:
      return "global_out_of_bounds";
    case FindingKind::misaligned:
      return "misaligned";
    case FindingKind::barrier_mismatch:
      return "barrier_mismatch";
    case FindingKind::deadlock:
      return "deadlock";
    case FindingKind::unequal_participation:
      return "unequal_participation";
    case FindingKind::left_in_flight:
      return "left_in_flight";
    case FindingKind::bad_operand:
      return "bad_operand";
    case FindingKind::no_progress:
      return "no_progress";
  }
  return "unknown";
}

std::string to_string(const Finding& finding) {
  const Place& place = finding.place;
  std::string text = fmt::format("{}: {}", to_string(finding.kind), finding.message);
  if (place.ptx_line != 0) {
    text += place.file.empty() ? fmt::format(", at PTX line {}", place.ptx_line)
                               : fmt::format(", at {}:{}", place.file, place.line);
    if (!place.function.empty()) text += fmt::format(" in {}", place.function);
    for (const std::string& call : place.inlined_at) text += ", from " + call;
    if (!place.file.empty()) text += fmt::format(" (PTX line {})", place.ptx_line);
  }
  if (finding.warp >= 0)
    text += fmt::format(", block {},{},{} warp {}", finding.block.x, finding.block.y, finding.block.z, finding.warp);
  if (finding.times > 1) text += fmt::format(", {} times", finding.times);
  return text;
}

std::string to_string(const Report& report) {
  if (report.clean()) return "clean";
  std::string text;
  for (const Finding& finding : report.findings) {
    if (!text.empty()) text += '\n';
    text += to_string(finding);
  }
  return text;
}

}  // namespace flashjit::emulator
