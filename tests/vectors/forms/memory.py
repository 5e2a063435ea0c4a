# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.9: mov, ld, st, cvta, isspacep; 9.7.13: atom, red. Atomics have an address for each thread, so that the
old values are defined too, and where the sum is exact one for all."""

from . import numbers
from .form import BITS, Form, addresses, declare, kernel, lanewise, padded, part_offsets, same, seed_of, width
from .numbers import KINDS, Random, among, floats, integers

MODULE = "memory"
THREADS = 32
TILE = ".shared .align 16 .b8 tile[4096];\n"


def noise(count, seed="noise"):
    random = Random(seed)
    return bytes(random.bits(8) for _ in range(count))


def moves():
    yield lanewise(MODULE, "mov.b32 packs", "mov.b32 %d0, {%a0, %a1};", ["b32"], ["b16"] * 2, threads=64)
    yield lanewise(MODULE, "mov.b64 packs", "mov.b64 %d0, {%a0, %a1};", ["b64"], ["b32"] * 2, threads=64)
    yield lanewise(MODULE, "mov.b64 packs four", "mov.b64 %d0, {%a0, %a1, %a2, %a3};", ["b64"], ["b16"] * 4, threads=64)
    yield lanewise(MODULE, "mov.b32 unpacks", "mov.b32 {%d0, %d1}, %a0;", ["b16"] * 2, ["b32"])
    yield lanewise(MODULE, "mov.b64 unpacks", "mov.b64 {%d0, %d1}, %a0;\nmov.b64 {_, %d2}, %a0;", ["b32"] * 3, ["b64"])
    for type_ in ("u16", "s32", "f32", "b64", "f64", "pred"):
        yield lanewise(MODULE, f"mov.{type_}", f"mov.{type_} %d0, %a0;", [type_], [type_], compare=BITS, threads=32)
    yield lanewise(MODULE, "mov immediates", "mov.u32 %d0, 0xfffffff0;\nmov.s32 %d1, -7;\nmov.f32 %d2, 0f3FC00000;\n"
                   "mov.b64 %d3, 0x123456789abcdef0;\nmov.f64 %d4, 0dBFF8000000000000;\nmov.u16 %d5, 65535;",
                   ["u32", "s32", "f32", "b64", "f64", "u16"], [], compare=BITS, threads=32)


SPECIALS = ("tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x",
            "nctaid.y", "nctaid.z", "laneid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge")


def specials():
    """Threads (4, 2, 4) of blocks (2, 2, 1)."""
    body = """mov.u32 %r0, %tid.z;
mov.u32 %r1, %tid.y;
mad.lo.u32 %r0, %r0, 2, %r1;
mad.lo.u32 %r0, %r0, 4, %t;
mov.u32 %r1, %ctaid.z;
mov.u32 %r2, %ctaid.y;
mad.lo.u32 %r1, %r1, 2, %r2;
mov.u32 %r2, %ctaid.x;
mad.lo.u32 %r1, %r1, 2, %r2;
mad.lo.u32 %r0, %r1, 32, %r0;
"""
    body += f"mad.wide.u32 %w0, %r0, {4 * len(SPECIALS)}, %out;\n"
    for i, special in enumerate(SPECIALS):
        body += f"mov.u32 %r0, %{special};\nst.global.u32 [%w0+{4 * i}], %r0;\n"
    text = kernel("special registers", ".reg .b32 %r<3>;\n.reg .b64 %w0;\n", body)
    yield Form("special registers", MODULE, text, [], 4 * 32 * 4 * len(SPECIALS), block=(4, 2, 4), grid=(2, 2, 1))


# (vector, type in memory, register bits): narrow elements are extended to wider registers by their type
ACCESSES = (("", "s8", 32), ("", "u8", 32), ("", "b8", 16), ("", "s8", 64), ("", "s16", 32), ("", "u16", 64),
            ("", "b32", 32), ("", "f32", 32), ("", "b64", 64), ("", "s32", 64), (".v2", "u8", 16), (".v4", "s8", 32),
            (".v2", "u16", 16), (".v4", "b16", 16), (".v2", "b32", 32), (".v4", "b32", 32), (".v4", "f32", 32),
            (".v2", "b64", 64))
SCALARS = (("", "b32", 32), ("", "b64", 64), ("", "u8", 32), ("", "s16", 32))


def count_of(vector):
    return int(vector[2:] or 1)


def registers_of(vector, bits):
    names = [f"%v{bits}_{i}" for i in range(count_of(vector))]
    return names, ", ".join(names) if len(names) == 1 else "{" + ", ".join(names) + "}"


VECTORS = "".join(f".reg .b{bits} %v{bits}_<4>;\n" for bits in (16, 32, 64))

FILL_TILE = """mad.wide.u32 %w0, %t, 16, %in;
ld.global.v4.b32 {%v32_0, %v32_1, %v32_2, %v32_3}, [%w0];
mov.u32 %r0, tile;
mad.lo.u32 %r0, %t, 16, %r0;
st.shared.v4.b32 [%r0], {%v32_0, %v32_1, %v32_2, %v32_3};
bar.sync 0;
"""


def load_kernel(name, instruction, address, setup, accesses, shared):
    """Each access loads from the thread's 16 bytes and stores what the registers then hold."""
    body, at = setup + f"mad.wide.u32 %w1, %t, 8, %out;\n", 0
    for vector, type_, bits in accesses:
        names, operand = registers_of(vector, bits)
        body += f"{instruction}{vector}.{type_} {operand}, [{address}];\n"
        for register in names:
            body += f"st.global.b{bits} [%w1+{at}], {register};\n"
            at += 8 * THREADS
    text = kernel(name, VECTORS + ".reg .b32 %r0;\n.reg .b64 %w<3>;\n", body, shared=TILE if shared else "")
    return Form(name, MODULE, text, [noise(16 * THREADS)], at, block=THREADS)


