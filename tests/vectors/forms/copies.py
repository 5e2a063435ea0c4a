# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.9: cp.async, cp.async.bulk, cp.reduce.async.bulk; 9.7.13: mbarrier.

Waits give up after a while and then leave the output as it was, so that a wrong kernel cannot hang a GPU."""

from . import numbers
from .form import BITS, Form, kernel, lanewise, same, seed_of
from .memory import noise

MODULE = "copies"
PATIENCE = 1000  # tries, each of which may take a while


def wait(barrier, parity, instruction="mbarrier.try_wait.parity.shared::cta.b64", label="", failed="failed"):
    """Needs %n and %p7. Jumps to `failed` when the phase does not complete."""
    return f"""mov.u32 %n, 0;
wait{label}:
{instruction} %p7, [{barrier}], {parity};
@%p7 bra complete{label};
add.u32 %n, %n, 1;
setp.gt.u32 %p7, %n, {PATIENCE};
@%p7 bra {failed};
bra wait{label};
complete{label}:
"""


WAIT_REGISTERS = ".reg .b32 %n;\n.reg .pred %p7;\n"


def cp_async():
    """Each thread copies for itself: what it copies, then what stands in shared memory beside it."""
    forms = [("ca", 4, ""), ("ca", 8, ""), ("ca", 16, ""), ("cg", 16, ""), ("cg", 16, ".L2::128B"),
             ("ca", 4, ".L2::64B")]
    for cache, size, hint in forms:
        for source_size in (False, True):
            name = f"cp.async.{cache}.shared.global{hint} {size}" + (" with source size" if source_size else "")
            operand = f", {size}, %s1" if source_size else f", {size}"
            body = f"""mad.wide.u32 %w0, %t, 16, %in;
mad.wide.u32 %w1, %t, 4, %in;
ld.global.u32 %s1, [%w1+512];
mad.wide.u32 %w1, %t, 16, %out;
mov.u32 %s0, tile;
mad.lo.u32 %s0, %t, 16, %s0;
st.shared.v4.b32 [%s0], {{7, 7, 7, 7}};
cp.async.{cache}.shared.global{hint} [%s0], [%w0]{operand};
cp.async.wait_all;
ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%s0];
st.global.v4.b32 [%w1], {{%r0, %r1, %r2, %r3}};
"""
            sizes = numbers.pack([i * 5 % (size + 1) for i in range(32)], 32)
            text = kernel(name, ".reg .b32 %r<4>, %s<2>;\n.reg .b64 %w<2>;\n", body,
                          shared=".shared .align 16 .b8 tile[512];\n")
            yield Form(name, MODULE, text, [noise(512), sizes], 512)


def cp_async_groups():
    body = """mad.wide.u32 %w0, %t, 16, %in;
mad.wide.u32 %w1, %t, 16, %out;
mov.u32 %s0, tile;
mad.lo.u32 %s0, %t, 16, %s0;
setp.lt.u32 %p0, %t, 9;
cp.async.cg.shared.global [%s0], [%w0], 16;
cp.async.commit_group;
cp.async.cg.shared.global [%s0+512], [%w0+512], 16, %p0;
cp.async.commit_group;
cp.async.commit_group;
cp.async.wait_group 2;
ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%s0];
st.global.v4.b32 [%w1], {%r0, %r1, %r2, %r3};
cp.async.wait_group 0;
ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%s0+512];
st.global.v4.b32 [%w1+512], {%r0, %r1, %r2, %r3};
"""
    name = "cp.async groups and ignored sources"
    text = kernel(name, ".reg .b32 %r<4>, %s0;\n.reg .b64 %w<2>;\n.reg .pred %p0;\n", body,
                  shared=".shared .align 16 .b8 tile[1024];\n")
    yield Form(name, MODULE, text, [noise(1024)], 1024)
    for noinc in ("", ".noinc"):
        name = f"cp.async.mbarrier.arrive{noinc}"
        # .noinc: the count covers these arrivals; else each adds one to the pending count before it arrives.
        own = "" if noinc else "mbarrier.arrive.shared::cta.b64 _, [barrier];\n"
        body = f"""mad.wide.u32 %w0, %t, 16, %in;
