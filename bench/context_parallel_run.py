# SPDX-License-Identifier: Apache-2.0
"""A process of context_parallel.py, of which each GPU has one: it measures cells together with the others. What it needs of
GPUs is in Ranks, so that it also runs where there is none."""

import contextlib
import datetime
import functools
import random
import statistics
import time
import typing

import torch
import torch.distributed
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashjit.distributed
import flashjit.torch
from attention_peers import reason
from context_parallel_cells import ALONE, BACKWARD, CAUSAL, PEERS, RULE, SCHEMES, cell_of, format_parallel_row, parallel_row
from context_parallel_record import keep
from flashjit.distributed import Sharding, shard

TIMEOUT = datetime.timedelta(seconds=120)  # of an exchange: kernels of the largest cells take a tenth of it
MAX_DIFFERENCE = 0.02  # of an output element of PyTorch's against ours, as compare_peers.py has it
MOST_LETTERS = 200  # of why a side was left out
# How many times the error of a plain computation in 16 bits a result may have, and of its largest number two roundings.
TIMES_ERROR, ROUNDINGS = 2, 2 * 2**-8
TORCH_BACK_END = SDPBackend.CUDNN_ATTENTION
GROUPED = "torch_grouped_heads"  # what is left out where PyTorch's runs with keys and values repeated for each head
# What a cell takes beside its samples: kernels that are new, memory, and the definition where it is checked.
CELL_SECONDS, CHECK_SECONDS = 20, 40
OVER_MODEL = 1.5  # how many times longer than a GPU alone samples may take


class Run(typing.NamedTuple):
    """What all processes are given."""

    cells: typing.Sequence[typing.Any]
    store: str  # a file by which they find each other
    record: typing.Any  # the path of what rows are written to
    ends: float  # when no further cell begins, by time.time()


