# SPDX-License-Identifier: Apache-2.0
"""The cells of context_parallel.py, attention and its gradients over 2, 4 or 8 GPUs, and what is made of their times. Needs
neither a GPU nor PyTorch.

A row is {"gpus", "pass", "mask", "tokens", "heads", "heads_kv", "alone_tokens", "ms", "left_out", "rule", "model",
"checks"}. ms: milliseconds of each side that ran, the median of those of the slowest rank; of ALONE, one GPU's call with alone_tokens
tokens, the mean of ranks. left_out: side -> why it did not run. rule: the scheme that the library chooses. model: scheme ->
{"ms", "bytes", "calls"}, what it predicts. checks: side -> {"of_bound", "from_alone", "same_bits"}, the largest error over
what it may be, the largest distance from one GPU's result, and whether a second run gave the same bits."""

import math
import typing

HEAD_DIM = 128
WINDOW = 4096  # keys before the query's own
OVER_FORWARD = 2.5  # five products of matrices where forward has two
THOUSAND = 1024  # tokens, as lengths are written: 32k
FORWARD, BACKWARD = PASSES = ("forward", "backward")
CAUSAL, FULL, WINDOWED = MASKS = ("causal", "full", "window")
GPUS = (2, 4, 8)
ALONE, RULE = "alone", "automatic"  # sides: one GPU's call, and the library's choice
SCHEMES = ("all_gather", "ring", "all_to_all")
PEERS = {"torch_allgather": "allgather", "torch_alltoall": "alltoall"}  # side -> how PyTorch's context parallelism rotates
CHECKED_TOKENS = 32 * THOUSAND
PEER_TOKENS = (32 * THOUSAND, 128 * THOUSAND)
EACH_SCHEME_TOKENS = 128 * THOUSAND  # beyond, where a call takes seconds, the library's choice alone is timed
STEP = 256  # of the length that has the same work for one GPU
SAMPLE_SECONDS = 0.02  # of calls that follow each other, by the model
FLOPS = {FORWARD: 6e14, BACKWARD: 5.5e14}  # of a GPU, by which samples are laid out

OVER_PEER = 1.2  # times PyTorch's throughput
OF_FASTEST = 1.05  # the time of the rule's choice over that of the fastest scheme


class ParallelCell(typing.NamedTuple):
    gpus: int
    of_pass: str
    mask: str
    tokens: int

    @property
    def heads(self):
        return (32, 8) if self.gpus == 2 else (64, 8)

    @property
    def head_dim(self):
        return HEAD_DIM

    @property
    def layout(self):
        return "zigzag" if self.mask == CAUSAL else "contiguous"

    @property
    def options(self):
        """Keywords of flashjit's attention."""
        return {CAUSAL: {"causal": True}, FULL: {}, WINDOWED: {"window": (WINDOW, 0)}}[self.mask]

    @property
    def alone_tokens(self):
        """Of one GPU's call with much the same work as each GPU has."""
        share = self.gpus if self.mask == WINDOWED else math.sqrt(self.gpus)
        return max(1, round(self.tokens / share / STEP)) * STEP

    @property
    def is_checked(self):
        return self.tokens == CHECKED_TOKENS

    @property
    def peers(self):
        """PyTorch's context parallelism has no other mask with the same work on all ranks."""
        return tuple(PEERS) if self.mask == CAUSAL and self.tokens in PEER_TOKENS else ()

    @property
    def sides(self):
        return (ALONE, RULE, *(SCHEMES if self.tokens <= EACH_SCHEME_TOKENS else ()), *self.peers)

    def flops(self, tokens=None):
        """Of the pairs that are seen, of all GPUs; or of a call with other tokens."""
        each = 4 * self.heads[0] * self.head_dim * pairs(self.tokens if tokens is None else tokens, self.mask)
        return each * (OVER_FORWARD if self.of_pass == BACKWARD else 1)

    @property
    def seconds(self):
        """Of a call, by the speed of a GPU alone."""
        return self.flops() / self.gpus / FLOPS[self.of_pass]

    @property
    def calls(self):
        """Of a sample."""
        return max(1, math.ceil(SAMPLE_SECONDS / self.seconds))

    @property
    def rounds(self):
        """Of samples of all sides."""
        return 15 if self.tokens <= 32 * THOUSAND else 7 if self.tokens <= 128 * THOUSAND else 3

    @property
    def least_share(self):
        """Of linear scaling, that is asked of two GPUs; None: nothing is."""
        if self.gpus != 2:
            return None
        if self.mask == WINDOWED:
            return 0.80
        if self.tokens < 128 * THOUSAND:
            return 0.85 if self.of_pass == FORWARD else 0.80
        return 0.97 if self.of_pass == FORWARD else 0.95

    def __str__(self):
        return f"{self.gpus} GPUs {self.of_pass:<8} {self.mask:<6} {length(self.tokens):>5}"


def pairs(tokens, mask):
    """Of a query and a key that it sees."""
    if mask == FULL:
        return tokens * tokens
    most = tokens if mask == CAUSAL else min(tokens, WINDOW + 1)  # keys of a query
    return tokens * most - most * (most - 1) // 2


