// SPDX-License-Identifier: Apache-2.0
// Loads, stores, atomic operations, generic addresses, branches, and what the emulator finds in them.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "tests/support/small_kernel.h"

using namespace flashjit;
using namespace flashjit::test;
using emulator::FindingKind;

namespace {

constexpr int kFew = 5;  // schedules, where their number matters little

// What a kernel of one warp leaves in %out.
void check_output(const std::string& body, const Words& expected) {
  CAPTURE(body);
  SmallKernel kernel{.body = body};
  const Runs runs = run_schedules(kernel, {}, kFew);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  for (const Words& output : runs.outputs) CHECK(output == expected);
}

// What a warp finds in a buffer of the caller's at [%rd0], and leaves there.
template <class T>
void check_buffer(const std::string& body, std::vector<T> buffer, const std::vector<T>& expected, int threads = 32) {
  CAPTURE(body);
  const std::vector<T> initial = buffer;
  for (int seed = 0; seed < kFew; ++seed) {
    buffer = initial;
    emulator::Memory memory;
    memory.add("buffer", buffer.data(), buffer.size() * sizeof(T));
    SmallKernel kernel{
        .body = "ld.param.u64 %rd0, [buffer];\n" + body, .threads = threads, .parameters = ", .param .u64 buffer"};
    const Runs runs = run_schedules(kernel, memory, 1, buffer.data());
    INFO(runs.text());
    CHECK(runs.findings.empty());
    CHECK(buffer == expected);
  }
}

std::uint64_t conflicts_of(const std::string& address, const std::string& store) {
  SmallKernel kernel{.body = "mov.u32 %r1, 1;\n" + address + "\nadd.u32 %r0, %r0, %smem;\n" + store,
                     .shared_bytes = 16384};
  const Runs runs = run_schedules(kernel, {}, 1);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  std::uint64_t of_instructions = 0;
  for (const emulator::InstructionCount& instruction : runs.last.counters.instructions)
    of_instructions += instruction.bank_conflicts;
  CHECK(of_instructions == runs.last.counters.bank_conflicts);
  return of_instructions;
}

}  // namespace

TEST_CASE("loads extend to the register by the sign of their type; stores keep the lowest bits") {
  const std::string store =
      "mad.lo.u32 %r1, %tid, 8, %smem;\nmov.b64 %rd1, 0x89abcdef8284f6f8;\nst.shared.b64 [%r1], %rd1;\n";
  const auto loaded = [&](const std::string& load, std::uint32_t expected) {
    check_output(store + load + "\nst.global.u32 [%out], %r2;", words(32, [&](int) { return expected; }));
  };
  loaded("ld.shared.u8 %r2, [%r1];", 0xf8);
  loaded("ld.shared.s8 %r2, [%r1];", 0xfffffff8);
  loaded("ld.shared.b8 %r2, [%r1+1];", 0xf6);
  loaded("ld.shared.u16 %r2, [%r1+2];", 0x8284);
  loaded("ld.shared.s16 %r2, [%r1+2];", 0xffff8284);
  loaded("ld.shared.f32 %r2, [%r1+4];", 0x89abcdef);
  loaded("ld.shared.s8 %rs0, [%r1]; cvt.u32.u16 %r2, %rs0;", 0xfff8);
  loaded("ld.shared.s32 %rd2, [%r1+4]; shr.u64 %rd2, %rd2, 32; cvt.u32.u64 %r2, %rd2;", 0xffffffff);
  loaded("ld.shared.u32 %rd2, [%r1+4]; shr.u64 %rd2, %rd2, 32; cvt.u32.u64 %r2, %rd2;", 0);
  loaded("ld.shared.v2.b32 {%r3, %r2}, [%r1];", 0x89abcdef);
  loaded("ld.shared.v4.u16 {%rs0, %rs1, %rs2, %rs3}, [%r1]; cvt.u32.u16 %r2, %rs3;", 0x89ab);
  loaded("ld.shared.v2.u32 {_, %r2}, [%r1];", 0x89abcdef);
  loaded("mov.u32 %r3, 0x12345678; st.shared.u8 [%r1+1], %r3; ld.shared.u32 %r2, [%r1];", 0x828478f8);
  loaded("mov.b64 %rd2, 0x123456789; st.shared.b16 [%r1+2], %rd2; ld.shared.u32 %r2, [%r1];", 0x6789f6f8);
  loaded("mov.u16 %rs0, 7; st.shared.v2.u16 [%r1], {%rs0, %rs0}; ld.shared.u32 %r2, [%r1];\n", 0x00070007);
}

