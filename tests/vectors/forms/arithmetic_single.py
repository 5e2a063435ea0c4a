# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.3: floating point of 32 and 64 bits. The bounds are those that the ISA states for each instruction, and
half an ulp more where they are relative, because the emulator rounds what it computes exactly."""

from .form import lanewise, modes, within, within_ulp
from .numbers import KINDS, F32, Kind, among, f32

MODULE = "single"
HALF_ULP = 2.0**-24


def near_one(random):
    return random.bits(1) << 31 | (120 + random.below(15)) << 23 | random.bits(23)


def angles(random):
    return random.bits(1) << 31 | (114 + random.below(15)) << 23 | random.bits(23)  # |x| < 4


def exponents(random):
    return random.bits(1) << 31 | (118 + random.below(15)) << 23 | random.bits(23)  # |x| < 64


NEAR_ONE = Kind(32, tuple(F32.edges()), near_one)
EXPONENTS = Kind(32, tuple(F32.edges()) + tuple(map(f32, (-1.0, 2.0, -126.0, -127.0, 127.0, 128.0, -149.0, -160.0))),
                 exponents)
ANGLES = Kind(32, tuple(map(f32, (0.0, -0.0, 0.5, 1.0, -1.0, 3.1415927, -6.28, 6.28, 1e-5, 1e-40))) +
              (0x7F800000, 0xFF800000, 0x7FC00001), angles)
# div.approx is bounded for divisors from 2^-126 to 2^126.
DIVISORS = among(32, [f32(x) for x in (1.0, -1.0, 3.0, -7.0, 2.0**-126, 2.0**126, -(2.0**100), 1e-10)] +
                 [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00001])


def lane(name, count, type_="f32", **more):
    operands = ", ".join(["%d0"] + [f"%a{i}" for i in range(count)])
    return lanewise(MODULE, name, f"{name} {operands};", [type_], [type_] * count, **more)


def exact():
    roundings = (".rn", ".rz", ".rm", ".rp", ".rn.ftz", ".rn.sat", ".rn.ftz.sat", ".rz.ftz")
    for name in ("add", "sub", "mul"):
        yield modes(MODULE, name, "f32", ("",) + roundings, 2)
    yield modes(MODULE, "fma", "f32", roundings, 3)
    yield lane("mad.rn.f32", 3)
    yield modes(MODULE, "div", "f32", (".rn", ".rn.ftz"), 2)
    for name in ("rcp.rn", "sqrt.rn", "abs", "neg"):
        yield modes(MODULE, name, "f32", ("", ".ftz"), 1)
    yield lane("copysign.f32", 2)
    for name in ("min", "max"):
        yield modes(MODULE, name, "f32", ("", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs"), 2)


def approximate():
    for ftz in ("", ".ftz"):
        yield lane(f"rcp.approx{ftz}.f32", 1, compare=within_ulp("f32", 1))
        yield lane(f"sqrt.approx{ftz}.f32", 1, compare=within("f32", relative=2.0**-23 + HALF_ULP))
        yield lane(f"rsqrt.approx{ftz}.f32", 1, compare=within("f32", relative=2.0**-22.9 + HALF_ULP))
        yield lane(f"ex2.approx{ftz}.f32", 1, kinds=[EXPONENTS], threads=192, compare=within_ulp("f32", 2))
        yield lane(f"lg2.approx{ftz}.f32", 1, kinds=[NEAR_ONE], threads=192,
                   compare=within("f32", absolute=2.0**-22, relative=2.0**-22 + HALF_ULP))
        for name in ("sin", "cos"):
            yield lane(f"{name}.approx{ftz}.f32", 1, kinds=[ANGLES], compare=within("f32", absolute=2.0**-20.5))
        yield lane(f"div.approx{ftz}.f32", 2, kinds=[NEAR_ONE, DIVISORS], compare=within_ulp("f32", 2))
        yield lane(f"div.full{ftz}.f32", 2, kinds=[NEAR_ONE, DIVISORS], compare=within_ulp("f32", 2))
    yield lane("tanh.approx.f32", 1, kinds=[NEAR_ONE], threads=192,
               compare=within("f32", relative=2.0**-11 + HALF_ULP))


def double():
    for name, count in (("add.rn", 2), ("sub.rn", 2), ("mul.rn", 2), ("fma.rn", 3), ("div.rn", 2), ("abs", 1),
                        ("neg", 1), ("min", 2), ("max", 2), ("copysign", 2)):
        yield lane(f"{name}.f64", count, "f64")


def classes():
    """testp: all its properties in one kernel."""
    properties = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    for type_ in ("f32", "f64"):
        body = "".join(f"testp.{name}.{type_} %d{i}, %a0;\n" for i, name in enumerate(properties))
        yield lanewise(MODULE, f"testp.{type_}", body, ["pred"] * len(properties), [type_], kinds=[KINDS[type_]])


def forms():
    for group in (exact, approximate, double, classes):
        yield from group()
