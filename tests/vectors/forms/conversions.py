# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.9: cvt. All results of one source type and modifier in one kernel, where they compare alike."""

from . import numbers
from .form import BITS, lanewise, same
from .numbers import KINDS, among, f32, f64

MODULE = "conversions"
INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")

# Where float-to-integer conversions round and saturate.
BOUNDARIES = (0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 126.5, 127.5, 128.0, 255.5, 256.0, -128.5, -129.0, 32767.5,
              65535.5, 2147483648.0, 4294967296.0, -2147483648.0, 9223372036854775808.0,
              18446744073709551616.0, 1e10, -1e10)


def near_integers(type_):
    """The kind of a float, with the boundaries in place of some edges."""
    kind = KINDS[type_]
    if type_ == "f32":
        extra = tuple(map(f32, BOUNDARIES))
    elif type_ == "f64":
        extra = tuple(map(f64, BOUNDARIES))
    else:
        format_ = numbers.F16 if type_ == "f16" else numbers.BF16
        halves_and_limits = (0.5, 1.5, 2.5, -0.5, -1.5, 127.0, 128.0, 256.0, -128.0, -136.0, 32768.0)
        extra = tuple(format_.encode(x) for x in halves_and_limits)

    def random(source):
        format_ = {"f16": numbers.F16, "bf16": numbers.BF16, "f32": numbers.F32, "f64": numbers.F64}[type_]
        exponent = format_.bias - 2 + source.below(14 if type_ == "f16" else 36)
        return source.bits(1) << (format_.bits - 1) | exponent << format_.fraction_bits | source.bits(
            format_.fraction_bits)

    return numbers.Kind(kind.bits, kind.edges + extra, random)


def group(name, source, conversions, kind=None, compare=None, threads=48):
    """conversions: (modifiers between "cvt" and the source's type, result's type)."""
    body = "".join(f"cvt{modifiers}.{result}.{source} %d{i}, %a0;\n" for i, (modifiers, result) in
                   enumerate(conversions))
    return lanewise(MODULE, name, body, [result for _, result in conversions], [source],
                    kinds=[kind or KINDS[source]], compare=compare, threads=threads)


def integer_to_integer():
    for source in INTEGERS:
        results = [("", result) for result in INTEGERS if result != source]
        yield group(f"cvt.integer.{source}", source, results)
        # .sat changes nothing where all values fit, and PTX then refuses it.
        narrower = [(".sat", result) for result in INTEGERS if not holds(result, source)]
        if narrower:
            yield group(f"cvt.sat.integer.{source}", source, narrower)


def holds(result, source):
    """Whether every value of one integer type is one of the other's."""
    wide, narrow = int(result[1:]), int(source[1:])
    if result[0] == source[0]:
        return wide >= narrow
    return result[0] == "s" and wide > narrow


def partners(float_type):
    """The integers that PTX converts it from and to."""
    return INTEGERS[2:] if float_type == "bf16" else INTEGERS


def float_to_integer():
    for source in FLOATS:
        for mode in ("rni", "rzi", "rmi", "rpi"):
            yield group(f"cvt.{mode}.integer.{source}", source, [(f".{mode}", result) for result in partners(source)],
                        near_integers(source), BITS)
    yield group("cvt.rzi.ftz.integer.f32", "f32", [(".rpi.ftz", "s32"), (".rmi.ftz", "s64"), (".rni.ftz", "u32")],
                near_integers("f32"), BITS)


def integer_to_float():
    for result in FLOATS:
        for source in partners(result):
            exact = int(source[1:]) < {"f16": 0, "bf16": 0, "f32": 24, "f64": 53}[result]
            modes = ("rn", "rz", "rm", "rp") if result in ("f32", "f64") and not exact else ("rn",)
            yield group(f"cvt.{result}.{source}", source, [(f".{mode}", result) for mode in modes])