TEST_CASE("vectors and hints of global memory") {
  std::vector<std::uint32_t> buffer(256), expected(256);
  std::iota(buffer.begin(), buffer.begin() + 128, 0);
  std::iota(expected.begin(), expected.begin() + 128, 0);
  std::iota(expected.begin() + 128, expected.end(), 0);
  const std::string address = "mad.wide.u32 %rd1, %tid, 16, %rd0;\n";
  check_buffer(address +
                   "ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%r0, %r1, %r2, %r3}, [%rd1];\n"
                   "st.global.L1::evict_last.v4.b32 [%rd1+512], {%r0, %r1, %r2, %r3};",
               buffer, expected);
  check_buffer(address +
                   "createpolicy.fractional.L2::evict_first.b64 %rd2;\n"
                   "ld.global.L2::cache_hint.v2.u64 {%rd3, %rd4}, [%rd1], %rd2;\n"
                   "prefetch.global.L2 [%rd1];\n"
                   "st.global.cs.v2.u64 [%rd1+512], {%rd3, %rd4};",
               buffer, expected);
  check_buffer(address +
                   "ld.acquire.gpu.global.u32 %r0, [%rd1]; ld.relaxed.sys.u32 %r1, [%rd1+4];\n"
                   "ld.volatile.global.u32 %r2, [%rd1+8]; ld.weak.global.ca.u32 %r3, [%rd1+12];\n"
                   "st.release.gpu.global.u32 [%rd1+512], %r0; st.relaxed.cta.u32 [%rd1+516], %r1;\n"
                   "st.volatile.u32 [%rd1+520], %r2; st.global.wt.u32 [%rd1+524], %r3;",
               buffer, expected);
}

TEST_CASE("parameters are read where they lie, and nowhere else") {
  const auto run_one = [](const std::string& load) {
    SmallKernel kernel{.body = load + "\nst.global.u32 [%out], %r0;", .parameters = ", .param .align 8 .b8 p[16]"};
    struct {
      std::uint32_t word[4] = {10, 11, 12, 13};
    } values;
    return run_schedules(kernel, {}, 1, values.word[0], values.word[1], values.word[2], values.word[3]);
  };
  CHECK(run_one("ld.param.u32 %r0, [p+8];").outputs[0][31] == 12);
  CHECK(run_one("ld.param.v2.u32 {%r1, %r0}, [p+8];").outputs[0][0] == 13);
  CHECK(run_one("mov.b64 %rd1, p; ld.param.u32 %r0, [%rd1+4];").outputs[0][0] == 11);
  CHECK(run_one("mov.b64 %rd1, p; cvta.param.u64 %rd1, %rd1; ld.u32 %r0, [%rd1];").outputs[0][0] == 10);
  const Runs outside = run_one("ld.param.u32 %r0, [p+16];");
  CHECK(outside.has(FindingKind::global_out_of_bounds,
                    "reads 4 bytes at byte 24 of the kernel's parameters, which have 24"));
  CHECK(outside.outputs[0][0] == 0);
}

