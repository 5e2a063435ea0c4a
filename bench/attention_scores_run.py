# SPDX-License-Identifier: Apache-2.0
"""Runs the grid scores of compare_peers.py: the Python package flashjit, on tensors of PyTorch, beside FlexAttention,
cuDNN and FlashAttention-2. What it needs of a GPU comes from outside, so that it also runs where there is none."""

import concurrent.futures
import functools
import json
import math
import os
import re
import statistics
import time

import attention_peers
from attention_features import DOCUMENT_TEXT, FEATURES, Inputs, attended_rows, checked_heads, checked_rows
from attention_grid import HIDDEN, TOKENS
from attention_peers import FLEX
from attention_scores import SHARES_AT, ScoreCell, block_mask_shares, format_block_masks, format_compiles
from attention_scores import format_first_calls, format_score_row, format_score_summary, score_row, summarise_scores

PLAIN = FEATURES["plain"]
# Of a row of outputs against the reference: its distance over its length. Rounding of P and of the output to 16 bits
# gives 0.005 at most; one wrong key of 1000 gives 0.03.
MAX_DISTANCE = 0.02
# A target of the mma family alone, whose defaults that family has here too.
MMA_ARCHITECTURE = "sm_80"
NEW_TEXTS = 5
FREE_ROUNDS = 4  # of turns, for features that are to cost less than one round can tell
PEER_OF = {"cudnn_mask": "cudnn"}  # of the sides that do not bear their peer's name
MOST_LETTERS = 200  # of why a side was left out: PyTorch lists all that it has
CORES = 2  # for the first calls with new texts
NEW_TEXT_KINDS = {
    "score": "score * {0}f + table(head, query - key + seqlen_kv)",
    "mask": "query - key < 100 || table(head, key) > {0}f",
}


class TorchArrays:
    """Of Inputs: tensors of PyTorch on a device."""

    def __init__(self, torch, device):
        self.library, self.device = torch, device

    def array(self, values, dtype):
        return self.library.tensor(values, dtype=getattr(self.library, dtype), device=self.device)

    def normal(self, shape, dtype):
        return self.library.randn(shape, dtype=getattr(self.library, dtype), device=self.device)

    def arange(self, size):
        return self.library.arange(size, device=self.device)

    def whole(self, values):
        return values.to(self.library.int32)


def require_close(out, expected, feature):
    """Whether rows are right, written so that NaN is not; of a random feature, whether they are right on average."""
    out = out.float()
    if feature.random:
        along = (out * expected).sum(dim=1) / (expected * expected).sum(dim=1)
        distance = abs(along.mean().item() - 1)
    else:
        distance = ((out - expected).norm(dim=1) / expected.norm(dim=1)).max().item()
    if not distance < MAX_DISTANCE:
        raise RuntimeError(f"is {distance:.3g} of a row's length from the reference: not timed")


class MmaDefaults:
    """The variants that calls get where there are no Hopper kernels. An engine that has no kernel and may make none says
    which one it lacks; it emulates, so that nothing is launched, and reads no tensor."""

    def __init__(self, torch, flashjit):
        self.torch, self.flashjit = torch, flashjit
        self.engine = flashjit.Engine(emulate=MMA_ARCHITECTURE, cache_directory="", policy="cache_only")

    def on_host(self, value):
        """Like the value, of the same sizes, with tensors in host memory that nothing was written to."""
        if isinstance(value, self.flashjit.Score):
            tensors = {name: self.on_host(tensor) for name, tensor in value.tensors}
            return self.flashjit.Score(value.text, **tensors, **dict(value.numbers))
        return self.torch.empty_like(value, device="cpu") if isinstance(value, self.torch.Tensor) else value

    def variant(self, tensors, options):
        qkv = [self.on_host(tensor) for tensor in tensors[:3]]
        try:
            self.engine.attention(*qkv, causal=True, **{name: self.on_host(value) for name, value in options.items()})
        except self.flashjit.CacheMiss as miss:
            return re.search(r"mma-[a-z0-9-]+", str(miss))[0]
        raise RuntimeError("an engine without kernels had one")