def float_to_float():
    for source in ("f16", "bf16", "f32"):
        yield group(f"cvt.f64.{source}", source, [("", "f64")])
    for source in ("f16", "bf16"):
        yield group(f"cvt.f32.{source}", source, [("", "f32")])
    yield group("cvt.f32.f64", "f64", [(f".{mode}", "f32") for mode in ("rn", "rz", "rm", "rp")])
    yield group("cvt.ftz.f32.f64", "f64", [(".rn.ftz", "f32"), (".rn.sat", "f32")])
    for result in ("f16", "bf16"):
        modes = (".rn", ".rz", ".rn.relu", ".rz.relu")
        yield group(f"cvt.{result}.f32", "f32", [(mode, result) for mode in modes], halfway(result))
        yield group(f"cvt.{result}.f64", "f64", [(".rn", result)])
    yield group("cvt.f16.f32 directed", "f32", [(".rm", "f16"), (".rp", "f16"), (".rn.sat", "f16")], halfway("f16"))
    # To an integral value of the same type.
    yield group("cvt.integral.f32", "f32", [(f".{mode}", "f32") for mode in ("rni", "rzi", "rmi", "rpi", "rni.ftz")],
                near_integers("f32"))
    yield group("cvt.integral.f16", "f16", [(f".{mode}", "f16") for mode in ("rni", "rzi", "rmi", "rpi")],
                near_integers("f16"))
    yield group("cvt.sat.f32", "f32", [(".sat", "f32"), (".ftz.sat", "f32")])


def halfway(result):
    """f32 values half-way between neighbours of the narrower format, and close to that."""
    format_ = {"f16": numbers.F16, "bf16": numbers.BF16, "e4m3": numbers.E4M3, "e5m2": numbers.E5M2}[result]
    dropped = 23 - format_.fraction_bits

    def random(source):
        exponent = 127 - format_.bias - format_.fraction_bits + source.below(2 * format_.bias + 2 +
                                                                             format_.fraction_bits)
        low = source.choose((1 << (dropped - 1), (1 << (dropped - 1)) + 1, (1 << (dropped - 1)) - 1, 0,
                             source.bits(dropped)))
        return source.bits(1) << 31 | max(exponent, 0) << 23 | source.bits(format_.fraction_bits) << dropped | low

    extremes = (65504.0, 65520.0, 65519.996, 3.3895314e38, 448.0, 464.0, 464.01, 480.0, 57344.0, 61440.0, 61439.996,
                2.0**-9, 2.0**-10, 2.0**-16, 2.0**-17, 2.0**-24, 2.0**-25, -448.0, -1e6)
    return numbers.Kind(32, KINDS["f32"].edges + tuple(map(f32, extremes)), random)


def pairs():
    for result in ("f16x2", "bf16x2"):
        for mode in ("rn", "rz", "rn.relu"):
            name = f"cvt.{mode}.{result}.f32"
            yield lanewise(MODULE, name, f"{name} %d0, %a0, %a1;", [result], ["f32"] * 2,
                           kinds=[halfway(result.removesuffix("x2"))] * 2, threads=192)
    for result in ("e4m3x2", "e5m2x2"):
        for relu in ("", ".relu"):
            name = f"cvt.rn.satfinite{relu}.{result}.f32"
            yield lanewise(MODULE, name, f"{name} %d0, %a0, %a1;", ["b16"], ["f32"] * 2, compare=BITS,
                           kinds=[halfway(result.removesuffix("x2"))] * 2, threads=192)
            name = f"cvt.rn.satfinite{relu}.{result}.f16x2"
            yield lanewise(MODULE, name, f"{name} %d0, %a0;", ["b16"], ["f16x2"], compare=BITS, threads=192)
            name = f"cvt.rn{relu}.f16x2.{result}"
            every = among(16, [byte | (255 - byte) << 8 for byte in range(256)])
            yield lanewise(MODULE, name, f"{name} %d0, %a0;", ["f16x2"], ["b16"], kinds=[every], threads=256)


def others():
    for mode in ("rna", "rn", "rz"):
        name = f"cvt.{mode}.tf32.f32"
        yield lanewise(MODULE, name, f"{name} %d0, %a0;", ["b32"], ["f32"], kinds=[halfway("f16")], threads=192,
                       compare=same("f32"))
    for name in ("cvt.pack.sat.s16.s32", "cvt.pack.sat.u16.s32"):
        yield lanewise(MODULE, name, f"{name} %d0, %a0, %a1;", ["b32"], ["s32"] * 2)
    for name in ("cvt.pack.sat.s8.s32.b32", "cvt.pack.sat.u8.s32.b32"):
        yield lanewise(MODULE, name, f"{name} %d0, %a0, %a1, %a2;", ["b32"], ["s32", "s32", "b32"])


def forms():
    for group_ in (integer_to_integer, float_to_integer, integer_to_float, float_to_float, pairs, others):
        yield from group_()
