// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies in the emulator: what they move, against plain loops, and faults in their protocols.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/small_kernel.h"

namespace {

using namespace flashjit;
using emulator::encode_tensor_map;
using emulator::FindingKind;
using emulator::Memory;
using emulator::TensorElement;
using emulator::TensorFill;
using emulator::TensorMap;
using emulator::TensorMapDescription;
using emulator::TensorSwizzle;
using test::Runs;
using test::SmallKernel;
using test::wait;
using test::Words;
using test::words;

using Bytes = std::vector<std::uint8_t>;

// 16-byte aligned, and what no result has by chance.
struct Buffer {
  explicit Buffer(std::size_t bytes, unsigned seed = 1) : storage(bytes / 16 + 1), size(bytes) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < bytes; ++i) data()[i] = static_cast<std::uint8_t>(random());
  }
  std::uint8_t* data() { return storage.front().bytes; }
  Bytes bytes() { return Bytes(data(), data() + size); }

  struct alignas(16) Unit {
    std::uint8_t bytes[16];
  };
  std::vector<Unit> storage;
  std::size_t size;
};

// --- A kernel that reads a source ------------------------------------------------------------------------------------

// %source is the address of `bytes` bytes.
struct FromSource {
  std::string body;
  int threads = 32;
  unsigned cluster = 1;
  std::size_t bytes = 4096;

  Runs run(Buffer& source) const {
    const SmallKernel kernel{
        .body = ".reg .b64 %source;\nld.param.u64 %source, [source];\n" + body,
        .threads = threads,
        .cluster = cluster,
        .shared_bytes = 8192,
        .parameters = ", .param .u64 source",
    };
    Memory memory;
    memory.add("source", source.data(), bytes);
    return run_schedules(kernel, memory, test::kSchedules, static_cast<void*>(source.data()));
  }
  void check_right(const Words& expected) const {
    Buffer source(4096);
    const Runs runs = run(source);
    INFO(runs.text());
    CHECK(runs.findings.empty());
    for (const Words& output : runs.outputs) REQUIRE(output == expected);
  }
  void check_found(FindingKind kind, const std::string& text = "") const {
    Buffer source(4096);
    const Runs runs = run(source);
    INFO("expected ", std::string(emulator::to_string(kind)), ": ", text, "\n", runs.text());
    CHECK(runs.has(kind, text));
  }
};

Words source_words(int first, int count) {
  Buffer source(4096);
  Words all(static_cast<std::size_t>(count));
  std::memcpy(all.data(), source.data() + 4 * first, 4 * all.size());
  return all;
}

// Words `first` to `first` + 31 of shared memory, one for each lane.
std::string output_words(int first = 0) {
  return fmt::format("mad.lo.u32 %r30, %lane, 4, %smem;\nld.shared.b32 %r29, [%r30+{}];\nst.global.b32 [%out], %r29;\n",
                     4 * first);
}

// Each lane copies a word to word `to` + lane of shared memory.
std::string copy_words(int to, const std::string& size = "4") {
  return fmt::format(
      "mad.lo.u32 %r1, %lane, 4, %smem;\nmad.wide.u32 %rd1, %lane, 4, %source;\n"
      "cp.async.ca.shared.global [%r1+{0}], [%rd1+{0}], {1};\n",
      4 * to, size);
}

const std::string kCommit = "cp.async.commit_group;\n";

}  // namespace

// --- cp.async --------------------------------------------------------------------------------------------------------

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

// --- Copies without a tensor map -------------------------------------------------------------------------------------

namespace {

// %p1 holds in the first thread of the block; an mbarrier for `count` arrivals at 0 of shared memory.
std::string initialise(int count = 1, const std::string& fence = "@%p1 fence.mbarrier_init.release.cluster;\n") {
  return fmt::format("setp.eq.u32 %p1, %tid, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%smem], {};\n{}bar.sync 0;\n",
                     count, fence);
}

std::string expect(int bytes) {
  return fmt::format("@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], {};\n", bytes);
}

std::string bulk_load(int to, int bytes) {
  return fmt::format(
      "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem+{}], [%source], {}, [%smem];\n",
      to, bytes);
}

// Each lane stores its number times 3 to the word 256 + lane of shared memory.
const std::string kStoreWords =
    "mul.lo.u32 %r2, %tid, 3;\nmad.lo.u32 %r3, %tid, 4, %smem;\nst.shared.b32 [%r3+1024], %r2;\n";
const std::string kFence = "fence.proxy.async.shared::cta;\n";
const std::string kFirst = "setp.eq.u32 %p1, %tid, 0;\nadd.u32 %r4, %smem, 1024;\n";
const std::string kCommitBulk = "@%p1 cp.async.bulk.commit_group;\n";
const std::string kWaitBulk = "@%p1 cp.async.bulk.wait_group 0;\n";

std::string bulk_store(int bytes, const std::string& to = "%source") {
  return fmt::format("@%p1 cp.async.bulk.global.shared::cta.bulk_group [{}], [%r4], {};\n", to, bytes);
}

}  // namespace

TEST_CASE("a bulk load completes at an mbarrier") {
  const std::string body = initialise() + expect(512) + bulk_load(128, 512) + wait("%smem", "0") + output_words(32);
  FromSource{.body = body}.check_right(source_words(0, 32));
  Buffer source(4096);
  CHECK(FromSource{.body = body}.run(source).last.counters.tma_bytes_loaded == 512);
  std::string hinted = body;  // the other spelling of the destination, and a cache policy
  const auto at = hinted.find("shared::cluster.global.mbarrier::complete_tx::bytes");
  hinted.replace(at, 51, "shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint");
  hinted.replace(hinted.find("[%smem];\n", at), 9, "[%smem], %rd3;\n");
  FromSource{.body = "mov.b64 %rd3, 0;\n" + hinted}.check_right(source_words(0, 32));
}

