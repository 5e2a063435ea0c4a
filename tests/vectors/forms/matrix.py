# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.14: ldmatrix, stmatrix, movmatrix, mma.

Products of small integers have exact sums, and those are compared as bits. Else the order in which the tensor core adds
is open, and it aligns the terms of a step to the largest and drops what lies below: at least 23 fraction bits are
kept with 16-bit and tf32 operands (2^-21 leaves room for the steps of one instruction, and for the emulator's own
roundings), about 13 with 8-bit ones. The random operands are all of magnitude [0.5, 1), the accumulators too, so that
(k + 1) times that is the bound for the sum of the magnitudes of all terms."""

import dataclasses
import typing

from . import numbers
from .form import Form, kernel, lanewise, same, within
from .memory import noise
from .numbers import BF16, E4M3, E5M2, F16, F32, Kind

MODULE = "matrix"
THREADS = 64  # two warps
KEPT = {"f16": 2.0**-21, "bf16": 2.0**-21, "tf32": 2.0**-21, "e4m3": 2.0**-12, "e5m2": 2.0**-12}
F16_ROUNDING = 2.0**-10


@dataclasses.dataclass(frozen=True)
class Element:
    """How operands lie in 32-bit registers."""

    bits: int
    encode: typing.Callable
    random: typing.Callable

    def word(self, one):
        return sum(one() << shift for shift in range(0, 32, self.bits))

    def small_integers(self):
        return Kind(32, (), lambda random: self.word(lambda: self.encode(float(random.below(7) - 3))))

    def fractions(self):
        return Kind(32, (), lambda random: self.word(lambda: self.random(random)))


def of_format(format_):
    return Element(format_.bits, format_.encode, format_.unit)


ELEMENTS = {"f16": of_format(F16), "bf16": of_format(BF16), "e4m3": of_format(E4M3), "e5m2": of_format(E5M2),
            "f32": of_format(F32), "tf32": Element(32, F32.encode, lambda random: F32.unit(random) & 0xFFFFE000)}


def words(kind, count, seed):
    random = numbers.Random(seed)
    return numbers.pack([kind.random(random) for _ in range(count)], 32)


def product_bound(a_type, k, accumulator):
    """For operands and accumulators of magnitude below 1."""
    kept = KEPT[a_type]
    return within(accumulator, absolute=(k + 1) * (kept + (F16_ROUNDING if accumulator == "f16" else 0)))


@dataclasses.dataclass(frozen=True)
class Mma:
    shape: str
    a: str
    b: str
    accumulator: str
    registers: tuple  # of a, b and the accumulators

    @property
    def k(self):
        return int(self.shape.split("k")[1])

    @property
    def name(self):
        return (f"mma.sync.aligned.{self.shape}.row.col.{self.accumulator}.{self.a}.{self.b}.{self.accumulator}")


MMAS = [Mma("m16n8k8", "f16", "f16", "f16", (2, 1, 2)), Mma("m16n8k8", "f16", "f16", "f32", (2, 1, 4)),
        Mma("m16n8k8", "bf16", "bf16", "f32", (2, 1, 4)), Mma("m16n8k4", "tf32", "tf32", "f32", (2, 1, 4)),
        Mma("m16n8k8", "tf32", "tf32", "f32", (4, 2, 4)), Mma("m16n8k16", "f16", "f16", "f16", (4, 2, 2)),
        Mma("m16n8k16", "f16", "f16", "f32", (4, 2, 4)), Mma("m16n8k16", "bf16", "bf16", "f32", (4, 2, 4))]
MMAS += [Mma("m16n8k32", a, b, "f32", (4, 2, 4)) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]


def mma(instruction, fractions):
    a, b, c = instruction.registers
    body = f"{instruction.name}\n {{{names('d', range(c))}}}, {{{names('a', range(a))}}}, "
    body += f"{{{names('a', range(a, a + b))}}}, {{{names('a', range(a + b, a + b + c))}}};"
    columns = operand_columns(instruction, fractions)
    compare = same(instruction.accumulator)
    if fractions:
        compare = product_bound(instruction.a, instruction.k, instruction.accumulator)
    name = instruction.name + (" fractions" if fractions else " integers")
    return lanewise(MODULE, name, body, ["b32"] * c, ["b32"] * (a + b + c), compare, columns, THREADS)


def operand_columns(instruction, fractions):
    """A column for each register, from one stream for each type of element."""
    columns, used = [], {}
    for element, count in zip((instruction.a, instruction.b, instruction.accumulator), instruction.registers):
        kind = ELEMENTS[element].fractions() if fractions else ELEMENTS[element].small_integers()
        stream = words(kind, 14 * THREADS, "mma")
        for _ in range(count):
            at = used[element] = used.get(element, -1) + 1
            columns.append(stream[4 * THREADS * at:4 * THREADS * (at + 1)])
    return columns


def names(letter, numbers_):
    return ", ".join(f"%{letter}{i}" for i in numbers_)


def mmas():
    for instruction in MMAS:
        for fractions in (False, True):
            yield mma(instruction, fractions)
    for a, b in (("s8", "s8"), ("u8", "s8")):
        name = f"mma.sync.aligned.m16n8k32.row.col.s32.{a}.{b}.s32"
        body = f"{name} {{{names('d', range(4))}}}, {{{names('a', range(4))}}}, {{%a4, %a5}}, {{%a6, %a7, %a8, %a9}};"
        yield lanewise(MODULE, name, body, ["s32"] * 4, ["b32"] * 10, threads=32)


def special_products():
    """Infinities, NaN and subnormal numbers in A; B is 1. Without bf16's largest numbers, whose sum overflows in some
    orders only."""
    for type_ in ("f16", "bf16"):
        format_ = F16 if type_ == "f16" else BF16
        one = format_.encode(1.0)
        largest = format_.edges()[7] if type_ == "bf16" else None
        edges = [edge << 16 | one for edge in format_.edges() if edge != largest] + [one << 16 | one] * 20
        kind = numbers.among(32, edges)
        kinds = [kind] * 4 + [numbers.among(32, [one << 16 | one])] * 2 + [numbers.among(32, [0])] * 4
        name = f"mma.sync.aligned.m16n8k16.row.col.f32.{type_}.{type_}.f32"
        body = f"{name} {{{names('d', range(4))}}}, {{{names('a', range(4))}}}, {{%a4, %a5}}, {{%a6, %a7, %a8, %a9}};"
        yield lanewise(MODULE, name + " special", body, ["f32"] * 4, ["b32"] * 10,
                       within("f32", absolute=17 * 2.0**-21, relative=2.0**-20), kinds, 64)


LDMATRIX = """mad.wide.u32 %w0, %t, 16, %in;
ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%w0];
mov.u32 %s0, tile;
mad.lo.u32 %s1, %t, 16, %s0;
st.shared.v4.b32 [%s1], {%r0, %r1, %r2, %r3};
mad.wide.u32 %w0, %t, 4, %in;
ld.global.u32 %s1, [%w0+512];
mad.lo.u32 %s1, %s1, 16, %s0;
mad.wide.u32 %w1, %t, 16, %out;
bar.warp.sync 0xffffffff;
"""
MATRIX_REGISTERS = ".reg .b32 %r<4>, %s<2>;\n.reg .b64 %w<2>;\n"


def shuffled_rows():
    """The lanes' row addresses: a permutation, so that every row is met."""
    random, rows = numbers.Random("rows"), list(range(32))
    for i in range(31, 0, -1):
        j = random.below(i + 1)
        rows[i], rows[j] = rows[j], rows[i]
    return numbers.pack(rows, 32)


