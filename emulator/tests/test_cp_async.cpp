// SPDX-License-Identifier: Apache-2.0
// cp.async in the emulator: what it moves, against plain loops, and faults in its protocol.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "tests/support/source_kernel.h"

namespace {

using namespace flashjit;
using emulator::FindingKind;
using test::FromSource;
using test::output_words;
using test::source_words;
using test::wait;
using test::Words;
using test::words;

// Each lane copies a word to word `to` + lane of shared memory.
std::string copy_words(int to, const std::string& size = "4") {
  return fmt::format(
      "mad.lo.u32 %r1, %lane, 4, %smem;\nmad.wide.u32 %rd1, %lane, 4, %source;\n"
      "cp.async.ca.shared.global [%r1+{0}], [%rd1+{0}], {1};\n",
      4 * to, size);
}

const std::string kCommit = "cp.async.commit_group;\n";

}  // namespace

TEST_CASE("cp.async copies what was waited for") {
  const std::string two_groups = copy_words(0) + kCommit + copy_words(32) + kCommit;
  FromSource{.body = two_groups + "cp.async.wait_group 1;\n" + output_words(0) + "cp.async.wait_group 0;\n"}
      .check_right(source_words(0, 32));
  FromSource{.body = two_groups + "cp.async.wait_all;\n" + output_words(32)}.check_right(source_words(32, 32));
  FromSource{.body = copy_words(0) + "cp.async.wait_all;\n" + output_words(0)}.check_right(source_words(0, 32));
}

TEST_CASE("lanes that copy together may commit and wait apart") {
  // Each lane reads what one of the other half has copied.
  const std::string read_crossed =
      "bar.warp.sync 0xffffffff;\nxor.b32 %r1, %lane, 16;\nmad.lo.u32 %r1, %r1, 4, %smem;\n"
      "ld.shared.b32 %r5, [%r1];\nst.global.b32 [%out], %r5;\n";
  Words crossed = source_words(16, 16);
  for (const auto word : source_words(0, 16)) crossed.push_back(word);
  const std::string is_lower = "setp.lt.u32 %p0, %lane, 16;\n";

  const auto halves = [&](const std::string& upper, const std::string& lower) {
    return copy_words(0) + is_lower + "@%p0 bra LOWER;\n" + upper + "bra DONE;\nLOWER:\n" + lower + "DONE:\n" +
           read_crossed;
  };
  const std::string wait_all = "cp.async.wait_all;\n", commit_and_wait = kCommit + "cp.async.wait_group 0;\n";
  const std::string none = "mov.u32 %r5, 0;\n";
  FromSource{.body = halves(wait_all, wait_all)}.check_right(crossed);
  FromSource{.body = halves(commit_and_wait, wait_all)}.check_right(crossed);
  FromSource{.body = halves(commit_and_wait, commit_and_wait)}.check_right(crossed);
  FromSource{.body = halves(wait_all, none)}.check_found(FindingKind::race);
  FromSource{.body = halves(none, commit_and_wait)}.check_found(FindingKind::race);

  // One commit of two copies is one group, whoever committed the first of them before.
  const auto wait_after_two = [&](int newest) {
    return copy_words(0) + is_lower + "@%p0 " + kCommit + copy_words(32) + kCommit +
           fmt::format("cp.async.wait_group {};\n", newest) + read_crossed;
  };
  FromSource{.body = wait_after_two(0)}.check_right(crossed);
  FromSource{.body = wait_after_two(1)}.check_found(FindingKind::race);
}

TEST_CASE("cp.async that was not waited for is found") {
  const std::string two_groups = copy_words(0) + kCommit + copy_words(32) + kCommit;
  FromSource{.body = two_groups + "cp.async.wait_group 1;\n" + output_words(32)}.check_found(
      FindingKind::race, "nothing orders that after the write by cp.async.ca.shared.global");
  FromSource{.body = copy_words(0) + "cp.async.wait_group 0;\n" + output_words(0)}.check_found(FindingKind::race);
  FromSource{.body = copy_words(0) + kCommit}.check_found(FindingKind::left_in_flight,
                                                          "has ended while this copy still writes");
  // Waited for by another lane than the one that copies.
  const std::string one_lane =
      "setp.eq.u32 %p0, %lane, 3;\nsetp.eq.u32 %p1, %lane, 4;\n@%p0 bra COPY;\nbra DONE;\nCOPY:\n" + copy_words(0) +
      kCommit + "DONE:\nbar.warp.sync 0xffffffff;\n@%p1 cp.async.wait_group 0;\n" +
      "bar.warp.sync 0xffffffff;\n@%p0 ld.shared.b32 %r5, [%smem+12];\n";
  FromSource{.body = one_lane}.check_found(FindingKind::race);
}

