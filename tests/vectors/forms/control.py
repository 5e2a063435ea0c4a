# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.12: bra, exit, ret under divergence; 9.7.13: bar, barrier, membar, fence."""

from . import numbers
from .form import Form, kernel, lanewise

MODULE = "control"


def divergence():
    yield lanewise(MODULE, "bra loop", """
add.u32 %r0, %a0, 1;
mov.u32 %d0, 0;
again:
and.b32 %r1, %r0, 1;
setp.eq.u32 %p0, %r1, 0;
@%p0 bra even;
mad.lo.u32 %r0, %r0, 3, 1;
bra.uni next;
even:
shr.u32 %r0, %r0, 1;
next:
add.u32 %d0, %d0, 1;
setp.gt.u32 %p1, %r0, 1;
@%p1 bra again;
""", ["u32"], ["u32"], kinds=[numbers.among(32, range(20), 1000)], scratch=".reg .b32 %r<2>;\n.reg .pred %p<2>;\n")
    yield lanewise(MODULE, "bra nested", """
mov.u32 %d0, 1;
setp.lt.s32 %p0, %a0, 0;
@!%p0 bra outer_else;
setp.gt.s32 %p1, %a1, 0;
@%p1 bra inner;
mov.u32 %d0, 2;
bra join;
inner:
mov.u32 %d0, 3;
bra join;
outer_else:
@%p0 mov.u32 %d0, 4;
add.s32 %d0, %d0, %a1;
join:
add.s32 %d0, %d0, 100;
""", ["s32"], ["s32"] * 2, scratch=".reg .pred %p<2>;\n")
    for name in ("exit", "ret"):
        yield lanewise(MODULE, f"{name} of some lanes", f"""
add.u32 %d0, %a0, 7;
setp.gt.s32 %p0, %a0, 0;
st.global.u32 [%o4], 1;
@%p0 {name};
""", ["u32"], ["u32"], scratch=".reg .pred %p0;\n")
    yield lanewise(MODULE, "shfl.sync after divergence", """
and.b32 %r0, %t, 3;
setp.eq.u32 %p0, %r0, 0;
mov.u32 %d0, %a0;
@%p0 bra skip;
add.u32 %d0, %d0, 17;
skip:
shfl.sync.bfly.b32 %d1, %d0, 1, 31, 0xffffffff;
""", ["u32"] * 2, ["u32"], scratch=".reg .b32 %r0;\n.reg .pred %p0;\n")


def shift_through_tile(name, barriers, threads=128):
    """Threads write shared memory, wait, and read what another warp wrote."""
    body = f"""mad.wide.u32 %w0, %t, 4, %in;
mad.wide.u32 %w1, %t, 4, %out;
ld.global.u32 %r0, [%w0];
mov.u32 %r1, tile;
mad.lo.u32 %r2, %t, 4, %r1;
add.u32 %r3, %t, 40;
and.b32 %r3, %r3, {threads - 1};
mad.lo.u32 %r3, %r3, 4, %r1;
st.shared.u32 [%r2], %r0;
{barriers}
ld.shared.u32 %r0, [%r3];
st.global.u32 [%w1], %r0;
"""
    text = kernel(name, ".reg .b32 %r<4>;\n.reg .b64 %w<2>;\n.reg .pred %p0;\n", body,
                  shared=f".shared .align 16 .b8 tile[{4 * threads}];\n")
    values = numbers.pack(numbers.columns([numbers.integers(32)], threads, name)[0], 32)
    return Form(name, MODULE, text, [values], 4 * threads, block=threads)


def barriers():
    for name in ("bar.sync 0", "bar.sync 3, 128", "barrier.sync 2", "barrier.sync.aligned 1, 128", "bar.cta.sync 0",
                 "barrier.cta.sync 5, 128"):
        yield shift_through_tile(name, f"{name};")
    yield shift_through_tile("fence and bar.sync", "membar.cta;\nmembar.gl;\nfence.sc.cta;\nfence.acq_rel.gpu;\n"
                             "fence.acq_rel.cluster;\nbar.sync 0;")


def producers_and_consumers():
    """Half of the warps only arrive, the others wait; then the other way round."""
    body = """mad.wide.u32 %w0, %t, 4, %in;
mad.wide.u32 %w1, %t, 4, %out;
ld.global.u32 %r0, [%w0];
mov.u32 %r1, tile;
mad.lo.u32 %r2, %t, 4, %r1;
setp.ge.u32 %p0, %t, 64;
@%p0 bra consumer;
st.shared.u32 [%r2], %r0;
bar.arrive 1, 128;
bar.sync 2, 128;
ld.shared.u32 %r0, [%r2+256];
bra done;
consumer:
bar.sync 1, 128;
ld.shared.u32 %r3, [%r2+-256];
add.u32 %r3, %r3, %r0;
st.shared.u32 [%r2], %r3;
barrier.arrive 2, 128;
done:
st.global.u32 [%w1], %r0;
"""
    text = kernel("bar.arrive", ".reg .b32 %r<4>;\n.reg .b64 %w<2>;\n.reg .pred %p0;\n", body,
                  shared=".shared .align 16 .b8 tile[512];\n")
    values = numbers.pack(numbers.columns([numbers.integers(32)], 128, "bar.arrive")[0], 32)
    yield Form("bar.arrive", MODULE, text, [values], 512, block=128)


def reductions():
    yield lanewise(MODULE, "bar.red.popc", "bar.red.popc.u32 %d0, 0, %a0;\nbar.red.popc.u32 %d1, 1, 96, !%a0;",
                   ["u32"] * 2, ["pred"], threads=96)
    yield lanewise(MODULE, "bar.red.and", "bar.red.and.pred %d0, 0, %a0;\nbar.red.or.pred %d1, 0, %a0;\n"
                   "setp.eq.u32 %p0, %t, %t;\nbarrier.red.and.pred %d2, 0, %p0;\nbarrier.red.or.pred %d3, 0, !%p0;",
                   ["pred"] * 4, ["pred"], threads=96, scratch=".reg .pred %p0;\n")


def idle():
    """Operations without a result: that they do nothing else."""
    yield lanewise(MODULE, "operations without a result", """
nanosleep.u32 20;
prefetch.global.L2 [%i4];
prefetch.global.L1 [%i4];
griddepcontrol.launch_dependents;
griddepcontrol.wait;
bar.warp.sync 0xffffffff;
fence.proxy.async;
fence.proxy.async.global;
fence.proxy.async.shared::cta;
mov.u32 %d0, %a0;
""", ["u32"], ["u32"], threads=64)


def forms():
    for group in (divergence, barriers, producers_and_consumers, reductions, idle):
        yield from group()
