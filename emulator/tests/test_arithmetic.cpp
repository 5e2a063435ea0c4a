// SPDX-License-Identifier: Apache-2.0
// Arithmetic, comparison and conversion of the emulator: each operation as PTX, on values at the edges. What is
// expected is written down from the PTX ISA, or computed by the C library in the same rounding mode.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "flashjit/emulator.h"

using namespace flashjit;

namespace {

constexpr std::size_t kLanes = 32;

struct Operands {
  std::uint64_t a = 0, b = 0, c = 0;
};
struct Case {
  Operands operands;
  std::uint64_t expected = 0;
};

// A kernel of one warp in which `text` finds its operands in a, b, c and leaves its result in d, each of 16, 32 or 64
// bits by its name's end; or in the predicates p and q. The predicate r is bit 0 of c.
std::string kernel_of(const std::string& text) {
  std::string store;
  if (text.find("d64") != std::string::npos)
    store = "";
  else if (text.find("d32") != std::string::npos)
    store = "cvt.u64.u32 d64, d32;";
  else if (text.find("d16") != std::string::npos)
    store = "cvt.u64.u16 d64, d16;";
  else
    store = "selp.u64 d64, 1, 0, p; selp.u64 q64, 2, 0, q; or.b64 d64, d64, q64;";
  return R"(
.version 8.6
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 in, .param .u64 out)
{
  .reg .pred p, q, r;
  .reg .b16 a16, b16, c16, d16, e16;
  .reg .b32 a32, b32, c32, d32, e32, lane;
  .reg .b64 a64, b64, c64, d64, q64, from, to, offset;
  mov.u32 lane, %tid.x;
  ld.param.u64 from, [in];
  ld.param.u64 to, [out];
  mul.wide.u32 offset, lane, 24;
  add.s64 from, from, offset;
  mul.wide.u32 offset, lane, 8;
  add.s64 to, to, offset;
  ld.global.u64 a64, [from];
  ld.global.u64 b64, [from+8];
  ld.global.u64 c64, [from+16];
  cvt.u32.u64 a32, a64;
  cvt.u32.u64 b32, b64;
  cvt.u32.u64 c32, c64;
  cvt.u16.u64 a16, a64;
  cvt.u16.u64 b16, b64;
  cvt.u16.u64 c16, c64;
  and.b32 e32, c32, 1;
  setp.ne.u32 r, e32, 0;
  setp.ne.u32 p, lane, lane;
  setp.ne.u32 q, lane, lane;
  )" + text +
         "\n  " + store + R"(
  st.global.u64 [to], d64;
  ret;
}
)";
}

// The results of as many lanes as there are operands.
std::vector<std::uint64_t> run(const std::string& text, std::vector<Operands> operands) {
  const std::size_t count = operands.size();
  const emulator::Program program(kernel_of(text));
  std::vector<std::uint64_t> results(count);
  for (std::size_t begin = 0; begin < count; begin += kLanes) {
    const std::size_t lanes = std::min(kLanes, count - begin);
    emulator::Memory memory;
    memory.add_read_only("in", operands.data() + begin, lanes * sizeof(Operands));
    memory.add("out", results.data() + begin, lanes * sizeof(std::uint64_t));
    emulator::Launch launch;
    launch.block = {static_cast<unsigned>(lanes)};
    launch.set_parameters(static_cast<const void*>(operands.data() + begin),
                          static_cast<void*>(results.data() + begin));
    const emulator::Report report = program.run("kernel", launch, memory);
    REQUIRE_MESSAGE(report.clean(), to_string(report));
  }
  return results;
}

void check(const std::string& text, const std::vector<Case>& cases) {
  CAPTURE(text);
  std::vector<Operands> operands;
  for (const Case& one : cases) operands.push_back(one.operands);
  const std::vector<std::uint64_t> results = run(text, operands);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Operands& of = operands[i];
    CHECK_MESSAGE(results[i] == cases[i].expected, fmt::format("{} of {:#x}, {:#x}, {:#x} is {:#x}, must be {:#x}",
                                                               text, of.a, of.b, of.c, results[i], cases[i].expected));
  }
}

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }
std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }
float as_float(std::uint64_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value)); }

// Negative numbers as the operands and results of 16 and 32 bits are.
constexpr std::uint64_t s16(int value) { return static_cast<std::uint16_t>(value); }
constexpr std::uint64_t s32(std::int64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint64_t s64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

constexpr std::uint64_t kInf = 0x7f800000, kMinusInf = 0xff800000, kNan = 0x7fffffff, kSignalingNan = 0xff812345;
constexpr std::uint64_t kZero = 0, kMinusZero = 0x80000000;
constexpr std::uint64_t kSmallestNormal = 0x00800000, kLargestSubnormal = 0x007fffff, kSmallest = 1;
constexpr std::uint64_t kMax32 = 0x7fffffff, kMin32 = 0x80000000, kAll32 = 0xffffffff;
constexpr std::uint64_t kMax64 = 0x7fffffffffffffff, kMin64 = 0x8000000000000000, kAll64 = ~std::uint64_t{0};

// Bits that make numbers of all kinds likely.
std::uint32_t random_float_bits(std::mt19937& random) {
  constexpr std::uint32_t kSpecial[] = {0,          0x80000000, 1,          0x007fffff, 0x00800000, 0x3f800000,
                                        0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xbf800001};
  switch (random() % 8) {
    case 0:
      return kSpecial[random() % std::size(kSpecial)];
    case 1:  // few bits, so that sums and products meet ties
      return (random() & 0x80000000) | (120 + random() % 16) << 23 | (random() % 16) << 19;
    case 2:
      return random() % 0x01000000 | (random() & 0x80000000);
    default:
      return random() % 3 == 0 ? random() : (random() & 0x80ffffff) | (0x3f + (random() % 2)) << 24;
  }
}

}  // namespace

// --- Integers --------------------------------------------------------------------------------------------------------

TEST_CASE("the emulator adds, subtracts and multiplies integers as they wrap") {
  check("add.s16 d16, a16, b16;", {{{0x7fff, 1}, 0x8000}, {{s16(-1), 1}, 0}});
  check("add.u32 d32, a32, b32;", {{{kAll32, 1}, 0}, {{3, 4}, 7}});
  check("add.s64 d64, a64, b64;", {{{kMax64, 1}, kMin64}, {{s64(-5), 3}, s64(-2)}});
  check("add.sat.s32 d32, a32, b32;",
        {{{kMax32, 1}, kMax32}, {{kMin32, s32(-1)}, kMin32}, {{5, s32(-7)}, s32(-2)}, {{kMax32, kMin32}, s32(-1)}});
  check("sub.u16 d16, a16, b16;", {{{0, 1}, 0xffff}});
  check("sub.s32 d32, a32, b32;", {{{kMin32, 1}, kMax32}, {{7, 9}, s32(-2)}});
  check("sub.u64 d64, a64, b64;", {{{0, 1}, kAll64}});
  check("sub.sat.s32 d32, a32, b32;", {{{kMin32, 1}, kMin32}, {{kMax32, s32(-1)}, kMax32}, {{0, kMin32}, kMax32}});

  check("mul.lo.s16 d16, a16, b16;", {{{s16(-3), 7}, s16(-21)}, {{0x4000, 4}, 0}});
  check("mul.lo.u32 d32, a32, b32;", {{{0x10000, 0x10000}, 0}, {{kAll32, kAll32}, 1}});
  check("mul.lo.s64 d64, a64, b64;", {{{kAll64, kAll64}, 1}, {{0x100000001, 0x100000001}, 0x200000001}});
  check("mul.hi.u16 d16, a16, b16;", {{{0xffff, 0xffff}, 0xfffe}});
  check("mul.hi.s16 d16, a16, b16;", {{{s16(-1), 1}, s16(-1)}});
  check("mul.hi.u32 d32, a32, b32;", {{{kAll32, kAll32}, 0xfffffffe}, {{0x10000, 0x10000}, 1}});
  check("mul.hi.s32 d32, a32, b32;", {{{s32(-1), 1}, s32(-1)}, {{kMin32, kMin32}, 0x40000000}});
  check("mul.hi.u64 d64, a64, b64;", {{{kAll64, kAll64}, kAll64 - 1}});
  check("mul.hi.s64 d64, a64, b64;", {{{kAll64, 1}, kAll64}, {{kMin64, kMin64}, 0x4000000000000000}});
  check("mul.wide.u16 d32, a16, b16;", {{{0xffff, 0xffff}, 0xfffe0001}});
  check("mul.wide.s16 d32, a16, b16;", {{{s16(-1), 2}, s32(-2)}});
  check("mul.wide.u32 d64, a32, b32;", {{{kAll32, kAll32}, 0xfffffffe00000001}});
  check("mul.wide.s32 d64, a32, b32;", {{{s32(-1), 2}, s64(-2)}, {{kMin32, kMin32}, 0x4000000000000000}});

  check("mad.lo.s32 d32, a32, b32, c32;", {{{s32(-3), 4, 5}, s32(-7)}, {{kAll32, kAll32, kAll32}, 0}});
  check("mad.lo.u16 d16, a16, b16, c16;", {{{300, 300, 1}, 90001 % 65536}});
  check("mad.lo.s64 d64, a64, b64, c64;", {{{kAll64, 5, 6}, 1}});
  check("mad.hi.u32 d32, a32, b32, c32;", {{{kAll32, kAll32, 3}, 1}});
  check("mad.hi.sat.s32 d32, a32, b32, c32;", {{{kMin32, kMin32, kMax32}, kMax32}, {{kMin32, kMax32, kMin32}, kMin32}});
  check("mad.wide.u32 d64, a32, b32, c64;", {{{kAll32, kAll32, 0x1ffffffff}, 0}});
  check("mad.wide.s16 d32, a16, b16, c32;", {{{s16(-2), 3, 10}, 4}});
  check("mad.lo.s32 d32, a32, -1, 7;", {{{3}, 4}});
  check("sad.u32 d32, a32, b32, c32;", {{{3, 10, 5}, 12}, {{kAll32, 0, 1}, 0}});
  check("sad.s32 d32, a32, b32, c32;", {{{s32(-1), 2, 5}, 8}});
}

