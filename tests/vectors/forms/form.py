# SPDX-License-Identifier: Apache-2.0
"""A form: one instruction in a kernel of its own, what it reads, and how its results compare."""

import dataclasses
import re

from . import numbers

BITS = "bits"  # equal


def same(element):
    """Equal, or both NaN: PTX leaves the bits of a NaN open."""
    return {"element": element, "ulp": 0}


def within_ulp(element, ulp):
    return {"element": element, "ulp": ulp}


def within(element, absolute=0.0, relative=0.0):
    """Of each other by the larger of the two; NaN with NaN, an infinity with itself."""
    return {"element": element, "abs": absolute, "rel": relative}


def units(indices):
    """These 16-byte units are equal; the others are of memory that the form does not write."""
    return {"units": list(indices)}


@dataclasses.dataclass
class TensorMap:
    """What cuTensorMapEncodeTiled and emulator::encode_tensor_map are told. The tensor begins where the buffer does."""

    element: str
    buffer: str  # "in" or "out"
    sizes: tuple
    strides: tuple  # bytes, of dimensions 1 and up
    box: tuple
    swizzle: str = "none"
    fill: str = "zeros"
    element_strides: tuple = ()

    def __post_init__(self):
        self.element_strides = self.element_strides or (1,) * len(self.sizes)


@dataclasses.dataclass
class Form:
    name: str
    module: str  # the file of PTX
    text: str  # of the entry
    inputs: list  # parts of the buffer "in", each padded to 16 bytes
    output_bytes: int
    compare: object = BITS
    block: int = 32
    grid: int = 1
    initial_output: list = dataclasses.field(default_factory=list)  # parts; else "out" begins as bytes 0xa5
    maps: list = dataclasses.field(default_factory=list)
    finding: str = ""  # what the emulator must find; empty for nothing
    refused: str = ""  # the error that hardware ends it with; then there is no output

    @property
    def entry(self):
        return entry_name(self.name)


def entry_name(name):
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def padded(part):
    return part + bytes(-len(part) % 16)


def part_offsets(parts):
    offsets, at = [], 0
    for part in parts:
        offsets.append(at)
        at += len(padded(part))
    return offsets


PREAMBLE = """.reg .b64 %in, %out;
.reg .b32 %t;
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
mov.u32 %t, %tid.x;
"""


def kernel(name, registers, body, maps=0, directives="", shared=""):
    """An entry with the addresses of both buffers in %in and %out and the thread in %t."""
    parameters = ".param .u64 in, .param .u64 out"
    parameters += "".join(f", .param .align 64 .b8 map{i}[128]" for i in range(maps))
    text = f".visible .entry {entry_name(name)}({parameters}) {directives}\n{{\n{shared}{PREAMBLE}{registers}"
    return text + body + "ret;\n}\n"


def width(type_):
    """Bits of a register of this type in memory."""
    if type_ == "pred":
        return 32
    return 32 if type_.endswith("x2") else int(re.search(r"\d+$", type_)[0])


def declare(letter, types):
    """Registers %<letter>0, %<letter>1, ... of these types."""
    by_size = {}
    for i, type_ in enumerate(types):
        size = "pred" if type_ == "pred" else f"b{max(width(type_), 16)}"
        by_size.setdefault(size, []).append(f"%{letter}{i}")
    return "".join(f".reg .{size} {', '.join(names)};\n" for size, names in by_size.items())


def load(name, type_, offset):
    bits = width(type_)
    address = f"[%i{bits // 8}+{offset}]"
    if type_ == "pred":
        return f"ld.global.u32 %t0, {address};\nsetp.ne.u32 {name}, %t0, 0;\n"
    memory_type = type_ if bits == 8 else f"b{bits}"
    return f"ld.global.{memory_type} {name}, {address};\n"


def store_all(outputs, threads):
    """An array for each result; the predicates become bits of one word, which comes last."""
    text, at = "", 0
    for i, type_ in enumerate(outputs):
        if type_ == "pred":
            continue
        text += f"st.global.b{width(type_)} [%o{width(type_) // 8}+{at}], %d{i};\n"
        at += threads * width(type_) // 8
    predicates = [i for i, type_ in enumerate(outputs) if type_ == "pred"]
    for bit, i in enumerate(predicates):
        text += f"selp.u32 %t0, {1 << bit}, 0, %d{i};\n"
        text += f"or.b32 %t1, %t1, %t0;\n" if bit else "mov.b32 %t1, %t0;\n"
    if predicates:
        text += f"st.global.u32 [%o4+{at}], %t1;\n"
        at += 4 * threads
    return text, at


def addresses(name, base, types):
    """Of the thread's element, for each size of element."""
    sizes = sorted({width(type_) // 8 for type_ in types})
    return "".join(f".reg .b64 %{name}{size};\nmad.wide.u32 %{name}{size}, %t, {size}, {base};\n" for size in sizes)


def modes(module, name, type_, variants, count, **more):
    """The same operands for each variant of an instruction: name and type with the modifiers between them."""
    operands = ", ".join(f"%a{i}" for i in range(count))
    body = "".join(f"{name}{variant}.{type_} %d{i}, {operands};\n" for i, variant in enumerate(variants))
    label = f"{name}{{{','.join(variants)}}}.{type_}" if name else f"{' '.join(variants)} .{type_}"
    return lanewise(module, label, body, [type_] * len(variants), [type_] * count, **more)


def together(module, names, type_, count, **more):
    """The same operands for several instructions of one type."""
    return modes(module, "", type_, names, count, **more)


def seed_of(types):
    """Integers of one size get the same numbers, whatever their type."""
    return " ".join(type_ if "f" in type_ or type_ == "pred" else type_[1:] for type_ in types)


def lanewise(module, name, body, outputs, inputs, compare=None, kinds=None, threads=None, scratch=""):
    """Every thread reads its operands %a0, %a1, ..., runs the body, and stores %d0, %d1, ... The kinds are
    numbers.Kind, or the operands themselves as bytes."""
    kinds = kinds or [numbers.KINDS[type_] for type_ in inputs]
    if threads is None:
        pairs = 160 if any("f" in type_ for type_ in inputs) else 128
        threads = {0: 32, 1: 64, 2: pairs}.get(len(inputs), 96)
    parts = kinds
    if not isinstance((kinds or [b""])[0], bytes):
        columns = numbers.columns(kinds, threads, seed_of(inputs))
        parts = [numbers.pack(column, width(type_)) for column, type_ in zip(columns, inputs)]
    registers = declare("a", inputs) + declare("d", outputs)
    registers += ".reg .b32 %t0, %t1;\n" if "pred" in inputs + outputs else ""
    text = addresses("i", "%in", inputs) + addresses("o", "%out", outputs)
    text += "".join(load(f"%a{i}", type_, at) for i, (type_, at) in enumerate(zip(inputs, part_offsets(parts))))
    stores, output_bytes = store_all(outputs, threads)
    text += body.strip() + "\n" + stores
    if compare is None:
        compare = same(outputs[0].removesuffix("x2")) if "f" in outputs[0] else BITS
    return Form(name, module, kernel(name, registers + scratch, text), parts, output_bytes, compare, threads)
