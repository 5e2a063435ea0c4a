# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 5.5 (tensors), 9.7.9: cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, in every swizzle. What a load leaves
in shared memory goes to the output as it is, so the patterns themselves are compared. The innermost coordinate is at a
multiple of 16 bytes, inside the tensor or not: an H200 ended all 42 copies where it was not with an illegal
instruction. So it did, as the CUDA programming guide says, where a store or a reduction began at a negative
coordinate."""

from . import numbers
from .copies import COPY_REGISTERS, WAIT_REGISTERS, fill_tile, wait
from .form import BITS, Form, TensorMap, kernel, same, seed_of, units
from .memory import noise

MODULE = "tensor_copies"
THREADS = 64
BYTES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
SPANS = {"none": 0, "bytes_32": 32, "bytes_64": 64, "bytes_128": 128}


def packed_strides(element, sizes):
    """Of a tensor without gaps, but multiples of 16 bytes."""
    strides, stride = [], BYTES[element]
    for size in sizes[:-1]:
        stride = -(-stride * size // 16) * 16
        strides.append(stride)
    return tuple(strides)


def tensor(element, sizes, box, buffer="in", **more):
    return TensorMap(element, buffer, sizes, packed_strides(element, sizes), box, **more)


def footprint(map_):
    """Bytes of the buffer that the tensor spans."""
    if len(map_.sizes) == 1:
        return map_.sizes[0] * BYTES[map_.element]
    return map_.sizes[-1] * map_.strides[-1]


def box_bytes(map_):
    """A dimension with stride s has every s-th element of the box only; the first dimension ignores it."""
    count = BYTES[map_.element] * map_.box[0]
    for box, stride in zip(map_.box[1:], map_.element_strides[1:]):
        count *= -(-box // stride)
    return count


def written_units(map_):
    """Where a load of a box that is narrower than the swizzle leaves its 16-byte units: its rows lie as far apart as
    the swizzle is wide."""
    span, row = SPANS[map_.swizzle], BYTES[map_.element] * map_.box[0]
    for at in range(0, box_bytes(map_) // row * span, span):
        for address in range(at, at + row, 16):
            yield address // 16 ^ (address >> 7 & span // 16 - 1)


def chunks(element, count):
    """Elements in so many times 16 bytes."""
    return count * 16 // BYTES[element]


def coordinates(map_, values):
    if values[0] * BYTES[map_.element] % 16:
        raise ValueError(f"innermost coordinate {values[0]} of {map_.element}: must be at a multiple of 16 bytes")
    return "{" + ", ".join(str(value) for value in values) + "}"


MAP_ADDRESS = "mov.u64 %m, map0;\ncvta.param.u64 %m, %m;\n"
REGISTERS = COPY_REGISTERS + ".reg .b64 %m;\n.reg .pred %p0;\n"


def tile_to_output(bytes_):
    text = "mov.u32 %c4, tile;\nmad.lo.u32 %c4, %t, 16, %c4;\nmad.wide.u32 %cw0, %t, 16, %out;\n"
    for at in range(0, bytes_, 16 * THREADS):
        rest = bytes_ - at
        guard = "" if rest >= 16 * THREADS else f"setp.lt.u32 %p0, %t, {rest // 16};\n"
        prefix = "@%p0 " if guard else ""
        text += guard + f"{prefix}ld.shared.v4.b32 {{%c0, %c1, %c2, %c3}}, [%c4+{at}];\n"
        text += f"{prefix}st.global.v4.b32 [%cw0+{at}], {{%c0, %c1, %c2, %c3}};\n"
    return text


def load(name, map_, at, hint=False, compare=BITS, data=None, **outcome):
    bytes_, rank = box_bytes(map_), len(map_.sizes)
    instruction = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    instruction += ".L2::cache_hint" if hint else ""
    body = MAP_ADDRESS + f"""setp.ne.u32 %p0, %t, 0;
