# SPDX-License-Identifier: Apache-2.0
"""Small attention problems for the variants of both families, their inputs, and which rows of the output are kept.
make_forms.py writes them to data/attention.json, which tests/nvrtc/test_emulated_vectors.cpp reads; it makes the same
inputs: see elements()."""

import dataclasses
import math
import struct

from forms.numbers import Random

TENSORS = ("q", "k", "v")


@dataclasses.dataclass(frozen=True)
class Case:
    """Lengths are odd, heads grouped, and there are several key/value blocks of the variant's size."""

    variant: str
    dtype: str
    head_dim: int
    seqlen_q: int
    seqlen_kv: int
    heads_q: int = 2
    heads_kv: int = 1
    batch: int = 1
    causal: bool = False
    row_step: int = 11  # every row_step-th query's output is kept

    @property
    def name(self):
        mask = "causal" if self.causal else "full"
        return f"{self.variant} {self.dtype} d{self.head_dim} {mask} q{self.seqlen_q} kv{self.seqlen_kv}"

    def shape(self, tensor):
        if tensor == "q":
            return (self.batch, self.seqlen_q, self.heads_q, self.head_dim)
        return (self.batch, self.seqlen_kv, self.heads_kv, self.head_dim)


CASES = (
    Case("hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-ws-pregs-cl1-lazy-fixed-natural-fused",
         "bf16", 64, 150, 333),
    Case("hopper-q128-kv128-s2-qs1-oquery-2stage-ppgemm-ws-pregs-cl1-rare-dynamic-longest-split",
         "bf16", 128, 201, 201, 2, 2, causal=True, row_step=23),
    Case("hopper-q128-kv80-s2-qs2-whole-serial-ppsoftmax-ws-pregs-cl1-rare-dynamic-natural-split",
         "f16", 80, 77, 190, 4, 2, causal=True),
    Case("hopper-q128-kv64-s2-qs2-whole-3stage-ppgemm-ws-pregs-cl1-rare-dynamic-natural-split",
         "f16", 64, 130, 257),
    Case("hopper-q128-kv64-s2-qs1-whole-2stage-ppoff-nows-pregs-cl1-rare-single-natural-split",
         "bf16", 64, 70, 301, causal=True),
    Case("hopper-q128-kv64-s2-qs1-oquery-2stage-ppgemm-ws-pregs-cl2-rare-fixed-natural-split",
         "bf16", 128, 299, 261, 1, 1, row_step=23),
    Case("hopper-q128-kv64-s2-qs1-whole-2stage-ppgemm-ws-psmem-cl1-always-dynamic-natural-split",
         "f16", 64, 65, 129, 3, 1, batch=2),
    Case("hopper-q192-kv80-s2-qs2-half-2stage-ppgemm-ws-pregs-cl1-lazy-dynamic-natural-fused",
         "bf16", 128, 195, 323, 1, 1, row_step=23),
    Case("mma-q64-kv64-w4-k2-v2-c2-overlap-swizzle-x4-qregs-rare-natural",
         "bf16", 64, 101, 259),
    Case("mma-q128-kv64-w8-k2-v1-c1-overlap-swizzle-x4-qsmem-rare-longest",
         "bf16", 128, 133, 133, 2, 2, causal=True, row_step=23),
    Case("mma-q64-kv32-w4-k2-v1-c2-overlap-swizzle-x4-qregs-always-natural",
         "f16", 80, 45, 150, 4, 2, causal=True),
    Case("mma-q64-kv64-w4-k1-v1-c1-serial-linear-x2-qregs-rare-natural",
         "f16", 64, 63, 195),
    Case("mma-q128-kv64-w8-k2-v3-c1-rotate-swizzle-x4-qregs-rare-natural",
         "bf16", 64, 129, 321, 2, 1, row_step=13),
    Case("mma-q128-kv32-w4-k3-v2-c1-overlap-swizzle-x4-qsmem-always-natural",
         "bf16", 128, 130, 97, 1, 1, batch=2, row_step=23),
)


def elements(case, tensor):
    """Multiples of 1/32 below 16, which bf16 and f16 have exactly: four 6-bit numbers summed, one in 64 larger by 4."""
    random = Random(1000 * CASES.index(case) + TENSORS.index(tensor))
    values = []
    for _ in range(math.prod(case.shape(tensor))):
        bits = random.bits(64)
        total = sum(bits >> shift & 63 for shift in (0, 6, 12, 18)) - 126
        values.append(total * (4 if bits >> 24 & 63 == 0 else 1) / 32)
    return values


def write_npy(path, shape, values):
    """float32, as numpy.save writes it."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
    path.write_bytes(magic + header.encode() + struct.pack(f"<{len(values)}f", *values))


def kept_rows(case, npy):
    """The 16-bit patterns of the kept rows of an output file: float32 of bf16 values, or float16."""
    begin = 10 + struct.unpack_from("<H", npy, 8)[0]
    size = 4 if case.dtype == "bf16" else 2
    row = case.heads_q * case.head_dim * size
    kept = b""
    for index in range(case.batch * case.seqlen_q):
        if index % case.seqlen_q % case.row_step == 0:
            kept += npy[begin + index * row:begin + (index + 1) * row]
    return kept if size == 2 else b"".join(kept[at + 2:at + 4] for at in range(0, len(kept), 4))