TEST_CASE("faults in the protocol of a bulk load are found as what they are") {
  const std::string read = wait("%smem", "0") + output_words(32);
  const std::string load = bulk_load(128, 512);
  FromSource{.body = initialise() + expect(512) + load + output_words(32) + wait("%smem", "0")}.check_found(
      FindingKind::race, "nothing orders that after the write by cp.async.bulk");
  FromSource{.body = initialise() + expect(512) + load}.check_found(FindingKind::left_in_flight);
  FromSource{.body = initialise() + expect(256) + load + read}.check_found(FindingKind::mbarrier_transaction,
                                                                           "more than expected have come");
  FromSource{.body = initialise() + expect(1024) + load + read}.check_found(
      FindingKind::deadlock, "the mbarrier at 0x400 to complete the phase of parity 0: 0 of 1 arrivals and");
  const std::string meanwhile =
      "mov.u32 %r5, 1000;\nLOOP:\nsub.u32 %r5, %r5, 1;\nsetp.ne.u32 %p3, %r5, 0;\n@%p3 bra LOOP;\n";
  const std::string unexpected = initialise() + load + meanwhile;
  FromSource{.body = unexpected}.check_found(FindingKind::mbarrier_transaction,
                                             "the mbarrier at 0x400 has got 512 bytes that nobody has expected");
  FromSource{.body = initialise() + expect(512)}.check_found(FindingKind::mbarrier_transaction,
                                                             "the mbarrier at 0x400 still expects 512 bytes");
  FromSource{.body = initialise(1, "") + expect(512) + load + read}.check_found(
      FindingKind::missing_proxy_fence, "an asynchronous copy uses the mbarrier at 0x400, without fence.mbarrier_init");
  FromSource{.body = expect(512) + load}.check_found(FindingKind::unwritten_register);
  FromSource{.body = "setp.eq.u32 %p1, %tid, 0;\n" + load}.check_found(FindingKind::mbarrier_not_initialised);
}

TEST_CASE("bytes that come for a phase that is over are found") {
  const std::string early = initialise() + bulk_load(128, 512) + "@%p1 mbarrier.arrive.shared::cta.b64 _, [%smem];\n" +
                            wait("%smem", "0") + "@%p1 mbarrier.arrive.shared::cta.b64 _, [%smem];\n" +
                            wait("%smem", "1");
  FromSource{.body = early}.check_found(FindingKind::mbarrier_transaction,
                                        "512 bytes have come for phase 0 of the mbarrier at 0x400");
}

TEST_CASE("a wait that passes at once, on a phase that was waited for before, is found when it matters") {
  const auto body = [](const char* second_parity) {
    return initialise() + expect(512) + bulk_load(128, 512) + wait("%smem", "0") + output_words(32) + "bar.sync 0;\n" +
           expect(512) + bulk_load(128, 512) + wait("%smem", second_parity) + output_words(32) + wait("%smem", "1");
  };
  FromSource{.body = body("0")}.check_found(FindingKind::mbarrier_phase, "passed at once, on a phase");
  FromSource{.body = body("1")}.check_right(source_words(0, 32));
}

TEST_CASE("a load over words that are still read or written is found") {
  const std::string load = expect(512) + bulk_load(1024, 512) + wait("%smem", "0");
  FromSource{.body = initialise() + kStoreWords + load}.check_found(FindingKind::missing_proxy_fence,
                                                                    "without fence.proxy.async after the write");
  Buffer source(4096);
  CHECK(FromSource{.body = initialise() + kStoreWords + kFence + load}.run(source).findings.empty());
  const std::string unordered = initialise() + kStoreWords + kFence + "bar.sync 0;\n" + output_words(256) +
                                "setp.eq.u32 %p0, %warp, 0;\n@!%p0 bra END;\n" + load + "END:\nbar.sync 0;\n";
  FromSource{.body = unordered, .threads = 64}.check_found(FindingKind::race, "after the read by ld.shared.b32");
}

TEST_CASE("bulk stores write global memory, and are waited for in groups") {
  const std::string body = kStoreWords + kFence + "bar.sync 0;\n" + kFirst + bulk_store(256) + kCommitBulk + kWaitBulk;
  Buffer source(4096);
  const Runs runs = FromSource{.body = body, .threads = 64}.run(source);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  Words stored(64);
  std::memcpy(stored.data(), source.data(), 256);
  CHECK(stored == words(64, [](int i) { return 3 * i; }));
  CHECK(runs.last.counters.tma_bytes_stored == 256);
}

TEST_CASE("faults in the protocol of a bulk store are found as what they are") {
  const auto found = [](const std::string& body, FindingKind kind, const std::string& text) {
    FromSource{.body = body, .threads = 64}.check_found(kind, text);
  };
  const std::string store = kFirst + bulk_store(256) + kCommitBulk;
  found(kStoreWords + "bar.sync 0;\n" + store + kWaitBulk, FindingKind::missing_proxy_fence, "st.shared.b32");
  found(kStoreWords + kFence + store + kWaitBulk, FindingKind::race, "after the write by st.shared.b32");
  found(kStoreWords + kFence + "bar.sync 0;\n" + store, FindingKind::left_in_flight, "still reads its shared memory");
  const std::string again = "bar.sync 0;\n" + kStoreWords;
  found(kStoreWords + kFence + "bar.sync 0;\n" + store + again + kWaitBulk, FindingKind::race,
        "after the read by cp.async.bulk");
  Buffer source(4096);
  const std::string read_waited = "@%p1 cp.async.bulk.wait_group.read 0;\n";
  const std::string right = kStoreWords + kFence + "bar.sync 0;\n" + store + read_waited + again;
  CHECK(FromSource{.body = right, .threads = 64}.run(source).findings.empty());
  found(kFirst + bulk_store(256) + kCommitBulk + kWaitBulk, FindingKind::unwritten_shared, "");
  found(kFirst + bulk_store(256, "%source+4000") + kCommitBulk + kWaitBulk, FindingKind::global_out_of_bounds, "");
}