mad.wide.u32 %w1, %t, 16, %out;
mov.u32 %s0, tile;
mad.lo.u32 %s0, %t, 16, %s0;
setp.ne.u32 %p0, %t, 0;
@%p0 bra ready;
mbarrier.init.shared::cta.b64 [barrier], 64;
ready:
bar.sync 0;
cp.async.ca.shared.global [%s0], [%w0], 16;
cp.async.mbarrier.arrive{noinc}.shared.b64 [barrier];
{own}{wait("barrier", 0)}
xor.b32 %s0, %s0, 512;
ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%s0];
st.global.v4.b32 [%w1], {{%r0, %r1, %r2, %r3}};
failed:
"""
        text = kernel(name, ".reg .b32 %r<4>, %s0;\n.reg .b64 %w<2>;\n.reg .pred %p0;\n" + WAIT_REGISTERS, body,
                      shared=".shared .align 1024 .b8 tile[1024];\n.shared .align 8 .b64 barrier;\n")
        yield Form(name, MODULE, text, [noise(1024)], 1024, block=64)


def report(values):
    """Stores predicates (%p) and registers to the output of thread 0."""
    text = ""
    for i, value in enumerate(values):
        if value.startswith("%p"):
            text += f"selp.u32 %t0, 1, 0, {value};\nst.global.u32 [%out+{4 * i}], %t0;\n"
        else:
            text += f"st.global.u32 [%out+{4 * i}], {value};\n"
    return text


def mbarriers():
    """One thread plays all arrivals: what test_wait and pending_count say after each."""
    steps = """mbarrier.init.shared::cta.b64 [barrier], 3;
mbarrier.test_wait.parity.shared::cta.b64 %p0, [barrier], 1;
mbarrier.arrive.shared::cta.b64 %w0, [barrier];
mbarrier.pending_count.b64 %r0, %w0;
mbarrier.test_wait.shared::cta.b64 %p1, [barrier], %w0;
mbarrier.arrive.shared::cta.b64 %w1, [barrier], 2;
mbarrier.pending_count.b64 %r1, %w1;
mbarrier.test_wait.shared::cta.b64 %p2, [barrier], %w0;
mbarrier.test_wait.parity.shared::cta.b64 %p3, [barrier], 1;
mbarrier.arrive_drop.shared::cta.b64 %w0, [barrier];
mbarrier.pending_count.b64 %r2, %w0;
mbarrier.arrive.noComplete.shared::cta.b64 %w0, [barrier], 1;
mbarrier.arrive.shared::cta.b64 _, [barrier];
mbarrier.test_wait.parity.shared::cta.b64 %p5, [barrier], 1;
mbarrier.arrive.shared::cta.b64 %w0, [barrier];
mbarrier.pending_count.b64 %r3, %w0;
mbarrier.inval.shared::cta.b64 [barrier];
"""
    body = "setp.ne.u32 %p6, %t, 0;\n@%p6 bra failed;\n" + steps
    body += report(["%p0", "%r0", "%p1", "%r1", "%p2", "%p3", "%r2", "%p5", "%r3"]) + "failed:\n"
    text = kernel("mbarrier phases", ".reg .b32 %r<4>, %t0;\n.reg .b64 %w<2>;\n.reg .pred %p<7>;\n", body,
                  shared=".shared .align 8 .b64 barrier;\n")
    yield Form("mbarrier phases", MODULE, text, [], 36)


def transactions():
    """expect_tx and complete_tx, alone and with an arrival."""
    steps = """mbarrier.init.b64 [%w2], 1;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [barrier], 64;
