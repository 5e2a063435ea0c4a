// SPDX-License-Identifier: Apache-2.0
// Barriers of blocks and clusters and mbarriers in the emulator: right protocols are clean under every schedule, and
// each fault is found as what it is.
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
using test::Words;
using test::words;

// Each thread stores its number, and loads that of the thread 32 behind it, in a ring.
std::string exchange(int threads, const std::string& barrier) {
  return fmt::format(
      "shl.b32 %r0, %tid, 2;\nadd.u32 %r0, %r0, %smem;\nst.shared.b32 [%r0], %tid;\n{0}\n"
      "add.u32 %r1, %tid, 32;\nrem.u32 %r1, %r1, {1};\nshl.b32 %r1, %r1, 2;\nadd.u32 %r1, %r1, %smem;\n"
      "ld.shared.b32 %r2, [%r1];\nst.global.b32 [%out], %r2;\n",
      barrier, threads);
}
Words exchanged(int threads) {
  return words(threads, [&](int tid) { return (tid + 32) % threads; });
}

// %p1 holds in the first thread of the block.
const std::string kFirstThread = "setp.eq.u32 %p1, %tid, 0;\n";

std::string initialise(int mbarriers, int count) {
  std::string text = kFirstThread;
  for (int i = 0; i < mbarriers; ++i)
    text += fmt::format("@%p1 mbarrier.init.shared::cta.b64 [%smem+{}], {};\n", 8 * i, count);
  return text + "bar.sync 0;\n";
}

}  // namespace

// --- Named barriers --------------------------------------------------------------------------------------------------

TEST_CASE("a barrier of the block orders what its warps store and load") {
  for (const char* barrier : {"bar.sync 0;", "barrier.sync.aligned 0;", "barrier.cta.sync 3, 96;", "bar.sync 0, 96;"})
    check_right({.body = exchange(96, barrier), .threads = 96}, exchanged(96));
  const auto runs = run_schedules(SmallKernel{.body = exchange(96, ""), .threads = 96});
  CHECK(runs.has(FindingKind::race, "after the write by st.shared.b32"));
  CHECK(runs.has(FindingKind::race, "after the read by ld.shared.b32"));
}

TEST_CASE("a barrier's number and count may come from registers, and the last warp may be short") {
  check_right({.body = exchange(96, "mov.u32 %r5, 7;\nmov.u32 %r6, 96;\nbar.sync %r5, %r6;"), .threads = 96},
              exchanged(96));
  const std::string body = exchange(80, "bar.sync 1, 96;");
  check_right({.body = body, .threads = 80}, exchanged(80));
}

TEST_CASE("warps that have ended are not waited for by a barrier of the whole block") {
  const std::string body = "setp.eq.u32 %p0, %warp, 2;\n@%p0 ret;\n" + exchange(64, "bar.sync 0;");
  Words expected = exchanged(64);
  expected.resize(96);
  check_right({.body = body, .threads = 96}, expected);
}

TEST_CASE("two warps pass a word to and fro with bar.arrive and bar.sync") {
  const std::string body = R"(
mov.u32 %r0, 0;
setp.eq.u32 %p0, %warp, 1;
@%p0 bra CONSUMER;
PRODUCE:
st.shared.b32 [%smem], %r0;
bar.arrive 1, 64;
bar.sync 2, 64;
add.u32 %r0, %r0, 1;
setp.lt.u32 %p1, %r0, 10;
@%p1 bra PRODUCE;
ret;
CONSUMER:
mov.u32 %r3, 0;
CONSUME:
bar.sync 1, 64;
ld.shared.b32 %r2, [%smem];
mad.lo.u32 %r3, %r3, 3, %r2;
bar.arrive 2, 64;
add.u32 %r0, %r0, 1;
setp.lt.u32 %p1, %r0, 10;
@%p1 bra CONSUME;
st.global.b32 [%out], %r3;
)";
  // One lane stores in each turn.
  const std::string one_lane = "setp.eq.u32 %p2, %lane, 0;\n" + body;
  std::string guarded = one_lane;
  guarded.replace(guarded.find("st.shared"), 0, "@%p2 ");
  std::uint32_t sum = 0;
  for (std::uint32_t i = 0; i < 10; ++i) sum = sum * 3 + i;
  check_right({.body = guarded, .threads = 64}, words(64, [&](int tid) { return tid < 32 ? 0 : sum; }));

  std::string without = guarded;  // nobody tells the producer that the word was read
  without.replace(without.find("bar.sync 2, 64;"), 15, "");
  without.replace(without.find("bar.arrive 2, 64;"), 17, "");
  const auto runs = run_schedules(SmallKernel{.body = without, .threads = 64});
  CHECK(runs.has(FindingKind::race));
}

