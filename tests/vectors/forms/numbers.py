# SPDX-License-Identifier: Apache-2.0
"""Numbers as bits: edge values and random ones of each type, the same on every machine."""

import dataclasses
import math
import struct
import typing
import zlib


class Random:
    """splitmix64: small, and the same in every language."""

    def __init__(self, seed):
        self.state = zlib.crc32(seed.encode()) if isinstance(seed, str) else seed

    def bits(self, count):
        self.state = (self.state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
        return (z ^ (z >> 31)) >> (64 - count)

    def below(self, limit):
        return self.bits(32) % limit

    def choose(self, values):
        return values[self.below(len(values))]


@dataclasses.dataclass(frozen=True)
class Format:
    """A binary floating-point format with an implicit leading bit."""

    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self):
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self):
        return (1 << (self.exponent_bits - 1)) - 1

    def encode(self, value):
        """The bits of a value that the format has exactly."""
        sign = 1 if math.copysign(1, value) < 0 else 0
        fraction, exponent = math.frexp(abs(value))
        if fraction == 0:
            return sign << (self.bits - 1)
        exponent = max(exponent - 1, 1 - self.bias)
        scaled = math.ldexp(abs(value), self.fraction_bits - exponent)
        assert scaled == int(scaled), f"{value} is not in {self}"
        normal = scaled >= 1 << self.fraction_bits
        biased = exponent + self.bias if normal else 0
        return sign << (self.bits - 1) | biased << self.fraction_bits | int(scaled) & ((1 << self.fraction_bits) - 1)

    def edges(self):
        """Zeros, subnormal numbers, extremes, infinities, NaNs, and what roundings and functions care about."""
        one = self.encode(1.0)
        sign, infinity = 1 << (self.bits - 1), ((1 << self.exponent_bits) - 1) << self.fraction_bits
        smallest_normal = 1 << self.fraction_bits
        nan = infinity | 1 << (self.fraction_bits - 1) | 1
        return [0, sign, one, one + 1, 1, sign | (smallest_normal - 1), smallest_normal, infinity - 1, infinity,
                sign | infinity, nan, sign | self.encode(1.5)]

    def random(self, random):
        """Of any exponent half of the time, else near 1, where results do not overflow."""
        if random.bits(1):
            return random.bits(self.bits)
        exponent = self.bias - 4 + random.below(9)
        return random.bits(1) << (self.bits - 1) | exponent << self.fraction_bits | random.bits(self.fraction_bits)

    def unit(self, random):
        """+-[0.5, 1): of one size, so that a bound by the largest product is close to one by their sum."""
        return random.bits(1) << (self.bits - 1) | (self.bias - 1) << self.fraction_bits | random.bits(
            self.fraction_bits)


F16, BF16, F32, F64 = Format(5, 10), Format(8, 7), Format(8, 23), Format(11, 52)
E4M3, E5M2 = Format(4, 3), Format(5, 2)


def f32(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f64(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


@dataclasses.dataclass(frozen=True)
class Kind:
    """What one operand is fed with: bits, edge values, and a function that makes random ones."""

    bits: int
    edges: tuple
    random: typing.Callable


def integers(bits):
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    edges = (0, 1, mask, 2, bits, top, top - 1, top + 1, mask // 3, 0x1234567887654321 & mask)
    return Kind(bits, edges, lambda random: random.bits(bits))


def floats(format_):
    return Kind(format_.bits, tuple(format_.edges()), format_.random)


def among(bits, values, limit=None):
    """Edge values, and random ones below the limit, or of the edge values."""
    return Kind(bits, tuple(value & ((1 << bits) - 1) for value in values),
                lambda random: random.below(limit) if limit else random.choose(values) & ((1 << bits) - 1))


def pairs(kind):
    """Two 16-bit numbers in one register."""
    def both(random):
        def one():
            return random.choose(kind.edges) if random.below(3) == 0 else kind.random(random)
        return one() << kind.bits | one()

    return Kind(2 * kind.bits, tuple(edge << kind.bits | kind.edges[(i * 7 + 3) % len(kind.edges)]
                                     for i, edge in enumerate(kind.edges)), both)


def not_zero(kind):
    return dataclasses.replace(kind, edges=tuple(edge for edge in kind.edges if edge),
                               random=lambda random: kind.random(random) or 1)


KINDS = {f"{sign}{bits}": integers(bits) for sign in "sub" for bits in (8, 16, 32, 64)}
KINDS |= {"f16": floats(F16), "bf16": floats(BF16), "f32": floats(F32), "f64": floats(F64)}
KINDS |= {"f16x2": pairs(KINDS["f16"]), "bf16x2": pairs(KINDS["bf16"]), "pred": among(32, (0, 1), 2)}


def columns(kinds, threads, seed):
    """A list of values for each operand: all edge values against each other if they fit, then random ones."""
    random = Random(seed)
    rows = [()]
    for kind in kinds:
        rows = [row + (edge,) for row in rows for edge in kind.edges] if len(rows) <= threads else rows
    if any(len(row) != len(kinds) for row in rows) or len(rows) > threads:
        rows = [tuple(random.choose(kind.edges) for kind in kinds) for _ in range(threads // 2)]
    while len(rows) < threads:
        rows.append(tuple(random.choose(kind.edges) if random.below(4) == 0 else kind.random(random)
                          for kind in kinds))
    return [[row[i] for row in rows] for i in range(len(kinds))]


def pack(values, bits):
    return b"".join(value.to_bytes(bits // 8, "little") for value in values)
