// SPDX-License-Identifier: Apache-2.0
// Kernels of a few lines of PTX, run by the emulator under many schedules.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/emulator.h"

namespace flashjit::test {

inline constexpr int kSchedules = 50;

// The body finds tid.x in %tid, the number of its warp in %warp, its lane in %lane, the block's rank in its cluster in
// %rank, shared memory in %smem, and in %out the address of one word for each thread of the cluster. It has %r0 to
// %r31, %rs0 to %rs7, %rd0 to %rd15 and %p0 to %p7 for itself.
struct SmallKernel {
  std::string body = "";
  int threads = 32;
  unsigned cluster = 1;
  unsigned shared_bytes = 4096;
  std::string parameters = "";  // besides out, each behind a comma

  std::string ptx() const {
    return fmt::format(
        ".version 8.7\n.target sm_90a\n.address_size 64\n"
        ".visible .entry kernel(.param .u64 out{3})\n.maxntid {0}, 1, 1\n{1}\n{{\n"
        ".shared .align 1024 .b8 shared_bytes[{2}];\n"
        ".reg .pred %p<8>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<32>, %tid, %warp, %lane, %rank, %smem;\n"
        ".reg .b64 %rd<16>, %out;\n"
        "mov.u32 %tid, %tid.x;\nshr.u32 %warp, %tid, 5;\nand.b32 %lane, %tid, 31;\n"
        "mov.u32 %rank, %cluster_ctarank;\nmov.u32 %smem, shared_bytes;\n"
        "ld.param.u64 %out, [out];\nmad.lo.u32 %r31, %rank, {0}, %tid;\nmad.wide.u32 %out, %r31, 4, %out;\n"
        "{4}\nret;\n}}\n",
        threads, cluster > 1 ? fmt::format(".explicitcluster\n.reqnctapercluster {}, 1, 1", cluster) : "", shared_bytes,
        parameters, body);
  }
};

using Words = std::vector<std::uint32_t>;

struct Runs {
  std::vector<emulator::Finding> findings;  // of all schedules, each kind once for each line
  std::vector<Words> outputs;               // of each schedule
  emulator::Report last;

  bool has(emulator::FindingKind kind, const std::string& text = "") const {
    for (const auto& finding : findings)
      if (finding.kind == kind && finding.message.find(text) != std::string::npos) return true;
    return false;
  }
  std::string text() const {
    std::string all;
    for (const auto& finding : findings) all += to_string(finding) + "\n";
    return all;
  }
};

// The launch's parameters are `out` and those given.
template <class... Parameters>
Runs run_schedules(const SmallKernel& kernel, emulator::Memory memory, int schedules, const Parameters&... parameters) {
  const emulator::Program program(kernel.ptx());
  Runs runs;
  std::set<std::pair<emulator::FindingKind, int>> known;
  for (int seed = 0; seed < schedules; ++seed) {
    Words out(static_cast<std::size_t>(kernel.threads) * kernel.cluster);
    emulator::Memory with_out = memory;
    with_out.add("out", out.data(), out.size() * sizeof(std::uint32_t));
    emulator::Launch launch;
    launch.grid = launch.cluster = {kernel.cluster};
    launch.block = {static_cast<unsigned>(kernel.threads)};
    launch.seed = static_cast<std::uint64_t>(seed);
    launch.most_instructions = 1'000'000;
    launch.set_parameters(out.data(), parameters...);
    runs.last = program.run("kernel", launch, with_out);
    for (const auto& finding : runs.last.findings)
      if (known.emplace(finding.kind, finding.place.ptx_line).second) runs.findings.push_back(finding);
    runs.outputs.push_back(std::move(out));
  }
  return runs;
}

inline Runs run_schedules(const SmallKernel& kernel) { return run_schedules(kernel, {}, kSchedules); }

// Clean, and the same output, under every schedule.
inline void check_right(const SmallKernel& kernel, const Words& expected) {
  const Runs runs = run_schedules(kernel);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  for (const Words& output : runs.outputs) REQUIRE(output == expected);
}

// Found under some schedule, and as nothing else.
inline void check_found(const SmallKernel& kernel, emulator::FindingKind kind, const std::string& text = "") {
  const Runs runs = run_schedules(kernel);
  INFO("expected ", std::string(emulator::to_string(kind)), ": ", text, "\n", runs.text());
  CHECK(runs.has(kind, text));
  for (const auto& finding : runs.findings) CHECK(finding.kind == kind);
}

// A word for each thread.
template <class F>
Words words(int count, const F& f) {
  Words all;
  for (int i = 0; i < count; ++i) all.push_back(static_cast<std::uint32_t>(f(i)));
  return all;
}

// Waits for the end of the phase of this parity.
inline std::string wait(const std::string& mbarrier, const std::string& parity) {
  return fmt::format(
      "{{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [{}], {};\n@!done bra again;\n}}\n",
      mbarrier, parity);
}

}  // namespace flashjit::test