TEST_CASE("cp.async in each size, with zeros in place of what is not there") {
  const auto body = [](const std::string& copy) {
    return "mad.lo.u32 %r1, %lane, 16, %smem;\nmad.wide.u32 %rd1, %lane, 16, %source;\n" + copy +
           "\ncp.async.wait_all;\nbar.warp.sync 0xffffffff;\n" + output_words(0);
  };
  FromSource{.body = body("cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16;")}.check_right(source_words(0, 32));
  FromSource{.body = body("mov.b64 %rd3, 0;\n"
                          "cp.async.cg.shared::cta.global.L2::cache_hint.L2::64B [%r1], [%rd1], 16, 16, %rd3;")}
      .check_right(source_words(0, 32));
  FromSource{.body =
                 body("cp.async.ca.shared.global [%r1], [%rd1], 8;\ncp.async.ca.shared.global [%r1+8], [%rd1+8], 8;")}
      .check_right(source_words(0, 32));
  const Words source = source_words(0, 32);
  FromSource{.body = body("shl.b32 %r2, %lane, 2;\nmin.u32 %r2, %r2, 16;\n"
                          "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;")}
      .check_right(
          words(32, [&](int word) { return word % 4 < word / 4 ? source[static_cast<std::size_t>(word)] : 0; }));
  FromSource{.body = body("setp.eq.u32 %p0, %lane, 2;\ncp.async.cg.shared.global [%r1], [%rd1], 16, %p0;")}.check_right(
      words(32, [&](int word) { return word / 4 != 2 ? source[static_cast<std::size_t>(word)] : 0; }));
  FromSource{.body = body("setp.eq.u32 %p0, %lane, 2;\ncp.async.cg.shared.global [%r1], [%rd1], 16, !%p0;")}
      .check_right(words(32, [&](int word) { return word / 4 == 2 ? source[static_cast<std::size_t>(word)] : 0; }));
}

TEST_CASE("cp.async with operands that it cannot have is found") {
  const auto found = [](const std::string& copy, FindingKind kind, const std::string& text) {
    FromSource{.body = "setp.eq.u32 %p0, %lane, 0;\n@%p0 " + copy + "\ncp.async.wait_all;\n"}.check_found(kind, text);
  };
  found("cp.async.cg.shared.global [%smem+8], [%source], 16;", FindingKind::misaligned,
        "must be a multiple of 16, was 0x408");
  found("cp.async.cg.shared.global [%smem], [%source+8], 16;", FindingKind::misaligned, "the address of the source");
  found("cp.async.cg.shared.global [%smem], [%source], 16, 17;", FindingKind::bad_operand, "at most 16, were 17");
  found("cp.async.cg.shared.global [%smem+8192], [%source], 16;", FindingKind::shared_out_of_bounds,
        "16 bytes at 0x2400");
  found("cp.async.cg.shared.global [%smem], [%source+4096], 16;", FindingKind::global_out_of_bounds, "");
  FromSource{.body =
                 "setp.eq.u32 %p0, %lane, 0;\n@%p0 cp.async.cg.shared.global [%smem], [%source+4096], 16, "
                 "0;\ncp.async.wait_all;\n"}
      .check_right(Words(32));
}

TEST_CASE("cp.async arrives at an mbarrier when its copies have ended") {
  const auto body = [](int count, const std::string& arrive) {
    return fmt::format(
               "setp.eq.u32 %p1, %tid, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%smem+1024], {};\nbar.sync 0;\n"
               "setp.eq.u32 %p0, %warp, 0;\n@!%p0 bra READ;\n",
               count) +
           copy_words(0) + arrive + "bra END;\nREAD:\nadd.u32 %r2, %smem, 1024;\n" + wait("%r2", "0") +
           output_words(0) + "END:\nbar.sync 0;\n";
  };
  Words expected = source_words(0, 32);
  expected.insert(expected.begin(), 32, 0);
  const std::string noinc = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%smem+1024];\n";
  FromSource{.body = body(32, noinc), .threads = 64}.check_right(expected);
  const std::string with_arrival =
      "cp.async.mbarrier.arrive.shared.b64 [%smem+1024];\nmbarrier.arrive.shared::cta.b64 _, [%smem+1024];\n";
  FromSource{.body = body(32, with_arrival), .threads = 64}.check_right(expected);
  // A copy that is issued behind the arrival is not covered by it.
  FromSource{.body = body(32, noinc + copy_words(0)), .threads = 64}.check_found(FindingKind::race);
}