TEST_CASE("bulk copies with operands that they cannot have are found") {
  const auto found = [](const std::string& copy, FindingKind kind, const std::string& text) {
    FromSource{.body = initialise() + "@%p1 " + copy}.check_found(kind, text);
  };
  const std::string load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ";
  found(load + "[%smem+136], [%source], 64, [%smem];", FindingKind::misaligned, "was 0x488");
  found(load + "[%smem+128], [%source+8], 64, [%smem];", FindingKind::misaligned,
        "the address must be a multiple of 16");
  found(load + "[%smem+128], [%source], 40, [%smem];", FindingKind::bad_operand, "a positive multiple of 16, was 40");
  found(load + "[%smem+8176], [%source], 32, [%smem];", FindingKind::shared_out_of_bounds, "32 bytes at 0x23f0");
  found(load + "[%smem+128], [%source+4080], 32, [%smem];", FindingKind::global_out_of_bounds, "of 'source'");
  found("mov.b16 %rs0, 4;\n" + load.substr(0, load.size() - 1) +
            ".multicast::cluster [%smem+128], [%source], 32, [%smem], %rs0;",
        FindingKind::bad_operand, "must name some of the 1 blocks of the cluster, was 0x4");
}

TEST_CASE("bulk reductions") {
  struct Case {
    const char* operation;
    std::uint32_t (*expected)(std::uint32_t old, std::uint32_t value);
  };
  static const Case cases[] = {
      {"add.u32", [](std::uint32_t old, std::uint32_t value) { return old + value; }},
      {"add.s32", [](std::uint32_t old, std::uint32_t value) { return old + value; }},
      {"min.u32", [](std::uint32_t old, std::uint32_t value) { return std::min(old, value); }},
      {"max.u32", [](std::uint32_t old, std::uint32_t value) { return std::max(old, value); }},
      {"max.s32",
       [](std::uint32_t old, std::uint32_t value) {
         return static_cast<std::int32_t>(old) > static_cast<std::int32_t>(value) ? old : value;
       }},
      {"and.b32", [](std::uint32_t old, std::uint32_t value) { return old & value; }},
      {"or.b32", [](std::uint32_t old, std::uint32_t value) { return old | value; }},
      {"xor.b32", [](std::uint32_t old, std::uint32_t value) { return old ^ value; }},
      {"inc.u32", [](std::uint32_t old, std::uint32_t value) { return old >= value ? 0 : old + 1; }},
      {"dec.u32", [](std::uint32_t old, std::uint32_t value) { return old == 0 || old > value ? value : old - 1; }},
  };
  for (const Case& one : cases) {
    INFO(std::string(one.operation));
    const SmallKernel kernel{
        .body = ".reg .b64 %source;\nld.param.u64 %source, [source];\n" + kStoreWords + kFence + "bar.sync 0;\n" +
                kFirst +
                fmt::format("@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{} [%source], [%r4], 256;\n",
                            one.operation) +
                kCommitBulk + kWaitBulk,
        .threads = 64,
        .parameters = ", .param .u64 source",
    };
    Buffer target(256);
    Words old(64), now(64);
    // Some below and some above what is stored, some far above.
    for (std::uint32_t i = 0; i < 64; ++i) old[i] = i % 4 == 3 ? 0xffff0000u + i : i * 4 % 100;
    std::memcpy(target.data(), old.data(), 256);
    Memory memory;
    memory.add("target", target.data(), 256);
    const Runs runs = run_schedules(kernel, memory, 1, static_cast<void*>(target.data()));
    INFO(runs.text());
    CHECK(runs.findings.empty());
    std::memcpy(now.data(), target.data(), 256);
    for (std::uint32_t i = 0; i < 64; ++i) CHECK(now[i] == one.expected(old[i], 3 * i));
  }
}

TEST_CASE("blocks of a cluster copy to each other, and reduce") {
  // Each block sends 32 words to the other: word 512 + i becomes 3 * i of the other block, or is added to.
  const auto body = [](const std::string& copy) {
    return initialise() + "mul.lo.u32 %r2, %tid, 3;\nadd.u32 %r2, %r2, %rank;\nmad.lo.u32 %r3, %tid, 4, %smem;\n" +
           "st.shared.b32 [%r3+1024], %r2;\nmov.u32 %r6, 7;\nst.shared.b32 [%r3+2048], %r6;\n" +
           "fence.proxy.async;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n" + expect(128) +
           "xor.b32 %r7, %rank, 1;\nmapa.shared::cluster.u32 %r8, %smem, %r7;\nadd.u32 %r4, %smem, 1024;\n" + "@%p1 " +
           copy + " [%r8+2048], [%r4], 128, [%r8];\n" + wait("%smem", "0") + output_words(512) +
           "barrier.cluster.arrive;\nbarrier.cluster.wait;\n";
  };
  const auto expected = [](int base) {
    return words(64, [&](int thread) { return base + 3 * (thread % 32) + (thread < 32 ? 1 : 0); });
  };
  const std::string tail = "async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes";
  FromSource{.body = body("cp." + tail), .cluster = 2}.check_right(expected(0));
  FromSource{.body = body("cp.reduce." + tail + ".add.u32"), .cluster = 2}.check_right(expected(7));
  // Reductions may go to the same place at the same time.
  const std::string operands = " [%r8+2048], [%r4], 64, [%r8];\n";
  const std::string first_half = "cp.reduce." + tail + ".add.u32" + operands + "@%p1 cp.reduce." + tail + ".add.u32";
  std::string twice = body(first_half);
  twice.replace(twice.rfind("128, [%r8];"), 3, "64");
  FromSource{.body = twice, .cluster = 2}.check_right(words(
      64, [](int thread) { return 7 + (thread % 32 < 16 ? 2 : 0) * (3 * (thread % 32) + (thread < 32 ? 1 : 0)); }));
}