class Ranks:
    """All processes as one of them sees them, with its GPU."""

    def __init__(self, rank, size, store):
        self.rank, self.size, self.device = rank, size, torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self.join("nccl", store)

    def join(self, backend, store):
        torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=self.rank,
                                             world_size=self.size, timeout=TIMEOUT)
        self.group = flashjit.distributed.Group(device=self.device, timeout=TIMEOUT)
        self.group.agree()

    @functools.cached_property
    def mesh(self):
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device.type, (self.size, ))

    def of_all(self, values, how):
        """Numbers of all ranks in one: torch.distributed.ReduceOp."""
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(numbers, how)
        return numbers.tolist()

    def largest(self, *values):
        return self.of_all(values, torch.distributed.ReduceOp.MAX)

    def first_of(self, text):
        """The text of the first rank that has one; None where none has."""
        texts = [None] * self.size
        torch.distributed.all_gather_object(texts, text)
        return next((found for found in texts if found is not None), None)

    def milliseconds(self, launch, calls):
        """Of one of the calls that follow each other on this rank, which begins together with the others."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.largest(0)
        begin.record()
        for _ in range(calls):
            launch()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / calls

    def forget(self):
        """Gives memory of a cell back."""
        torch.cuda.empty_cache()

    def close(self):
        self.group.close()
        torch.distributed.destroy_process_group()


class Side(typing.NamedTuple):
    """One of those that take turns: what it launches, and in which context."""

    launch: typing.Callable[[], typing.Any]
    context: typing.Callable[[], typing.Any] = contextlib.nullcontext


class CellRun:
    """A cell on one of its ranks: its tensors, its sides, their times and whether they are right."""

    def __init__(self, ranks, cell):
        self.ranks, self.cell, self.left_out = ranks, cell, {}
        self.repeats_heads = False  # where PyTorch's has no groups of heads
        self.sharding = Sharding(cell.layout, cell.tokens, ranks.size)
        self.own = [shard(x, self.sharding, ranks.rank) for x in self.whole(cell.tokens)]
        self.alone = self.whole(cell.alone_tokens)

    def whole(self, tokens):
        """q, k, v and the output's gradient: the same on all ranks."""
        torch.manual_seed(0)
        heads, heads_kv = self.cell.heads
        return [torch.randn(1, tokens, count, self.cell.head_dim, dtype=torch.bfloat16, device=self.ranks.device)
                for count in (heads, heads_kv, heads_kv, heads)]

    # --- What attends: functions of q, k and v

    def attend_alone(self, q, k, v):
        """Without an LSE where there are no gradients."""
        attend = flashjit.torch.attention if torch.is_grad_enabled() else flashjit.attention
        return attend(q, k, v, **self.cell.options)

    def attend(self, scheme, q, k, v, deterministic=False):
        return flashjit.distributed.attention(q, k, v, sharding=self.sharding, group=self.ranks.group, scheme=scheme,
                                              backward_scheme=scheme, deterministic=deterministic, **self.cell.options)

    def attend_by_torch(self, q, k, v):
        """In in_parallel(), which puts another function in the place of this one."""
        if self.repeats_heads:
            k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, is_causal=True, enable_gqa=not self.repeats_heads).transpose(1, 2)

    @contextlib.contextmanager
    def in_parallel(self, rotation):
        """PyTorch's context parallelism. Shards are zigzag already, as its own are, so what it cuts is of no account."""
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method

        set_rotate_method(rotation)
        buffer = torch.empty(2 * self.ranks.size, device=self.ranks.device)
        with context_parallel(self.ranks.mesh, buffers=[buffer], buffer_seq_dims=[0]), sdpa_kernel(TORCH_BACK_END):
            yield

    def attend_by_definition(self, q, k, v):
        """Of one head, [tokens, head_dim]."""
        scores = q @ k.T * q.shape[1]**-0.5
        if self.cell.mask == CAUSAL:
            hidden = torch.ones(scores.shape, dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        return scores.softmax(-1) @ v

    # --- Sides

    def launcher(self, attend, tensors):
        """Of attention, or of its gradients alone. It has run once: kernels and connections are there."""
        *inputs, dout = tensors
        if self.cell.of_pass == BACKWARD:
            leaves = [x.detach().requires_grad_() for x in inputs]
            launch = functools.partial(torch.autograd.grad, attend(*leaves), leaves, dout, retain_graph=True)
        else:
            launch = torch.no_grad()(functools.partial(attend, *inputs))
        launch()
        return launch

    def side(self, name):
        if name == ALONE:
            return Side(self.launcher(self.attend_alone, self.alone))
        if name not in PEERS:
            return Side(self.launcher(functools.partial(self.attend, name), self.own))
        context = functools.partial(self.in_parallel, PEERS[name])
        with context():
            self.require_close()
            return Side(self.launcher(self.attend_by_torch, self.own), context)

    @torch.no_grad()
    def require_close(self):
        """PyTorch's to ours."""
        wanted = self.attend(RULE, *self.own[:3]).float()
        try:
            found = self.attend_by_torch(*self.own[:3])
        except Exception as error:  # it may raise what it likes
            self.repeats_heads, self.left_out[GROUPED] = True, reason(error)[:MOST_LETTERS]
            found = self.attend_by_torch(*self.own[:3])
        difference = (found.float() - wanted).abs().max().item()
        if not difference < MAX_DIFFERENCE:
            raise RuntimeError(f"differs from ours by {difference:.3g}: not timed")

    def sides(self):
        """Those that run on all ranks."""
        found = {}
        for name in self.cell.sides:
            why = None
            try:
                found[name] = self.side(name)
            except Exception as error:  # a peer may raise what it likes
                why = (reason(error) or type(error).__name__)[:MOST_LETTERS]
            if refused := self.ranks.first_of(why):
                self.left_out[name] = refused
                found.pop(name, None)
        return found

    def times(self):
        """side -> milliseconds: the median over rounds in which sides take turns, each round in another order."""
        sides, cell = self.sides(), self.cell
        samples = {name: [] for name in sides}
        for number in range(cell.rounds):
            for name in random.Random(number).sample(list(sides), len(sides)):  # the same on all ranks
                with sides[name].context():
                    if cell.calls > 1:
                        sides[name].launch()  # not counted, as it follows what another side made of the clock
                    samples[name].append(self.ranks.milliseconds(sides[name].launch, cell.calls))
        return {name: statistics.median(self.of_ranks(name, times)) for name, times in samples.items()}

    def of_ranks(self, name, times):
        """Those of the slowest rank; where each computes for itself, their means."""
        if name != ALONE:
            return self.ranks.largest(*times)
        return [ms / self.ranks.size for ms in self.ranks.of_all(times, torch.distributed.ReduceOp.SUM)]

    def model(self):
        """What the library predicts, the fastest first."""
        heads, heads_kv = self.cell.heads
        found = flashjit.distributed.estimates(
            sharding=self.sharding, heads=heads, heads_kv=heads_kv, head_dim=self.cell.head_dim,
            gradients=self.cell.of_pass == BACKWARD, **self.cell.options)
        return {x.scheme: {"ms": 1e3 * x.seconds, "bytes": x.bytes, "calls": x.calls} for x in found}

    # --- Checks

    def results(self, attend, tensors):
        """The output, or the gradients of q, k and v."""
        *inputs, dout = tensors
        with torch.set_grad_enabled(self.cell.of_pass == BACKWARD):
            leaves = [x.detach().requires_grad_(self.cell.of_pass == BACKWARD) for x in inputs]
            out = attend(*leaves)
        return torch.autograd.grad(out, leaves, dout) if self.cell.of_pass == BACKWARD else (out, )

    def of_some_heads(self, x):
        """The first and the last head of keys, or the heads of queries that go with them."""
        count = x.shape[2] // self.cell.heads[1]
        return torch.cat([x[:, :, :count], x[:, :, -count:]], 2)

    def by_definition(self, tensors, dtype):
        """Results of some heads, one after the other, as a head's scores are in memory as a whole."""
        q, k, v, dout = (self.of_some_heads(x).to(dtype) for x in tensors)
        each = q.shape[2] // k.shape[2]
        of_heads = [self.results(self.attend_by_definition, [q[0, :, head], k[0, :, head // each], v[0, :, head // each],
                                                             dout[0, :, head]]) for head in range(q.shape[2])]
        of_queries, *of_keys = (torch.stack(columns, 1)[None] for columns in zip(*of_heads))
        return [of_queries, *(x.unflatten(2, (-1, each)).sum(3) for x in of_keys)]

    def checks(self, schemes):
        """scheme -> how far it is from the definition, whose own error in 16 bits is the measure, and from one GPU."""
        whole = self.whole(self.cell.tokens)
        exact, plain = (self.by_definition(whole, dtype) for dtype in (torch.float32, torch.bfloat16))
        alone = [self.of_some_heads(x) for x in self.results(self.attend_alone, whole)]
        wanted = [[shard(x, self.sharding, self.ranks.rank).float() for x in of_one] for of_one in zip(exact, plain, alone)]
        return {scheme: self.check(scheme, wanted) for scheme in schemes}

    def check(self, scheme, wanted):
        attend = functools.partial(self.attend, scheme, deterministic=True)
        first, second = (self.results(attend, self.own) for _ in range(2))
        of_bound = from_alone = 0.0
        for x, (exact, plain, alone) in zip(map(self.of_some_heads, first), wanted):
            bound = TIMES_ERROR * distance(plain, exact) + ROUNDINGS * exact.abs().max().item()
            of_bound = max(of_bound, distance(x.float(), exact) / bound)
            from_alone = max(from_alone, distance(x.float(), alone))
        differ = not all(map(torch.equal, first, second))
        of_bound, from_alone, differ = self.ranks.largest(of_bound, from_alone, differ)
        return {"of_bound": of_bound, "from_alone": from_alone, "same_bits": differ == 0}

    def row(self):
        model = self.model()
        ms = self.times()
        checks = self.checks([scheme for scheme in SCHEMES if scheme in ms]) if self.cell.is_checked else {}
        return parallel_row(self.cell, ms, self.left_out, next(iter(model)), model, checks)


def distance(x, y):
    """Infinite where something is no number."""
    return (x - y).abs().nan_to_num(nan=float("inf")).max().item()


def seconds_of(cell):
    """What a cell may take, so that none begins that would not end in time."""
    launches = len(cell.sides) * (1 + cell.rounds * (cell.calls + (cell.calls > 1)))
    return CELL_SECONDS + (CHECK_SECONDS if cell.is_checked else 0) + OVER_MODEL * launches * cell.seconds


def measure(ranks, run):
    """The cells for which there is time, on all ranks alike."""
    for cell in run.cells:
        late, = ranks.largest(time.time() + seconds_of(cell) > run.ends)
        if late:
            continue
        row = CellRun(ranks, cell).row()
        ranks.forget()
        if ranks.rank == 0:
            print(format_parallel_row(row), flush=True)
            keep(run.record, row)


def main(rank, size, run):
    """Of each process."""
    ranks = Ranks(rank, size, run.store)
    measure(ranks, run)
    ranks.close()