TEST_CASE("generic addresses reach shared and global memory, in one instruction too") {
  // Even lanes write their own word in shared memory, odd lanes theirs in global memory.
  check_output(
      "cvt.u64.u32 %rd1, %smem;\ncvta.shared.u64 %rd2, %rd1;\nmad.wide.u32 %rd2, %tid, 4, %rd2;\n"
      "and.b32 %r0, %tid, 1;\nsetp.eq.u32 %p0, %r0, 0;\nselp.u64 %rd3, %rd2, %out, %p0;\n"
      "add.u32 %r1, %tid, 100;\nst.u32 [%rd3], %r1;\nld.u32 %r2, [%rd3];\nst.global.u32 [%out], %r2;",
      words(32, [](int i) { return i + 100; }));
  check_output(
      "mov.u64 %rd1, shared_bytes;\ncvta.shared.u64 %rd2, %rd1;\ncvta.to.shared.u64 %rd3, %rd2;\n"
      "cvt.u32.u64 %r0, %rd3;\nsub.u32 %r0, %r0, %smem;\nst.global.u32 [%out], %r0;",
      words(32, [](int) { return 0; }));
  // Bits: shared, shared::cluster, global, of a shared and of a global address.
  check_output(
      "mov.u64 %rd1, shared_bytes;\ncvta.shared.u64 %rd1, %rd1;\n"
      "isspacep.shared %p0, %rd1;\nisspacep.shared::cluster %p1, %rd1;\nisspacep.global %p2, %rd1;\n"
      "isspacep.shared %p3, %out;\nisspacep.shared::cluster %p4, %out;\nisspacep.global %p5, %out;\n"
      "selp.u32 %r0, 1, 0, %p0; selp.u32 %r1, 2, 0, %p1; selp.u32 %r2, 4, 0, %p2; selp.u32 %r3, 8, 0, %p3;\n"
      "selp.u32 %r4, 16, 0, %p4; selp.u32 %r5, 32, 0, %p5; add.u32 %r0, %r0, %r1; add.u32 %r2, %r2, %r3;\n"
      "add.u32 %r4, %r4, %r5; add.u32 %r0, %r0, %r2; add.u32 %r0, %r0, %r4; st.global.u32 [%out], %r0;",
      words(32, [](int) { return 1 + 2 + 32; }));
}

TEST_CASE("blocks of a cluster reach each other's shared memory") {
  const std::string meet = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n";
  const SmallKernel kernel{.body =
                               "mad.lo.u32 %r0, %tid, 4, %smem;\nmad.lo.u32 %r1, %rank, 1000, %tid;\n"
                               "st.shared.u32 [%r0], %r1;\n" +
                               meet +
                               "xor.b32 %r2, %rank, 1;\nmapa.shared::cluster.u32 %r3, %r0, %r2;\n"
                               "ld.shared::cluster.u32 %r4, [%r3];\nst.global.u32 [%out], %r4;\n" +
                               meet,
                           .cluster = 2};
  check_right(kernel, words(64, [](int i) { return i < 32 ? 1000 + i : i - 32; }));
  const SmallKernel wrong{.body =
                              "xor.b32 %r2, %rank, 1;\nmapa.shared::cluster.u32 %r3, %smem, %r2;\nmov.u32 %r4, 1;\n"
                              "st.shared.u32 [%r3], %r4;",
                          .cluster = 2};
  check_found(wrong, FindingKind::shared_out_of_bounds, "not of this one");
}

TEST_CASE("accesses outside memory and misaligned ones are found and do not happen") {
  const std::string one = "mov.u32 %r1, 1;\n";
  check_found({.body = one + "add.u32 %r0, %smem, 4096;\nst.shared.u32 [%r0], %r1;"},
              FindingKind::shared_out_of_bounds);
  check_found({.body = one + "st.shared.u32 [%smem+-4], %r1;"}, FindingKind::shared_out_of_bounds);
  check_found({.body = one + "st.shared.u32 [%smem+2], %r1;"}, FindingKind::misaligned, "must be a multiple of 4");
  check_found({.body = one + "st.shared.v4.u32 [%smem+8], {%r1, %r1, %r1, %r1};"}, FindingKind::misaligned,
              "must be a multiple of 16");
  check_found({.body = one + "st.global.u16 [%out+1], %r1;"}, FindingKind::misaligned, "must be a multiple of 2");
  check_found({.body = one + "st.global.u32 [%out+4], %r1;"}, FindingKind::global_out_of_bounds, "'out'");
  check_found({.body = "mov.u64 %rd0, 64;\nld.global.u32 %r0, [%rd0];"}, FindingKind::global_out_of_bounds);
  check_found({.body = "ld.shared.u32 %r0, [%smem];"}, FindingKind::unwritten_shared);

  // Only the last lane is outside: the others' loads happen, its register is 0.
  const Runs runs =
      run_schedules({.body = "ld.global.u32 %r0, [%out+4];\nadd.u32 %r0, %r0, 5;\nst.global.u32 [%out], %r0;"}, {}, 1);
  CHECK(runs.findings.size() == 1);
  CHECK(runs.outputs[0] == words(32, [](int) { return 5; }));

  std::vector<std::uint32_t> constants(32, 7);
  emulator::Memory memory;
  memory.add_read_only("constants", constants.data(), 128);
  const Runs written =
      run_schedules({.body = "ld.param.u64 %rd0, [c];\nst.global.u32 [%rd0], %tid;", .parameters = ", .param .u64 c"},
                    memory, 1, static_cast<const void*>(constants.data()));
  CHECK(written.has(FindingKind::global_out_of_bounds, "read-only"));
  CHECK(constants == std::vector<std::uint32_t>(32, 7));
}

