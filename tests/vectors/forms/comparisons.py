# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.6 (comparison and selection). All comparisons of a type in one kernel."""

from .form import BITS, lanewise

MODULE = "comparisons"
ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
UNSIGNED = ("lo", "ls", "hi", "hs")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def operators(type_):
    if type_[0] == "b" and type_ != "bf16":
        return ("eq", "ne")
    if "f" in type_:
        return ORDERED + UNORDERED
    return ORDERED + (UNSIGNED if type_[0] == "u" else ())


def setp():
    for type_ in ("b16", "b32", "b64", "s16", "s32", "s64", "u16", "u32", "u64", "f16", "bf16", "f32", "f64"):
        body = "".join(f"setp.{op}.{type_} %d{i}, %a0, %a1;\n" for i, op in enumerate(operators(type_)))
        yield lanewise(MODULE, f"setp.{type_}", body, ["pred"] * len(operators(type_)), [type_] * 2)
    for type_ in ("f32", "f16"):
        body = "".join(f"setp.{op}.ftz.{type_} %d{i}, %a0, %a1;\n" for i, op in enumerate(operators(type_)))
        yield lanewise(MODULE, f"setp.ftz.{type_}", body, ["pred"] * len(operators(type_)), [type_] * 2)


def combined():
    """With a predicate to combine with, and the combination's complement as a second result."""
    for name in ("and", "or", "xor"):
        body = (f"setp.lt.{name}.s32 %d0|%d1, %a0, %a1, %a2;\n"
                f"setp.geu.{name}.f32 %d2|%d3, %a3, %a4, !%a2;\n")
        yield lanewise(MODULE, f"setp.{name}", body, ["pred"] * 4, ["s32", "s32", "pred", "f32", "f32"])
    yield lanewise(MODULE, "setp two results", "setp.eq.u32 %d0|%d1, %a0, %a1;", ["pred"] * 2, ["u32"] * 2)


def set_():
    for name, source, result in (("set.lt.u32.s32", "s32", "u32"), ("set.ge.s32.u64", "u64", "s32"),
                                 ("set.le.u32.f32", "f32", "u32"), ("set.gtu.ftz.u32.f32", "f32", "u32"),
                                 ("set.eq.f32.s32", "s32", "f32"), ("set.ne.u32.f64", "f64", "u32")):
        yield lanewise(MODULE, name, f"{name} %d0, %a0, %a1;", [result], [source] * 2, compare=BITS)


def forms():
    for group in (setp, combined, set_):
        yield from group()