def length(tokens):
    return f"{tokens // THOUSAND}k" if tokens % THOUSAND == 0 else str(tokens)


def parse_length(text):
    """32k or 32768."""
    return THOUSAND * int(text[:-1]) if text.endswith("k") else int(text)


def tokens_of(gpus, of_pass, mask):
    if mask == WINDOWED:
        return (128, ) if gpus == 2 else ()
    lengths = (8, 16, 32, 128, 512) if gpus == 2 else (32, 128, 512)
    return lengths + ((1024, ) if gpus > 2 and (of_pass, mask) == (FORWARD, CAUSAL) else ())


def parallel_grid(gpus, passes=PASSES, masks=MASKS, tokens=None):
    """The cells of a number of GPUs, those with least work first."""
    cells = [ParallelCell(gpus, of_pass, mask, THOUSAND * thousands) for of_pass in passes for mask in masks
             for thousands in tokens_of(gpus, of_pass, mask)]
    return sorted((cell for cell in cells if not tokens or cell.tokens in tokens), key=ParallelCell.flops)


def parallel_row(cell, ms, left_out, rule, model, checks):
    heads, heads_kv = cell.heads
    return {"gpus": cell.gpus, "pass": cell.of_pass, "mask": cell.mask, "tokens": cell.tokens, "heads": heads,
            "heads_kv": heads_kv, "alone_tokens": cell.alone_tokens, "ms": ms, "left_out": left_out, "rule": rule,
            "model": model, "checks": checks}


def cell_of(row):
    return ParallelCell(row["gpus"], row["pass"], row["mask"], row["tokens"])


def share_of_linear(row, side):
    """The rate of a GPU over that of one alone; None where one of the two was not measured."""
    ms, cell = row["ms"], cell_of(row)
    if side not in ms or ALONE not in ms:
        return None
    return cell.flops() / cell.gpus / ms[side] / (cell.flops(row["alone_tokens"]) / ms[ALONE])


def fastest(row):
    """Of the schemes that ran, that whose time is least; None where none did."""
    return min((scheme for scheme in SCHEMES if scheme in row["ms"]), key=row["ms"].get, default=None)


def of_fastest(row):
    """The time of the rule's choice over that of the fastest scheme."""
    return row["ms"][RULE] / row["ms"][fastest(row)] if RULE in row["ms"] and fastest(row) else None


def over_peer(row):
    """Times the throughput of PyTorch's context parallelism, by the faster of its ways."""
    theirs = [row["ms"][side] for side in PEERS if side in row["ms"]]
    return min(theirs) / row["ms"][RULE] if theirs and RULE in row["ms"] else None


def over_model(row, side):
    """The time of a scheme over what the model says."""
    return row["ms"][side] / row["model"][side]["ms"] if side in row["ms"] and side in row["model"] else None


def wrong(row):
    """What must not be: sides that did not run but for PyTorch's, wrong results, and bits that differ."""
    failures = [f"{side}: {why}" for side, why in row["left_out"].items() if side in (ALONE, RULE, *SCHEMES)]
    for side, check in row["checks"].items():
        if not check["of_bound"] <= 1:
            failures.append(f"{side}: an error of {check['of_bound']:.2f} times its bound")
        if not check["same_bits"]:
            failures.append(f"{side}: a second run gave other bits")
    return [f"{cell_of(row)}: {failure}" for failure in failures]


def missed(row):
    """What was asked of speed and is not there."""
    cell, found = cell_of(row), []
    share, regret, peer = share_of_linear(row, RULE), of_fastest(row), over_peer(row)
    if share is not None and cell.least_share is not None and share < cell.least_share:
        found.append(f"{share:.3f} of linear scaling, which must be {cell.least_share:.2f}")
    if regret is not None and regret > OF_FASTEST:
        found.append(f"the rule's {row['rule']} takes {regret:.3f} times as long as {fastest(row)}")
    if peer is not None and cell.gpus == 2 and peer < OVER_PEER:
        found.append(f"{peer:.3f} times PyTorch's throughput, which must be {OVER_PEER}")
    return [f"{cell}: {what}" for what in found]


def format_parallel_row(row):
    parts = []
    for side, ms in row["ms"].items():
        share = share_of_linear(row, side) if side != ALONE else None
        model = over_model(row, side)
        parts.append(f"{side} {ms:.3f}" + (f" ({100 * share:.1f} % of linear)" if share else "")
                     + (f", {model:.2f} of the model" if model else ""))
    for scheme, costs in row["model"].items():
        parts.append(f"{scheme} receives {costs['bytes'] / 1e6:.1f} MB in {costs['calls']} calls")
    for side, check in row["checks"].items():
        parts.append(f"{side}: error {check['of_bound']:.2f} of its bound, {check['from_alone']:.2g} from one GPU, "
                     + ("the same bits again" if check["same_bits"] else "OTHER BITS"))
    notes = [f"left out: {side}: {why}" for side, why in row["left_out"].items()] + wrong(row) + missed(row)
    return "\n  ".join([f"{cell_of(row)}  ms, rule: {row['rule']}", *parts, *notes])
