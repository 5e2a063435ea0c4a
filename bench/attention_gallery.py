# SPDX-License-Identifier: Apache-2.0
"""The functions of the gallery in docs/masks-and-scores.md as the grid gallery of compare_peers.py measures them, and
what is made of their times. A test compares texts and captures with the page's. Beside each text stands the same in the
terms of FlexAttention, which the reference evaluates, too. Needs neither a GPU nor PyTorch.

A row is {"function", "head_dim", "seqlen", "batch", "heads", "causal", "numbers", "seen", "us", "left_out"}. numbers:
those of the text; seen: the share of the pairs of query and key that the masks show; us: microseconds of each side that
ran, the mean of its turns' medians: flashjit, plain, which is flashjit's attention with the same causal flag and
nothing else, and FlexAttention's; left_out: side -> why it did not."""

import functools
import itertools
import math
import string
import typing

from attention_features import Feature, Inputs, causal
from attention_grid import paper_cell
from attention_peers import FLEX, GALLERY_PEERS
from attention_scores import MOST, format_statistics, ratio, statistics_over

HEAD_DIMS = (64, 128)
SEQLENS = (4096, 16384)
ROWS_AT_ONCE = 1024  # when pairs are counted
SIDES = {"flashjit": "flashjit", "plain": "flashjit's plain kernel", **GALLERY_PEERS}


class GalleryInputs(Inputs):
    """What the functions capture, by the texts' names, and the numbers of this length."""

    def __init__(self, arrays, batch, heads, seqlen, numbers):
        super().__init__(arrays, batch, heads, seqlen)
        self.numbers = numbers

    @property
    def slope(self):
        return self.slopes

    @property
    def document(self):
        """For all batch entries, as the text has it."""
        return self.documents[0]

    @functools.cached_property
    def gate(self):
        """Those of RetNet, from 1 - 2^-5 on."""
        return self.arrays.array([1 - 2 ** -(5 + 4 * head / self.heads) for head in range(self.heads)], "float32")

    @functools.cached_property
    def table(self):
        return self.arrays.normal((self.heads, 2 * self.seqlen), "bfloat16")


# --- In the terms of FlexAttention: of inputs a function of a position, or of a score and its position -------------------


def alibi(inputs):
    slope = inputs.slope
    return lambda score, batch, head, query, key: score - slope[head] * abs(query - key)


def softcap(inputs):
    cap, tanh = inputs.numbers["cap"], inputs.library.tanh
    return lambda score, batch, head, query, key: cap * tanh(score / cap)


def relative_position(inputs):
    return lambda score, batch, head, query, key: score + abs(query - key)


def bias_by_distance(inputs):
    table, seqlen = inputs.table, inputs.seqlen
    return lambda score, batch, head, query, key: score + table[head, query - key + seqlen]


def buckets(inputs):
    table, library, whole = inputs.table, inputs.library, inputs.arrays.whole

    def bucket(distance):
        far = 8 + whole(library.log2(library.where(distance < 1, 1, distance) / 8) * 8 / math.log2(16))
        return library.where(distance < 8, distance, library.where(far < 15, far, 15))

    return lambda score, batch, head, query, key: score + table[head, bucket(abs(query - key))]


def decay(inputs):
    gate, log2 = inputs.gate, inputs.library.log2
    return lambda score, batch, head, query, key: score + log2(gate[head]) * abs(query - key)


def length_scaling(inputs):
    log = inputs.library.log
    return lambda score, batch, head, query, key: score * log(query + 2)


def temperature(inputs):
    gate = inputs.gate
    return lambda score, batch, head, query, key: score * gate[head]


def checkerboard(inputs):
    where = inputs.library.where
    return lambda score, batch, head, query, key: where((query - key) % 2 == 0, score * 0.5, score)


def two_tables(inputs):
    slope, table = inputs.slope, inputs.table
    return lambda score, batch, head, query, key: score + slope[head] + table[head, key]


def window(inputs):
    reach = inputs.numbers["reach"]
    return lambda batch, head, query, key: abs(query - key) <= reach