TEST_CASE("barriers vote") {
  const auto body = [](const std::string& vote) {
    return "setp.lt.u32 %p0, %tid, 40;\nsetp.lt.u32 %p2, %tid, 64;\n" + vote + "\nst.global.b32 [%out], %r0;\n";
  };
  const auto all = [](std::uint32_t value) { return words(64, [&](int) { return value; }); };
  check_right({.body = body("bar.red.popc.u32 %r0, 0, %p0;"), .threads = 64}, all(40));
  check_right({.body = body("barrier.red.popc.aligned.u32 %r0, 1, 64, !%p0;"), .threads = 64}, all(24));
  const std::string to_word = "selp.u32 %r0, 1, 0, %p1;";
  check_right({.body = body("bar.red.and.pred %p1, 0, 64, %p0;" + to_word), .threads = 64}, all(0));
  check_right({.body = body("bar.red.and.pred %p1, 0, %p2;" + to_word), .threads = 64}, all(1));
  check_right({.body = body("bar.red.or.pred %p1, 0, %p0;" + to_word), .threads = 64}, all(1));
  check_right({.body = body("bar.red.or.pred %p1, 0, !%p2;" + to_word), .threads = 64}, all(0));
}

TEST_CASE("a named barrier that is used with different counts, or twice by a warp, is found") {
  const std::string by_warp = "setp.eq.u32 %p0, %warp, 0;\n@%p0 bra FIRST;\n";
  const std::string unequal = by_warp + "bar.sync 1, 64;\nret;\nFIRST:\nbar.sync 1, 96;\n";
  const auto runs = run_schedules(SmallKernel{.body = unequal, .threads = 64});
  CHECK(runs.has(FindingKind::barrier_mismatch, "named barrier 1 is for 96 threads here, and for 64 by bar.sync"));
  check_found(
      {.body = by_warp + "bar.arrive 1, 96;\nret;\nFIRST:\nbar.arrive 1, 96;\nbar.arrive 1, 96;\n", .threads = 64},
      FindingKind::barrier_mismatch, "warp 0 arrives again at named barrier 1");
}

TEST_CASE("a count or a number that a named barrier cannot have is found") {
  check_found({.body = "bar.sync 1, 40;", .threads = 64}, FindingKind::bad_operand,
              "the number of threads must be a positive multiple of 32, was 40");
  check_found({.body = "mov.u32 %r0, 16;\nbar.sync %r0;", .threads = 64}, FindingKind::bad_operand,
              "the number of the barrier must be less than 16, was 16");
  check_found({.body = "bar.sync %lane;", .threads = 32}, FindingKind::bad_operand,
              "the number of the barrier must be the same in all threads of the warp");
}

TEST_CASE("a barrier that only some lanes execute is found") {
  check_found({.body = "setp.lt.u32 %p0, %lane, 16;\n@%p0 bar.sync 0;", .threads = 32},
              FindingKind::unequal_participation, "0x0000ffff");
}

TEST_CASE("a named barrier that nobody else comes to is a deadlock, which says who is missing") {
  check_found({.body = "bar.sync 3, 64;", .threads = 32}, FindingKind::deadlock,
              "named barrier 3: 32 of 64 threads have arrived");
  const std::string body = "setp.eq.u32 %p0, %warp, 0;\n@%p0 bra FIRST;\nbar.sync 0;\nret;\nFIRST:\nbar.sync 2, 64;\n";
  check_found({.body = body, .threads = 64}, FindingKind::deadlock,
              "named barrier 0: 32 of 64 threads have arrived, not of warps 0");
}

