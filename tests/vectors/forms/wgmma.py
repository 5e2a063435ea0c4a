# SPDX-License-Identifier: Apache-2.0
"""PTX ISA 9.7.15: wgmma. Shared memory is an image of numbers which ordinary stores write; A and B lie somewhere in it
as the descriptors say, so the layouts (swizzle, major, both byte offsets) are hardware's word alone. Registers go to
the output as they are. How results compare: see matrix.py."""

import dataclasses

from .form import Form, kernel, same
from .matrix import ELEMENTS, product_bound, words

MODULE = "wgmma"
IMAGE_BYTES = 16384
A_AT, B_AT = 0, 8192
SWIZZLE_BITS = {"none": 0, "128": 1, "64": 2, "32": 3}
SPAN = {"none": 16, "32": 32, "64": 64, "128": 128}


@dataclasses.dataclass(frozen=True)
class Layout:
    swizzle: str = "128"
    mn_major: bool = False
    leading: int = 0  # byte offsets; 0 is the usual one
    stride: int = 0

    def descriptor(self):
        """All but the address. K-major: rows of the span, eight of them 8 spans long; MN-major: the same transposed."""
        span = SPAN[self.swizzle]
        if self.swizzle == "none":
            leading, stride = self.leading or 128, self.stride or 256
        else:
            leading, stride = self.leading or 2 * 8 * span, self.stride or 8 * span
        return SWIZZLE_BITS[self.swizzle] << 62 | stride >> 4 << 32 | leading >> 4 << 16


@dataclasses.dataclass(frozen=True)
class Product:
    name: str
    n: int = 16
    a_type: str = "bf16"
    b_type: str = ""  # as A
    accumulator: str = "f32"
    a: object = Layout()  # None: A comes from registers
    b: object = Layout()
    fractions: bool = False
    steps: int = 1  # along k, 32 bytes each within the swizzle's span
    from_zero: bool = False  # the first step does not add to the accumulators
    scale_a: int = 1
    scale_b: int = 1

    @property
    def bits(self):
        return ELEMENTS[self.a_type].bits

    @property
    def k(self):
        return 256 // self.bits

    @property
    def registers(self):
        return self.n // 2 if self.accumulator == "f32" else self.n // 4

    @property
    def instruction(self):
        types = f"{self.accumulator}.{self.a_type}.{self.b_type or self.a_type}"
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{types}"


PERIOD = 3088  # bytes; no address bits repeat with it


