# SPDX-License-Identifier: Apache-2.0
"""Clusters of two blocks: PTX ISA 9.7.9 mapa, ld and st to shared::cluster, multicast; 9.7.13 barrier.cluster and
mbarriers of the other block. Each block has 64 threads and half of the output."""

from .copies import COPY_REGISTERS, WAIT_REGISTERS, wait
from .form import BITS, Form, kernel
from .memory import noise
from .tensor_copies import MAP_ADDRESS, tensor

MODULE = "clusters"
PAIR = ".reqnctapercluster 2, 1, 1"
REGISTERS = COPY_REGISTERS + WAIT_REGISTERS + """.reg .b32 %r<8>, %rank, %peer;
.reg .b64 %w<6>, %m, %mine, %from;
.reg .b16 %mask;
.reg .pred %p<3>;
"""
# %mine: this thread's 16 bytes of the output; %from: of the input.
WHO = """mov.u32 %rank, %cluster_ctarank;
xor.b32 %peer, %rank, 1;
mad.lo.u32 %r7, %rank, 64, %t;
mad.wide.u32 %mine, %r7, 16, %out;
mad.wide.u32 %from, %r7, 16, %in;
setp.ne.u32 %p0, %t, 0;
"""
TOGETHER = "barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n"
# Where no lane waited alone.
CONVERGED = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
FILL = """ld.global.v4.b32 {%c0, %c1, %c2, %c3}, [%from];
mov.u32 %c4, tile;
mad.lo.u32 %c4, %t, 16, %c4;
st.shared.v4.b32 [%c4], {%c0, %c1, %c2, %c3};
"""
DRAIN = "ld.shared.v4.b32 {%c0, %c1, %c2, %c3}, [%c4];\nst.global.v4.b32 [%mine], {%c0, %c1, %c2, %c3};\n"


def pair(name, body, inputs, maps=(), grid=2, output_bytes=2048):
    shared = ".shared .align 1024 .b8 tile[1024];\n.shared .align 8 .b64 barrier;\n"
    text = kernel(name, REGISTERS, WHO + body, maps=len(maps), directives=PAIR, shared=shared)
    return Form(name, MODULE, text, inputs, output_bytes, BITS, 64, grid, maps=list(maps))


def specials():
    registers = ("cluster_ctarank", "cluster_nctarank", "cluster_ctaid.x", "cluster_nctaid.x", "clusterid.x",
                 "nclusterid.x", "ctaid.x", "nctaid.x")
    body = "mov.u32 %r6, %ctaid.x;\nmad.lo.u32 %r6, %r6, 8, %t;\n"
    body += f"mad.wide.u32 %mine, %r6, {4 * len(registers)}, %out;\nsetp.gt.u32 %p1, %t, 7;\n@%p1 bra done;\n"
    for i, register in enumerate(registers):
        body += f"mov.u32 %r0, %{register};\nst.global.u32 [%mine+{4 * i}], %r0;\n"
    body += "done:\n"
    yield pair("cluster special registers", body, [], grid=4, output_bytes=4 * 8 * 4 * len(registers))


def loads_and_stores():
    yield pair("ld.shared::cluster", FILL + CONVERGED + """mapa.shared::cluster.u32 %r0, %c4, %peer;
ld.shared::cluster.v4.b32 {%c0, %c1, %c2, %c3}, [%r0];
st.global.v4.b32 [%mine], {%c0, %c1, %c2, %c3};
""" + CONVERGED, [noise(2048)])
    yield pair("st.shared::cluster", """mov.u32 %c4, tile;
mad.lo.u32 %c4, %t, 16, %c4;
mapa.shared::cluster.u32 %r0, %c4, %peer;
ld.global.v4.b32 {%c0, %c1, %c2, %c3}, [%from];
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.aligned;
st.shared::cluster.v4.b32 [%r0], {%c0, %c1, %c2, %c3};
""" + CONVERGED + DRAIN, [noise(2048)])
    yield pair("mapa generic, getctarank", FILL + CONVERGED + """cvt.u64.u32 %w0, %c4;
cvta.shared.u64 %w0, %w0;
mapa.u64 %w1, %w0, %peer;
ld.b32 %r0, [%w1];
getctarank.u64 %r1, %w1;
getctarank.u64 %r2, %w0;
mapa.shared::cluster.u32 %r4, %c4, 1;
getctarank.shared::cluster.u32 %r3, %r4;
st.global.v4.b32 [%mine], {%r0, %r1, %r2, %r3};
""" + CONVERGED, [noise(2048)])
    yield pair("atom.shared::cluster", FILL + CONVERGED + """mapa.shared::cluster.u32 %r0, %c4, %peer;
atom.shared::cluster.add.u32 %r1, [%r0], %t;
atom.shared::cluster.max.s32 %r2, [%r0+4], 1000;
red.relaxed.cluster.shared::cluster.xor.b32 [%r0+8], 255;
atom.acq_rel.cluster.shared::cluster.exch.b32 %r3, [%r0+12], %r1;
""" + CONVERGED + DRAIN, [noise(2048)])


