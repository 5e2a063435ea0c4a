# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.9 shfl, 9.7.13 vote, match, activemask, redux, elect: operations of a warp's lanes together."""

from .form import BITS, lanewise
from .numbers import Kind, among

MODULE = "warps"
# Of these the reductions of 32 lanes are neither 0 nor all ones.
MIDDLING = Kind(32, (7,), lambda random: (random.bits(31) + (1 << 29) + random.bits(1) * (1 << 31)) & (2**32 - 1))
REDUCED = {"or": Kind(32, (1,), lambda random: 1 << (random.bits(5) & 0x1B)),
           "and": Kind(32, (0xFFFFFFFE,), lambda random: ~(1 << (random.bits(5) & 0x1B)) & (2**32 - 1))}
LANES = among(32, (0, 1, 2, 31, 32, 33, 63, 0xFFFFFFFF), 34)


def lane(name, body, outputs, inputs, **more):
    return lanewise(MODULE, name, body, outputs, inputs, compare=BITS, threads=more.pop("threads", 96), **more)


def shuffles():
    """c holds the clamp and the segments: of 32, 16 and 8 lanes."""
    for mode in ("up", "down", "bfly", "idx"):
        low = 0 if mode == "up" else 31
        for width in (32, 16, 8):
            c = (32 - width) << 8 | low
            yield lane(f"shfl.sync.{mode}.b32 width {width}",
                       f"shfl.sync.{mode}.b32 %d0|%d1, %a0, %a1, {c:#x}, 0xffffffff;", ["b32", "pred"], ["b32", "u32"],
                       kinds=[among(32, (0,), 1 << 31), LANES])
        yield lane(f"shfl.sync.{mode}.b32 immediate", f"shfl.sync.{mode}.b32 %d0, %a0, 3, {low}, -1;", ["b32"], ["b32"])
    yield lane("shfl.sync some lanes", """
and.b32 %r0, %t, 31;
setp.ge.u32 %p0, %r0, 16;
mov.u32 %d0, 0;
@%p0 bra skip;
shfl.sync.bfly.b32 %d0, %a0, 4, 31, 0x0000ffff;
skip:
""", ["b32"], ["b32"], scratch=".reg .b32 %r0;\n.reg .pred %p0;\n")


def votes():
    for mode in ("all", "any", "uni"):
        yield lane(f"vote.sync.{mode}", f"vote.sync.{mode}.pred %d0, %a0, 0xffffffff;\n"
                   f"vote.sync.{mode}.pred %d1, !%a0, 0xffffffff;\nsetp.ne.u32 %p0, %t, 999;\n"
                   f"vote.sync.{mode}.pred %d2, %p0, -1;\nvote.sync.{mode}.pred %d3, !%p0, -1;", ["pred"] * 4, ["pred"],
                   scratch=".reg .pred %p0;\n")
    yield lane("vote.sync.ballot", "vote.sync.ballot.b32 %d0, %a0, 0xffffffff;\n"
               "vote.sync.ballot.b32 %d1, !%a0, 0xffffffff;", ["b32"] * 2, ["pred"])
    yield lane("vote.sync.ballot some lanes", """
and.b32 %r0, %t, 1;
setp.eq.u32 %p0, %r0, 1;
mov.u32 %d0, 0;
@%p0 vote.sync.ballot.b32 %d0, %a0, 0xaaaaaaaa;
@!%p0 vote.sync.ballot.b32 %d0, %a0, 0x55555555;
""", ["b32"], ["pred"], scratch=".reg .b32 %r0;\n.reg .pred %p0;\n")
    yield lane("activemask", "activemask.b32 %d0;", ["b32"], [])


def matches():
    few = among(32, (0, 1, 2, 0xFFFFFFFF), 5)
    for type_ in ("b32", "b64"):
        kind = few if type_ == "b32" else among(64, (0, 1 << 40, 1, 1 << 63), 5)
        yield lane(f"match.any.sync.{type_}", f"match.any.sync.{type_} %d0, %a0, 0xffffffff;", ["b32"], [type_],
                   kinds=[kind])
        equal = "mov.b32 %r0, 77;" if type_ == "b32" else "mov.b64 %r0, 77;"
        yield lane(f"match.all.sync.{type_}", f"match.all.sync.{type_} %d0|%d1, %a0, 0xffffffff;\n{equal}\n"
                   f"match.all.sync.{type_} %d2|%d3, %r0, 0xffffffff;", ["b32", "pred"] * 2, [type_], kinds=[kind],
                   scratch=f".reg .{type_} %r0;\n")


def reductions():
    for op, types in (("add", ("u32", "s32")), ("min", ("u32", "s32")), ("max", ("u32", "s32")), ("and", ("b32",)),
                      ("or", ("b32",)), ("xor", ("b32",))):
        for type_ in types:
            yield lane(f"redux.sync.{op}.{type_}", f"redux.sync.{op}.{type_} %d0, %a0, 0xffffffff;", [type_], [type_],
                       kinds=[REDUCED.get(op, MIDDLING)])
    yield lane("redux.sync some lanes", """
and.b32 %r0, %t, 8;
setp.eq.u32 %p0, %r0, 0;
mov.u32 %d0, 0;
@%p0 redux.sync.add.u32 %d0, %a0, 0x00ff00ff;
""", ["u32"], ["u32"], scratch=".reg .b32 %r0;\n.reg .pred %p0;\n")


def elections():
    """Which lane is elected is open: %d0 says how many are, %d1 whether it is the one whose number all get."""
    told = """
vote.sync.ballot.b32 %r1, %p1, {mask};
popc.b32 %d0, %r1;
shl.b32 %r0, 1, %r0;
setp.eq.u32 %d1, %r0, %r1;
"""
    scratch = ".reg .b32 %r<3>;\n.reg .pred %p<2>;\n"
    yield lane("elect.sync", "elect.sync %r0|%p1, 0xffffffff;" + told.format(mask="0xffffffff") +
               "elect.sync _|%p1, 0xffffffff;\nvote.sync.any.pred %d2, %p1, 0xffffffff;", ["b32", "pred", "pred"], [],
               scratch=scratch)
    yield lane("elect.sync some lanes", """
and.b32 %r2, %t, 31;
mov.u32 %d0, 99;
setp.lt.u32 %d1, %r2, 5;
setp.lt.u32 %p0, %r2, 5;
@%p0 bra skip;
elect.sync %r0|%p1, 0xffffffe0;""" + told.format(mask="0xffffffe0") + "skip:\n", ["b32", "pred"], [], scratch=scratch)


def forms():
    for group in (shuffles, votes, matches, reductions, elections):
        yield from group()