@%p0 bra ready;
prefetch.tensormap [%m];
mbarrier.init.shared::cta.b64 [barrier], 1;
fence.mbarrier_init.release.cluster;
ready:
bar.sync 0;
@%p0 bra issued;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], {bytes_};
mov.u64 %policy, 0x12f0000000000000;
{instruction} [tile], [%m, {coordinates(map_, at)}], [barrier]{", %policy" if hint else ""};
issued:
{wait("barrier", 0)}{tile_to_output(bytes_)}failed:
"""
    shared = f".shared .align 1024 .b8 tile[{max(bytes_, 1024)}];\n.shared .align 8 .b64 barrier;\n"
    text = kernel(name, REGISTERS + ".reg .b64 %policy;\n" + WAIT_REGISTERS, body, maps=1, shared=shared)
    data = data or values(map_.element, footprint(map_) // BYTES[map_.element])
    return Form(name, MODULE, text, [data], bytes_, compare, THREADS, maps=[map_], **outcome)


def values(element, count):
    """Any bits for integers; numbers for floats, so that a NaN can only be a fill."""
    if "f" not in element:
        return noise(count * BYTES[element])
    format_ = {"f16": numbers.F16, "bf16": numbers.BF16, "f32": numbers.F32, "f64": numbers.F64}[element]
    random = numbers.Random(element)
    return numbers.pack([format_.unit(random) for _ in range(count)], format_.bits)


# Of a box of 16 by 8 elements of 2 bytes, in a tensor of 32 by 12.
PARTLY_OUTSIDE = {"inner negative": (-8, 2), "inner past the end": (24, 2), "outer negative": (8, -3),
                  "outer past the end": (8, 7)}


def narrow_outcome(map_):
    """Of a load whose tile has room for the box without what is between its rows, and for 1 KiB: where the swizzle
    widens it to more, it leaves shared memory."""
    span, rows = SPANS[map_.swizzle], map_.box[1]
    if span == 0:
        return {}
    if rows * span > max(box_bytes(map_), 1024):
        return {"finding": "shared_out_of_bounds", "refused": "CUDA_ERROR_ILLEGAL_ADDRESS"}
    inside = sorted(unit for unit in written_units(map_) if 16 * unit < box_bytes(map_))
    return {"compare": units(inside), "finding": "unwritten_shared"}


def loads():
    for swizzle, span in SPANS.items():
        columns = (span or 64) // 2
        map_ = tensor("bf16", (columns * 2, 24), (columns, 16), swizzle=swizzle)
        yield load(f"tensor load swizzle {swizzle}", map_, (columns, 3))
        # A narrower box in the same swizzle, and rows that end outside: they are filled.
        map_ = tensor("u16", (36, 12), (max(columns // 2, 8), 16), swizzle=swizzle)
        yield load(f"tensor load narrow box swizzle {swizzle}", map_, (32, 5), **narrow_outcome(map_))
    for fill in ("zeros", "nan"):
        for element in ("f16", "bf16", "f32", "f64"):
            map_ = tensor(element, (32, 8), (16, 8), fill=fill)
            yield load(f"tensor load outside {element} {fill}", map_, (chunks(element, -1), -3))
    for place, at in PARTLY_OUTSIDE.items():
        yield load(f"tensor load {place}", tensor("u16", (32, 12), (16, 8)), at)
    yield load("tensor load wholly outside", tensor("u32", (16, 8), (16, 4)), (0, 100))
    yield load("tensor load cache hint", tensor("u8", (64, 16), (32, 16)), (16, 0), hint=True)


def ranks():
    for element in ("u8", "u16", "u32", "s32", "u64", "s64"):
        yield load(f"tensor load 1d {element}", tensor(element, (512 // BYTES[element],), (256 // BYTES[element],)),
                   (chunks(element, 3),))
    yield load("tensor load 3d", tensor("u16", (32, 5, 7), (16, 4, 3)), (8, 2, -1))
    yield load("tensor load 4d", tensor("u16", (24, 5, 4, 3), (16, 3, 2, 2)), (-8, 3, 1, 2))
    yield load("tensor load 5d", tensor("u32", (12, 4, 3, 3, 2), (8, 2, 2, 2, 2)), (8, 1, 2, -1, 1))
    yield load("tensor load 4d swizzle bytes_128", tensor("bf16", (64, 3, 9, 2), (64, 1, 8, 1), swizzle="bytes_128"),
               (0, 2, 4, 1))
    yield load("tensor load 4d several heads", tensor("f16", (32, 4, 6, 2), (32, 2, 4, 1), swizzle="bytes_64"),
               (0, 1, 3, 0))


def strided():
    yield load("tensor load element strides", tensor("u16", (32, 16), (16, 8), element_strides=(1, 2)), (8, 1))
    yield load("tensor load element strides 3d", tensor("u32", (16, 6, 9), (8, 3, 7), element_strides=(1, 1, 3)),
               (4, 1, 1))
    # Rows that overlap: a stride smaller than a row.
    yield load("tensor load overlapping rows", TensorMap("u16", "in", (32, 10), (16,), (32, 8)), (0, 1),
               data=noise(512))


def store(name, map_, at, operation=None, old=None, new=None, compare=BITS):
    """The tile goes to the tensor, which lies in the output."""
    outcome = {"finding": "bad_operand", "refused": "CUDA_ERROR_ILLEGAL_INSTRUCTION"} if min(at) < 0 else {}
    bytes_, rank = box_bytes(map_), len(map_.sizes)
    instruction = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
    if operation:
        instruction = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{operation}.tile.bulk_group"
    padded_bytes = -(-bytes_ // (16 * THREADS)) * 16 * THREADS
    body = MAP_ADDRESS + fill_tile(padded_bytes, THREADS) + f"""setp.ne.u32 %p0, %t, 0;