mbarrier.arrive.shared::cta.b64 _, [barrier];
mbarrier.test_wait.parity.shared::cta.b64 %p0, [barrier], 0;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [barrier], 48;
mbarrier.test_wait.parity.b64 %p1, [%w2], 0;
mbarrier.complete_tx.shared::cta.b64 [barrier], 16;
mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p2, [barrier], 0;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %w0, [barrier], 32;
mbarrier.test_wait.parity.shared::cta.b64 %p3, [barrier], 1;
mbarrier.complete_tx.shared::cta.b64 [barrier], 32;
mbarrier.try_wait.shared::cta.b64 %p4, [barrier], %w0;
"""
    body = "mov.u64 %w2, barrier;\ncvta.shared.u64 %w2, %w2;\nsetp.ne.u32 %p6, %t, 0;\n@%p6 bra failed;\n" + steps
    body += report(["%p0", "%p1", "%p2", "%p3", "%p4"]) + "failed:\n"
    text = kernel("mbarrier transactions", ".reg .b32 %t0;\n.reg .b64 %w<3>;\n.reg .pred %p<7>;\n", body,
                  shared=".shared .align 8 .b64 barrier;\n")
    yield Form("mbarrier transactions", MODULE, text, [], 20)


def many_phases():
    """Two warps hand a buffer back and forth five times over two mbarriers."""
    body = f"""mov.u32 %r0, %tid.x;
shr.u32 %r0, %r0, 5;
and.b32 %r1, %t, 31;
mov.u32 %s0, tile;
mad.lo.u32 %s0, %r1, 4, %s0;
mad.wide.u32 %w0, %r1, 4, %in;
mad.wide.u32 %w1, %r1, 4, %out;
setp.ne.u32 %p0, %t, 0;
@%p0 bra ready;
mbarrier.init.shared::cta.b64 [full], 32;
mbarrier.init.shared::cta.b64 [empty], 32;
ready:
bar.sync 0;
mov.u32 %r2, 0;
setp.ne.u32 %p1, %r0, 0;
@%p1 bra consumer;
producer:
and.b32 %r3, %r2, 1;
xor.b32 %r3, %r3, 1;
{wait("empty", "%r3", label="_empty")}
ld.global.u32 %r4, [%w0];
st.shared.u32 [%s0], %r4;
mbarrier.arrive.release.cta.shared::cta.b64 _, [full];
add.s64 %w0, %w0, 128;
add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, 5;
@%p2 bra producer;
bra failed;
consumer:
and.b32 %r3, %r2, 1;
{wait("full", "%r3", "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64", "_full")}
xor.b32 %r5, %s0, 64;
ld.shared.u32 %r4, [%r5];
mbarrier.arrive.shared::cta.b64 _, [empty];
st.global.u32 [%w1], %r4;
add.s64 %w1, %w1, 128;
add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, 5;
@%p2 bra consumer;
failed:
"""
    name = "mbarrier ring"
    text = kernel(name, ".reg .b32 %r<6>, %s0;\n.reg .b64 %w<2>;\n.reg .pred %p<3>;\n" + WAIT_REGISTERS, body,
                  shared=".shared .align 128 .b8 tile[128];\n.shared .align 8 .b64 full, empty;\n")
    yield Form(name, MODULE, text, [noise(640)], 640, block=64)


def bulk_loads():
    for hint in ("", ".L2::cache_hint"):
        operand = ", %w2" if hint else ""
        name = f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{hint}"
        body = f"""mov.u64 %w2, 0x14f0000000000000;
setp.ne.u32 %p0, %t, 0;
@%p0 bra ready;
mbarrier.init.shared::cta.b64 [barrier], 1;
fence.mbarrier_init.release.cluster;
ready:
bar.sync 0;
@%p0 bra issued;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 1024;
{name} [tile], [%in], 624, [barrier]{operand};
{name} [tile+624], [%in+1024], 400, [barrier]{operand};
issued:
{wait("barrier", 0)}
{COPY_TILE}
failed:
"""
        text = kernel(name, COPY_REGISTERS + ".reg .b64 %w2;\n.reg .pred %p0;\n" + WAIT_REGISTERS, body,
                      shared=".shared .align 128 .b8 tile[1024];\n.shared .align 8 .b64 barrier;\n")
        yield Form(name, MODULE, text, [noise(1424)], 1024, block=64)


COPY_REGISTERS = ".reg .b32 %c<5>;\n.reg .b64 %cw0;\n"
# 64 threads, 16 bytes of the tile each, to the output.
COPY_TILE = """mov.u32 %c4, tile;
mad.lo.u32 %c4, %t, 16, %c4;
ld.shared.v4.b32 {%c0, %c1, %c2, %c3}, [%c4];
mad.wide.u32 %cw0, %t, 16, %out;
st.global.v4.b32 [%cw0], {%c0, %c1, %c2, %c3};
"""


# The tile is the input's first 16 bytes for each thread.
def fill_tile(bytes_, threads):
    text = "mov.u32 %c4, tile;\nmad.lo.u32 %c4, %t, 16, %c4;\nmad.wide.u32 %cw0, %t, 16, %in;\n"
    for at in range(0, bytes_, 16 * threads):
        text += f"ld.global.v4.b32 {{%c0, %c1, %c2, %c3}}, [%cw0+{at}];\n"
        text += f"st.shared.v4.b32 [%c4+{at}], {{%c0, %c1, %c2, %c3}};\n"
    return text + "fence.proxy.async.shared::cta;\nbar.sync 0;\n"


def bulk_store(name, statements, initial, data, compare=BITS):
    """The tile, written by all threads, goes to the output by what thread 0 issues."""
    body = fill_tile(512, 32) + f"""setp.ne.u32 %p0, %t, 0;