TEST_CASE("the emulator divides integers toward zero") {
  check("div.s32 d32, a32, b32;",
        {{{s32(-7), 2}, s32(-3)}, {{7, s32(-2)}, s32(-3)}, {{kMin32, s32(-1)}, kMin32}, {{6, 3}, 2}});
  check("div.u32 d32, a32, b32;", {{{kAll32, 2}, kMax32}, {{1, kAll32}, 0}});
  check("div.s16 d16, a16, b16;", {{{0x8000, s16(-1)}, 0x8000}, {{s16(-9), 4}, s16(-2)}});
  check("div.s64 d64, a64, b64;", {{{kMin64, kAll64}, kMin64}, {{s64(-7), 2}, s64(-3)}});
  check("div.u64 d64, a64, b64;", {{{kAll64, 10}, 1844674407370955161}});
  check("rem.s32 d32, a32, b32;", {{{s32(-7), 2}, s32(-1)}, {{7, s32(-2)}, 1}, {{kMin32, s32(-1)}, 0}});
  check("rem.u32 d32, a32, b32;", {{{kAll32, 10}, 5}});
  check("rem.u64 d64, a64, b64;", {{{kAll64, 10}, 5}});
  // Its value is not specified, but it must not end the program.
  check("div.s32 d32, a32, b32; mov.u32 d32, 7;", {{{1, 0}, 7}});
}

TEST_CASE("the emulator has signs, minima and maxima of integers") {
  check("abs.s32 d32, a32;", {{{s32(-5)}, 5}, {{kMin32}, kMin32}, {{9}, 9}});
  check("abs.s16 d16, a16;", {{{s16(-5)}, 5}, {{0x8000}, 0x8000}});
  check("abs.s64 d64, a64;", {{{s64(-5)}, 5}});
  check("neg.s32 d32, a32;", {{{5}, s32(-5)}, {{kMin32}, kMin32}});
  check("neg.s64 d64, a64;", {{{5}, s64(-5)}});
  check("neg.s16 d16, a16;", {{{1}, 0xffff}});
  check("min.s32 d32, a32, b32;", {{{s32(-1), 1}, s32(-1)}});
  check("min.u32 d32, a32, b32;", {{{kAll32, 1}, 1}});
  check("max.s32 d32, a32, b32;", {{{s32(-1), 1}, 1}});
  check("max.u32 d32, a32, b32;", {{{kAll32, 1}, kAll32}});
  check("max.relu.s32 d32, a32, b32;", {{{s32(-1), s32(-5)}, 0}, {{s32(-1), 7}, 7}});
  check("min.relu.s32 d32, a32, b32;", {{{s32(-1), 7}, 0}, {{9, 7}, 7}});
  check("min.s16 d16, a16, b16;", {{{s16(-1), 1}, s16(-1)}});
  check("max.u16 d16, a16, b16;", {{{0xffff, 1}, 0xffff}});
  check("min.s64 d64, a64, b64;", {{{kMin64, 1}, kMin64}});
  check("max.u64 d64, a64, b64;", {{{kMin64, 1}, kMin64}});
}

TEST_CASE("the emulator counts, finds and moves bits") {
  check("popc.b32 d32, a32;", {{{kAll32}, 32}, {{0}, 0}, {{0x80000001}, 2}});
  check("popc.b64 d32, a64;", {{{kAll64}, 64}, {{kMin64}, 1}});
  check("clz.b32 d32, a32;", {{{0}, 32}, {{1}, 31}, {{kAll32}, 0}});
  check("clz.b64 d32, a64;", {{{0}, 64}, {{1}, 63}});
  check("bfind.u32 d32, a32;", {{{0}, kAll32}, {{1}, 0}, {{kMin32}, 31}});
  check("bfind.s32 d32, a32;", {{{s32(-1)}, kAll32}, {{s32(-2)}, 0}, {{kMin32}, 30}, {{0x10}, 4}});
  check("bfind.shiftamt.u32 d32, a32;", {{{0}, kAll32}, {{1}, 31}, {{kMin32}, 0}});
  check("bfind.u64 d32, a64;", {{{0x100000000}, 32}});
  check("bfind.s64 d32, a64;", {{{kMin64}, 62}});
  check("brev.b32 d32, a32;", {{{1}, kMin32}, {{0x12345678}, 0x1e6a2c48}});
  check("brev.b64 d64, a64;", {{{1}, kMin64}});

  check("bfe.u32 d32, a32, b32, c32;", {{{0x12345678, 8, 8}, 0x56},
                                        {{0xff, 4, 0}, 0},
                                        {{kAll32, 28, 8}, 0xf},
                                        {{kAll32, 32, 8}, 0},
                                        {{kAll32, 0, 32}, kAll32},
                                        {{0x12345678, 0x108, 0x108}, 0x56}});
  check("bfe.s32 d32, a32, b32, c32;", {{{0x0000f000, 8, 8}, s32(-16)},
                                        {{kMin32, 28, 8}, s32(-8)},
                                        {{kMin32, 40, 4}, kAll32},
                                        {{kMax32, 40, 4}, 0},
                                        {{0xff, 0, 0}, 0}});
  check("bfe.u64 d64, a64, b32, c32;", {{{kAll64, 60, 8}, 0xf}, {{kAll64, 0, 64}, kAll64}});
  check("bfe.s64 d64, a64, b32, c32;", {{{kMin64, 60, 8}, s64(-8)}});
  check("bfi.b32 d32, a32, b32, c32, 8;",
        {{{0xab, 0xffffffff, 8}, 0xffffabff}, {{0xab, 0, 28}, 0xb0000000}, {{0xab, 5, 32}, 5}});
  check("bfi.b32 d32, a32, b32, 0, c32;", {{{0xab, 0x55, 0}, 0x55}, {{0xab, 0x55, 40}, 0xab}});
  check("bfi.b64 d64, a64, b64, c32, 16;", {{{0x1234, 0, 40}, 0x0012340000000000}});

  check("and.b32 d32, a32, b32;", {{{0xff00ff, 0xf0f0f0}, 0xf000f0}});
  check("or.b16 d16, a16, b16;", {{{0xf00f, 0x0ff0}, 0xffff}});
  check("xor.b64 d64, a64, b64;", {{{kAll64, 1}, kAll64 - 1}});
  check("not.b16 d16, a16;", {{{1}, 0xfffe}});
  check("not.b64 d64, a64;", {{{0}, kAll64}});
  check("cnot.b32 d32, a32;", {{{0}, 1}, {{7}, 0}});
  check("lop3.b32 d32, a32, b32, c32, 0x96;", {{{0xff00, 0x0ff0, 0x3c3c}, 0xff00 ^ 0x0ff0 ^ 0x3c3c}});
  check("lop3.b32 d32, a32, b32, c32, 0xca;", {{{0xff00ff00, 0x12345678, 0x9abcdef0}, 0x12bc56f0}});  // a ? b : c
  check("prmt.b32 d32, a32, b32, c32;", {{{0x33221100, 0x77665544, 0x7531}, 0x77553311},
                                         {{0x000080ff, 0, 0xba98}, 0x0000ffff},
                                         {{0x33221100, 0x77665544, 0x0123}, 0x00112233}});
  check("prmt.b32.f4e d32, a32, b32, c32;", {{{0x33221100, 0x77665544, 1}, 0x44332211}});
  check("prmt.b32.b4e d32, a32, b32, c32;", {{{0x33221100, 0x77665544, 1}, 0x66770011}});
  check("prmt.b32.rc8 d32, a32, b32, c32;", {{{0x33221100, 0, 2}, 0x22222222}});
  check("prmt.b32.ecl d32, a32, b32, c32;", {{{0x33221100, 0, 1}, 0x33221111}});
  check("prmt.b32.ecr d32, a32, b32, c32;", {{{0x33221100, 0, 2}, 0x22221100}});
  check("prmt.b32.rc16 d32, a32, b32, c32;", {{{0x33221100, 0, 3}, 0x33223322}});
}