def numbers_of(product, type_, bytes_):
    element = ELEMENTS[type_]
    return words(element.fractions() if product.fractions else element.small_integers(), bytes_ // 4, "wgmma")


def repeated(part, start):
    """8 KiB of a periodic stream."""
    parts, rest = [part[start:]], IMAGE_BYTES // 2 - (PERIOD - start)
    while rest > 0:
        parts.append(part[:rest])
        rest -= PERIOD
    return parts


def image(product):
    """Shared memory in parts; the second half is B's."""
    a = numbers_of(product, product.a_type, PERIOD)
    b = numbers_of(product, product.b_type or product.a_type, PERIOD)
    return repeated(a, 0) + repeated(b, 1040)


FILL = f"""mov.u32 %s, tile;
mad.lo.u32 %s0, %t, 16, %s;
mad.wide.u32 %w0, %t, 16, %in;
mov.u32 %n, 0;
fill:
ld.global.v4.b32 {{%c0, %c1, %c2, %c3}}, [%w0];
st.shared.v4.b32 [%s0], {{%c0, %c1, %c2, %c3}};
add.s64 %w0, %w0, 2048;
add.u32 %s0, %s0, 2048;
add.u32 %n, %n, 1;
setp.lt.u32 %p0, %n, {IMAGE_BYTES // 2048};
@%p0 bra fill;
fence.proxy.async.shared::cta;
bar.sync 0;
"""


def descriptor(name, layout, offset):
    text = f"mov.u64 {name}, tile+{offset};\nshr.u64 {name}, {name}, 4;\n"
    return text + f"or.b64 {name}, {name}, {layout.descriptor():#x};\n"


def step(product, index):
    """One wgmma and the way to the next 32 bytes of k."""
    accumulator_list = ", ".join(f"%d{i}" for i in range(product.registers))
    a = "{%a0, %a1, %a2, %a3}" if product.a is None else "%da"
    add = "%p1" if product.from_zero and index == 0 else "%p0"
    text = f"{product.instruction}\n {{{accumulator_list}}},\n {a}, %db, {add}, {product.scale_a}, {product.scale_b}"
    if product.bits == 16:
        text += f", {int(product.a.mn_major)}" if product.a is not None else ""
        text += f", {int(product.b.mn_major)}"
    text += ";\nadd.s64 %db, %db, 2;\n"
    return text + ("add.s64 %da, %da, 2;\n" if product.a is not None else "")


def form(product):
    inputs = image(product) + [numbers_of(product, product.accumulator, 512), numbers_of(product, product.a_type, 2048)]
    body = FILL
    body += descriptor("%da", product.a, A_AT) if product.a is not None else "".join(
        f"ld.global.b32 %a{i}, [%i4+{IMAGE_BYTES + 512 + 512 * i}];\n" for i in range(4))
    body += descriptor("%db", product.b, B_AT)
    body = f"mad.wide.u32 %i4, %t, 4, %in;\nmad.wide.u32 %o4, %t, 4, %out;\n" + body
    body += f"ld.global.b32 %d0, [%i4+{IMAGE_BYTES}];\n"
    body += "".join(f"mov.b32 %d{i}, %d0;\n" for i in range(1, product.registers))
    body += "setp.eq.u32 %p0, %t, %t;\nsetp.ne.u32 %p1, %t, %t;\nwgmma.fence.sync.aligned;\n"
    body += "".join(step(product, index) for index in range(product.steps))
    body += "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
    # Of many, some: each is a place of D.
    every = 1 if product.n <= 16 or product.b.mn_major and product.n < 128 else 5
    stored = range(0, product.registers, every)
    body += "".join(f"st.global.b32 [%o4+{512 * i}], %d{register};\n" for i, register in enumerate(stored))
    registers = f""".reg .b32 %d<{product.registers}>, %a<4>, %c<4>, %s, %s0, %n;
.reg .b64 %w0, %da, %db, %i4, %o4;
.reg .pred %p<2>;
"""
    name = f"{product.instruction} {product.name}" + (" fractions" if product.fractions else "")
    text = kernel(name, registers, body, shared=f".shared .align 1024 .b8 tile[{IMAGE_BYTES}];\n")
    compare = same(product.accumulator)
    if product.fractions:
        compare = product_bound(product.a_type, product.k * product.steps, product.accumulator)
    return Form(name, MODULE, text, inputs, 512 * len(stored), compare, 128)


def k_major():
    for swizzle in SWIZZLE_BITS:
        for type_ in ("bf16", "tf32", "e4m3"):
            layout = Layout(swizzle)
            yield Product(f"swizzle {swizzle}", 16 if type_ == "bf16" else 8, type_, a=layout, b=layout)
    other = Layout("none", leading=1024, stride=128)
    yield Product("offsets exchanged", 16, a=other, b=other)
    yield Product("strides apart", 16, a=Layout("64", stride=768), b=Layout("32", stride=512))


def mn_major():
    transposed = {swizzle: Layout(swizzle, True) for swizzle in SWIZZLE_BITS}
    for swizzle, layout in transposed.items():
        yield Product(f"A MN-major swizzle {swizzle}", 8, "bf16", a=layout, b=Layout("none"))
        yield Product(f"B MN-major swizzle {swizzle}", 64 if swizzle == "128" else 32, "f16", accumulator="f16", a=None,
                      b=layout)
    yield Product("both MN-major", 16, "bf16", a=transposed["128"], b=transposed["64"])
    yield Product("B MN-major two atoms", 128, "f16", accumulator="f16", a=None, b=Layout("128", True, leading=4096))
    yield Product("A MN-major offsets", 8, "f16", a=Layout("32", True, leading=1024, stride=256), b=Layout("none"))
    yield Product("A MN-major no swizzle offsets", 8, "f16", a=Layout("none", True, leading=1024, stride=128),
                  b=Layout("none"))


def from_registers():
    for n in (8, 24):
        yield Product("A in registers", n, "bf16", a=None)
    yield Product("A in registers", 80, "bf16", a=None, b=Layout("64"))
    yield Product("A in registers", 256, "f16", accumulator="f16", a=None, b=Layout("none", stride=128, leading=4096))
    for type_ in ("tf32", "e4m3", "e5m2"):
        yield Product("A in registers", 8, type_, a=None)


def others():
    for a_type, b_type in (("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")):
        yield Product("types", 8, a_type, b_type)
    yield Product("accumulators f16", 8, "f16", accumulator="f16")
    yield Product("accumulators f16", 8, "e4m3", accumulator="f16")
    yield Product("four steps", 8, "bf16", steps=4, from_zero=True)
    yield Product("two steps in registers", 8, "f16", steps=2, a=None, from_zero=True)
    yield Product("A negated", 8, "bf16", scale_a=-1)
    yield Product("B negated", 8, "f16", scale_b=-1)
    yield Product("from zero", 8, "tf32", from_zero=True)
    for type_ in ("bf16", "f16", "tf32", "e4m3", "e5m2"):
        yield Product("", 8, type_, fractions=True)
    yield Product("four steps", 8, "bf16", steps=4, fractions=True)
    yield Product("accumulators f16", 8, "f16", accumulator="f16", fractions=True)


def forms():
    for group in (k_major, mn_major, from_registers, others):
        for product in group():
            yield form(product)