TEST_CASE("multicast writes the same place of each block, and signals each block's mbarrier") {
  // Each block loads one half for both.
  const std::string body = initialise() + expect(256) +
                           "barrier.cluster.arrive;\nbarrier.cluster.wait;\nmov.b16 %rs0, 3;\n"
                           "mad.wide.u32 %source, %rank, 128, %source;\nmad.lo.u32 %r9, %rank, 128, %smem;\n"
                           "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                           "[%r9+1024], [%source], 128, [%smem], %rs0;\n" +
                           wait("%smem", "0") +
                           "setp.lt.u32 %p2, %tid, 32;\n@%p2 mad.lo.u32 %r9, %tid, 4, %smem;\n"
                           "@%p2 ld.shared.b32 %r10, [%r9+1024];\n@%p2 ld.shared.b32 %r11, [%r9+1152];\n"
                           "@%p2 xor.b32 %r10, %r10, %r11;\n@%p2 st.global.b32 [%out], %r10;\n"
                           "barrier.cluster.arrive;\nbarrier.cluster.wait;\n";
  const Words source = source_words(0, 64);
  const Words expected = words(64, [&](int thread) {
    const auto word = static_cast<std::size_t>(thread % 32);
    return source[word] ^ source[word + 32];
  });
  FromSource{.body = body, .cluster = 2}.check_right(expected);
  std::string unsynchronised = body;  // the other block may not have initialised its mbarrier
  unsynchronised.replace(unsynchronised.find("barrier.cluster.arrive;\nbarrier.cluster.wait;\n"), 46, "");
  FromSource{.body = unsynchronised, .cluster = 2}.check_found(FindingKind::mbarrier_not_initialised);
  std::string early_end = body;
  early_end.resize(early_end.rfind("barrier.cluster.arrive"));
  Buffer buffer(4096);
  CHECK(FromSource{.body = early_end, .cluster = 2}.run(buffer).findings.empty());  // each has waited for its own bytes
}

// --- Tensor copies ---------------------------------------------------------------------------------------------------

namespace {

int bytes_of(TensorElement element) {
  switch (element) {
    case TensorElement::u8:
      return 1;
    case TensorElement::u16:
    case TensorElement::f16:
    case TensorElement::bf16:
      return 2;
    case TensorElement::u32:
    case TensorElement::s32:
    case TensorElement::f32:
      return 4;
    default:
      return 8;
  }
}

// A tensor with some bytes between its rows, and a box of it.
struct TensorCase {
  TensorMapDescription map;
  std::array<std::int32_t, 5> at{};
  int shared_offset = 1024;