TEST_CASE("the emulator's shifts clamp their amounts") {
  check("shl.b32 d32, a32, b32;", {{{1, 31}, kMin32}, {{1, 32}, 0}, {{1, kAll32}, 0}, {{3, 0}, 3}});
  check("shl.b16 d16, a16, b32;", {{{1, 15}, 0x8000}, {{1, 16}, 0}});
  check("shl.b64 d64, a64, b32;", {{{1, 63}, kMin64}, {{1, 64}, 0}});
  check("shr.u32 d32, a32, b32;", {{{kMin32, 31}, 1}, {{kMin32, 32}, 0}, {{kAll32, 1000}, 0}});
  check("shr.s32 d32, a32, b32;",
        {{{kMin32, 31}, kAll32}, {{kMin32, 32}, kAll32}, {{kMax32, 99}, 0}, {{s32(-8), 1}, s32(-4)}});
  check("shr.b32 d32, a32, b32;", {{{kMin32, 31}, 1}});
  check("shr.s16 d16, a16, b32;", {{{0x8000, 15}, 0xffff}, {{0x8000, 16}, 0xffff}});
  check("shr.u16 d16, a16, b32;", {{{0x8000, 15}, 1}, {{0x8000, 16}, 0}});
  check("shr.s64 d64, a64, b32;", {{{kMin64, 63}, kAll64}, {{kMin64, 64}, kAll64}});
  check("shr.u64 d64, a64, b32;", {{{kMin64, 63}, 1}, {{kMin64, 64}, 0}});
  check("shf.l.wrap.b32 d32, a32, b32, c32;", {{{0x80000000, 1, 1}, 3}, {{5, 7, 32}, 7}, {{0x12345678, 0, 36}, 1}});
  check("shf.l.clamp.b32 d32, a32, b32, c32;", {{{5, 7, 32}, 5}, {{5, 7, 99}, 5}});
  check("shf.r.wrap.b32 d32, a32, b32, c32;", {{{0x10, 3, 4}, 0x30000001}, {{5, 7, 32}, 5}});
  check("shf.r.clamp.b32 d32, a32, b32, c32;", {{{5, 7, 32}, 7}, {{5, 7, 99}, 7}});
}

// --- Comparison and selection ----------------------------------------------------------------------------------------

TEST_CASE("the emulator compares integers") {
  check("setp.lt.s32 p, a32, b32;", {{{s32(-1), 0}, 1}, {{0, 0}, 0}});
  check("setp.lt.u32 p, a32, b32;", {{{kAll32, 0}, 0}, {{0, 1}, 1}});
  check("setp.lo.u32 p, a32, b32;", {{{0, 1}, 1}, {{1, 1}, 0}});
  check("setp.hs.u64 p, a64, b64;", {{{kMin64, 1}, 1}, {{0, 1}, 0}});
  check("setp.ge.s64 p, a64, b64;", {{{kMin64, 1}, 0}, {{1, 1}, 1}});
  check("setp.eq.s16 p, a16, b16;", {{{0x10001, 1}, 1}, {{2, 1}, 0}});
  check("setp.gt.s16 p, a16, b16;", {{{s16(-1), 1}, 0}, {{2, 1}, 1}});
  check("setp.ne.b64 p, a64, b64;", {{{kMin64, 0}, 1}, {{5, 5}, 0}});
  check("setp.le.u16 p, a16, 7;", {{{7}, 1}, {{8}, 0}});
}

TEST_CASE("the emulator's comparisons have a second result and a third operand") {
  check("setp.eq.u32 p|q, a32, b32;", {{{1, 1}, 1}, {{1, 2}, 2}});
  check("setp.eq.and.u32 p|q, a32, b32, r;", {{{1, 1, 1}, 1}, {{1, 1, 0}, 0}, {{1, 2, 1}, 2}});
  check("setp.eq.or.u32 p|q, a32, b32, r;", {{{1, 1, 0}, 1}, {{1, 2, 0}, 2}, {{1, 2, 1}, 3}});
  check("setp.eq.xor.u32 p|q, a32, b32, !r;", {{{1, 1, 0}, 2}, {{1, 1, 1}, 1}});
  check("setp.eq.u32 _|q, a32, b32;", {{{1, 2}, 2}});
  check("set.lt.u32.s32 d32, a32, b32;", {{{s32(-1), 0}, kAll32}, {{0, 0}, 0}});
  check("set.lt.f32.f32 d32, a32, b32;", {{{bits(1.0f), bits(2.0f)}, bits(1.0f)}, {{kNan, 0}, 0}});
  check("set.ge.u32.f16x2 d32, a32, b32;", {{{0x3c003c00, 0x3c004000}, 0xffff0000},    // 1 and 1, against 2 and 1
                                            {{0x7e00fc01, 0}, 0},                      // NaN
                                            {{0x80000000, 0x00008000}, kAll32},        // zeros
                                            {{0x00010000, 0x00028001}, 0x0000ffff}});  // subnormal
  check("set.ltu.s32.bf16x2 d32, a32, b32;", {{{0x3f807fc0, 0x40003f80}, kAll32}, {{0x40003f80, 0x3f803f80}, 0}});
  check("set.eq.and.s32.u32 d32, a32, b32, r;", {{{1, 1, 1}, kAll32}, {{1, 1, 0}, 0}});
  check("and.pred p, r, r;", {{{0, 0, 1}, 1}, {{0, 0, 0}, 0}});
  check("or.pred p, p, r;", {{{0, 0, 1}, 1}, {{0, 0, 0}, 0}});
  check("xor.pred p, r, r;", {{{0, 0, 1}, 0}});
  check("not.pred p, r;", {{{0, 0, 1}, 0}, {{0, 0, 0}, 1}});
  check("mov.pred p, r;", {{{0, 0, 1}, 1}, {{0, 0, 0}, 0}});
  check("selp.b32 d32, a32, b32, r;", {{{5, 6, 1}, 5}, {{5, 6, 0}, 6}});
  check("selp.f64 d64, a64, 0d3FF0000000000000, r;", {{{5, 6, 1}, 5}, {{5, 6, 0}, bits(1.0)}});
  check("selp.s16 d16, -1, b16, r;", {{{5, 6, 1}, 0xffff}, {{5, 6, 0}, 6}});
}