def loads():
    global_address = "mad.wide.u32 %w0, %t, 16, %in;\n"
    generic_shared = FILL_TILE + "cvt.u64.u32 %w0, %r0;\ncvta.shared.u64 %w0, %w0;\n"
    for qualifiers, accesses in (("global", ACCESSES), ("global.nc", SCALARS), ("global.L1::no_allocate", SCALARS),
                                 ("global.L2::128B", SCALARS), ("volatile.global", SCALARS),
                                 ("relaxed.gpu.global", SCALARS), ("acquire.gpu.global", SCALARS),
                                 ("global.nc.L1::no_allocate.L2::256B", SCALARS)):
        yield load_kernel(f"ld.{qualifiers}", f"ld.{qualifiers}", "%w0", global_address, accesses, False)
    yield load_kernel("ld.global converted address", "ld.global", "%w0",
                      "cvta.to.global.u64 %w0, %in;\nmad.wide.u32 %w0, %t, 16, %w0;\n", SCALARS, False)
    yield load_kernel("ld generic global", "ld", "%w0", global_address, SCALARS, False)
    yield load_kernel("ld generic shared", "ld", "%w0", generic_shared, SCALARS, True)
    yield load_kernel("ld.shared 64-bit address", "ld.shared", "%w0",
                      generic_shared + "cvta.to.shared.u64 %w0, %w0;\n", SCALARS, True)
    for qualifiers, accesses in (("shared", ACCESSES), ("shared::cta", SCALARS), ("volatile.shared", SCALARS)):
        yield load_kernel(f"ld.{qualifiers}", f"ld.{qualifiers}", "%r0", FILL_TILE, accesses, True)


STORES = (("", "b8", 32), ("", "u8", 16), ("", "b16", 16), ("", "s16", 32), ("", "b32", 32), ("", "b64", 64),
          (".v2", "b8", 16), (".v4", "u8", 32), (".v2", "b16", 16), (".v4", "u16", 16), (".v2", "b32", 32),
          (".v4", "f32", 32), (".v2", "b64", 64))


