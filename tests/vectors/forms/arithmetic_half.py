# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.4: f16 and bf16, alone and in pairs; and the approximations of 9.7.3 and 9.7.4 for them."""

from .form import lanewise, modes, within
from .numbers import BF16, F16, Kind, pairs

MODULE = "half"
HALF_ULP = {"f16": 2.0**-11, "bf16": 2.0**-8}


def lane(name, count, **more):
    type_ = name.split(".")[-1]
    operands = ", ".join(["%d0"] + [f"%a{i}" for i in range(count)])
    return lanewise(MODULE, name, f"{name} {operands};", [type_], [type_] * count, **more)


def exact():
    for type_ in ("f16", "f16x2"):
        for name in ("add", "sub", "mul"):
            yield modes(MODULE, name, type_, ("", ".rn", ".ftz", ".sat", ".ftz.sat"), 2)
        yield modes(MODULE, "fma.rn", type_, ("", ".ftz", ".sat", ".relu", ".ftz.relu"), 3)
        for name in ("abs", "neg"):
            yield modes(MODULE, name, type_, ("", ".ftz"), 1)
    for type_ in ("bf16", "bf16x2"):
        for name in ("add", "sub", "mul"):
            yield modes(MODULE, name, type_, ("", ".rn"), 2)
        yield modes(MODULE, "fma.rn", type_, ("", ".relu"), 3)
        for name in ("abs", "neg"):
            yield lane(f"{name}.{type_}", 1)
    for type_ in ("f16", "f16x2", "bf16", "bf16x2"):
        for name in ("min", "max"):
            flushed = (".ftz",) if type_[0] == "f" else ()
            yield modes(MODULE, name, type_, ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs") + flushed, 2)


def small(format_):
    """|x| < 16: what ex2 and tanh neither overflow nor flatten."""
    def random(source):
        exponent = format_.bias - 8 + source.below(12)
        return source.bits(1) << 15 | exponent << format_.fraction_bits | source.bits(format_.fraction_bits)

    return Kind(16, tuple(format_.edges()), random)


# (instruction, bound as the ISA states it; half an ulp of the result's format is added where the result is rounded)
APPROXIMATE = (
    ("ex2.approx.f16", {"relative": 2.0**-9.9}),
    ("ex2.approx.ftz.bf16", {"relative": 2.0**-7}),
    ("tanh.approx.f16", {"absolute": 2.0**-10.987}),
    ("tanh.approx.bf16", {"relative": 2.0**-8}),
)


def approximate():
    for name, bound in APPROXIMATE:
        type_ = name.split(".")[-1]
        slack = HALF_ULP[type_]
        # A subnormal result of ex2 in f16 is a multiple of 2^-24.
        compare = within(type_, bound.get("absolute", 2.0**-24 if "ftz" not in name else 0.0) +
                         (slack if "absolute" in bound else 0.0), bound.get("relative", 0.0) + slack)
        kind = small(F16 if type_ == "f16" else BF16)
        yield lane(name, 1, kinds=[kind], compare=compare, threads=192)
        yield lane(name + "x2", 1, kinds=[pairs(kind)], compare=compare, threads=192)


def forms():
    yield from exact()
    yield from approximate()