// --- Clusters --------------------------------------------------------------------------------------------------------

namespace {

// Each thread stores its number in its block's memory, and loads that of the same thread of the next block.
std::string exchange_of_cluster(const std::string& first, const std::string& second =
                                                              "barrier.cluster.arrive.aligned;\n"
                                                              "barrier.cluster.wait.aligned;") {
  return fmt::format(
      "mad.lo.u32 %r3, %rank, 1000, %tid;\nshl.b32 %r0, %tid, 2;\nadd.u32 %r0, %r0, %smem;\nst.shared.b32 [%r0], %r3;\n"
      "{}\nxor.b32 %r1, %rank, 1;\nmapa.shared::cluster.u32 %r2, %r0, %r1;\nld.shared::cluster.b32 %r4, [%r2];\n"
      "getctarank.shared::cluster.u32 %r5, %r2;\nmad.lo.u32 %r4, %r5, 1000000, %r4;\nst.global.b32 [%out], %r4;\n{}\n",
      first, second);
}
Words exchanged_of_cluster() {
  return words(128, [](int thread) { return (1 - thread / 64) * 1'001'000 + thread % 64; });
}

}  // namespace

TEST_CASE("the barrier of a cluster orders what its blocks store and load") {
  for (const char* arrive : {"barrier.cluster.arrive", "barrier.cluster.arrive.release.aligned"})
    for (const char* wait_for : {"barrier.cluster.wait", "barrier.cluster.wait.acquire.aligned"})
      check_right(
          {.body = exchange_of_cluster(fmt::format("{};\n{};\n", arrive, wait_for)), .threads = 64, .cluster = 2},
          exchanged_of_cluster());
  const std::string fenced =
      "fence.acq_rel.cluster;\nbarrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;";
  check_right({.body = exchange_of_cluster(fenced), .threads = 64, .cluster = 2}, exchanged_of_cluster());
}

TEST_CASE("a relaxed arrival at the barrier of a cluster orders nothing") {
  const std::string relaxed = "barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;";
  check_found({.body = exchange_of_cluster(relaxed), .threads = 64, .cluster = 2}, FindingKind::race);
}

TEST_CASE("addresses of other blocks, generic and 64-bit") {
  const std::string body = R"(
cvt.u64.u32 %rd0, %smem;
cvta.shared.u64 %rd1, %rd0;
st.shared.b32 [%smem], %rank;
barrier.cluster.arrive;
barrier.cluster.wait;
xor.b32 %r1, %rank, 1;
mapa.u64 %rd2, %rd1, %r1;
ld.b32 %r2, [%rd2];
getctarank.u64 %r3, %rd2;
mad.lo.u32 %r2, %r3, 10, %r2;
st.global.b32 [%out], %r2;
barrier.cluster.arrive;
barrier.cluster.wait;
)";
  check_right({.body = "setp.ne.u32 %p0, %lane, 0;\n@%p0 exit;\n" + body, .threads = 32, .cluster = 2},
              words(64, [](int thread) { return thread == 0 ? 11 : 0; }));
  check_found({.body = "mapa.shared::cluster.u32 %r2, %smem, 2;", .threads = 32, .cluster = 2},
              FindingKind::bad_operand, "the rank must be less than 2, the blocks of the cluster, was 2");
}

TEST_CASE("arriving twice at the barrier of a cluster, or waiting without an arrival, is found") {
  check_found({.body = "barrier.cluster.wait;", .threads = 32, .cluster = 2}, FindingKind::barrier_mismatch,
              "waits for the barrier of the cluster without having arrived");
  check_found({.body = "barrier.cluster.arrive;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;", .threads = 32},
              FindingKind::barrier_mismatch, "arrives again at the barrier of the cluster without having waited");
}

TEST_CASE("a block that does not come to the barrier of the cluster is a deadlock") {
  const std::string body =
      "setp.eq.u32 %p0, %rank, 1;\n@%p0 bra OTHER;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n"
      "ret;\nOTHER:\nbar.sync 1, 64;\n";
  const auto runs = run_schedules(SmallKernel{.body = body, .threads = 32, .cluster = 2});
  CHECK(runs.has(FindingKind::deadlock, "the barrier of the cluster"));
  CHECK(runs.has(FindingKind::deadlock, "named barrier 1: 32 of 64 threads"));
}