  int element() const { return bytes_of(map.element); }
  std::size_t tensor_bytes() const {
    const auto rank = static_cast<std::size_t>(map.rank);
    return rank == 1 ? map.sizes[0] * static_cast<std::size_t>(element())
                     : map.byte_strides[rank - 2] * map.sizes[rank - 1];
  }
  std::uint32_t count(std::size_t i) const {
    return i == 0 ? map.box[0] : (map.box[i] + map.element_strides[i] - 1) / map.element_strides[i];
  }
  std::size_t row_bytes() const { return std::size_t{map.box[0]} * static_cast<std::size_t>(element()); }
  // Between the beginnings of two rows in shared memory.
  std::size_t row_pitch() const {
    const bool is_swizzled = map.swizzle != TensorSwizzle::none;
    return std::max(row_bytes(), is_swizzled ? std::size_t{16} << static_cast<int>(map.swizzle) : 0);
  }
  std::size_t rows() const {
    std::size_t rows = 1;
    for (std::size_t i = 1; i < static_cast<std::size_t>(map.rank); ++i) rows *= count(i);
    return rows;
  }
  std::size_t box_bytes() const { return rows() * row_bytes(); }
  std::size_t shared_bytes() const { return rows() * row_pitch(); }
  // Calls f(offset in shared memory, offset in the tensor or -1) for each element of the box.
  template <class F>
  void for_each_element(const F& f) const {
    const std::size_t size = static_cast<std::size_t>(element());
    for (std::size_t i = 0; i < box_bytes() / size; ++i) {
      std::ptrdiff_t from = 0;
      bool inside = true;
      for (std::size_t d = 0, rest = i; d < static_cast<std::size_t>(map.rank); rest /= count(d), ++d) {
        const std::int64_t step = d == 0 ? 1 : map.element_strides[d];
        const std::int64_t x = at[d] + static_cast<std::int64_t>(rest % count(d)) * step;
        inside = inside && x >= 0 && x < static_cast<std::int64_t>(map.sizes[d]);
        from += x * static_cast<std::int64_t>(d == 0 ? size : map.byte_strides[d - 1]);
      }
      f(place(i * size / row_bytes() * row_pitch() + i * size % row_bytes()), inside ? from : -1);
    }
  }
  // Units of 16 bytes trade places: those of a row of 128 bytes, by the number of the row.
  std::size_t place(std::size_t offset) const {
    const std::size_t begin = static_cast<std::size_t>(shared_offset) + offset;
    const std::size_t row = begin / 128 % 8, unit = begin / 16 % 8;
    std::size_t other = unit;
    if (map.swizzle == TensorSwizzle::bytes_128) other = unit ^ row;
    if (map.swizzle == TensorSwizzle::bytes_64) other = unit ^ (row % 4);
    if (map.swizzle == TensorSwizzle::bytes_32) other = unit ^ (row % 2);
    return begin / 128 * 128 + other * 16 + begin % 16;
  }
  std::string operand() const {
    std::string list;
    for (int i = 0; i < map.rank; ++i) list += fmt::format("{}{}", i ? ", " : "", at[static_cast<std::size_t>(i)]);
    return fmt::format("[%map, {{{}}}]", list);
  }
};

constexpr std::size_t kSharedBytes = 16384;

// The body has the address of the tensor map in %map, and that of kSharedBytes of memory in %image.
SmallKernel tensor_kernel(const std::string& body, unsigned cluster = 1) {
  return {
      .body =
          ".reg .b64 %map, %image;\nmov.b64 %map, map;\ncvta.param.u64 %map, %map;\nld.param.u64 %image, [image];\n" +
          body,
      .threads = 64,
      .cluster = cluster,
      .shared_bytes = kSharedBytes,
      .parameters = ", .param .align 64 .b8 map[128], .param .u64 image"};
}

// Between shared memory and the image, word by word from `from` on.
std::string move_image(bool to_shared, std::size_t from, std::size_t bytes) {
  const char* const move = to_shared ? "ld.global.b32 %r22, [%rd10];\nst.shared.b32 [%r21], %r22;\n"
                                     : "ld.shared.b32 %r22, [%r21];\nst.global.b32 [%rd10], %r22;\n";
  return fmt::format(
      "mad.lo.u32 %r20, %tid, 4, {0};\n{{\nMOVE:\nsetp.ge.u32 %p5, %r20, {1};\n@%p5 bra MOVED;\n"
      "add.u32 %r21, %r20, %smem;\ncvt.u64.u32 %rd10, %r20;\nadd.u64 %rd10, %rd10, %image;\n{2}"
      "add.u32 %r20, %r20, 256;\nbra MOVE;\nMOVED:\n}}\n",
      from, from + bytes, move);
}

Runs run_tensor(const TensorCase& tensor, const SmallKernel& kernel, Buffer& data, Bytes& image, int schedules = 3) {
  TensorMapDescription description = tensor.map;
  description.address = data.data();
  const TensorMap map = encode_tensor_map(description);
  Memory memory;
  memory.add("tensor", data.data(), data.size);
  memory.add("image", image.data(), image.size());
  return run_schedules(kernel, memory, schedules, map, static_cast<void*>(image.data()));
}

std::string tensor_load(const TensorCase& tensor) {
  return fmt::format(
      "@%p1 cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%smem+{}], {}, "
      "[%smem];\n",
      tensor.map.rank, tensor.shared_offset, tensor.operand());
}

void check_load(const TensorCase& tensor) {
  const auto bytes = static_cast<int>(tensor.box_bytes());
  const auto offset = static_cast<std::size_t>(tensor.shared_offset);
  const std::string body = move_image(true, offset, tensor.shared_bytes()) + "fence.proxy.async;\n" + initialise() +
                           expect(bytes) + tensor_load(tensor) + wait("%smem", "0") +
                           move_image(false, offset, tensor.shared_bytes());
  Buffer data(tensor.tensor_bytes());
  Bytes image(kSharedBytes, 0xa5), expected = image;
  const Runs runs = run_tensor(tensor, tensor_kernel(body), data, image);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  const auto size = static_cast<std::size_t>(tensor.element());
  Bytes fill(size);
  if (tensor.map.fill == TensorFill::nan)
    for (std::size_t i = 0; i < size; ++i) fill[i] = i % 2 == 0 ? 0xf7 : 0x7f;
  tensor.for_each_element([&](std::size_t to, std::ptrdiff_t from) {
    std::copy_n(from < 0 ? fill.data() : data.data() + from, size, expected.data() + to);
  });
  CHECK(image == expected);
}

// The instruction stores or reduces the box; `combine` makes of old and stored bytes what must be there.
template <class Combine>
void check_store(const TensorCase& tensor, const std::string& opcode, const Combine& combine) {
  const auto offset = static_cast<std::size_t>(tensor.shared_offset);
  const std::string body = "setp.eq.u32 %p1, %tid, 0;\n" + move_image(true, offset, tensor.shared_bytes()) +
                           "fence.proxy.async.shared::cta;\nbar.sync 0;\n" +
                           fmt::format("@%p1 {} {}, [%smem+{}];\n", opcode, tensor.operand(), offset) + kCommitBulk +
                           kWaitBulk;
  Buffer data(tensor.tensor_bytes(), 7), image_data(kSharedBytes, 9);
  Bytes image = image_data.bytes(), expected = data.bytes();
  const Runs runs = run_tensor(tensor, tensor_kernel(body), data, image, 1);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  const auto size = static_cast<std::size_t>(tensor.element());
  tensor.for_each_element([&](std::size_t from, std::ptrdiff_t to) {
    if (to >= 0) combine(expected.data() + to, image.data() + from, size);
  });
  CHECK(data.bytes() == expected);
}

std::string store_opcode(const TensorCase& tensor) {
  return fmt::format("cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group", tensor.map.rank);
}

TensorCase tensor_of_rank(int rank, TensorElement element, TensorSwizzle swizzle) {
  TensorCase tensor;
  tensor.map.rank = rank;
  tensor.map.element = element;
  tensor.map.swizzle = swizzle;
  const auto size = static_cast<std::uint32_t>(bytes_of(element));
  const std::uint32_t row = swizzle == TensorSwizzle::none ? 48 : 16u << static_cast<int>(swizzle);
  tensor.map.sizes = {200 / size + 3, 7, 5, 4, 3};
  tensor.map.box = {row / size, 6, 3, 2, 2};
  std::uint64_t stride = (tensor.map.sizes[0] * size + 15) / 16 * 16 + 16;
  for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(rank); ++i) {
    tensor.map.byte_strides[i] = stride;
    stride *= tensor.map.sizes[i + 1];
  }
  return tensor;
}