class Kernels:
    """What flashjit and its peers do for a cell: functions without arguments that enqueue a call."""

    def __init__(self, torch, flashjit, peers, device="cuda", variants=()):
        self.torch, self.flashjit, self.peers, self.variants = torch, flashjit, peers, variants
        self.arrays = TorchArrays(torch, device)
        self.mma = MmaDefaults(torch, flashjit)
        torch.manual_seed(0)
        self.memory = [self.arrays.normal((TOKENS * HIDDEN, ), "bfloat16") for _ in range(4)]

    def tensors(self, shape):
        """q, k, v and out, in memory that all cells share."""
        sizes = shape.shape()
        return [memory[: math.prod(sizes)].view(sizes) for memory in self.memory]

    def inputs(self, cell, other=False):
        return Inputs(self.arrays, cell.shape.batch, cell.shape.heads, cell.shape.seqlen, other)

    def call(self, tensors, options, variant=None, causal=True):
        q, k, v, out = tensors
        return functools.partial(self.flashjit.attention, q, k, v, causal=causal, out=out, variant=variant, **options)

    def mma_call(self, tensors, options):
        return self.call(tensors, options, self.mma.variant(tensors, options))

    def options(self, feature, inputs, tensors):
        """Keywords of flashjit.attention, with the block mask made."""
        q, k = tensors[:2]
        if feature.predicate:
            mask = feature.predicate(self.flashjit, inputs)
            return {"mask": mask, "block_mask": self.flashjit.block_mask(q, k, mask=mask)}
        if feature.options is None:
            return {"score": feature.text(self.flashjit, inputs)} if feature.text else {}
        options = feature.options(inputs)
        if feature.blocks:
            masks = {name: options[name] for name in feature.blocks}
            options["block_mask"] = self.flashjit.block_mask(q, k, **masks)
        return options

    def ours(self, cell, inputs, tensors):
        """side -> a function that makes the call."""
        feature = cell.feature
        options = functools.lru_cache(lambda: self.options(feature, inputs, tensors))
        sides = {"flashjit": lambda: self.call(tensors, options())}
        if feature is not PLAIN:
            sides["plain"] = lambda: self.call(tensors, {})
        if feature.options and feature.text:
            sides["text"] = lambda: self.call(tensors, {"score": feature.text(self.flashjit, inputs)})
        if cell.shape.seqlen == SHARES_AT:
            sides["mma"] = lambda: self.mma_call(tensors, options())
            if feature is not PLAIN:
                sides["plain_mma"] = lambda: self.mma_call(tensors, {})
        return sides

    def tried(self, cell, inputs, tensors):
        """The same of the variants that are listed for the cell, and of the feature as text. One may be illegal."""
        feature = cell.feature
        options = functools.lru_cache(lambda: self.options(feature, inputs, tensors))
        text = functools.lru_cache(lambda: {"score": feature.text(self.flashjit, inputs)})
        ways = {"": options} | ({"text ": text} if feature.options and feature.text else {})
        return {name + listed.spelling: functools.partial(
                    lambda way, variant: self.call(tensors, way(), variant), way, listed.spelling)
                for listed in self.variants if listed.is_for(cell.shape) for name, way in ways.items()}

    def flex(self, feature, inputs, tensors):
        score, mask = (make and make(inputs) for make in (feature.score, feature.mask))
        batch = inputs.batch if feature.mask_of_batch else None
        heads = inputs.heads if feature.mask_of_head else None
        sinks = inputs.sinks if feature.sinks else None
        return attention_peers.flex(self.torch, *tensors[:3], score, mask, batch, heads, sinks)

    def theirs(self, cell, inputs, tensors):
        """The same of the peers that have the feature."""
        feature, torch, qkv = cell.feature, self.torch, tensors[:3]
        sides = {name: functools.partial(attention_peers.launcher, torch, name, *qkv, True) for name in feature.sdpa}
        if feature.bias:
            sides["cudnn"] = lambda: attention_peers.cudnn_biased(torch, *qkv, inputs.bias)
            sides["cudnn_mask"] = lambda: attention_peers.cudnn_masked(torch, *qkv, inputs.bias)
        if feature.flash:
            keywords = feature.flash(inputs)
            sides["flash_attn"] = lambda: attention_peers.launcher(torch, "flash_attn", *qkv, True, **keywords)
            if keywords and {"window_size", "alibi_slopes"}.issuperset(keywords):
                sides["fa2"] = lambda: attention_peers.fa2_operator(torch, *qkv, **keywords)
        if feature.flex:
            sides[FLEX] = lambda: self.flex(feature, inputs, tensors)
        return {side: make for side, make in sides.items() if PEER_OF.get(side, side) in self.peers}