def store_kernel(name, instruction, accesses, space):
    """Each access stores to bytes of its own of the thread; from shared memory they then go to the output."""
    body = ("mad.wide.u32 %w0, %t, 32, %in;\nld.global.v2.b64 {%v64_0, %v64_1}, [%w0];\n"
            "ld.global.v4.b32 {%v32_0, %v32_1, %v32_2, %v32_3}, [%w0+16];\n"
            "mov.b64 {%v16_0, %v16_1, %v16_2, %v16_3}, %v64_0;\n"
            f"mad.wide.u32 %w1, %t, {16 * len(accesses)}, %out;\n")
    address, bytes_ = "%w1", 16 * len(accesses) * THREADS
    if space == "shared":
        body += f"mov.u32 %r0, tile;\nmad.lo.u32 %r0, %t, {16 * len(accesses)}, %r0;\n"
        body += "".join(f"st.shared.v2.b64 [%r0+{16 * i}], {{0, 0}};\n" for i in range(len(accesses)))
        address = "%r0"
    if space == "generic shared":
        body += f"mov.u64 %w2, tile;\ncvta.shared.u64 %w2, %w2;\nmad.wide.u32 %w2, %t, {16 * len(accesses)}, %w2;\n"
        body += "".join(f"st.v2.b64 [%w2+{16 * i}], {{0, 0}};\n" for i in range(len(accesses)))
        address = "%w2"
    for i, (vector, type_, bits) in enumerate(accesses):
        body += f"{instruction}{vector}.{type_} [{address}+{16 * i}], {registers_of(vector, bits)[1]};\n"
    if "shared" in space:
        for i in range(len(accesses)):
            body += f"ld{'.shared' if space == 'shared' else ''}.v2.b64 {{%v64_0, %v64_1}}, [{address}+{16 * i}];\n"
            body += f"st.global.v2.b64 [%w1+{16 * i}], {{%v64_0, %v64_1}};\n"
    shared = f".shared .align 16 .b8 tile[{bytes_}];\n" if "shared" in space else ""
    text = kernel(name, VECTORS + ".reg .b32 %r0;\n.reg .b64 %w<3>;\n", body, shared=shared)
    return Form(name, MODULE, text, [noise(32 * THREADS)], bytes_, block=THREADS)


def stores():
    scalars = (("", "b32", 32), ("", "b64", 64), ("", "b16", 16))
    yield store_kernel("st.global", "st.global", STORES, "global")
    for qualifiers in ("relaxed.gpu.global", "release.gpu.global", "volatile.global", "global.L1::no_allocate"):
        yield store_kernel(f"st.{qualifiers}", f"st.{qualifiers}", scalars, "global")
    yield store_kernel("st generic global", "st", scalars, "global")
    yield store_kernel("st.shared", "st.shared", STORES, "shared")
    yield store_kernel("st.shared::cta", "st.shared::cta", scalars, "shared")
    yield store_kernel("st.volatile.shared", "st.volatile.shared", scalars, "shared")
    yield store_kernel("st generic shared", "st", scalars, "generic shared")


def spaces():
    body = "mov.u64 %w0, tile;\ncvta.shared.u64 %w0, %w0;\n"
    for i, (space, address) in enumerate((("shared", "%w0"), ("global", "%w0"), ("shared", "%in"), ("global", "%in"))):
        body += f"isspacep.{space} %d{i}, {address};\n"
    yield lanewise(MODULE, "isspacep", body, ["pred"] * 4, [], threads=32,
                   scratch=".reg .b64 %w0;\n.shared .align 16 .b8 tile[16];\n")


# What all operations of one kernel have in common is the type; which of them exist as red too.
ATOMICS = {type_: ("add", "min", "max", "inc", "dec") for type_ in ("u32",)}
ATOMICS |= {"s32": ("add", "min", "max"), "u64": ("add", "min", "max"), "s64": ("min", "max")}
ATOMICS |= {"f32": ("add",), "f64": ("add",)}
ATOMICS |= {type_: ("add.noftz",) for type_ in ("f16", "f16x2", "bf16", "bf16x2")}
ATOMICS |= {type_: ("and", "or", "xor") for type_ in ("b32", "b64")}
QUALIFIED = (("atom.relaxed.gpu.global", "add", "u32"), ("atom.acq_rel.gpu.global", "exch", "b32"),
             ("atom.relaxed.cta.global", "max", "s32"), ("red.release.gpu.global", "add", "u32"))