def dilated(inputs):
    reach, step = inputs.numbers["reach"], inputs.numbers["step"]
    return lambda batch, head, query, key: (abs(query - key) <= reach) & ((query - key) % step == 0)


def longformer(inputs):
    reach, first = inputs.numbers["reach"], inputs.numbers["first"]
    return lambda batch, head, query, key: (abs(query - key) <= reach) | (query < first) | (key < first)


def in_prefix(inputs):
    prefix = inputs.numbers["prefix"]
    return lambda batch, head, query, key: (query >= key) | (key < prefix)


def in_document(inputs):
    document = inputs.document
    return lambda batch, head, query, key: document[query] == document[key]


def both(first, second):
    """The mask that shows what both show."""

    def mask(inputs):
        one, other = first(inputs), second(inputs)
        return lambda batch, head, query, key: one(batch, head, query, key) & other(batch, head, query, key)

    return mask


def in_neighbourhood(inputs):
    width, reach = inputs.numbers["width"], inputs.numbers["reach"]
    return lambda batch, head, query, key: ((abs(query // width - key // width) <= reach)
                                            & (abs(query % width - key % width) <= reach))


def in_block(inputs):
    size = inputs.numbers["size"]
    return lambda batch, head, query, key: query // size == key // size


def strided(inputs):
    near, step, last = (inputs.numbers[name] for name in ("near", "step", "last"))
    return lambda batch, head, query, key: (query - key < near) | (key % step == last)


def random_keys(inputs):
    """The hashes as a table of blocks: PyTorch has no unsigned numbers of 32 bits to compute them in."""
    size, near = inputs.numbers["size"], inputs.numbers["near"]
    blocks = range(-(-inputs.seqlen // size))
    hashes = [[block_hash(row, column) >> inputs.numbers["shift"] for column in blocks] for row in blocks]
    chosen = inputs.arrays.array([[number == 0 for number in row] for row in hashes], "bool")
    return lambda batch, head, query, key: chosen[query // size, key // size] | (abs(query - key) < near)


def block_hash(row, column):
    bits = 2**32 - 1
    mixed = (row * 2654435761 ^ column * 2246822519) & bits
    return (mixed ^ mixed >> 15) * 3266489917 & bits


def window_of_head(inputs):
    reaches = inputs.arrays.array([inputs.numbers["reach"] << head % 8 for head in range(inputs.heads)], "int32")
    return lambda batch, head, query, key: query - key <= reaches[head]


# --- The gallery -------------------------------------------------------------------------------------------------------


class Number(typing.NamedTuple):
    """One of a text: in the gallery, whose sequence has 70 tokens, and in the grid, where it may be a function of the
    length."""

    in_gallery: typing.Union[int, float]
    in_grid: typing.Union[int, float, typing.Callable]

    def at(self, seqlen):
        return self.in_grid(seqlen) if callable(self.in_grid) else self.in_grid


class Function(typing.NamedTuple):
    """A function of the gallery. Numbers whose names stand in braces are written into the text, the others captured."""

    title: str
    text: str
    same: typing.Callable  # of inputs: the same in the terms of FlexAttention
    tensors: typing.Tuple[str, ...] = ()  # captured; attributes of inputs
    numbers: typing.Dict[str, Number] = {}
    causal: bool = False  # whether it is measured beside a causal mask: it says something of earlier keys
    by_head: bool = False  # whether heads have masks of their own

    def numbers_at(self, seqlen):
        return {name: number.at(seqlen) for name, number in self.numbers.items()}

    def text_with(self, numbers):
        return self.text.format(**numbers)

    def captured_numbers(self, numbers):
        written = {name for _, name, _, _ in string.Formatter().parse(self.text)}
        return {name: value for name, value in numbers.items() if name not in written}

    def made(self, kind, inputs):
        """kind: flashjit.Score or flashjit.Mask."""
        tensors = {name: getattr(inputs, name) for name in self.tensors}
        return kind(self.text_with(inputs.numbers), **tensors, **self.captured_numbers(inputs.numbers))


SCORES = {
    "alibi": Function("ALiBi", "score - slope(head) * abs(query - key)", alibi, ("slope", ), causal=True),
    "softcap": Function("softcap", "cap * tanh(score / cap)", softcap, numbers={"cap": Number(20.0, 50.0)},
                        causal=True),
    "relative": Function("relative positions", "score + abs(query - key)", relative_position),
    "distance": Function("bias by distance", "score + table(head, query - key + seqlen_kv)", bias_by_distance,
                         ("table", )),
    "t5": Function("T5's buckets",
                   "const int distance = abs(query - key);\n"
                   "const int far = 8 + int(log2(float(max(distance, 1)) / 8) * 8 / log2(16.0f));\n"
                   "return score + table(head, distance < 8 ? distance : min(far, 15));",
                   buckets, ("table", )),
    "decay": Function("decay (RetNet)", "score + log2(float(gate(head))) * abs(query - key)", decay, ("gate", ),
                      causal=True),
    "length": Function("length scaling", "score * log(float(query + 2))", length_scaling, causal=True),
    "temperature": Function("temperature by head", "score * gate(head)", temperature, ("gate", ), causal=True),
    "checkerboard": Function("checkerboard", "(query - key) % 2 == 0 ? score * 0.5f : score", checkerboard),
    "tables": Function("two tables", "score + slope(head) + table(head, key)", two_tables, ("slope", "table")),
}
MASKS = {
    "causal": Function("causal", "query >= key", causal),
    "window": Function("sliding window", "abs(query - key) <= reach", window, numbers={"reach": Number(16, 1024)}),
    "dilated": Function("dilated window", "abs(query - key) <= {reach} && (query - key) % {step} == 0", dilated,
                        numbers={"reach": Number(40, 1024), "step": Number(4, 4)}),
    "longformer": Function("window and global tokens (Longformer)",
                           "abs(query - key) <= {reach} || query < {first} || key < {first}", longformer,
                           numbers={"reach": Number(8, 256), "first": Number(4, 64)}),
    "prefix": Function("prefix-LM", "query >= key || key < prefix", in_prefix,
                       numbers={"prefix": Number(20, lambda seqlen: seqlen // 4)}),
    "documents": Function("documents", "document(query) == document(key)", in_document, ("document", )),
    "documents-causal": Function("documents, causal", "query >= key && document(query) == document(key)",
                                 both(causal, in_document), ("document", )),
    "natten": Function("neighbourhood of an image (NATTEN)",
                       "const int width = {width};\n"
                       "return abs(query / width - key / width) <= {reach} && "
                       "abs(query % width - key % width) <= {reach};",
                       in_neighbourhood, numbers={"width": Number(10, math.isqrt), "reach": Number(2, 3)}),
    "blocks": Function("blocks on the diagonal", "query / {size} == key / {size}", in_block,
                       numbers={"size": Number(16, 1024)}),
    "strided": Function("strided (Sparse Transformer)", "query - key < {near} || key % {step} == {last}", strided,
                        numbers={"near": Number(8, 128), "step": Number(8, 128), "last": Number(7, 127)}, causal=True),
    "bigbird": Function("random keys (BigBird)",
                        "unsigned hash = (query / {size}) * 2654435761u ^ (key / {size}) * 2246822519u;\n"
                        "hash ^= hash >> 15;\n"
                        "return hash * 3266489917u >> {shift} == 0 || abs(query - key) < {near};",
                        random_keys, numbers={"size": Number(8, 64), "shift": Number(30, 28), "near": Number(8, 192)}),
    "heads": Function("windows that differ by head", "query - key <= {reach} << head % 8", window_of_head,
                      numbers={"reach": Number(8, 32)}, causal=True, by_head=True),
}
GALLERY = {**SCORES, **MASKS}
PLAIN = {True: Feature("causal attention"), False: Feature("attention", mask=None)}  # by the causal flag


@functools.lru_cache(maxsize=None)
def feature_of(name):
    """As the runner of the grid scores takes it."""
    function = GALLERY[name]
    if name in SCORES:
        return PLAIN[function.causal]._replace(title=function.title, score=function.same,
                                               text=lambda flashjit, inputs: function.made(flashjit.Score, inputs))
    mask = both(causal, function.same) if function.causal else function.same
    return Feature(function.title, mask=mask, mask_of_head=function.by_head,
                   predicate=lambda flashjit, inputs: function.made(flashjit.Mask, inputs))


class GalleryCell(typing.NamedTuple):
    """A function on a shape of the FlashAttention-3 paper."""

    name: str
    shape: typing.Any  # a Cell of attention_grid

    @property
    def function(self):
        return GALLERY[self.name]

    @property
    def feature(self):
        return feature_of(self.name)

    @property
    def plain(self):
        """What its sides without the function compute."""
        return PLAIN[self.function.causal]

    def numbers(self):
        return self.function.numbers_at(self.shape.seqlen)

    def __str__(self):
        return f"d{self.shape.head_dim:<3} {self.name:<16} {self.shape.seqlen:>5} b{self.shape.batch:<2}"


def gallery_grid(names=tuple(GALLERY), head_dims=HEAD_DIMS, seqlens=SEQLENS):
    """The largest head dim and the largest length first, each with all functions: what a cut-off run lacks is asked for
    last."""
    shapes = itertools.product(sorted(head_dims, reverse=True), sorted(seqlens, reverse=True), names)
    return [GalleryCell(name, paper_cell(head_dim, "causal" if GALLERY[name].causal else "full", seqlen))
            for head_dim, seqlen, name in shapes]


# --- Results -----------------------------------------------------------------------------------------------------------


def share_seen(feature, inputs):
    """Of the pairs of query and key, over all heads."""
    if feature.mask is None:
        return 1.0
    sees, tokens = feature.mask(inputs), inputs.arrays.arange(inputs.seqlen)
    heads = range(inputs.heads if feature.mask_of_head else 1)
    seen = sum(int(sees(0, head, tokens[begin:begin + ROWS_AT_ONCE, None], tokens[None, :]).sum())
               for head in heads for begin in range(0, inputs.seqlen, ROWS_AT_ONCE))
    return seen / len(heads) / inputs.seqlen**2


def gallery_row(cell, seen, us, left_out):
    shape = cell.shape
    return {"function": cell.name, "head_dim": shape.head_dim, "causal": shape.causal, "seqlen": shape.seqlen,
            "batch": shape.batch, "heads": shape.heads, "numbers": cell.numbers(), "seen": seen, "us": us,
            "left_out": left_out}


def tflops(row):
    """Of flashjit, by the pairs that are seen; None when it did not run."""
    pairs = row["batch"] * row["heads"] * row["seqlen"]**2 * row["seen"]
    return 4 * pairs * row["head_dim"] / row["us"]["flashjit"] / 1e6 if "flashjit" in row["us"] else None


def over_plain(row):
    return ratio(row, "plain")


def over_flex(row):
    return ratio(row, FLEX)


def label(row):
    return f"{row['function']}, head dim {row['head_dim']}, {row['seqlen']}"


def summarise_gallery(rows):
    """flashjit over FlexAttention, of scores and of masks; what nothing is known of is missing."""
    kinds = {"scores": SCORES, "masks": MASKS}
    summary = {kind: statistics_over([row for row in rows if row["function"] in functions], over_flex, label)
               for kind, functions in kinds.items()}
    return {kind: values for kind, values in summary.items() if values}


def format_gallery_summary(summary):
    return "\n".join(format_statistics(f"{kind}: flashjit / FlexAttention, a cell counts as {MOST:g} at most", values)
                     for kind, values in summary.items())


def format_gallery_row(cell, row):
    parts = [f"{side} {us:.1f} us" for side, us in row["us"].items()] + [f"seen {100 * row['seen']:.1f} %"]
    for title, value, show in (("TFLOPS", tflops(row), ".0f"), ("/plain", over_plain(row), ".3f"),
                               ("/flex", over_flex(row), ".3f")):
        if value:
            parts.append(f"{title} {value:{show}}")
    text = f"{cell}  " + ", ".join(parts)
    return text + "".join(f"\n{'':{len(str(cell))}}  {side}: {why}" for side, why in row["left_out"].items())