class Checker:
    """The reference of a cell, and calls that agree with it."""

    def __init__(self, kernels, cell, inputs, tensors):
        self.kernels, self.inputs, self.tensors = kernels, inputs, tensors
        self.heads = checked_heads(cell.shape.batch, cell.shape.heads)
        self.rows = kernels.arrays.array(checked_rows(cell.shape.seqlen), "int64")
        self.expected = functools.lru_cache(self.compute)

    def compute(self, feature):
        q, k, v = self.tensors[:3]
        return self.kernels.torch.cat([
            attended_rows(feature, self.inputs, q[batch, self.rows, head].float(), k[batch, :, head].float(),
                          v[batch, :, head].float(), batch, head, self.rows) for batch, head in self.heads
        ])

    def checked(self, launch, feature):
        """launch, when it gives what it must."""
        out = self.tensors[3]
        out.fill_(math.nan)
        returned = launch()
        out = out if returned is None else returned
        found = self.kernels.torch.cat([out[batch, self.rows, head] for batch, head in self.heads])
        require_close(found, self.expected(feature), feature)
        return launch


class Comparison:
    """Runs cells of a grid whose sides are calls of the Python package and of its peers."""

    def __init__(self, kernels, stopwatch, cells):
        self.kernels, self.stopwatch, self.cells = kernels, stopwatch, cells
        self.torch, self.flashjit = kernels.torch, kernels.flashjit
        self.failures = []

    def require_no_failure(self):
        if self.failures:
            raise RuntimeError("; ".join(self.failures))

    def compiles(self):
        return self.flashjit.counters()["compiles"]

    def new_kernels(self):
        """Those that were compiled, or read from where an earlier run left them."""
        counters = self.flashjit.counters()
        return counters["compiles"] + counters["disk_hits"]

    def call_once(self, cell):
        """flashjit's sides of a cell, so that their kernels are there. What fails is told when the cell is run."""
        tensors = self.kernels.tensors(cell.shape)
        for make in self.kernels.ours(cell, self.kernels.inputs(cell), tensors).values():
            try:
                make()()
            except Exception:
                continue

    def make_kernels(self):
        """Compiles in parallel what the cells need."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self.call_once, self.cells))
        self.stopwatch.wait()

    def sides(self, cell, inputs):
        """Of a cell: side -> microseconds, and side -> why it was left out, as it cannot do it or does it wrong; of
        what flashjit chooses that is a failure."""
        tensors = self.kernels.tensors(cell.shape)
        checker = Checker(self.kernels, cell, inputs, tensors)
        ours = self.kernels.ours(cell, inputs, tensors)
        others = {**self.kernels.tried(cell, inputs, tensors), **self.kernels.theirs(cell, inputs, tensors)}
        launchers, left_out = {}, {}
        for side, make in {**ours, **others}.items():
            try:
                launchers[side] = checker.checked(make(), cell.plain if side.startswith("plain") else cell.feature)
            except Exception as error:  # a peer may raise what it likes
                left_out[side] = attention_peers.reason(error)[:MOST_LETTERS]
                if side in ours:
                    self.failures.append(f"{cell}: {side}: {left_out[side]}")
        rounds = FREE_ROUNDS if cell.feature.free else 1
        return self.timed(launchers, rounds) if launchers else {}, left_out

    def timed(self, launchers, rounds=1):
        return {side: 1e3 * ms for side, ms in self.stopwatch.milliseconds(launchers, rounds).items()}


class ScoreComparison(Comparison):
    """The steps of the grid; each returns what the record keeps of it."""

    def run(self, cell):
        return score_row(cell, *self.sides(cell, self.kernels.inputs(cell)))

    def block_masks(self):
        """What a block mask of documents costs, made by flashjit's option, by a text and by FlexAttention, and dense
        attention on the same shape."""
        shape = max((cell.shape for cell in self.cells), key=lambda shape: (shape.seqlen, shape.head_dim))
        cell = ScoreCell("documents", shape)
        tensors, inputs = self.kernels.tensors(shape), self.kernels.inputs(cell)
        q, k = tensors[:2]
        mask = self.flashjit.Mask(DOCUMENT_TEXT, document=inputs.documents)
        block_mask = functools.partial(self.flashjit.block_mask, q, k)
        sides = {"flashjit": functools.partial(block_mask, documents=inputs.documents),
                 "text": functools.partial(block_mask, mask=mask),
                 "dense_causal": self.kernels.call(tensors, {}), "dense_full": self.kernels.call(tensors, {}, causal=False)}
        same = bool((sides["flashjit"]() == sides["text"]()).all().item())
        if not same:
            self.failures.append("block masks of documents by option and by text differ")
        us, left_out = self.timed(sides), {}
        try:
            us |= self.timed(self.flex_block_masks(inputs, tensors)) if FLEX in self.kernels.peers else {}
        except Exception as error:  # a peer may raise what it likes
            left_out[FLEX] = attention_peers.reason(error)[:MOST_LETTERS]
        return {"seqlen": shape.seqlen, "batch": shape.batch, "head_dim": shape.head_dim, "us": us,
                "left_out": left_out, "of_dense": block_mask_shares(us), "text_is_the_same": same}

    def flex_block_masks(self, inputs, tensors):
        """FlexAttention's, of the same mask with its causal part, as it has no other way to say that."""
        feature = FEATURES["documents"]
        dense = self.kernels.flex(PLAIN, inputs, tensors)
        make = attention_peers.flex_block_mask(self.torch, feature.mask(inputs), inputs.batch, inputs.seqlen,
                                               tensors[0].device)
        return {FLEX: make, "flex_dense_causal": dense}

    def first_calls(self):
        """Seconds of a first call with a text that was never seen, until its result is there. In turns: other work on the
        host is then a burden to all kinds."""
        shapes = {cell.shape.head_dim: cell.shape for cell in self.cells}
        seconds = {(kind, head_dim): [] for kind in NEW_TEXT_KINDS for head_dim in shapes}
        for _ in range(NEW_TEXTS):
            for (kind, head_dim), taken in seconds.items():
                taken.append(self.first_call(kind, shapes[head_dim]))
        of_texts = {key: {"median_s": statistics.median(taken), "largest_s": max(taken)} for key, taken in seconds.items()}
        kinds = {kind: {str(head_dim): of_texts[kind, head_dim] for head_dim in shapes} for kind in NEW_TEXT_KINDS}
        return {"texts": NEW_TEXTS, "cores": len(os.sched_getaffinity(0)), "kinds": kinds}

    def first_call(self, kind, shape):
        tensors = self.kernels.tensors(shape)
        table = self.kernels.arrays.normal((shape.heads, 2 * shape.seqlen), "float32")
        function = {"score": self.flashjit.Score, "mask": self.flashjit.Mask}[kind]
        number = f"0.{time.time_ns():021d}"  # in no cache of an earlier run either
        call = self.kernels.call(tensors, {kind: function(NEW_TEXT_KINDS[kind].format(number), table=table)})
        self.stopwatch.wait()
        before, began = self.compiles(), time.perf_counter()
        call()
        self.stopwatch.wait()
        taken = time.perf_counter() - began
        if self.compiles() == before:
            raise RuntimeError("a text that was never seen compiled nothing")
        return taken

    def compiles_for_what_is_new(self):
        """New kernels of calls with other values and tensors, and with other lengths between those of the grid, once the
        kernels of the grid are there. None is needed."""
        head_dim = max(cell.shape.head_dim for cell in self.cells)
        cells = [cell for cell in self.cells if cell.shape.head_dim == head_dim]
        return {"values and tensors": self.compiles_of(cells, other=True),
                "lengths": self.compiles_of([new_length(cell) for cell in cells], other=False)}

    def compiles_of(self, cells, other):
        before = self.new_kernels()
        for cell in cells:
            inputs = self.kernels.inputs(cell, other)
            sizes = cell.shape.shape()
            tensors = [self.kernels.arrays.normal(sizes, "bfloat16") for _ in range(4)]
            try:
                self.kernels.call(tensors, self.kernels.options(cell.feature, inputs, tensors))()
            except Exception as error:
                self.failures.append(f"{cell}: {attention_peers.reason(error)}")
        self.stopwatch.wait()
        return self.new_kernels() - before