const TensorSwizzle kSwizzles[] = {TensorSwizzle::none, TensorSwizzle::bytes_32, TensorSwizzle::bytes_64,
                                   TensorSwizzle::bytes_128};
// Inside, over an end, before the beginning, wholly outside; the first coordinate in units of 16 bytes.
const std::array<std::int32_t, 5> kPlaces[] = {{2, 1, 1, 1, 0},  {12, 4, 3, 3, 2},  {-1, -2, -1, -1, -1},
                                               {1, -3, 4, 0, 1}, {100, 0, 0, 0, 0}, {0, -6, 0, 0, 0}};

void move_to(TensorCase& tensor, const std::array<std::int32_t, 5>& place) {
  tensor.at = place;
  tensor.at[0] *= 16 / tensor.element();
}

bool is_before_the_beginning(const TensorCase& tensor) {
  return std::any_of(tensor.at.begin(), tensor.at.begin() + tensor.map.rank, [](std::int32_t x) { return x < 0; });
}

}  // namespace

TEST_CASE("tensor loads in every rank and swizzle, inside and outside of the tensor") {
  for (int rank = 1; rank <= 5; ++rank)
    for (const TensorSwizzle swizzle : kSwizzles)
      for (const auto& place : kPlaces) {
        CAPTURE(rank);
        CAPTURE(static_cast<int>(swizzle));
        CAPTURE(place[0]);
        TensorCase tensor = tensor_of_rank(rank, TensorElement::bf16, swizzle);
        move_to(tensor, place);
        check_load(tensor);
      }
}

TEST_CASE("tensor loads of each element size, with fills, element strides, and a box within a swizzle's pattern") {
  for (const TensorElement element : {TensorElement::u8, TensorElement::u16, TensorElement::f32, TensorElement::u64}) {
    TensorCase tensor = tensor_of_rank(3, element, TensorSwizzle::bytes_64);
    move_to(tensor, {-1, 2, 1, 0, 0});
    check_load(tensor);
  }
  for (const TensorElement element :
       {TensorElement::f16, TensorElement::bf16, TensorElement::f32, TensorElement::f64}) {
    TensorCase tensor = tensor_of_rank(2, element, TensorSwizzle::bytes_128);
    tensor.map.fill = TensorFill::nan;
    move_to(tensor, {-1, 4, 0, 0, 0});
    check_load(tensor);
  }
  for (const TensorSwizzle swizzle : kSwizzles) {
    TensorCase tensor = tensor_of_rank(4, TensorElement::f16, swizzle);
    tensor.map.element_strides = {1, 2, 3, 1, 1};
    tensor.map.box[1] = 5;
    move_to(tensor, {1, -1, 1, 1, 0});
    check_load(tensor);
    tensor.shared_offset = 1024 + 384;
    check_load(tensor);
  }
}

TEST_CASE("rows that are narrower than the swizzle's pattern lie as far apart as it is wide") {
  const auto replace = [](std::uint8_t* to, const std::uint8_t* from, std::size_t size) {
    std::copy_n(from, size, to);
  };
  for (const TensorSwizzle swizzle : {TensorSwizzle::bytes_32, TensorSwizzle::bytes_64, TensorSwizzle::bytes_128})
    for (const auto& place : kPlaces) {
      TensorCase tensor = tensor_of_rank(3, TensorElement::bf16, swizzle);
      tensor.map.box[0] = swizzle == TensorSwizzle::bytes_128 ? 24 : 8;
      move_to(tensor, place);
      CAPTURE(static_cast<int>(swizzle));
      CAPTURE(place[0]);
      check_load(tensor);
      if (!is_before_the_beginning(tensor)) check_store(tensor, store_opcode(tensor), replace);
    }
}

TEST_CASE("tensor stores in every rank and swizzle write what is inside of the tensor, and nothing else") {
  const auto replace = [](std::uint8_t* to, const std::uint8_t* from, std::size_t size) {
    std::copy_n(from, size, to);
  };
  for (int rank = 1; rank <= 5; ++rank)
    for (const TensorSwizzle swizzle : kSwizzles)
      for (const auto& place : kPlaces) {
        CAPTURE(rank);
        CAPTURE(static_cast<int>(swizzle));
        CAPTURE(place[0]);
        TensorCase tensor = tensor_of_rank(rank, TensorElement::f16, swizzle);
        move_to(tensor, place);
        if (!is_before_the_beginning(tensor)) check_store(tensor, store_opcode(tensor), replace);
      }
}