@%p0 bra done;
{instruction} [%m, {coordinates(map_, at)}], [tile];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
cp.async.bulk.wait_group 0;
done:
"""
    text = kernel(name, REGISTERS, body, maps=1, shared=f".shared .align 1024 .b8 tile[{padded_bytes}];\n")
    old = old or noise(footprint(map_), "before")
    new = new or noise(padded_bytes)
    return Form(name, MODULE, text, [new + bytes(padded_bytes - len(new))], len(old), compare, THREADS,
                initial_output=[old], maps=[map_], **outcome)


def stores():
    for swizzle, span in SPANS.items():
        columns = (span or 64) // 2
        map_ = tensor("bf16", (columns * 2, 20), (columns, 16), "out", swizzle=swizzle)
        yield store(f"tensor store swizzle {swizzle}", map_, (columns - 8, 7))
    yield store("tensor store 1d", tensor("u32", (64,), (32,), "out"), (40,))
    yield store("tensor store 3d", tensor("u16", (32, 5, 7), (16, 4, 3), "out"), (24, 3, 5))
    yield store("tensor store 4d", tensor("f16", (32, 2, 9, 2), (32, 1, 8, 1), "out", swizzle="bytes_64"), (0, 1, 4, 1))
    yield store("tensor store 5d", tensor("u32", (12, 4, 3, 3, 2), (8, 2, 2, 2, 2), "out"), (8, 1, 2, 1, 1))
    for place, at in PARTLY_OUTSIDE.items():
        yield store(f"tensor store {place}", tensor("u16", (32, 12), (16, 8), "out"), at)
    yield store("tensor store 5d outer negative", tensor("u32", (12, 4, 3, 3, 2), (8, 2, 2, 2, 2), "out"),
                (8, 1, 2, -1, 1))


REDUCTIONS = [("add", element) for element in ("u32", "s32", "u64", "f16", "bf16", "f32")]
REDUCTIONS += [(op, element) for op in ("min", "max") for element in ("u32", "s32", "s64", "f16", "bf16")]
REDUCTIONS += [("inc", "u32"), ("dec", "u32"), ("and", "u32"), ("or", "u64"), ("xor", "u32")]


def reduction(name, operation, element, at, swizzle="bytes_64"):
    columns = chunks(element, 4)
    map_ = tensor(element, (columns, 16), (columns, 16), "out", swizzle=swizzle)
    kind, count = numbers.KINDS[element], 16 * columns
    old, new = (numbers.pack(column, kind.bits) for column in numbers.columns([kind] * 2, count, seed_of([element])))
    compare = same(element) if "f" in element else BITS
    return store(name, map_, at, operation, old, new, compare)


def reductions():
    for operation, element in REDUCTIONS:
        yield reduction(f"tensor reduce {operation} {element}", operation, element, (chunks(element, 1), 3))
    for element in ("u32", "u64"):
        at = (chunks(element, 1), -3)
        yield reduction(f"tensor reduce add {element} outer negative", "add", element, at)
    yield reduction("tensor reduce add u64 swizzle none", "add", "u64", (2, 3), "none")


def prefetch():
    """Only that it does nothing else."""
    map_ = tensor("u32", (16, 8), (16, 4))
    body = MAP_ADDRESS + """setp.ne.u32 %p0, %t, 0;
@%p0 bra done;
cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%m, {0, 0}];
st.global.u32 [%out], 5;
done:
"""
    text = kernel("tensor prefetch", REGISTERS, body, maps=1)
    yield Form("tensor prefetch", MODULE, text, [noise(512)], 4, block=THREADS, maps=[map_])


def forms():
    for group in (loads, ranks, strided, stores, reductions, prefetch):
        yield from group()