def registers(count):
    return names("r", range(count))


def ldmatrix():
    shared = ".shared .align 128 .b8 tile[512];\n"
    for count in (1, 2, 4):
        for transposed in ("", ".trans"):
            name = f"ldmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16"
            body = LDMATRIX + f"{name} {{{registers(count)}}}, [%s1];\n"
            body += "".join(f"st.global.b32 [%w1+{4 * i}], %r{i};\n" for i in range(count))
            text = kernel(name, MATRIX_REGISTERS, body, shared=shared)
            yield Form(name, MODULE, text, [noise(512), shuffled_rows()], 512)
    name = "ldmatrix 64-bit address"
    body = LDMATRIX + "cvt.u64.u32 %w0, %s1;\n"
    body += "ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%r0, %r1, %r2, %r3}, [%w0];\n"
    body += "st.global.v4.b32 [%w1], {%r0, %r1, %r2, %r3};\n"
    yield Form(name, MODULE, kernel(name, MATRIX_REGISTERS, body, shared=shared),
               [noise(512), shuffled_rows()], 512)


def stmatrix():
    """Into zeros; the operands are what the tile of ldmatrix began with."""
    for count in (1, 2, 4):
        for transposed in ("", ".trans"):
            name = f"stmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16"
            body = LDMATRIX.replace("st.shared.v4.b32 [%s1], {%r0, %r1, %r2, %r3};",
                                    "st.shared.v4.b32 [%s1], {0, 0, 0, 0};")
            body += f"{name} [%s1], {{{registers(count)}}};\nbar.warp.sync 0xffffffff;\n"
            body += "mad.lo.u32 %s1, %t, 16, %s0;\nld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%s1];\n"
            body += "st.global.v4.b32 [%w1], {%r0, %r1, %r2, %r3};\n"
            text = kernel(name, MATRIX_REGISTERS, body, shared=".shared .align 128 .b8 tile[512];\n")
            yield Form(name, MODULE, text, [noise(512), shuffled_rows()], 512)


def movmatrix():
    yield lanewise(MODULE, "movmatrix", "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a0;", ["b32"], ["b32"], threads=64)


def forms():
    for group in (ldmatrix, stmatrix, movmatrix, mmas, special_products):
        yield from group()