namespace {

// What reduces values of T bit by bit, or number by number.
template <class T, class F>
auto combine_as(const F& f) {
  return [f](std::uint8_t* to, const std::uint8_t* from, std::size_t) {
    T old, value;
    std::memcpy(&old, to, sizeof(T));
    std::memcpy(&value, from, sizeof(T));
    const T result = f(old, value);
    std::memcpy(to, &result, sizeof(T));
  };
}

std::string reduce_opcode(const char* operation) {
  return fmt::format("cp.reduce.async.bulk.tensor.3d.global.shared::cta.{}.tile.bulk_group", operation);
}

}  // namespace

TEST_CASE("tensor reductions") {
  const auto of = [](TensorElement element) {
    TensorCase tensor = tensor_of_rank(3, element, TensorSwizzle::bytes_32);
    move_to(tensor, {1, 3, 2, 0, 0});
    return tensor;
  };
  using U32 = std::uint32_t;
  using S64 = std::int64_t;
  using U64 = std::uint64_t;
  check_store(of(TensorElement::u32), reduce_opcode("add"), combine_as<U32>([](U32 a, U32 b) { return a + b; }));
  check_store(of(TensorElement::s64), reduce_opcode("min"),
              combine_as<S64>([](S64 a, S64 b) { return std::min(a, b); }));
  check_store(of(TensorElement::u64), reduce_opcode("xor"), combine_as<U64>([](U64 a, U64 b) { return a ^ b; }));
  check_store(of(TensorElement::u32), reduce_opcode("inc"),
              combine_as<U32>([](U32 a, U32 b) { return a >= b ? 0 : a + 1; }));
}

TEST_CASE("floating-point reductions round to nearest") {
  // 1.0 + 2^-8 in bf16 is a tie, which goes to even; 1 + 3 * 2^-8 goes up to 1 + 2^-6.
  TensorCase tensor = tensor_of_rank(1, TensorElement::bf16, TensorSwizzle::none);
  Buffer data(tensor.tensor_bytes());
  Bytes image(kSharedBytes);
  auto* const old = reinterpret_cast<std::uint16_t*>(data.data());
  const std::uint16_t added[] = {0x3b80, 0x3c40, 0xbf80, 0x7f80};  // 2^-8, 3 * 2^-8, -1, infinity
  for (int i = 0; i < 4; ++i) {
    old[i] = 0x3f80;
    std::memcpy(image.data() + 1024 + 2 * i, &added[i], 2);
  }
  const std::string body = "setp.eq.u32 %p1, %tid, 0;\n" + move_image(true, 1024, 48) +
                           "fence.proxy.async;\nbar.sync 0;\n" +
                           "@%p1 cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group " + tensor.operand() +
                           ", [%smem+1024];\n" + kCommitBulk + kWaitBulk;
  const Runs runs = run_tensor(tensor, tensor_kernel(body), data, image, 1);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  const std::uint16_t expected[] = {0x3f80, 0x3f82, 0x0000, 0x7f80};
  for (int i = 0; i < 4; ++i) CHECK(old[i] == expected[i]);
}

TEST_CASE("a tensor is multicast to the blocks of a cluster") {
  TensorCase tensor = tensor_of_rank(2, TensorElement::bf16, TensorSwizzle::bytes_64);
  move_to(tensor, {1, 1, 0, 0, 0});
  std::string load = tensor_load(tensor);
  load.replace(load.find("::bytes"), 7, "::bytes.multicast::cluster");
  load.replace(load.find("[%smem];"), 8, "[%smem], %rs0;");
  const auto bytes = static_cast<int>(tensor.box_bytes());
  const std::string body = initialise() + expect(bytes) +
                           "barrier.cluster.arrive;\nbarrier.cluster.wait;\nmov.b16 %rs0, 3;\n"
                           "setp.ne.u32 %p4, %rank, 0;\n@%p4 setp.eq.u32 %p1, %tid, 1000;\n" +
                           load + wait("%smem", "0") + "setp.eq.u32 %p4, %rank, 0;\n@%p4 bra END;\n" +
                           move_image(false, static_cast<std::size_t>(tensor.shared_offset), tensor.box_bytes()) +
                           "END:\n";
  Buffer data(tensor.tensor_bytes());
  Bytes image(kSharedBytes, 0xa5), expected = image;
  const Runs runs = run_tensor(tensor, tensor_kernel(body, 2), data, image, test::kSchedules);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  tensor.for_each_element(
      [&](std::size_t to, std::ptrdiff_t from) { std::copy_n(data.data() + from, 2, expected.data() + to); });
  CHECK(image == expected);
  CHECK(runs.last.counters.tma_bytes_loaded == 2 * tensor.box_bytes());
}