def new_length(cell):
    """A cell in the same bucket of shapes, of a third more tokens and one more."""
    return ScoreCell(cell.name, cell.shape._replace(seqlen=cell.shape.seqlen * 4 // 3 + 1,
                                                    seqlen_q=cell.shape.seqlen * 4 // 3 + 1))


class OnFewCores:
    """Lets this thread run on so many cores, where the system has a way to say so."""

    def __enter__(self):
        self.before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(self.before)[:CORES])

    def __exit__(self, *_):
        os.sched_setaffinity(0, self.before)


class Progress:
    """Prints what is there, with the seconds since the beginning, and writes the record, whole at each time: a run that
    is cut off leaves what it has."""

    def __init__(self, record, path):
        self.record, self.path, self.began = record, path, time.monotonic()

    def keep(self, text):
        self.record["seconds"] = time.monotonic() - self.began
        print(f"{self.record['seconds']:5.0f} s  {text}", flush=True)
        if self.path:
            self.path.write_text(json.dumps(self.record, indent=1) + "\n")


def new_record(kernels, stopwatch, known=attention_peers.SCORE_PEERS):
    torch = kernels.torch
    return {
        "device": torch.cuda.get_device_name(0),
        "version": kernels.flashjit.__version__,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "peers": kernels.peers,
        "absent": {name: why for name in known if (why := attention_peers.missing(name))},
        "packages": {name: version for name in kernels.peers if (version := attention_peers.version(name))},
        "gemm_tflops": stopwatch.gemm_tflops(),
        "rows": [],
    }


def print_conditions(record, masks, times="means of turns' medians", of_pass="forward"):
    print(f"{record['device']}, flashjit {record['version']}, PyTorch {record['torch']}, cuDNN {record['cudnn']}\n"
          f"{of_pass}, bf16, {masks}; {times}; a ratio above 1 means that flashjit is faster", flush=True)


def run_step(comparison, progress, name, step, show):
    """One that is not of a cell: what it lacks must not cost the cells."""
    try:
        progress.record[name] = step()
        progress.keep(show(progress.record[name]))
    except Exception as error:  # a peer may raise what it likes
        comparison.failures.append(f"{name}: {attention_peers.reason(error)[:MOST_LETTERS]}")
        progress.keep(comparison.failures[-1])


def make_kernels(comparison, progress):
    """What comes before all that is timed."""
    progress.record["failures"] = comparison.failures
    comparison.make_kernels()
    progress.keep(f"{comparison.compiles()} kernels of flashjit were compiled, the others loaded")


def run_grid(comparison, progress, figures):
    """Fills the record: first what is short, then the cells."""
    record = progress.record
    make_kernels(comparison, progress)
    run_step(comparison, progress, "compiles", comparison.compiles_for_what_is_new, format_compiles)
    with OnFewCores():
        run_step(comparison, progress, "first_calls", comparison.first_calls, format_first_calls)
    run_step(comparison, progress, "block_masks", comparison.block_masks, format_block_masks)
    for cell in comparison.cells:
        row = comparison.run(cell)
        record["rows"].append(row)
        record["summary"] = summarise_scores(record["rows"], figures)
        progress.keep(format_score_row(cell, row))


def compare_scores(torch, flashjit, stopwatch, peers, arguments, figures, variants=()):
    """Runs the cells and prints and writes what they give. variants: timed beside what the library chooses, in the cells
    that they are for. RuntimeError when flashjit failed in one of them."""
    kernels = Kernels(torch, flashjit, peers, variants=variants)
    comparison = ScoreComparison(kernels, stopwatch, arguments.cells)
    record = new_record(kernels, stopwatch)
    print_conditions(record, "causal")
    with torch.no_grad():
        run_grid(comparison, Progress(record, arguments.json), figures)
    print(format_score_summary(record["summary"]))
    comparison.require_no_failure()
