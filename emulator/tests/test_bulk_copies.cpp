// SPDX-License-Identifier: Apache-2.0
// Copies of bytes by the copy engine in the emulator: what they move, against plain loops, and faults in their
// protocols.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/support/source_kernel.h"

namespace {

using namespace flashjit;
using emulator::FindingKind;
using emulator::Memory;
using test::Buffer;
using test::expect;
using test::FromSource;
using test::initialise;
using test::kCommitBulk;
using test::kWaitBulk;
using test::output_words;
using test::Runs;
using test::SmallKernel;
using test::source_words;
using test::wait;
using test::Words;
using test::words;

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