TEST_CASE("the emulator compares floating-point numbers, ordered or not") {
  const std::uint64_t one = bits(1.0f), two = bits(2.0f);
  const struct {
    const char* relation;
    bool less, equal, greater, unordered;
  } kRelations[] = {
      {"eq", false, true, false, false}, {"ne", true, false, true, false},  {"lt", true, false, false, false},
      {"le", true, true, false, false},  {"gt", false, false, true, false}, {"ge", false, true, true, false},
      {"equ", false, true, false, true}, {"neu", true, false, true, true},  {"ltu", true, false, false, true},
      {"leu", true, true, false, true},  {"gtu", false, false, true, true}, {"geu", false, true, true, true},
      {"num", true, true, true, false},  {"nan", false, false, false, true}};
  for (const auto& [relation, less, equal, greater, unordered] : kRelations) {
    check(fmt::format("setp.{}.f32 p, a32, b32;", relation), {{{one, two}, less},
                                                              {{two, two}, equal},
                                                              {{kZero, kMinusZero}, equal},
                                                              {{two, one}, greater},
                                                              {{kNan, one}, unordered},
                                                              {{one, kSignalingNan}, unordered},
                                                              {{kNan, kNan}, unordered}});
    check(fmt::format("setp.{}.f64 p, a64, b64;", relation), {{{bits(1.0), bits(2.0)}, less},
                                                              {{bits(-0.0), 0}, equal},
                                                              {{bits(3.0), bits(2.0)}, greater},
                                                              {{bits(std::nan("")), 0}, unordered}});
    check(fmt::format("setp.{}.f16 p, a16, b16;", relation),
          {{{0x3c00, 0x4000}, less}, {{0x8000, 0}, equal}, {{0x4000, 0x3c00}, greater}, {{0x7e00, 0}, unordered}});
    check(fmt::format("setp.{}.bf16 p, a16, b16;", relation),
          {{{0x3f80, 0x4000}, less}, {{0x8000, 0}, equal}, {{0x4000, 0x3f80}, greater}, {{0x7fc0, 0}, unordered}});
  }
  check("setp.eq.f32 p, a32, b32;", {{{kSmallest, kZero}, 0}});
  check("setp.eq.ftz.f32 p, a32, b32;", {{{kSmallest, kZero}, 1}, {{kSmallestNormal, kZero}, 0}});
  check("testp.finite.f32 p, a32;", {{{one}, 1}, {{kInf}, 0}, {{kNan}, 0}});
  check("testp.infinite.f32 p, a32;", {{{kMinusInf}, 1}, {{one}, 0}});
  check("testp.number.f64 p, a64;", {{{bits(1.0)}, 1}, {{bits(std::nan(""))}, 0}});
  check("testp.notanumber.f32 p, a32;", {{{kNan}, 1}, {{kInf}, 0}});
  check("testp.normal.f32 p, a32;", {{{kSmallestNormal}, 1}, {{kLargestSubnormal}, 0}, {{kZero}, 1}});
  check("testp.subnormal.f32 p, a32;", {{{kSmallestNormal}, 0}, {{kLargestSubnormal}, 1}, {{kZero}, 0}});
}

// --- f32 and f64 -----------------------------------------------------------------------------------------------------