TEST_CASE("bank conflicts are the wavefronts beyond those that the bytes need") {
  const std::string word = "st.shared.u32 [%r0], %r1;";
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 4;", word) == 0);
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 8;", word) == 1);
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 128;", word) == 31);
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 132;", word) == 0);
  CHECK(conflicts_of("mov.u32 %r0, 0;", word) == 0);  // all lanes, one word
  CHECK(conflicts_of("mov.u32 %r0, %tid;", "st.shared.u8 [%r0], %r1;") == 0);
  CHECK(conflicts_of("and.b32 %r0, %tid, 1; mul.lo.u32 %r0, %r0, 128;", word) == 1);
  const std::string two_words = "st.shared.v2.u32 [%r0], {%r1, %r1};";
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 8;", two_words) == 0);
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 16;", two_words) == 2);  // one in each half of the warp
  const std::string four_words = "st.shared.v4.u32 [%r0], {%r1, %r1, %r1, %r1};";
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 16;", four_words) == 0);
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 32;", four_words) == 4);  // one in each quarter
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 128;", four_words) == 28);
  // Lanes that do not take part do not conflict.
  CHECK(conflicts_of("mul.lo.u32 %r0, %tid, 128; setp.lt.u32 %p0, %tid, 4;", "@%p0 st.shared.u32 [%r0], %r1;") == 3);
}