// --- mbarriers -------------------------------------------------------------------------------------------------------

namespace {

// A pipeline of two slots: warp 0 stores 8 rows of 32 words, warp 1 sums them up. full at 0 and 8, empty at 16 and 24,
// slots at 128 and 256.
struct Pipeline {
  std::string arrive_full = "mbarrier.arrive.shared::cta.b64 _, [%r1];";
  std::string arrive_empty = "mbarrier.arrive.release.cta.shared::cta.b64 _, [%r1+16];";
  std::string producer_parity = "xor.b32 %r4, %r3, 1;";
  std::string consumer_parity = "mov.u32 %r4, %r3;";
  bool producer_waits = true, consumer_waits = true;

  std::string text() const {
    return initialise(4, 32) + fmt::format(R"(
mov.u32 %r0, 0;
mov.u32 %r7, 0;
setp.eq.u32 %p0, %warp, 1;
ROW:
and.b32 %r2, %r0, 1;
shr.u32 %r3, %r0, 1;
and.b32 %r3, %r3, 1;
mad.lo.u32 %r1, %r2, 8, %smem;
mad.lo.u32 %r5, %r2, 128, %smem;
mad.lo.u32 %r5, %lane, 4, %r5;
@%p0 bra CONSUME;
{0}
add.u32 %r8, %r1, 16;
{1}
mad.lo.u32 %r6, %r0, 100, %lane;
st.shared.b32 [%r5+128], %r6;
{2}
bra NEXT;
CONSUME:
{3}
{4}
ld.shared.b32 %r6, [%r5+128];
mad.lo.u32 %r7, %r7, 3, %r6;
{5}
NEXT:
add.u32 %r0, %r0, 1;
setp.lt.u32 %p2, %r0, 8;
@%p2 bra ROW;
st.global.b32 [%out], %r7;
)",
                                           producer_parity, producer_waits ? wait("%r8", "%r4") : "", arrive_full,
                                           consumer_parity, consumer_waits ? wait("%r1", "%r4") : "", arrive_empty);
  }
  SmallKernel kernel() const { return {.body = text(), .threads = 64}; }

  static Words sums() {
    return words(64, [](int tid) {
      std::uint32_t sum = 0;
      for (std::uint32_t row = 0; tid >= 32 && row < 8; ++row)
        sum = sum * 3 + row * 100 + static_cast<std::uint32_t>(tid - 32);
      return sum;
    });
  }
};

}  // namespace

TEST_CASE("a pipeline of mbarriers is clean under every schedule") {
  check_right(Pipeline().kernel(), Pipeline::sums());
  Pipeline other;
  other.arrive_full = "mbarrier.arrive.b64 %rd4, [%rd5];";  // a generic address, and the state
  std::string text = other.text();
  text.replace(text.find(other.arrive_full), 0, "cvt.u64.u32 %rd6, %r1;\ncvta.shared.u64 %rd5, %rd6;\n");
  check_right({.body = text, .threads = 64}, Pipeline::sums());
}

TEST_CASE("faults in a pipeline of mbarriers are found as what they are") {
  Pipeline pipeline;
  SUBCASE("the consumer does not wait") {
    pipeline.consumer_waits = false;
    const auto runs = run_schedules(pipeline.kernel());
    CHECK(runs.has(FindingKind::race));
    CHECK(runs.has(FindingKind::unwritten_shared));
  }
  SUBCASE("the producer does not wait") {
    pipeline.producer_waits = false;
    CHECK(run_schedules(pipeline.kernel()).has(FindingKind::race, "after the read by ld.shared.b32"));
  }
  SUBCASE("the consumer waits for one parity only") {
    pipeline.consumer_parity = "mov.u32 %r4, 0;";
    CHECK(run_schedules(pipeline.kernel()).has(FindingKind::race, "after the write by st.shared.b32"));
  }
  SUBCASE("the producer begins with the other parity") {
    pipeline.producer_parity = "mov.u32 %r4, %r3;";
    const auto runs = run_schedules(pipeline.kernel());
    CHECK(runs.has(FindingKind::deadlock, "to complete the phase of parity 0: 32 of 32 arrivals pending"));
  }
  SUBCASE("an arrival that releases nothing") {
    pipeline.arrive_full = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r1];";
    check_found(pipeline.kernel(), FindingKind::race, "");
  }
  SUBCASE("a lane that does not arrive") {
    pipeline.arrive_empty = "setp.ne.u32 %p3, %lane, 7;\n@%p3 " + pipeline.arrive_empty;
    check_found(pipeline.kernel(), FindingKind::deadlock, "1 of 32 arrivals pending");
  }
}