TEST_CASE("the emulator rounds f32 as the C library does, in all four directions") {
  const struct {
    const char* name;
    int mode;
  } kRoundings[] = {{"rn", FE_TONEAREST}, {"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};
  const struct {
    const char* text;
    float (*compute)(float a, float b, float c);
  } kOperations[] = {
      {"add.{}.f32 d32, a32, b32;", [](float a, float b, float) -> float { return a + b; }},
      {"sub.{}.f32 d32, a32, b32;", [](float a, float b, float) -> float { return a - b; }},
      {"mul.{}.f32 d32, a32, b32;", [](float a, float b, float) -> float { return a * b; }},
      {"div.{}.f32 d32, a32, b32;", [](float a, float b, float) -> float { return a / b; }},
      {"rcp.{}.f32 d32, a32;", [](float a, float, float) -> float { return 1 / a; }},
      {"sqrt.{}.f32 d32, a32;", [](float a, float, float) -> float { return std::sqrt(a); }},
      {"fma.{}.f32 d32, a32, b32, c32;", [](float a, float b, float c) -> float { return std::fma(a, b, c); }},
      {"mad.{}.f32 d32, a32, b32, c32;", [](float a, float b, float c) -> float { return std::fma(a, b, c); }}};
  std::mt19937 random(20240607);
  std::vector<Operands> operands;
  for (int i = 0; i < 20000; ++i) {
    const std::uint32_t a = random_float_bits(random), b = random_float_bits(random);
    // A third of the sums cancel.
    const std::uint32_t c = random() % 3 ? random_float_bits(random) : bits(-as_float(a) * as_float(b));
    operands.push_back({a, b, c});
  }
  for (const auto& operation : kOperations) {
    for (const auto& rounding : kRoundings) {
      const std::string text = fmt::format(fmt::runtime(operation.text), rounding.name);
      const std::vector<std::uint64_t> results = run(text, operands);
      int wrong = 0;
      for (std::size_t i = 0; i < operands.size(); ++i) {
        const Operands& of = operands[i];
        std::fesetround(rounding.mode);
        // Volatile, so that nothing is computed before or after the mode is set.
        volatile float a = as_float(of.a), b = as_float(of.b), c = as_float(of.c);
        volatile float value = operation.compute(a, b, c);
        std::fesetround(FE_TONEAREST);
        const std::uint64_t expected = std::isnan(value) ? kNan : bits(value);
        if (results[i] == expected || ++wrong > 3) continue;
        FAIL_CHECK(fmt::format("{} of {:#x}, {:#x}, {:#x} is {:#x}, must be {:#x}", text, of.a, of.b, of.c, results[i],
                               expected));
      }
      CHECK_MESSAGE(wrong == 0, text);
    }
  }
}

TEST_CASE("the emulator flushes subnormal numbers where .ftz stands, and clamps where .sat does") {
  const std::uint64_t half = bits(0.5f), minus_one = bits(-1.0f);
  check("add.f32 d32, a32, b32;", {{{kSmallest, kSmallest}, 2}, {{kSignalingNan, 0}, kNan}, {{kInf, kMinusInf}, kNan}});
  check("add.ftz.f32 d32, a32, b32;", {{{kSmallest, kSmallest}, 0},
                                       {{0x80000001, 0x80000001}, kMinusZero},
                                       {{kSmallestNormal, 0x80800001}, kMinusZero},
                                       {{kSmallestNormal, kZero}, kSmallestNormal}});
  check("mul.ftz.f32 d32, a32, b32;", {{{kSmallestNormal, half}, 0}, {{0x80800000, half}, kMinusZero}});
  check("mul.f32 d32, a32, b32;", {{{kSmallestNormal, half}, 0x00400000}});
  check("fma.rn.ftz.f32 d32, a32, b32, c32;",
        {{{kSmallest, bits(1e30f), kZero}, 0}, {{kSmallestNormal, half, kZero}, 0}});
  check("add.rz.ftz.f32 d32, a32, b32;", {{{kSmallest, kSmallest}, 0}});
  check("add.sat.f32 d32, a32, b32;", {{{half, half}, bits(1.0f)},
                                       {{half, bits(1.0f)}, bits(1.0f)},
                                       {{minus_one, half}, 0},
                                       {{kNan, half}, 0},
                                       {{kMinusZero, kMinusZero}, 0},
                                       {{bits(0.25f), half}, bits(0.75f)}});
  check("fma.rn.ftz.sat.f32 d32, a32, b32, c32;",
        {{{half, half, half}, bits(0.75f)}, {{kInf, half, half}, bits(1.0f)}});
  check("add.rp.sat.f32 d32, a32, b32;", {{{half, kSmallest}, bits(0.5f) + 1}});
  check("neg.f32 d32, a32;", {{{half}, bits(-0.5f)}, {{kZero}, kMinusZero}, {{kSmallest}, 0x80000001}});
  check("neg.ftz.f32 d32, a32;", {{{kSmallest}, kMinusZero}});
  check("abs.f32 d32, a32;", {{{minus_one}, bits(1.0f)}, {{kMinusInf}, kInf}});
  check("abs.ftz.f32 d32, a32;", {{{0x80000001}, kZero}});
  check("copysign.f32 d32, a32, b32;", {{{kMinusZero, half}, bits(-0.5f)}, {{half, minus_one}, bits(1.0f)}});
  check("copysign.f64 d64, a64, b64;", {{{bits(-0.0), bits(3.0)}, bits(-3.0)}});
}

TEST_CASE("the emulator's minima and maxima prefer numbers to NaN, and order zeros") {
  const std::uint64_t one = bits(1.0f), two = bits(2.0f), minus_two = bits(-2.0f);
  check("max.f32 d32, a32, b32;", {{{one, two}, two},
                                   {{two, one}, two},
                                   {{kNan, one}, one},
                                   {{one, kNan}, one},
                                   {{kSignalingNan, kSignalingNan}, kNan},
                                   {{kZero, kMinusZero}, kZero},
                                   {{kMinusZero, kZero}, kZero},
                                   {{kMinusZero, kMinusZero}, kMinusZero},
                                   {{kMinusInf, one}, one}});
  check("min.f32 d32, a32, b32;", {{{one, two}, one},
                                   {{kNan, one}, one},
                                   {{one, kNan}, one},
                                   {{kNan, kNan}, kNan},
                                   {{kZero, kMinusZero}, kMinusZero},
                                   {{kMinusZero, kZero}, kMinusZero}});
  check("max.ftz.f32 d32, a32, b32;", {{{kSmallest, kMinusZero}, kZero}, {{0x80000001, minus_two}, kMinusZero}});
  check("max.NaN.f32 d32, a32, b32;", {{{kSignalingNan, one}, kNan}, {{one, kNan}, kNan}, {{one, two}, two}});
  check("min.xorsign.abs.f32 d32, a32, b32;",
        {{{one, minus_two}, bits(-1.0f)}, {{minus_two, minus_two}, two}, {{minus_two, bits(-1.0f)}, one}});
  check("max.f64 d64, a64, b64;",
        {{{bits(1.0), bits(2.0)}, bits(2.0)}, {{bits(std::nan("")), bits(2.0)}, bits(2.0)}, {{bits(-0.0), 0}, 0}});
  check("min.f64 d64, a64, b64;", {{{bits(1.0), bits(2.0)}, bits(1.0)}, {{0, bits(-0.0)}, bits(-0.0)}});
  check("max.f16 d16, a16, b16;", {{{0x3c00, 0x4000}, 0x4000}, {{0x7e00, 0x4000}, 0x4000}, {{0x7e00, 0xfe00}, 0x7fff}});
  check("min.NaN.bf16 d16, a16, b16;", {{{0x3f80, 0x7fc1}, 0x7fff}, {{0x3f80, 0xbf80}, 0xbf80}});
  check("max.f16x2 d32, a32, b32;", {{{0x3c00c000, 0x40008000}, 0x40008000}});
  check("min.bf16x2 d32, a32, b32;", {{{0x3f804000, 0x40003f80}, 0x3f803f80}});
}

TEST_CASE("the emulator computes f64") {
  check("add.f64 d64, a64, b64;", {{{bits(0.1), bits(0.2)}, bits(0.1 + 0.2)}});
  check("sub.f64 d64, a64, b64;", {{{bits(1.0), bits(3.0)}, bits(-2.0)}});
  check("mul.f64 d64, a64, b64;", {{{bits(0.1), bits(0.3)}, bits(0.1 * 0.3)}});
  check("fma.rn.f64 d64, a64, b64, c64;", {{{bits(0.1), bits(10.0), bits(-1.0)}, bits(0x1p-54)}});
  check("div.rn.f64 d64, a64, b64;", {{{bits(1.0), bits(3.0)}, 0x3fd5555555555555}});
  check("rcp.rn.f64 d64, a64;", {{{bits(4.0)}, bits(0.25)}});
  // The upper half of the bits of 1/3.
  check("rcp.approx.ftz.f64 d64, a64;", {{{bits(4.0)}, bits(0.25)}, {{bits(3.0)}, 0x3FD5555500000000}});
  check("sqrt.rn.f64 d64, a64;", {{{bits(2.0)}, 0x3ff6a09e667f3bcd}});
  check("neg.f64 d64, a64;", {{{bits(1.0)}, bits(-1.0)}});
  check("abs.f64 d64, a64;", {{{bits(-1.0)}, bits(1.0)}});
}

// --- 16 bits ---------------------------------------------------------------------------------------------------------

TEST_CASE("the emulator computes f16 and bf16 and rounds once") {
  // 1 + 2^-11 lies between two f16 and goes to the even one; 1 + 3 * 2^-11 too.
  check("add.f16 d16, a16, b16;", {{{0x3c00, 0x1000}, 0x3c00},
                                   {{0x3c01, 0x1000}, 0x3c02},
                                   {{0x7bff, 0x7bff}, 0x7c00},
                                   {{0x7c00, 0xfc00}, 0x7fff},
                                   {{0x0001, 0x0001}, 0x0002},
                                   {{0x3c00, 0xbc00}, 0}});
  check("add.ftz.f16 d16, a16, b16;", {{{0x0001, 0x0001}, 0}, {{0x8001, 0x8001}, 0x8000}});
  check("add.sat.f16 d16, a16, b16;", {{{0x3c00, 0x3c00}, 0x3c00}, {{0xbc00, 0}, 0}, {{0x7e00, 0}, 0}});
  check("sub.f16 d16, a16, b16;", {{{0x3c00, 0x4000}, 0xbc00}});
  check("mul.f16 d16, a16, b16;", {{{0x4200, 0x4200}, 0x4880}, {{0x0400, 0x3800}, 0x0200}});
  // 2^-24 is below half of the last place of 1 + 2^-11, and breaks the tie.
  check("fma.rn.f16 d16, a16, b16, c16;",
        {{{0x1000, 0x3c00, 0x3c00}, 0x3c00}, {{0x1001, 0x3c00, 0x3c00}, 0x3c01}, {{0x3c01, 0x3c01, 0xbc02}, 0x0010}});
  check("fma.rn.relu.f16 d16, a16, b16, c16;",
        {{{0x3c00, 0xbc00, 0}, 0}, {{0x3c00, 0x3c00, 0}, 0x3c00}, {{0x7e00, 0, 0}, 0x7fff}});
  check("add.f16x2 d32, a32, b32;", {{{0x3c004000, 0x3c004000}, 0x40004400}});
  check("fma.rn.f16x2 d32, a32, b32, c32;", {{{0x3c004000, 0x40004000, 0x3c003c00}, 0x42004500}});
  check("neg.f16x2 d32, a32;", {{{0x3c00c000}, 0xbc004000}});
  check("abs.f16 d16, a16;", {{{0xbc00}, 0x3c00}});
  check("neg.ftz.f16 d16, a16;", {{{0x0001}, 0x8000}});
  // 1 + 2^-8 lies between two bf16.
  check("add.bf16 d16, a16, b16;",
        {{{0x3f80, 0x3b80}, 0x3f80}, {{0x3f81, 0x3b80}, 0x3f82}, {{0x7f7f, 0x7f7f}, 0x7f80}});
  check("mul.bf16 d16, a16, b16;", {{{0x4040, 0x4040}, 0x4110}, {{0x0080, 0x3f00}, 0x0040}});
  check("fma.rn.bf16 d16, a16, b16, c16;", {{{0x3b81, 0x3f80, 0x3f80}, 0x3f81}, {{0x4000, 0x4040, 0x3f80}, 0x40e0}});
  check("fma.rn.relu.bf16x2 d32, a32, b32, c32;", {{{0x3f80bf80, 0x3f803f80, 0}, 0x3f800000}});
  check("sub.bf16x2 d32, a32, b32;", {{{0x3f804000, 0x3f803f80}, 0x00003f80}});
  check("neg.bf16 d16, a16;", {{{0x3f80}, 0xbf80}});
  check("abs.bf16x2 d32, a32;", {{{0xbf80c000}, 0x3f804000}});
}

// --- Approximations --------------------------------------------------------------------------------------------------

TEST_CASE("the emulator's approximations are within the error that PTX allows") {
  const struct {
    const char* name;
    double (*exact)(double);
    double low, high;           // of the inputs
    double relative, absolute;  // the error allowed
  } kFunctions[] = {{"rcp.approx.ftz", [](double x) { return 1 / x; }, 1e-30, 1e30, 0x1p-23, 0},
                    {"sqrt.approx", [](double x) { return std::sqrt(x); }, 0, 1e30, 0x1p-23, 0},
                    {"rsqrt.approx", [](double x) { return 1 / std::sqrt(x); }, 1e-30, 1e30, 0x1.2p-23, 0},
                    {"ex2.approx.ftz", [](double x) { return std::exp2(x); }, -125, 127, 0x1p-22, 0},
                    {"lg2.approx.ftz", [](double x) { return std::log2(x); }, 1e-30, 1e30, 0x1p-22, 0x1p-22},
                    {"sin.approx", [](double x) { return std::sin(x); }, -3.14, 3.14, 0, 0x1p-20},
                    {"cos.approx", [](double x) { return std::cos(x); }, -3.14, 3.14, 0, 0x1p-20},
                    {"tanh.approx", [](double x) { return std::tanh(x); }, -10, 10, 0x1p-11, 0}};
  std::mt19937 random(7);
  for (const auto& function : kFunctions) {
    std::vector<Operands> operands;
    std::uniform_real_distribution<float> inputs(static_cast<float>(function.low), static_cast<float>(function.high));
    for (int i = 0; i < 1000; ++i) operands.push_back({bits(inputs(random)), 0, 0});
    const std::string text = fmt::format("{}.f32 d32, a32;", function.name);
    const std::vector<std::uint64_t> results = run(text, operands);
    double worst = 0;  // as a part of what is allowed
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const double exact = function.exact(as_float(operands[i].a));
      const double allowed = std::abs(exact) * function.relative + function.absolute;
      const double error = std::abs(as_float(results[i]) - exact);
      if (!(error <= worst * allowed)) worst = error / allowed;
    }
    CHECK_MESSAGE(worst <= 1, text);
  }
}

TEST_CASE("the emulator's approximations have the special values that PTX lists") {
  const std::uint64_t one = bits(1.0f), minus_one = bits(-1.0f);
  check("rcp.approx.ftz.f32 d32, a32;", {{{kZero}, kInf},
                                         {{kMinusZero}, kMinusInf},
                                         {{kInf}, kZero},
                                         {{kMinusInf}, kMinusZero},
                                         {{kSmallest}, kInf},
                                         {{0x80000001}, kMinusInf},
                                         {{kSignalingNan}, kNan},
                                         {{bits(0x1p127f)}, kZero}});
  check("rcp.approx.f32 d32, a32;", {{{bits(0x1p127f)}, 0x00400000}});
  check("sqrt.approx.f32 d32, a32;",
        {{{minus_one}, kNan}, {{kMinusZero}, kMinusZero}, {{kInf}, kInf}, {{bits(4.0f)}, bits(2.0f)}});
  check("rsqrt.approx.ftz.f32 d32, a32;", {{{kZero}, kInf},
                                           {{kMinusZero}, kMinusInf},
                                           {{0x80000001}, kMinusInf},
                                           {{minus_one}, kNan},
                                           {{kInf}, kZero},
                                           {{bits(4.0f)}, bits(0.5f)}});
  check("ex2.approx.ftz.f32 d32, a32;", {{{kZero}, one},
                                         {{kMinusZero}, one},
                                         {{kSmallest}, one},
                                         {{kInf}, kInf},
                                         {{kMinusInf}, kZero},
                                         {{kNan}, kNan},
                                         {{bits(128.0f)}, kInf},
                                         {{bits(-127.0f)}, kZero},
                                         {{bits(-126.0f)}, kSmallestNormal},
                                         {{bits(10.0f)}, bits(1024.0f)}});
  check("ex2.approx.f32 d32, a32;", {{{bits(-127.0f)}, 0x00400000}, {{bits(-149.0f)}, kSmallest}});
  check("lg2.approx.ftz.f32 d32, a32;", {{{kZero}, kMinusInf},
                                         {{kMinusZero}, kMinusInf},
                                         {{kSmallest}, kMinusInf},
                                         {{minus_one}, kNan},
                                         {{kInf}, kInf},
                                         {{bits(8.0f)}, bits(3.0f)}});
  check("lg2.approx.f32 d32, a32;", {{{kSmallest}, bits(-149.0f)}});
  check("sin.approx.f32 d32, a32;", {{{kMinusZero}, kMinusZero}, {{kInf}, kNan}});
  check("cos.approx.f32 d32, a32;", {{{kMinusZero}, one}, {{kMinusInf}, kNan}});
  check("tanh.approx.f32 d32, a32;",
        {{{kInf}, one}, {{kMinusInf}, minus_one}, {{kMinusZero}, kMinusZero}, {{kNan}, kNan}});
  check("div.approx.f32 d32, a32, b32;", {{{one, bits(4.0f)}, bits(0.25f)},
                                          {{bits(0x1p120f), bits(0x1p127f)}, kZero},
                                          {{kInf, bits(0x1p127f)}, kNan},
                                          {{kInf, kInf}, kNan},
                                          {{one, kZero}, kInf}});
  check("div.full.f32 d32, a32, b32;", {{{bits(0x1p120f), bits(0x1p127f)}, bits(0x1p-7f)}});
  check("ex2.approx.f16 d16, a16;", {{{0x3c00}, 0x4000}, {{0xfc00}, 0}});
  check("ex2.approx.f16x2 d32, a32;", {{{0x3c004000}, 0x40004400}});
  check("ex2.approx.ftz.bf16x2 d32, a32;", {{{0x3f804000}, 0x40004080}});
  check("tanh.approx.f16 d16, a16;", {{{0x7c00}, 0x3c00}, {{0x3c00}, 0x3a18}});
  check("tanh.approx.bf16x2 d32, a32;", {{{0x7f80ff80}, 0x3f80bf80}});
}

// --- Conversion ------------------------------------------------------------------------------------------------------

TEST_CASE("the emulator converts integers") {
  check("cvt.s64.s32 d64, a32;", {{{s32(-5)}, s64(-5)}});
  check("cvt.u64.u32 d64, a32;", {{{s32(-5)}, 0xfffffffb}});
  check("cvt.u32.u64 d32, a64;", {{{0x123456789}, 0x23456789}});
  check("cvt.s32.s16 d32, a16;", {{{0x8000}, 0xffff8000}});
  check("cvt.u32.u16 d32, a16;", {{{0x8000}, 0x8000}});
  check("cvt.u16.u32 d16, a32;", {{{0x12345}, 0x2345}});
  check("cvt.s32.s8 d32, a32;", {{{0x1ff}, kAll32}, {{0x17f}, 0x7f}});
  check("cvt.u32.u8 d32, a32;", {{{0x1ff}, 0xff}});
  check("cvt.s16.s8 d16, a16;", {{{0xff}, 0xffff}});
  check("cvt.s64.s8 d64, a16;", {{{0x80}, s64(-128)}});
  check("cvt.s8.s32 d16, a32;", {{{0x1ff}, 0xffff}});
  check("cvt.u8.u32 d32, a32;", {{{0x1ff}, 0xff}});
  check("cvt.sat.s8.s32 d32, a32;", {{{1000}, 127}, {{s32(-1000)}, s32(-128)}, {{5}, 5}});
  check("cvt.sat.u8.s32 d32, a32;", {{{1000}, 255}, {{s32(-1000)}, 0}});
  check("cvt.sat.u32.s32 d32, a32;", {{{s32(-1)}, 0}, {{kMax32}, kMax32}});
  check("cvt.sat.s32.u32 d32, a32;", {{{kAll32}, kMax32}});
  check("cvt.sat.s64.u64 d64, a64;", {{{kAll64}, kMax64}});
  check("cvt.sat.u64.s64 d64, a64;", {{{kAll64}, 0}});
  check("cvt.pack.sat.u16.s32 d32, a32, b32;", {{{70000, s32(-3)}, 0xffff0000}});
  check("cvt.pack.sat.s16.s32 d32, a32, b32;", {{{40000, s32(-40000)}, 0x7fff8000}});
  check("cvt.pack.sat.u8.s32.b32 d32, a32, b32, c32;", {{{300, 5, 0xabcd}, 0xabcdff05}});
  check("cvt.pack.sat.s4.s32.b32 d32, a32, b32, c32;", {{{7, s32(-9), 0x12}, 0x1278}});
}

TEST_CASE("the emulator converts floating-point numbers to integers") {
  const auto f = [](float value) { return std::uint64_t{bits(value)}; };
  check("cvt.rni.s32.f32 d32, a32;", {{{f(2.5f)}, 2},
                                      {{f(3.5f)}, 4},
                                      {{f(-2.5f)}, s32(-2)},
                                      {{f(3e9f)}, kMax32},
                                      {{f(-3e9f)}, kMin32},
                                      {{kNan}, 0},
                                      {{kInf}, kMax32},
                                      {{kMinusInf}, kMin32}});
  check("cvt.rzi.s32.f32 d32, a32;", {{{f(2.9f)}, 2}, {{f(-2.9f)}, s32(-2)}});
  check("cvt.rmi.s32.f32 d32, a32;", {{{f(2.9f)}, 2}, {{f(-2.1f)}, s32(-3)}});
  check("cvt.rpi.s32.f32 d32, a32;", {{{f(2.1f)}, 3}, {{f(-2.9f)}, s32(-2)}, {{kSmallest}, 1}});
  check("cvt.rpi.ftz.s32.f32 d32, a32;", {{{kSmallest}, 0}});
  check("cvt.rzi.u32.f32 d32, a32;", {{{f(-1.0f)}, 0}, {{f(5e9f)}, kAll32}, {{f(3e9f)}, 3000000000}, {{kNan}, 0}});
  check("cvt.rzi.s16.f32 d16, a32;", {{{f(1e6f)}, 0x7fff}, {{f(-1e6f)}, 0x8000}});
  check("cvt.rzi.u8.f32 d32, a32;", {{{f(300.0f)}, 255}});
  check("cvt.rzi.s64.f32 d64, a32;",
        {{{f(1e30f)}, kMax64}, {{f(-1e30f)}, kMin64}, {{f(-3.0f)}, s64(-3)}, {{kNan}, kMin64}});
  check("cvt.rzi.u64.f64 d64, a64;",
        {{{bits(1e19)}, 10000000000000000000u}, {{bits(1e30)}, kAll64}, {{bits(-1.0)}, 0}});
  check("cvt.rzi.s32.f64 d32, a64;", {{{bits(-7.9)}, s32(-7)}, {{bits(std::nan(""))}, kMin32}});
  check("cvt.rni.s32.f16 d32, a16;", {{{0x4100}, 2}, {{0x7c00}, kMax32}});
  check("cvt.rni.s16.bf16 d16, a16;", {{{0x4020}, 2}});
  check("cvt.rni.f32.f32 d32, a32;", {{{f(2.5f)}, f(2.0f)}, {{f(-0.4f)}, kMinusZero}, {{kInf}, kInf}});
  check("cvt.rpi.f32.f32 d32, a32;", {{{f(2.1f)}, f(3.0f)}});
}

TEST_CASE("the emulator converts integers to floating-point numbers, rounding once") {
  const auto f = [](float value) { return std::uint64_t{bits(value)}; };
  check("cvt.rn.f32.s32 d32, a32;",
        {{{s32(-7)}, f(-7)}, {{kMax32}, f(0x1p31f)}, {{16777217}, f(16777216)}, {{16777219}, f(16777220)}});
  check("cvt.rz.f32.u32 d32, a32;", {{{kAll32}, 0x4f7fffff}});
  check("cvt.rp.f32.s32 d32, a32;", {{{16777217}, f(16777218)}, {{s32(-16777217)}, f(-16777216)}});
  // 2^63 + 2^39 + 1 is just above the middle of two f32; as a double it would be the middle, and go down.
  check("cvt.rn.f32.u64 d32, a64;",
        {{{0x8000008000000001}, 0x5f000001}, {{0x8000008000000000}, 0x5f000000}, {{kAll64}, f(0x1p64f)}});
  check("cvt.rn.f32.s64 d32, a64;", {{{s64(-3)}, f(-3)}, {{kMin64}, f(-0x1p63f)}});
  check("cvt.rn.f64.s64 d64, a64;", {{{s64(-3)}, bits(-3.0)}});
  check("cvt.rn.f64.u64 d64, a64;", {{{kAll64}, bits(0x1p64)}, {{(1ull << 53) + 1}, bits(0x1p53)}});
  check("cvt.rz.f64.s64 d64, a64;", {{{s64(-(1ll << 53) - 1)}, bits(-0x1p53)}, {{kMin64 - 1}, bits(0x1p63 - 1024)}});
  check("cvt.rm.f64.s64 d64, a64;", {{{s64(-(1ll << 53) - 1)}, bits(-0x1p53 - 2)}, {{(1ull << 53) + 1}, bits(0x1p53)}});
  check("cvt.rp.f64.s64 d64, a64;", {{{(1ull << 53) + 1}, bits(0x1p53 + 2)}});
  check("cvt.rn.f64.u32 d64, a32;", {{{kAll32}, bits(4294967295.0)}});
  check("cvt.rn.f16.s32 d16, a32;", {{{2049}, 0x6800}, {{100000}, 0x7c00}, {{s32(-1)}, 0xbc00}});
  check("cvt.rn.f32.u8 d32, a32;", {{{0x1ff}, f(255)}});
  check("cvt.rn.bf16.u16 d16, a16;", {{{257}, 0x4380}});
}

TEST_CASE("the emulator converts between floating-point formats") {
  const auto f = [](float value) { return std::uint64_t{bits(value)}; };
  check("cvt.f64.f32 d64, a32;", {{{f(0.1f)}, bits(static_cast<double>(0.1f))}, {{kSmallest}, bits(0x1p-149)}});
  check("cvt.rn.f32.f64 d32, a64;", {{{bits(0.1)}, f(0.1f)},
                                     {{bits(1e300)}, kInf},
                                     {{bits(0x1p-150)}, 0},
                                     {{bits(0x1.000002p-150)}, kSmallest},
                                     {{bits(std::nan(""))}, kNan}});
  check("cvt.rz.f32.f64 d32, a64;", {{{bits(1e300)}, 0x7f7fffff}, {{bits(-0x1p-200)}, kMinusZero}});
  check("cvt.rm.f32.f64 d32, a64;",
        {{{bits(-0x1p-200)}, 0x80000001}, {{bits(1e300)}, 0x7f7fffff}, {{bits(-1e300)}, kMinusInf}});
  check("cvt.rn.ftz.f32.f64 d32, a64;", {{{bits(-0x1p-130)}, kMinusZero}});
  check("cvt.ftz.f32.f32 d32, a32;", {{{kSmallest}, 0}, {{f(3)}, f(3)}});
  check("cvt.sat.f32.f32 d32, a32;", {{{f(3)}, f(1)}, {{f(-3)}, 0}, {{kNan}, 0}, {{f(0.25f)}, f(0.25f)}});
  check("cvt.f32.f16 d32, a16;", {{{0x3c00}, f(1)},
                                  {{0x0001}, f(0x1p-24f)},
                                  {{0x7bff}, f(65504)},
                                  {{0xfc00}, kMinusInf},
                                  {{0x7e00}, kNan},
                                  {{0x83ff}, f(-0x1.ff8p-15f)}});
  check("cvt.f32.bf16 d32, a16;", {{{0x3f80}, f(1)}, {{0x0001}, 0x00010000}});
  check("cvt.rn.f16.f32 d16, a32;", {{{f(65519)}, 0x7bff},
                                     {{f(65520)}, 0x7c00},
                                     {{f(0x1p-25f)}, 0},
                                     {{f(0x1.8p-24f)}, 2},
                                     {{f(1.0f + 0x1p-11f)}, 0x3c00},
                                     {{f(1.0f + 0x3p-11f)}, 0x3c02},
                                     {{kSignalingNan}, 0x7fff},
                                     {{kMinusZero}, 0x8000}});
  check("cvt.rz.f16.f32 d16, a32;", {{{f(1e10f)}, 0x7bff}, {{f(0x1.fffp0f)}, 0x3fff}, {{f(-0x1p-30f)}, 0x8000}});
  check("cvt.rp.f16.f32 d16, a32;",
        {{{f(1.0f + 0x1p-20f)}, 0x3c01}, {{f(-1.0f - 0x1p-20f)}, 0xbc00}, {{f(0x1p-30f)}, 1}});
  check("cvt.rm.f16.f32 d16, a32;", {{{f(-1.0f - 0x1p-20f)}, 0xbc01}});
  check("cvt.rn.sat.f16.f32 d16, a32;", {{{f(3)}, 0x3c00}, {{f(-1)}, 0}});
  check("cvt.rn.f16.f64 d16, a64;", {{{bits(1 + 0x1p-11 + 0x1p-40)}, 0x3c01}, {{bits(1 + 0x1p-11)}, 0x3c00}});
  check("cvt.rn.bf16.f32 d16, a32;",
        {{{0x3f808000}, 0x3f80}, {{0x3f818000}, 0x3f82}, {{0x7f7fffff}, 0x7f80}, {{kSignalingNan}, 0x7fff}});
  check("cvt.rz.bf16.f32 d16, a32;", {{{0x3f80ffff}, 0x3f80}});
  check("cvt.rn.relu.bf16.f32 d16, a32;", {{{f(-1)}, 0}, {{f(-0.0f)}, 0}, {{f(2)}, 0x4000}});
  check("cvt.rna.tf32.f32 d32, a32;",
        {{{0x3f801000}, 0x3f802000}, {{0x3f800fff}, 0x3f800000}, {{0xbf801000}, 0xbf802000}, {{kInf}, kInf}});
}

TEST_CASE("the emulator converts pairs; the first goes to the upper half") {
  const auto f = [](float value) { return std::uint64_t{bits(value)}; };
  check("cvt.rn.f16x2.f32 d32, a32, b32;", {{{f(1), f(-2)}, 0x3c00c000}, {{f(65520), kNan}, 0x7c007fff}});
  check("cvt.rz.f16x2.f32 d32, a32, b32;", {{{f(1e10f), f(1)}, 0x7bff3c00}});
  check("cvt.rn.relu.f16x2.f32 d32, a32, b32;", {{{f(-1), f(2)}, 0x00004000}, {{kNan, f(2)}, 0x7fff4000}});
  check("cvt.rn.bf16x2.f32 d32, a32, b32;", {{{f(1), f(-2)}, 0x3f80c000}, {{0x3f808000, 0x3f818000}, 0x3f803f82}});
  check("cvt.rn.relu.bf16x2.f32 d32, a32, b32;", {{{f(-1), f(2)}, 0x00004000}});
  check("cvt.rz.bf16x2.f32 d32, a32, b32;", {{{0x3f80ffff, 0xbf80ffff}, 0x3f80bf80}});
  check("cvt.rn.satfinite.e4m3x2.f32 d16, a32, b32;", {{{f(1), f(-2)}, 0x38c0},
                                                       {{f(1e9f), f(-1e9f)}, 0x7efe},
                                                       {{kNan, f(0x1p-9f)}, 0x7f01},
                                                       {{f(1.0625f), f(1.1875f)}, 0x383a},
                                                       {{f(464), f(0x1p-10f)}, 0x7e00},
                                                       {{kInf, f(0x1.8p-9f)}, 0x7e02}});
  check("cvt.rn.satfinite.relu.e4m3x2.f32 d16, a32, b32;", {{{f(-1), f(1)}, 0x0038}});
  check("cvt.rn.satfinite.e5m2x2.f32 d16, a32, b32;",
        {{{f(1), f(-2)}, 0x3cc0}, {{f(1e9f), kNan}, 0x7b7f}, {{f(0x1p-16f), f(1.125f)}, 0x013c}});
  check("cvt.rn.satfinite.e4m3x2.f16x2 d16, a32;", {{{0x3c00c000}, 0x38c0}, {{0x7c000000}, 0x7e00}});
  check("cvt.rn.satfinite.e5m2x2.f16x2 d16, a32;", {{{0x3c00c000}, 0x3cc0}});
  check("cvt.rn.f16x2.e4m3x2 d32, a16;", {{{0x38c0}, 0x3c00c000}, {{0x7eff}, 0x5f007fff}, {{0x0108}, 0x18002400}});
  check("cvt.rn.f16x2.e5m2x2 d32, a16;", {{{0x3cc0}, 0x3c00c000}, {{0x7cfc}, 0x7c00fc00}});
  check("cvt.rn.relu.f16x2.e4m3x2 d32, a16;", {{{0x38c0}, 0x3c000000}});
}

TEST_CASE("the emulator packs and unpacks registers, the first part lowest") {
  check("mov.b32 d32, {a16, b16};", {{{0x1111, 0x2222}, 0x22221111}});
  check("mov.b64 d64, {a32, b32};", {{{0x11111111, 0x22222222}, 0x2222222211111111}});
  check("mov.b64 d64, {a16, b16, c16, a16};", {{{1, 2, 3}, 0x0001000300020001}});
  check("mov.b32 {d16, e16}, a32;", {{{0x22221111}, 0x1111}});
  check("mov.b32 {_, d16}, a32;", {{{0x22221111}, 0x2222}});
  check("mov.b64 {e32, d32}, a64;", {{{0x2222222211111111}, 0x22222222}});
  check("mov.b64 {a32, d32}, a64;", {{{0x2222222211111111}, 0x22222222}});
  check("mov.f32 d32, 0f3F800000;", {{{}, bits(1.0f)}});
  check("mov.b64 d64, -1;", {{{}, kAll64}});
  check("mov.u16 d16, a16;", {{{0x12345}, 0x2345}});
}

// --- What is not PTX -------------------------------------------------------------------------------------------------

TEST_CASE("the emulator refuses forms that it does not know, with their line") {
  for (const std::string text : {"add.cc.u32 d32, a32, b32;",
                                 "add.f8 d32, a32, b32;",
                                 "mul.s32 d32, a32, b32;",
                                 "add.s32.x d32, a32, b32;",
                                 "add.s32 d32, a32;",
                                 "add.s32 d64, a32, b32;",
                                 "setp.lo.s32 p, a32, b32;",
                                 "cvt.s32.f32 d32, a32;",
                                 "cvt.rn.e4m3x2.f64 d16, a64, b64;",
                                 "shf.l.b32 d32, a32, b32, c32;",
                                 "lop3.b32 d32, a32, b32, c32, 256;",
                                 "ex2.f32 d32, a32;",
                                 "add.rz.f64 d64, a64, b64;",
                                 "fma.rn.relu.f32 d32, a32, b32, c32;",
                                 "mov.b32 d32, {a16, b16, c16};",
                                 "ld.local.u32 d32, [a64];",
                                 "st.param.u32 [in], a32;",
                                 "atom.global.max.f32 d32, [a64], b32;",
                                 "atom.global.cas.u32 d32, [a64], b32, c32;",
                                 "bra.uni a32;"}) {
    CAPTURE(text);
    try {
      const emulator::Program program(kernel_of(text + " mov.u64 d64, 0;"));
      FAIL_CHECK("was accepted");
    } catch (const emulator::ParseError& error) {
      CHECK(error.place.ptx_line == 31);
    }
  }
}