TEST_CASE("atomic operations on global memory give what was there") {
  using U = std::uint32_t;
  const std::string out = "\nst.global.u32 [%out], %r0;";
  // Of 256 threads, whatever their order.
  check_buffer<U>("atom.global.add.u32 %r0, [%rd0], 3;" + out, {5}, {5 + 3 * 256}, 256);
  check_buffer<U>("red.global.add.u32 [%rd0], %tid;", {0}, {255 * 256 / 2}, 256);
  check_buffer<U>("red.relaxed.gpu.global.max.s32 [%rd0], %tid;", {0xffffffff}, {255}, 256);
  check_buffer<U>("red.global.max.u32 [%rd0], %tid;", {0xffffffff}, {0xffffffff});
  check_buffer<U>("red.global.min.s32 [%rd0], %tid;", {0xffffffff}, {0xffffffff});
  check_buffer<U>("red.min.u32 [%rd0], %tid;", {0xffffffff}, {0});
  check_buffer<U>("atom.acq_rel.gpu.global.inc.u32 %r0, [%rd0], 9;", {0}, {2});  // 32 steps in a cycle of 10
  check_buffer<U>("atom.global.dec.u32 %r0, [%rd0], 9;", {0}, {8});
  check_buffer<U>("mov.u32 %r1, 1; shl.b32 %r1, %r1, %tid; red.global.or.b32 [%rd0], %r1;", {0}, {0xffffffff});
  check_buffer<U>("red.global.and.b32 [%rd0], 0xff00;", {0x12345678}, {0x5600});
  check_buffer<U>("red.global.xor.b32 [%rd0], 1;", {6}, {6});
  check_buffer<U>("atom.global.exch.b32 %r0, [%rd0], 77;", {6}, {77});
  check_buffer<U>("atom.global.cas.b32 %r0, [%rd0], 6, 8;", {6}, {8});
  check_buffer<U>("atom.global.cas.b32 %r0, [%rd0], 7, 8;", {6}, {6});
  check_buffer<std::uint64_t>("cvt.u64.u32 %rd1, %tid; red.global.add.u64 [%rd0], %rd1;", {1ull << 40},
                              {(1ull << 40) + 496});
  check_buffer<std::uint64_t>("atom.global.cas.b64 %rd1, [%rd0], 6, 8;", {6}, {8});
  check_buffer<std::uint16_t>("mov.b16 %rs1, 6; mov.b16 %rs2, 9; atom.global.cas.b16 %rs0, [%rd0], %rs1, %rs2;", {6},
                              {9});
  check_buffer<float>("red.global.add.f32 [%rd0], 0f3F000000;", {1}, {17});
  check_buffer<double>("red.global.add.f64 [%rd0], 0d3FE0000000000000;", {1}, {17});
  check_buffer<float>(
      "mad.wide.u32 %rd1, %tid, 16, %rd0; mov.b32 %r1, 0f3F800000; mov.b32 %r2, 0f40000000;\n"
      "setp.eq.u32 %p0, %tid, 0; @%p0 red.global.add.v4.f32 [%rd1], {%r1, %r2, %r1, %r2};",
      {1, 2, 3, 4}, {2, 4, 4, 6});
  check_buffer<U>("mov.b32 %r1, 0x3c004000; red.global.add.noftz.f16x2 [%rd0], %r1;", {0}, {0x50005400});
  check_buffer<U>("mov.b32 %r1, 0x3f804000; red.global.add.noftz.bf16x2 [%rd0], %r1;", {0}, {0x42004280});
  // f32 in global memory flushes subnormal numbers, in shared memory it does not.
  check_buffer<U>("red.global.add.f32 [%rd0], 0f00000001;", {1}, {0});
  check_output(
      "mov.u32 %r0, 1; st.shared.u32 [%smem], %r0; red.shared.add.f32 [%smem], 0f00000001;\n"
      "ld.shared.u32 %r0, [%smem];" +
          out,
      words(32, [](int) { return 33; }));
}

TEST_CASE("each lane of an atomic operation sees the lanes before it, in some order") {
  const Runs runs = run_schedules({.body = "mov.u32 %r0, 0; st.shared.u32 [%smem], %r0;\n"
                                           "atom.shared.add.u32 %r0, [%smem], 1;\nst.global.u32 [%out], %r0;"});
  CHECK_MESSAGE(runs.findings.empty(), runs.text());
  bool differs = false;
  for (Words output : runs.outputs) {
    differs = differs || output != runs.outputs[0];
    std::sort(output.begin(), output.end());
    CHECK(output == words(32, [](int i) { return i; }));
  }
  CHECK(differs);
}

TEST_CASE("atomic operations of several warps do not race with each other, but with other accesses") {
  const std::string clear =
      "setp.eq.u32 %p0, %tid, 0;\nmov.u32 %r0, 0;\n@%p0 st.shared.u32 [%smem], %r0;\nbar.sync 0;\n";
  const std::string add = "red.shared.add.u32 [%smem], 1;\n";
  const std::string read = "ld.shared.u32 %r0, [%smem];\nst.global.u32 [%out], %r0;";
  const Runs ordered = run_schedules({.body = clear + add + "bar.sync 0;\n" + read, .threads = 128});
  CHECK_MESSAGE(ordered.findings.empty(), ordered.text());
  for (const Words& output : ordered.outputs) CHECK(output == words(128, [](int) { return 128; }));
  CHECK(run_schedules({.body = clear + add + read, .threads = 128}).has(FindingKind::race, "ld.shared.u32"));
  CHECK(run_schedules({.body = add, .threads = 128}).has(FindingKind::unwritten_shared, ""));
}