TEST_CASE("tensor copies with operands that they cannot have are found") {
  TensorCase tensor = tensor_of_rank(2, TensorElement::bf16, TensorSwizzle::bytes_128);
  const auto found = [&](const std::string& copy, FindingKind kind, const std::string& text) {
    Buffer data(tensor.tensor_bytes());
    Bytes image(kSharedBytes);
    const Runs runs = run_tensor(tensor, tensor_kernel(initialise() + copy), data, image, 1);
    INFO("expected ", std::string(emulator::to_string(kind)), ": ", text, "\n", runs.text());
    CHECK(runs.has(kind, text));
  };
  tensor.shared_offset = 1024 + 64;
  found(tensor_load(tensor), FindingKind::misaligned, "must be a multiple of 128, was 0x840");
  tensor.shared_offset = kSharedBytes - 128;
  found(tensor_load(tensor), FindingKind::shared_out_of_bounds, "768 bytes at 0x4380");
  tensor.shared_offset = 1024;
  std::string other_rank = tensor_load(tensor);
  other_rank.replace(other_rank.find("2d"), 2, "1d");
  other_rank.replace(other_rank.find("{0, 0}"), 6, "{0}");
  found(other_rank, FindingKind::bad_operand, "the tensor must have 1 dimensions, has 2");
  std::string no_map = tensor_load(tensor);
  no_map.replace(no_map.find("[%map"), 5, "[%image");
  found("add.u64 %image, %image, 63;\nand.b64 %image, %image, -64;\n" + no_map, FindingKind::bad_operand,
        "must come from encode_tensor_map");
  no_map.replace(no_map.find("[%image"), 7, "[%map+32");
  found(no_map, FindingKind::misaligned, "the address of the tensor map must be a multiple of 64");
  std::string reduction = "@%p1 cp.reduce.async.bulk.tensor.2d.global.shared::cta.and.tile.bulk_group ";
  found(reduction + tensor.operand() + ", [%smem+1024];\n", FindingKind::bad_operand, "do not have this reduction");
  TensorCase askew = tensor;
  askew.at[0] = 4;
  found(tensor_load(askew), FindingKind::misaligned, "the first coordinate must be at a multiple of 16 bytes, was 4");
  TensorCase before = tensor;
  before.at[1] = -1;
  found(fmt::format("@%p1 {} {}, [%smem+1024];\n", store_opcode(before), before.operand()), FindingKind::bad_operand,
        "must not be negative, coordinate 1 was -1");
  tensor.map.sizes[1] = 8;  // one row more than there is memory
  const TensorCase large = tensor;
  tensor.map.sizes[1] = 7;
  Buffer data(tensor.tensor_bytes());
  Bytes image(kSharedBytes);
  TensorCase last = large;
  last.at = {0, 5, 0, 0, 0};
  const Runs runs = run_tensor(last, tensor_kernel(initialise() + tensor_load(last)), data, image, 1);
  CHECK(runs.has(FindingKind::global_out_of_bounds, "'tensor'"));
}

TEST_CASE("what PTX does not have, and what is not modelled, is refused with the line") {
  for (const char* statement :
       {"cp.async.cg.shared.global [%smem], [%out], 8;", "cp.async.global.shared [%out], [%smem], 16;",
        "cp.async.bulk.shared::cluster.global [%smem], [%out], 16, [%smem];",
        "cp.async.bulk.tensor.6d.global.shared::cta.tile.bulk_group [%rd0, {%r0, %r0, %r0, %r0, %r0, %r0}], [%smem];",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd0, {%r0}], [%smem];",
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%smem], [%rd0, {%r0, %r0, "
        "%r0}], [%smem], {%rs0};",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.and.f32 [%out], [%smem], 16;",
        "cp.reduce.async [%out], [%smem], 16;", "cp.async.wait_group %r0;", "cp.copy [%smem], [%out], 16;"}) {
    INFO(std::string(statement));
    CHECK_THROWS_AS(emulator::Program(SmallKernel{.body = statement}.ptx()), emulator::ParseError);
  }
}

// --- Encoding --------------------------------------------------------------------------------------------------------

TEST_CASE("a tensor map that cannot be is refused, and the text says what must be") {
  const auto refusal = [](const std::function<void(TensorMapDescription&)>& change) -> std::string {
    static Buffer data(4096);
    TensorMapDescription map = tensor_of_rank(3, TensorElement::bf16, TensorSwizzle::bytes_64).map;
    map.address = data.data();
    change(map);
    try {
      encode_tensor_map(map);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal([](auto&) {}).empty());
  CHECK(refusal([](auto& map) { map.rank = 6; }) == "tensor map: rank must be from 1 to 5, was 6");
  CHECK(refusal([](auto& map) { map.rank = 0; }) == "tensor map: rank must be from 1 to 5, was 0");
  CHECK(refusal([](auto& map) {
          map.address = static_cast<std::uint8_t*>(map.address) + 8;
        }).starts_with("tensor map: address must be a multiple of 16, was 0x"));
  CHECK(refusal([](auto& map) { map.address = nullptr; }) == "tensor map: address must be a multiple of 16, was 0x0");
  CHECK(refusal([](auto& map) { map.sizes[1] = 0; }) == "tensor map: sizes[1] must be from 1 to 4294967296, was 0");
  CHECK(refusal([](auto& map) { map.byte_strides[1] = 24; }) ==
        "tensor map: byte_strides[1] must be a multiple of 16 below 1099511627776, was 24");
  CHECK(refusal([](auto& map) { map.box[2] = 257; }) == "tensor map: box[2] must be from 1 to 256, was 257");
  CHECK(refusal([](auto& map) { map.element_strides[1] = 9; }) ==
        "tensor map: element_strides[1] must be from 1 to 8, was 9");
  CHECK(refusal([](auto& map) { map.box[0] = 64; }) ==
        "tensor map: box[0] must be at most the 64 bytes of the swizzle, was 128");
  CHECK(refusal([](auto& map) {
          map.swizzle = TensorSwizzle::none;
          map.box[0] = 12;
        }) == "tensor map: box[0] must be a multiple of 16 bytes, was 24");
  CHECK(refusal([](auto& map) {
          map.element = TensorElement::u16;
          map.fill = TensorFill::nan;
        }) == "tensor map: fill must be zeros for elements that are not floating-point, was nan");
}
