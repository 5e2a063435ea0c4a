// SPDX-License-Identifier: Apache-2.0
// st.async in the emulator: blocks of a cluster store into each other, and an mbarrier counts the bytes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "tests/support/small_kernel.h"

namespace {

using namespace flashjit;
using emulator::FindingKind;
using test::check_found;
using test::check_right;
using test::SmallKernel;
using test::wait;
using test::words;

const std::string kBegin = "setp.eq.u32 %p1, %tid, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%smem], 1;\n";
const std::string kFence = "@%p1 fence.mbarrier_init.release.cluster;\n";
const std::string kMeet = "barrier.cluster.arrive;\nbarrier.cluster.wait;\n";
// In the other block, the mbarrier and this lane's 16 bytes.
const std::string kPlaces =
    "xor.b32 %r0, %rank, 1;\nmapa.shared::cluster.u32 %r1, %smem, %r0;\n"
    "mad.lo.u32 %r2, %lane, 16, %r1;\n";
const std::string kOut =
    "mad.lo.u32 %r2, %lane, 16, %smem;\nld.shared.b32 %r3, [%r2+68];\nst.global.b32 [%out], %r3;\n";

std::string expect(int bytes) {
  return fmt::format("@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], {};\n", bytes);
}
const std::string kVector =
    "mad.lo.u32 %r4, %lane, 10, %rank;\n"
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r2+64], {%r0, %r4, %r0, %r0}, [%r1];\n";

bool finds(const std::string& body, FindingKind kind, const char* text) {
  return run_schedules(SmallKernel{.body = body, .cluster = 2}).has(kind, text);
}

}  // namespace

TEST_CASE("blocks of a cluster store into each other") {
  // A lane's second word is ten times its number, and the rank of its block.
  const auto body = [](const std::string& begin, const std::string& store) {
    return kBegin + begin + kPlaces + store + wait("%smem", "0") + kOut;
  };
  const auto expected = words(64, [](int thread) { return thread % 32 * 10 + (thread < 32 ? 1 : 0); });
  const std::string begin = kFence + kMeet + expect(512);
  check_right({.body = body(begin, kVector), .cluster = 2}, expected);
  const std::string twice =
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r2+64], %rank, [%r1];\n"
      "mad.lo.u32 %r4, %lane, 10, %rank;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%r2+72], {%r4, %r4}, [%r1];\n";
  const std::string third = "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r2+68], %r4, [%r1];\n";
  check_right({.body = body(begin, twice + third), .cluster = 2}, expected);
  const std::string pair =
      "mad.lo.u32 %r4, %lane, 10, %rank;\nmov.b64 %rd0, {%r0, %r4};\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%r2+64], {%rd0, %rd0}, [%r1];\n";
  check_right({.body = body(begin, pair), .cluster = 2}, expected);

  check_found({.body = body(kMeet + expect(512), kVector), .cluster = 2}, FindingKind::missing_proxy_fence,
              "another block uses the mbarrier");
  CHECK(finds(body(kFence + expect(512), kVector), FindingKind::mbarrier_not_initialised, "there is no mbarrier"));
  check_found({.body = body(kFence + kMeet + expect(528), kVector), .cluster = 2}, FindingKind::deadlock);
}

TEST_CASE("what a store may do too early or too late is found") {
  const std::string begin = kBegin + kFence + kMeet + expect(512) + kPlaces;
  // Nobody waits: the block ends, or reads what has not come.
  CHECK(finds(begin + kVector, FindingKind::left_in_flight, "of block 1 of the cluster, which has ended"));
  CHECK(finds(begin + kVector + kOut + wait("%smem", "0"), FindingKind::race, "after the write by st.async"));
  // The other block still writes there.
  const std::string own = "mad.lo.u32 %r5, %lane, 16, %smem;\nst.shared.b32 [%r5+64], %r0;\n";
  CHECK(finds(begin + own + kVector + wait("%smem", "0") + kOut, FindingKind::race, "after the write by st.shared"));
}

TEST_CASE("what a store cannot be is refused") {
  const std::string at = "mbarrier::complete_tx::bytes";
  for (const std::string& statement :
       {"st.async.shared::cta." + at + ".b32 [%smem], %r0, [%smem];", "st.async." + at + ".b32 [%smem], %r0, [%smem];",
        std::string("st.async.shared::cluster.b32 [%smem], %r0, [%smem];"),
        "st.async.shared::cluster." + at + ".b16 [%smem], %rs0, [%smem];",
        "st.async.shared::cluster." + at + ".v2.b32 [%smem], %r0, [%smem];",
        "st.async.shared::cluster." + at + ".v4.b64 [%smem], {%rd0, %rd0, %rd0, %rd0}, [%smem];"}) {
    INFO(statement);
    CHECK_THROWS_AS(emulator::Program(SmallKernel{.body = statement}.ptx()), emulator::ParseError);
  }
  const std::string elsewhere = "st.async.shared::cluster." + at + ".b32 [%r2+64], %r0, [%smem];\n";
  check_found({.body = kBegin + kFence + kMeet + kPlaces + elsewhere, .cluster = 2}, FindingKind::bad_operand,
              "the mbarrier must be in the block of the destination");
  const std::string crooked = "st.async.shared::cluster." + at + ".v4.b32 [%r2+68], {%r0, %r0, %r0, %r0}, [%r1];\n";
  check_found({.body = kBegin + kFence + kMeet + kPlaces + crooked, .cluster = 2}, FindingKind::misaligned);
}