def atomic_kernel(instruction, operations, type_, kinds):
    """One address for each thread and operation, whose first value is that of the first column."""
    name = f"{instruction}{{{','.join(operations)}}}.{type_}"
    memory, *operands = numbers.columns(kinds, THREADS, seed_of([type_]))
    bits, shared, old = width(type_), "shared" in instruction, instruction.startswith("atom")
    size, slot = bits // 8, bits // 8 * THREADS
    parts = [numbers.pack(column, bits) for column in [memory] + operands]
    body = addresses("i", "%in", [type_]) + addresses("o", "%out", [type_])
    body += "".join(f"ld.global.b{bits} %a{i}, [%i{size}+{at}];\n" for i, at in enumerate(part_offsets(parts)))
    body += f"mov.u32 %s0, tile;\nmad.lo.u32 %s0, %t, {size}, %s0;\n" if shared else ""
    arguments = ", ".join(f"%a{i + 1}" for i in range(len(operands)))
    for i, operation in enumerate(operations):
        address = f"[%s0+{slot * i}]" if shared else f"[%o{size}+{slot * i}]"
        body += f"st.shared.b{bits} {address}, %a0;\n" if shared else ""
        body += f"{instruction}.{operation}.{type_} {'%d0, ' if old else ''}{address}, {arguments};\n"
        body += f"ld.shared.b{bits} %d1, {address};\nst.global.b{bits} [%o{size}+{slot * i}], %d1;\n" if shared else ""
        body += f"st.global.b{bits} [%o{size}+{slot * (len(operations) + i)}], %d0;\n" if old else ""
    registers = declare("a", [type_] * 3) + declare("d", [type_] * 2) + ".reg .b32 %s0;\n"
    initial = [parts[0]] * len(operations) + [b"\xa5" * slot] * (len(operations) if old else 0)
    compare = same(type_.removesuffix("x2")) if "f" in type_ else BITS
    text = kernel(name, registers, body, shared=TILE if shared else "")
    return Form(name, MODULE, text, parts, sum(map(len, initial)), compare, THREADS, initial_output=initial)


def atomics():
    for space in ("global", "shared"):
        for type_, operations in ATOMICS.items():
            for instruction in ("atom", "red"):
                yield atomic_kernel(f"{instruction}.{space}", operations, type_, [KINDS[type_]] * 2)
        for type_ in ("b32", "b64"):
            yield atomic_kernel(f"atom.{space}", ["exch"], type_, [KINDS[type_]] * 2)
        for type_ in ("b16", "b32", "b64"):
            few = among(width(type_), (0, 1, 2), 3)  # so that half of the comparisons hold
            yield atomic_kernel(f"atom.{space}", ["cas"], type_, [few, few, KINDS[type_]])
    for instruction, operation, type_ in QUALIFIED:
        yield atomic_kernel(instruction, [operation], type_, [KINDS[type_]] * 2)


def vector_reductions():
    for count in (2, 4):
        size, name = 4 * count, f"red.global.add.v{count}.f32"
        values = numbers.columns([floats(numbers.F32)] * 2, THREADS * count, name)
        parts = [numbers.pack(column, 32) for column in values]
        operand = "{" + ", ".join(f"%a{i}" for i in range(count)) + "}"
        body = (f"mad.wide.u32 %w0, %t, {size}, %in;\nmad.wide.u32 %w1, %t, {size}, %out;\n"
                f"ld.global.v{count}.f32 {operand}, [%w0+{len(padded(parts[0]))}];\n{name} [%w1], {operand};\n")
        text = kernel(name, f".reg .b32 %a<{count}>;\n.reg .b64 %w<2>;\n", body)
        yield Form(name, MODULE, text, parts, len(parts[0]), same("f32"), THREADS, initial_output=[parts[0]])


def contention():
    """All threads of two blocks at one address: operations whose result no order changes."""
    body = "mad.wide.u32 %w0, %t, 4, %in;\nld.global.u32 %r0, [%w0];\n"
    operations = ("add.u32", "min.u32", "max.s32", "and.b32", "or.b32", "xor.b32")
    for i, operation in enumerate(operations):
        body += f"red.global.{operation} [%out+{4 * i}], %r0;\n"
    text = kernel("red.global contention", ".reg .b64 %w0;\n.reg .b32 %r0;\n", body)
    values = numbers.pack(numbers.columns([integers(32)], THREADS, "contention")[0], 32)
    initial = numbers.pack([5, 0xFFFFFFFF, 1 << 31, 0xFFFFFFFF, 0, 0], 32)
    yield Form("red.global contention", MODULE, text, [values], len(initial), block=THREADS, grid=2,
               initial_output=[initial])


def forms():
    for group in (moves, specials, loads, stores, spaces, atomics, vector_reductions, contention):
        yield from group()