TEST_CASE("looking twice at the end of a phase is no fault by itself") {
  const std::string body = initialise(1, 1) + "@%p1 mbarrier.arrive.shared::cta.b64 _, [%smem];\n" + wait("%smem", "0");
  check_right({.body = body + wait("%smem", "0")}, Words(32));
}

TEST_CASE("a wait that does not try again is found: try_wait may give up") {
  const std::string body = initialise(1, 1) + R"(
setp.eq.u32 %p0, %warp, 0;
@%p0 bra PRODUCE;
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%smem], 0;
ld.shared.b32 %r0, [%smem+64];
ret;
PRODUCE:
@%p1 st.shared.b32 [%smem+64], %tid;
@%p1 mbarrier.arrive.shared::cta.b64 _, [%smem];
)";
  const auto runs = run_schedules(SmallKernel{.body = body, .threads = 64});
  CHECK((runs.has(FindingKind::race) || runs.has(FindingKind::unwritten_shared)));
}

TEST_CASE("states, test_wait, pending counts, dropped and incomplete arrivals") {
  const std::string body = kFirstThread + R"(
@!%p1 bra DONE;
mbarrier.init.shared.b64 [%smem], 5;
mbarrier.arrive.shared.b64 %rd0, [%smem];
mbarrier.pending_count.b64 %r0, %rd0;
mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd1, [%smem], 2;
mbarrier.pending_count.b64 %r1, %rd1;
mbarrier.test_wait.shared.b64 %p2, [%smem], %rd0;
selp.u32 %r2, 1, 0, %p2;
mbarrier.arrive_drop.shared.b64 _, [%smem], 2;
mbarrier.test_wait.acquire.cta.shared::cta.b64 %p2, [%smem], %rd0;
selp.u32 %r3, 1, 0, %p2;
mbarrier.test_wait.parity.shared::cta.b64 %p2, [%smem], 1;
selp.u32 %r4, 1, 0, %p2;
mbarrier.arrive.shared.b64 %rd2, [%smem], 3;
mbarrier.pending_count.b64 %r5, %rd2;
mbarrier.try_wait.shared::cta.b64 %p2, [%smem], %rd2, 1000;
selp.u32 %r6, 1, 0, %p2;
mad.lo.u32 %r7, %r0, 10, %r1;
mad.lo.u32 %r7, %r7, 10, %r2;
mad.lo.u32 %r7, %r7, 10, %r3;
mad.lo.u32 %r7, %r7, 10, %r4;
mad.lo.u32 %r7, %r7, 10, %r5;
mad.lo.u32 %r7, %r7, 10, %r6;
st.global.b32 [%out], %r7;
mbarrier.inval.shared::cta.b64 [%smem];
DONE:
)";
  check_right({.body = body}, words(32, [](int tid) { return tid == 0 ? 5401031 : 0; }));
}

TEST_CASE("the use of what is no mbarrier is found") {
  const std::string arrive = "mbarrier.arrive.shared::cta.b64 _, [%smem];\n";
  check_found({.body = arrive}, FindingKind::mbarrier_not_initialised,
              "there is no mbarrier at 0x400: it was not initialised");
  check_found({.body = initialise(1, 32) + "@%p1 mbarrier.inval.shared::cta.b64 [%smem];\nbar.sync 0;\n" + arrive},
              FindingKind::mbarrier_not_initialised, "it was invalidated or overwritten");
  check_found({.body = initialise(1, 32) + "@%p1 st.shared.b32 [%smem+4], %tid;\nbar.sync 0;\n" + arrive},
              FindingKind::mbarrier_not_initialised, "it was invalidated or overwritten");
  // Between warps that nothing orders.
  const std::string body = kFirstThread + "@%p1 mbarrier.init.shared::cta.b64 [%smem], 64;\n" + arrive;
  check_found({.body = body, .threads = 64}, FindingKind::mbarrier_not_initialised, "");
}