TEST_CASE("lanes part at branches and meet again") {
  // Lane i runs i times through the loop.
  check_output(
      "mov.u32 %r0, 0;\nmov.u32 %r1, %tid;\nloop:\nsetp.eq.u32 %p0, %r1, 0;\n@%p0 bra done;\n"
      "add.u32 %r0, %r0, 3;\nsub.u32 %r1, %r1, 1;\nbra.uni loop;\ndone:\nst.global.u32 [%out], %r0;",
      words(32, [](int i) { return 3 * i; }));
  check_output("setp.lt.u32 %p0, %tid, 7;\n@%p0 exit;\nmov.u32 %r0, 4;\nst.global.u32 [%out], %r0;",
               words(32, [](int i) { return i < 7 ? 0 : 4; }));
  check_output(
      "setp.lt.u32 %p0, %tid, 7;\n@!%p0 ret;\nnanosleep.u32 100;\ngriddepcontrol.wait;\n"
      "griddepcontrol.launch_dependents;\nmov.u32 %r0, 4;\nst.global.u32 [%out], %r0;",
      words(32, [](int i) { return i < 7 ? 4 : 0; }));
  check_found({.body = "setp.eq.u32 %p0, %tid, 3;\n@%p0 trap;"}, FindingKind::bad_operand, "trapped");
}

TEST_CASE("a register that nobody has written is found where it is used, not where it is copied") {
  check_found({.body = "add.u32 %r0, %r1, 1;"}, FindingKind::unwritten_register);
  check_found({.body = "st.global.u32 [%out], %r1;"}, FindingKind::unwritten_register);
  check_found({.body = "st.shared.u32 [%smem], %r1;"}, FindingKind::unwritten_register);
  check_found({.body = "@%p1 mov.u32 %r0, 1;"}, FindingKind::unwritten_register);
  check_found({.body = "setp.lt.u32 %p0, %tid, 5;\n@%p0 mov.u32 %r1, 1;\nadd.u32 %r0, %r1, 1;"},
              FindingKind::unwritten_register, "lane 5");
  const Runs copied = run_schedules({.body = "mov.u32 %r0, %r1;\nmov.b64 %rd0, %rd1;\nmov.u32 %r2, %r0;"}, {}, 1);
  CHECK_MESSAGE(copied.findings.empty(), copied.text());
  const Runs used = run_schedules({.body = "mov.u32 %r0, %r1;\nadd.u32 %r2, %r0, 1;"}, {}, 1);
  REQUIRE(used.findings.size() == 1);
  CHECK(used.findings[0].kind == FindingKind::unwritten_register);
  CHECK(used.last.counters.instructions.size() > 2);
  // selp reads what it chooses.
  const std::string choose = "mov.u32 %r0, 1;\nsetp.eq.u32 %p0, %tid, %tid;\n";
  CHECK(run_schedules({.body = choose + "selp.u32 %r2, %r0, %r1, %p0;"}, {}, 1).findings.empty());
  check_found({.body = choose + "selp.u32 %r2, %r1, %r0, %p0;"}, FindingKind::unwritten_register);
}

TEST_CASE("forms of memory operations that are not known are refused") {
  for (const std::string text :
       {"ld.shared.v8.u32 %r0, [%smem];", "ld.shared.v4.u64 {%rd0, %rd1, %rd2, %rd3}, [%smem];",
        "ld.shared.u32 %rs0, [%smem];", "ld.shared.v2.u32 {%r0, %r1, %r2}, [%smem];", "ld.shared.f16 %rs0, [%smem];",
        "ld.local.u32 %r0, [%rd0];", "st.param.u32 [out], %r0;", "st.shared.u64 [%smem], %r0;",
        "atom.global.max.f32 %r0, [%out], %r1;", "atom.global.cas.u32 %r0, [%out], %r1, %r2;",
        "atom.global.sub.u32 %r0, [%out], %r1;", "red.param.add.u32 [out], %r1;", "cvta.local.u64 %rd0, %rd1;",
        "cvta.shared.u32 %r0, %r1;", "isspacep.local %p0, %rd0;", "prefetch.global.L3 [%out];", "bra %r0;",
        "exit 3;"}) {
    CAPTURE(text);
    const SmallKernel kernel{.body = text};
    CHECK_THROWS_AS(emulator::Program(kernel.ptx()), emulator::ParseError);
  }
}