READY = """@%p0 bra ready;
mbarrier.init.shared::cta.b64 [barrier], {count};
fence.mbarrier_init.release.cluster;
ready:
""" + TOGETHER


def remote_arrivals():
    """Each block's barrier waits for all threads of the other, whose stores it then reads."""
    yield pair("mbarrier.arrive.shared::cluster", READY.format(count=64) + """mov.u32 %c4, tile;
mad.lo.u32 %c4, %t, 16, %c4;
mapa.shared::cluster.u32 %r0, %c4, %peer;
mov.u32 %r1, barrier;
mapa.shared::cluster.u32 %r1, %r1, %peer;
ld.global.v4.b32 {%c0, %c1, %c2, %c3}, [%from];
st.shared::cluster.v4.b32 [%r0], {%c0, %c1, %c2, %c3};
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];
""" + wait("barrier", 0, "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64") + """xor.b32 %c4, %c4, 512;
""" + DRAIN + "failed:\n" + TOGETHER, [noise(2048)])


def both_halves(instruction, source, setup):
    """Each block loads one half of what both get."""
    return READY.format(count=1) + f"""@%p0 bra issued;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 1024;
mov.u16 %mask, 3;
mov.u32 %r0, tile;
mad.lo.u32 %r0, %rank, 512, %r0;
{setup}
{instruction}.multicast::cluster [%r0], {source}, [barrier], %mask;
issued:
""" + wait("barrier", 0) + "mov.u32 %c4, tile;\nmad.lo.u32 %c4, %t, 16, %c4;\n" + DRAIN + "failed:\n" + TOGETHER


def multicast():
    name = "tensor load multicast"
    body = both_halves("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
                       "[%m, {0, %r1}]", MAP_ADDRESS + "mad.lo.u32 %r1, %rank, 4, 3;")
    yield pair(name, body, [noise(2048)], [tensor("bf16", (64, 16), (64, 4), swizzle="bytes_128")])
    name = "cp.async.bulk multicast"
    body = both_halves("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "[%w0], 512",
                       "mad.wide.u32 %w0, %rank, 512, %in;")
    yield pair(name, body, [noise(1024)])


def to_the_other_block():
    """cp.async.bulk from one block's shared memory to the other's, whose barrier counts the bytes."""
    name = "cp.async.bulk.shared::cluster.shared::cta"
    body = READY.format(count=1) + FILL.replace("%c4, tile", "%c4, source") + """fence.proxy.async.shared::cta;
bar.sync 0;
@%p0 bra issued;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 1024;
mov.u32 %r0, tile;
mapa.shared::cluster.u32 %r0, %r0, %peer;
mov.u32 %r1, barrier;
mapa.shared::cluster.u32 %r1, %r1, %peer;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r0], [source], 1024, [%r1];
issued:
""" + wait("barrier", 0) + "mov.u32 %c4, tile;\nmad.lo.u32 %c4, %t, 16, %c4;\n" + DRAIN + "failed:\n" + TOGETHER
    yield pair(name, ".shared .align 128 .b8 source[1024];\n" + body, [noise(2048)])


def forms():
    for group in (specials, loads_and_stores, remote_arrivals, multicast, to_the_other_block):
        yield from group()
