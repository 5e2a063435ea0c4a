# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.1 (integer arithmetic), 9.7.8 (logic and shift)."""

from . import numbers
from .form import lanewise, together
from .numbers import KINDS, among, not_zero

MODULE = "integer"
WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
SIGNED, UNSIGNED = ("s16", "s32", "s64"), ("u16", "u32", "u64")
POSITIONS = among(32, (0, 1, 5, 16, 31, 32, 33, 63, 64, 65, 255, 256, 0xFFFFFFFF), 70)


def lane(name, inputs, output, kinds=None):
    """The name is the instruction, its operands are %d0, %a0, %a1, ..."""
    operands = ", ".join(["%d0"] + [f"%a{i}" for i in range(len(inputs))])
    return lanewise(MODULE, name, f"{name} {operands};", [output], inputs, kinds=kinds)


def add_and_multiply():
    for type_ in SIGNED + UNSIGNED:
        yield together(MODULE, ("add", "sub", "mul.lo", "mul.hi", "min", "max"), type_, 2)
        yield together(MODULE, ("mad.lo", "mad.hi"), type_, 3)
        # What a division by 0 gives is unspecified.
        yield together(MODULE, ("div", "rem"), type_, 2, kinds=[KINDS[type_], not_zero(KINDS[type_])])
    for type_, wide in WIDE.items():
        yield lane(f"mul.wide.{type_}", [type_] * 2, wide)
        yield lane(f"mad.wide.{type_}", [type_, type_, wide], wide)
    for type_ in SIGNED:
        yield together(MODULE, ("abs", "neg"), type_, 1)
    yield together(MODULE, ("add.sat", "sub.sat"), "s32", 2)
    yield lane("mad.hi.sat.s32", ["s32"] * 3, "s32")


def logic():
    for bits in ("b16", "b32", "b64"):
        yield together(MODULE, ("and", "or", "xor"), bits, 2)
        yield together(MODULE, ("not", "cnot"), bits, 1)
    yield together(MODULE, ("and", "or", "xor"), "pred", 2)
    yield lane("not.pred", ["pred"], "pred")
    for table in (0x96, 0xE8, 0xCA, 0x1B):
        yield lanewise(MODULE, f"lop3.b32 {table:#x}", f"lop3.b32 %d0, %a0, %a1, %a2, {table};", ["b32"], ["b32"] * 3)


def shifts():
    for name in ("shl.b16", "shl.b32", "shl.b64", "shr.b16", "shr.b32", "shr.b64", "shr.s16", "shr.s32", "shr.s64",
                 "shr.u16", "shr.u32", "shr.u64"):
        type_ = name.split(".")[1]
        yield lane(name, [type_, "u32"], type_, [KINDS[type_], POSITIONS])
    for side in "lr":
        for mode in ("wrap", "clamp"):
            yield lane(f"shf.{side}.{mode}.b32", ["b32", "b32", "u32"], "b32", [KINDS["b32"]] * 2 + [POSITIONS])


def bits():
    for type_ in ("u32", "s32", "u64", "s64"):
        yield lane(f"bfe.{type_}", [type_, "u32", "u32"], type_, [KINDS[type_], POSITIONS, POSITIONS])
        yield lane(f"bfind.{type_}", [type_], "u32")
        yield lane(f"bfind.shiftamt.{type_}", [type_], "u32")
    for type_ in ("b32", "b64"):
        yield lane(f"bfi.{type_}", [type_, type_, "u32", "u32"], type_, [KINDS[type_]] * 2 + [POSITIONS] * 2)
        yield lane(f"brev.{type_}", [type_], type_)
        yield lane(f"clz.{type_}", [type_], "u32")
        yield lane(f"popc.{type_}", [type_], "u32")
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        name = f"prmt.b32{mode}"
        selector = numbers.among(32, (0, 0x3210, 0x7654, 0xFEDC, 0x8A91, 0x4321, 3), 1 << 16)
        yield lane(name, ["b32"] * 3, "b32", [KINDS["b32"], KINDS["b32"], selector])


def selections():
    for type_ in ("b16", "b32", "b64", "f32", "s32", "u64", "f64"):
        yield lane(f"selp.{type_}", [type_, type_, "pred"], type_)


def forms():
    for group in (add_and_multiply, logic, shifts, bits, selections):
        yield from group()