TEST_CASE("addresses and counts that an mbarrier cannot have are found") {
  check_found({.body = kFirstThread + "@%p1 mbarrier.init.shared::cta.b64 [%smem+4], 1;"}, FindingKind::misaligned,
              "must be a multiple of 8, was 0x404");
  check_found({.body = kFirstThread + "@%p1 mbarrier.init.shared::cta.b64 [%smem+4096], 1;"},
              FindingKind::shared_out_of_bounds, "8 bytes at 0x1400");
  check_found({.body = kFirstThread + "@%p1 mbarrier.init.shared::cta.b64 [%smem], 0;"}, FindingKind::bad_operand,
              "the count of an mbarrier must be from 1 to 1048575, was 0");
  check_found({.body = "mbarrier.init.b64 [%out], 1;"}, FindingKind::shared_out_of_bounds,
              "is no address of shared memory");
}

TEST_CASE("arrivals beyond what a phase expects are found") {
  const std::string expect = initialise(1, 1) + "@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%smem], 64;\n";
  const std::string arrive = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%smem];\n";
  const std::string complete = "@%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%smem], 64;\n";
  check_found({.body = expect + arrive + arrive + complete}, FindingKind::mbarrier_phase,
              "arrives 1 times at the mbarrier at 0x400: 0 of 1 arrivals and 64 bytes pending");
  check_found({.body = initialise(1, 2) + "@%p1 mbarrier.arrive.shared::cta.b64 _, [%smem], 3;\n"},
              FindingKind::mbarrier_phase, "arrives 3 times");
  check_found({.body = initialise(1, 1) + "@%p1 mbarrier.arrive.noComplete.shared::cta.b64 %rd0, [%smem], 1;\n"},
              FindingKind::mbarrier_phase, ".noComplete");
}

TEST_CASE("transactions hold a phase open, and must add up") {
  const auto body = [](int expected, int completed) {
    return initialise(1, 1) + fmt::format(
                                  "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], {};\n"
                                  "@%p1 mbarrier.complete_tx.shared::cta.relaxed.cta.b64 [%smem], {};\n",
                                  expected, completed);
  };
  std::string right = body(96, 96);
  right.replace(right.find("shared::cta.relaxed.cta"), 23, "relaxed.cta.shared::cta");
  check_right({.body = right + wait("%smem", "0")}, Words(32));
  std::string before = initialise(1, 1) +
                       "@%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%smem], 32;\n"
                       "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], {};\n";
  before.replace(before.find("{}"), 2, "32");
  check_right({.body = before + wait("%smem", "0")}, Words(32));
  before.replace(before.find(", 32;\n@%p1 mbarrier.arrive"), 4, ", 48");
  check_found({.body = before + wait("%smem", "0")}, FindingKind::mbarrier_transaction,
              "16 bytes more than expected have come to the mbarrier at 0x400");
  std::string less = right;
  less.replace(less.rfind("96"), 2, "64");
  check_found({.body = less + wait("%smem", "0")}, FindingKind::deadlock,
              "the mbarrier at 0x400 to complete the phase of parity 0: 0 of 1 arrivals and 32 bytes pending");
  std::string many = right;
  many.replace(many.find(", 96"), 4, ", 1048576");
  const auto runs = run_schedules(SmallKernel{.body = many + wait("%smem", "0")});
  CHECK(runs.has(FindingKind::mbarrier_transaction, "must be at most 1048575, were 1048576"));
}