@%p0 bra done;
{statements}
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
cp.async.bulk.wait_group 0;
done:
"""
    text = kernel(name, COPY_REGISTERS + ".reg .pred %p0;\n", body, shared=".shared .align 128 .b8 tile[512];\n")
    return Form(name, MODULE, text, [data], len(initial), compare, 32, initial_output=[initial])


REDUCTIONS = [(f"add.{type_}", type_) for type_ in ("u32", "s32", "u64", "f32", "f64")]
REDUCTIONS += [(f"add.noftz.{type_}", type_) for type_ in ("f16", "bf16")]
REDUCTIONS += [(f"{op}.{type_}", type_) for op in ("min", "max")
               for type_ in ("u32", "s32", "u64", "s64", "f16", "bf16")]
REDUCTIONS += [(f"{op}.{type_}", type_) for op in ("and", "or", "xor") for type_ in ("b32", "b64")]
REDUCTIONS += [("inc.u32", "u32"), ("dec.u32", "u32")]


def bulk_stores():
    name = "cp.async.bulk.global.shared::cta.bulk_group"
    yield bulk_store(name, f"{name} [%out+16], [tile+32], 480;\n{name} [%out+496], [tile], 16;", noise(528, "before"),
                     noise(512))
    for operation, type_ in REDUCTIONS:
        kind, bits = numbers.KINDS[type_], numbers.KINDS[type_].bits
        count = 512 * 8 // bits
        old, new = (numbers.pack(column, bits) for column in numbers.columns([kind] * 2, count, seed_of([type_])))
        name = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}"
        compare = same(type_) if "f" in type_ else BITS
        yield bulk_store(name, f"{name} [%out], [tile], 512;", old, new, compare)


def bulk_prefetch():
    yield lanewise(MODULE, "cp.async.bulk.prefetch", "setp.ne.u32 %p0, %t, 0;\n@!%p0 cp.async.bulk.prefetch.L2.global "
                   "[%in], 128;\nmov.u32 %d0, %a0;", ["u32"], ["u32"], threads=64, scratch=".reg .pred %p0;\n")


def setmaxnreg():
    """Two warpgroups, one gives what the other takes."""
    body = """mad.wide.u32 %w0, %t, 4, %in;
mad.wide.u32 %w1, %t, 4, %out;
ld.global.u32 %r0, [%w0];
setp.ge.u32 %p0, %t, 128;
@%p0 bra taker;
setmaxnreg.dec.sync.aligned.u32 40;
add.u32 %r0, %r0, 1;
bra done;
taker:
setmaxnreg.inc.sync.aligned.u32 208;
add.u32 %r0, %r0, 2;
done:
st.global.u32 [%w1], %r0;
"""
    text = kernel("setmaxnreg", ".reg .b32 %r0;\n.reg .b64 %w<2>;\n.reg .pred %p0;\n", body,
                  directives=".maxntid 256, 1, 1 .minnctapersm 2")
    yield Form("setmaxnreg", "wgmma", text, [noise(1024)], 1024, block=256)


def forms():
    for group in (cp_async, cp_async_groups, mbarriers, transactions, many_phases, bulk_loads, bulk_stores,
                  bulk_prefetch, setmaxnreg):
        yield from group()
