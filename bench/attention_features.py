# SPDX-License-Identifier: Apache-2.0
"""The scores and masks that the grid scores of compare_peers.py measures. Each is written once, as a function of a score
and its position in the terms of FlexAttention, which compiles it, and which the reference evaluates; beside it stands
what flashjit and the other peers are given for the same. Needs neither a GPU nor PyTorch: arrays come from whoever makes
the Inputs."""

import functools
import math
import random
import typing

PROMPT_SHARE = 4  # a prefix is about one of so many parts of its sequence
DOCUMENT_COUNT = 8  # packed into a sequence


class Inputs:
    """What the features take for calls of one shape, each made when it is first asked for. arrays has the library
    (torch or numpy) and makes its arrays: array(values, dtype), normal(shape, dtype), arange(size), by names of dtypes.
    other: other numbers and tensors of the same dtypes and ranks, for which nothing may be compiled."""

    def __init__(self, arrays, batch, heads, seqlen, other=False):
        self.arrays, self.library = arrays, arrays.library
        self.batch, self.heads, self.seqlen = batch, heads, seqlen
        self.other = other
        self.random = random.Random(1 if other else 0)

    @property
    def cap(self):
        return 30.0 if self.other else 50.0

    @property
    def window(self):
        """Keys before the query's own; windows of about one size share a kernel."""
        return 1100 if self.other else 1024

    @functools.cached_property
    def slopes(self):
        """Those of the paper."""
        steepest = 4 if self.other else 8
        return self.arrays.array([2 ** (-steepest * (head + 1) / self.heads) for head in range(self.heads)], "float32")

    @functools.cached_property
    def sinks(self):
        """Large enough to show in rows of many keys."""
        return self.arrays.array([2 + 4 * self.random.random() for _ in range(self.heads)], "float32")

    @functools.cached_property
    def documents(self):
        """The document of each token. Batch entries are packed differently."""
        packed = [document_numbers(self.random, self.seqlen) for _ in range(self.batch)]
        return self.arrays.array(packed, "int32")

    @functools.cached_property
    def prefix(self):
        """No two end alike, nor at the end of a block."""
        lengths = [self.seqlen // PROMPT_SHARE + self.random.randrange(1, 64) for _ in range(self.batch)]
        return self.arrays.array(lengths, "int32")

    @functools.cached_property
    def bias(self):
        """[seqlen, seqlen], for all batch entries and heads: one for each head has more elements at 16384 tokens than
        the 32-bit indices of FlexAttention's kernels count."""
        return self.arrays.normal((self.seqlen, self.seqlen), "bfloat16")

    @functools.cached_property
    def gate(self):
        return self.arrays.array([0.5 + self.random.random() for _ in range(self.heads)], "float32")

    @functools.cached_property
    def table(self):
        """By head, and by the distance from key to query, which begins at -seqlen."""
        return self.arrays.normal((self.heads, 2 * self.seqlen), "float32")


def document_numbers(source, seqlen):
    """Of each token of a sequence: documents of random lengths, one after the other."""
    ends = sorted(source.sample(range(1, seqlen), DOCUMENT_COUNT - 1)) + [seqlen]
    numbers, begin = [], 0
    for number, end in enumerate(ends):
        numbers += [number] * (end - begin)
        begin = end
    return numbers


# --- Masks: of inputs a function of a position that says whether the query sees the key ------------------------------


def causal(_):
    return lambda batch, head, query, key: key <= query


def in_window(inputs):
    window = inputs.window
    return lambda batch, head, query, key: (key <= query) & (query - key <= window)


def in_document(inputs):
    documents = inputs.documents
    return lambda batch, head, query, key: (key <= query) & (documents[batch, query] == documents[batch, key])


def in_prefix(inputs):
    prefix = inputs.prefix
    return lambda batch, head, query, key: (key <= query) | (key < prefix[batch])


# --- Scores: of inputs a function of a score and its position --------------------------------------------------------


def capped(inputs):
    cap, tanh = inputs.cap, inputs.library.tanh
    return lambda score, batch, head, query, key: cap * tanh(score / cap)


def sloping(inputs):
    slopes = inputs.slopes
    return lambda score, batch, head, query, key: score - slopes[head] * (query - key)


def biased(inputs):
    bias = inputs.bias
    return lambda score, batch, head, query, key: score + bias[query, key]


def gated(inputs):
    gate, table, seqlen = inputs.gate, inputs.table, inputs.seqlen
    return lambda score, batch, head, query, key: gate[head] * score + table[head, query - key + seqlen]


# --- The same as texts for flashjit ----------------------------------------------------------------------------------


def capped_text(flashjit, inputs):
    return flashjit.Score("cap * tanh(score / cap)", cap=inputs.cap)


def sloping_text(flashjit, inputs):
    return flashjit.Score("score - slope(head) * (query - key)", slope=inputs.slopes)


def gated_text(flashjit, inputs):
    return flashjit.Score("gate(head) * score + table(head, query - key + seqlen_kv)", gate=inputs.gate,
                          table=inputs.table)


DOCUMENT_TEXT = "document(batch, query) == document(batch, key)"  # beside causal=True


class Feature(typing.NamedTuple):
    """A kind of attention. options, text and flash are functions of inputs that give keywords."""

    title: str
    mask: typing.Optional[typing.Callable] = causal  # None: all keys are seen
    score: typing.Optional[typing.Callable] = None
    sinks: bool = False  # a further logit of each row
    options: typing.Optional[typing.Callable] = None  # of flashjit.attention, beside causal
    text: typing.Optional[typing.Callable] = None  # a flashjit.Score; all there is where there are no options
    predicate: typing.Optional[typing.Callable] = None  # a flashjit.Mask, all there is, as text
    blocks: typing.Tuple[str, ...] = ()  # the options that a block mask is made of
    sdpa: typing.Tuple[str, ...] = ()  # back ends of PyTorch's scaled_dot_product_attention that have it
    bias: bool = False  # it is a bias, which cuDNN takes
    flash: typing.Optional[typing.Callable] = None  # of flash_attn_func; None: FlashAttention-2 does not have it
    mask_of_batch: bool = False  # whether batch entries have masks of their own
    mask_of_head: bool = False  # likewise
    counted: bool = True  # in the geometric mean over FlexAttention
    flex: bool = True  # whether FlexAttention can do it
    random: bool = False  # rows are right on average only, as with dropout
    free: bool = False  # it must cost next to nothing, so that the hundredths of its time count


FEATURES = {
    "plain": Feature("plain", sdpa=("cudnn", "fa2"), flash=lambda _: {}, counted=False),
    "softcap": Feature("softcap", score=capped, options=lambda inputs: {"softcap": inputs.cap}, text=capped_text,
                       flash=lambda inputs: {"softcap": inputs.cap}),
    "alibi": Feature("ALiBi", score=sloping, options=lambda inputs: {"alibi_slopes": inputs.slopes}, text=sloping_text,
                     flash=lambda inputs: {"alibi_slopes": inputs.slopes}),
    "documents": Feature("document mask", mask=in_document, options=lambda inputs: {"documents": inputs.documents},
                         blocks=("documents", ), mask_of_batch=True),
    "window": Feature("window of 1024", mask=in_window, options=lambda inputs: {"window": (inputs.window, 0)},
                      flash=lambda inputs: {"window_size": (inputs.window, 0)}),
    "prefix": Feature("prefix-LM", mask=in_prefix, options=lambda inputs: {"prefix": inputs.prefix}, mask_of_batch=True),
    "bias": Feature("dense bias", score=biased, options=lambda inputs: {"bias": inputs.bias[None, None]}, bias=True),
    "function": Feature("own function", score=gated, text=gated_text),
    "sinks": Feature("attention sinks", sinks=True, options=lambda inputs: {"sinks": inputs.sinks}, counted=False,
                     free=True),
    "dropout": Feature("dropout of 0.1", options=lambda _: {"dropout": 0.1, "dropout_seed": 1},
                       flash=lambda _: {"dropout_p": 0.1}, flex=False, counted=False, random=True),
}


def attended_rows(feature, inputs, q, k, v, batch, head, rows):
    """The reference: rows of one head of one batch entry. q has these rows only, k and v have the whole sequence; all
    are [rows, head_dim], in the precision to compute in; rows: their numbers, an array."""
    library = inputs.library
    query, key = rows[:, None], inputs.arrays.arange(k.shape[0])[None, :]
    scores = q @ k.T / math.sqrt(q.shape[1])
    if feature.score:
        scores = feature.score(inputs)(scores, batch, head, query, key)
    if feature.mask:
        scores = library.where(feature.mask(inputs)(batch, head, query, key), scores, -math.inf)
    largest = library.amax(scores, axis=1, keepdims=True)
    weights = library.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True)
    if feature.sinks:
        total = total + library.exp(inputs.sinks[head] - largest)
    return weights @ v / total


def checked_rows(seqlen):
    """The rows of a head that are checked: the first ones, which a wrong key changes most, both sides of what may be a
    block's end and of the window's, the last, and some in between."""
    near = [0, 1, 2, 3, 63, 64, 127, 128, 255, 256, 1023, 1024, 1025, 1026, seqlen // 2 - 1, seqlen // 2, seqlen - 1]
    return sorted({row for row in (*near, *range(5, seqlen, max(1, seqlen // 47))) if 0 <= row < seqlen})


def checked_heads(batch, heads):
    """(batch entry, head) of those that are checked."""
    return sorted({(0, 0), (batch // 2, heads // 2), (batch - 1, heads - 1)})