TEST_CASE("a phase that goes by while a warp waits for the one before is found") {
  const std::string body = initialise(1, 1) + "setp.eq.u32 %p0, %warp, 1;\n@%p0 bra WAIT;\n" +
                           "@%p1 mbarrier.arrive.shared::cta.b64 _, [%smem];\n" + wait("%smem", "0") +
                           "@%p1 mbarrier.arrive.shared::cta.b64 _, [%smem];\nret;\nWAIT:\n" + wait("%smem", "0");
  const auto runs = run_schedules(SmallKernel{.body = body, .threads = 64});
  CHECK(runs.has(FindingKind::mbarrier_phase, "waits for phase 0 of the mbarrier at 0x400"));
}

TEST_CASE("blocks of a cluster arrive at each other's mbarriers") {
  const auto body = [](const std::string& init, const std::string& synchronise) {
    return kFirstThread + "@%p1 mbarrier.init.shared::cta.b64 [%smem], 32;\n" + init + synchronise +
           "xor.b32 %r0, %rank, 1;\nmapa.shared::cluster.u32 %r1, %smem, %r0;\n"
           "mad.lo.u32 %r2, %lane, 4, %r1;\nst.shared::cluster.b32 [%r2+64], %rank;\n"
           "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];\n" +
           wait("%smem", "0") +
           "mad.lo.u32 %r2, %lane, 4, %smem;\nld.shared.b32 %r3, [%r2+64];\nst.global.b32 [%out], %r3;\n"
           "barrier.cluster.arrive;\nbarrier.cluster.wait;\n";
  };
  const std::string fence = "@%p1 fence.mbarrier_init.release.cluster;\n";
  const std::string relaxed = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n";
  const std::string released = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n";
  const Words expected = words(64, [](int thread) { return thread < 32 ? 1 : 0; });
  check_right({.body = body(fence, relaxed), .cluster = 2}, expected);
  check_right({.body = body(fence, released), .cluster = 2}, expected);
  check_right({.body = body("fence.proxy.async;\n", released), .cluster = 2}, expected);
  check_found({.body = body("", released), .cluster = 2}, FindingKind::missing_proxy_fence,
              "another block uses the mbarrier at 0x400, without fence.mbarrier_init");
  check_found({.body = body("", relaxed), .cluster = 2}, FindingKind::mbarrier_not_initialised,
              "nothing orders this after the initialisation");
}

TEST_CASE("arriving at the mbarrier of a block that has ended is found") {
  const std::string body = initialise(1, 1) +
                           "fence.proxy.async;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n"
                           "setp.eq.u32 %p0, %rank, 1;\n@%p0 ret;\nmapa.shared::cluster.u32 %r1, %smem, 1;\n"
                           "@%p1 mbarrier.arrive.shared::cluster.b64 _, [%r1];\n";
  check_found({.body = body, .cluster = 2}, FindingKind::left_in_flight, "of block 1 of the cluster, which has ended");
}

TEST_CASE("waiting for the mbarrier of another block is found") {
  const std::string body = initialise(1, 1) +
                           "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
                           "xor.b32 %r0, %rank, 1;\nmapa.shared::cluster.u32 %r1, %smem, %r0;\ncvt.u64.u32 %rd0, %r1;\n"
                           "cvta.shared.u64 %rd1, %rd0;\nmbarrier.test_wait.parity.b64 %p2, [%rd1], 0;\n"
                           "barrier.cluster.arrive;\nbarrier.cluster.wait;\n";
  check_found({.body = body, .cluster = 2}, FindingKind::bad_operand, "must be in the block's own shared memory");
}

TEST_CASE("what PTX does not have is refused with the line") {
  for (const char* statement :
       {"bar.wait 0;", "bar.arrive 1;", "bar.red.sum.u32 %r0, 0, %p0;", "fence.proxy.texture;", "fence.gl;",
        "barrier.cluster.leave;", "mbarrier.arrive.shared::cluster.b64 %rd0, [%smem];",
        "mbarrier.arrive.b32 _, [%smem];", "mbarrier.look.b64 _, [%smem];", "mapa.global.u64 %rd0, %rd1, %r0;",
        "membar.block;", "mbarrier.try_wait.odd.b64 %p0, [%smem], 0;"}) {
    INFO(statement);
    CHECK_THROWS_AS(emulator::Program(SmallKernel{.body = statement}.ptx()), emulator::ParseError);
  }
}
