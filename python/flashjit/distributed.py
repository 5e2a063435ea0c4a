# SPDX-License-Identifier: Apache-2.0
"""Attention over sequences of which each of several GPUs has a part (context parallelism), over torch.distributed.

>>> group = flashjit.distributed.Group()                                  # of all ranks
>>> sharding = flashjit.distributed.Sharding("zigzag", seqlen, group.size)
>>> q, k, v = (flashjit.distributed.shard(x, sharding, group.rank) for x in (q, k, v))
>>> out = flashjit.distributed.attention(q, k, v, sharding=sharding, group=group, causal=True)

All ranks make the same calls in the same order, with the same options. docs/distributed.md has a tutorial."""

from __future__ import annotations

import array
import ctypes
import dataclasses
import datetime
import weakref
from collections import deque
from typing import Any, Optional, Protocol, Sequence, Union

import torch
import torch.distributed
from torch import Tensor

import flashjit
from flashjit import _distributed
from flashjit._arrays import CallOptions, export_all
from flashjit._words import in_words
from flashjit.torch import _as_autocast_wants, _as_rows

__all__ = ["Estimate", "Group", "Sharding", "Transport", "attention", "estimates", "gather", "shard"]

# By the numbers of flashjit_layout and flashjit_scheme.
_LAYOUTS = ("contiguous", "zigzag", "striped")
_SCHEMES = ("automatic", "all_gather", "ring", "all_to_all", "two_level")
_GRADIENTS = ("dq", "dk", "dv", "dbias", "dslopes", "dsinks")
_WITH_GRADIENTS = ("bias", "alibi_slopes", "sinks")
"""The options of which the last of these are."""
_WORDS = {"queries": "sharding", "keys": "sharding_kv"}
"""The arguments here, by the library's names."""


def _number_of(name: str, word: Any, words: "tuple[str, ...]") -> int:
    if word not in words:
        raise flashjit.InvalidArgument(f"{name}: must be one of {', '.join(map(repr, words))}, was {word!r:.100}")
    return words.index(word)


# --- Sharding ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sharding:
    """Which positions of a sequence each rank has. A value: equal shardings shard alike.

    Parts differ by one position in length at most, so any length is shared out; a rank may have none.

    Parameters
    ----------
    layout : "contiguous", "zigzag" or "striped"
        contiguous: rank r has the r-th of equal parts, for full attention and for windows. zigzag: of twice as many
        parts the r-th from the front and the r-th from the back, so that all ranks have the same work under a causal
        mask. striped: positions r, r + ranks, r + 2 ranks, ..., likewise.
    seqlen : int
    ranks : int
    cu_seqlens : tuple of int
        Of packed sequences, which packed() makes; None for others.
    """

    layout: str
    seqlen: int
    ranks: int
    cu_seqlens: "Optional[tuple[int, ...]]" = None

    @classmethod
    def packed(cls, layout: str, cu_seqlens: "Union[Sequence[int], Tensor]", ranks: int) -> "Sharding":
        """Of packed sequences: sequence i has the positions from cu_seqlens[i] to cu_seqlens[i + 1] of tensors of batch 1,
        and its queries see its own keys alone.

        >>> sharding = Sharding.packed("zigzag", [0, 700, 702, 9000], group.size)

        contiguous: ranks have equal parts of all tokens, wherever sequences begin. zigzag: they have as many tokens, but
        for fewer than there are ranks, and the same work under a causal mask, as a sequence that is more work than a rank's
        share is zigzag by itself; others stay whole with one rank as long as one has room. A rank's rows need not be in the
        order of the whole. Offsets are numbers on the host; those of a tensor on a GPU are waited for."""
        offsets = tuple(cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens)
        if not offsets or not all(isinstance(offset, int) for offset in offsets):
            raise flashjit.InvalidArgument(f"cu_seqlens: must be integers, the first 0, was {cu_seqlens!r:.100}")
        return cls(layout, offsets[-1], ranks, offsets)

    def __post_init__(self) -> None:
        self.spans(0)

    def spans(self, rank: int) -> "tuple[range, ...]":
        """The positions of a rank, in the order of the rows of its tensors."""
        found = _distributed.spans(self._exported(), rank)
        return tuple(range(first, first + count * step, step) for first, count, step in found)

    def length(self, rank: int) -> int:
        """How many these are."""
        return sum(map(len, self.spans(rank)))

    def positions(self, rank: int, device: "Union[torch.device, str, None]" = None) -> Tensor:
        """These as a tensor of int64, for rotary embeddings and the like: of packed sequences, each in its own sequence."""
        spans = [torch.arange(s.start, s.stop, s.step, device=device) for s in self.spans(rank)]
        found = torch.cat(spans) if spans else torch.empty(0, dtype=torch.int64, device=device)
        if self.cu_seqlens is None:
            return found
        begins = torch.tensor(self.cu_seqlens, device=device)
        return found - begins[torch.searchsorted(begins, found, right=True) - 1]

    def _exported(self) -> "tuple[int, int, int, Optional[bytes]]":
        offsets = None if self.cu_seqlens is None else array.array("q", self.cu_seqlens).tobytes()
        return self.seqlen, _number_of("layout", self.layout, _LAYOUTS), self.ranks, offsets


def _rows(tensor: Tensor, span: range, dim: int) -> Tensor:
    """A view."""
    return tensor[(slice(None), ) * dim + (slice(span.start, span.stop, span.step), )]


def _check_dim(name: str, tensor: Tensor, dim: int, length: int) -> int:
    if not isinstance(tensor, Tensor):
        raise flashjit.InvalidArgument(f"{name}: must be a torch.Tensor, was {type(tensor).__name__}")
    if not isinstance(dim, int):
        raise flashjit.InvalidArgument(f"dim: must be an int, was {dim!r:.100}")
    if not -tensor.dim() <= dim < tensor.dim():
        raise flashjit.InvalidArgument(f"dim: must be one of the {tensor.dim()} dimensions of {name}, was {dim}")
    if tensor.shape[dim] != length:
        raise flashjit.InvalidArgument(f"{name}: must have {length} positions in dimension {dim}, had "
                                       f"{tensor.shape[dim]}")
    return dim % tensor.dim()


def _check_alike(rank: int, part: Tensor, first: Tensor, dim: int) -> None:
    """But for their lengths."""
    sizes, wanted = list(part.shape), list(first.shape)
    del sizes[dim], wanted[dim]
    if sizes != wanted or part.dtype != first.dtype:
        raise flashjit.InvalidArgument(f"shards[{rank}]: must be of {first.dtype} and but for dimension {dim} of the sizes "
                                       f"{wanted} like shards[0], was of {part.dtype} and {sizes}")


def _require_sharding(name: str, sharding: Any) -> None:
    if not isinstance(sharding, Sharding):
        raise flashjit.InvalidArgument(f"{name}: must be a flashjit.distributed.Sharding, was {sharding!r:.100}")


def shard(whole: Tensor, sharding: Sharding, rank: int, dim: int = 1) -> Tensor:
    """What a rank has of a tensor whose dimension dim is the sequence: 1 in q, k and v, in tokens and in labels.

    A copy, of any dtype on any device, through which gradients go."""
    _require_sharding("sharding", sharding)
    dim = _check_dim("whole", whole, dim, sharding.seqlen)
    spans = sharding.spans(rank)
    return torch.cat([_rows(whole, span, dim) for span in spans or (range(0), )], dim)


def gather(shards: "Sequence[Tensor]", sharding: Sharding, dim: int = 1) -> Tensor:
    """The tensor of which these are the shards, one for each rank: shard() backwards, in one process.

    Group.gather brings the shards of other ranks."""
    _require_sharding("sharding", sharding)
    if len(shards) != sharding.ranks:
        raise flashjit.InvalidArgument(f"shards: must be {sharding.ranks}, one for each rank, were {len(shards)}")
    for rank, part in enumerate(shards):
        _check_dim(f"shards[{rank}]", part, dim, sharding.length(rank))
        _check_alike(rank, part, shards[0], dim)
    dim %= shards[0].dim()
    shape = list(shards[0].shape)
    shape[dim] = sharding.seqlen
    whole = shards[0].new_empty(shape)
    for rank, part in enumerate(shards):
        first = 0
        for span in sharding.spans(rank):
            _rows(whole, span, dim).copy_(part.narrow(dim, first, len(span)))
            first += len(span)
    return whole


# --- Groups -----------------------------------------------------------------------------------------------------------

Message = tuple[int, int, int]
"""(rank, address, bytes): host memory that goes to a rank or comes from it."""


class Transport(Protocol):
    """What carries host memory between ranks whose engines emulate. Exceptions of it are those of the group's calls."""

    def start(self, sends: "list[Message]", receives: "list[Message]") -> None:
        """Begin an exchange, and do not wait for it. Messages between two ranks arrive in the order in which they were
        sent. Memory is left alone until the exchange is finished."""

    def finish(self) -> None:
        """Wait for the oldest exchange that is not finished."""

    def wait(self) -> None:
        """Wait for all that were started."""

    def abort(self) -> None:
        """This rank gives up: others must learn of it, or wait no longer than some time."""


_groups_made: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
"""How many have been made over a process group, by all of its ranks alike."""
_abandoned: "list[Any]" = []
"""Exchanges of groups that failed. Their memory may still be written, so it is kept until the process ends."""


class _ProcessGroupTransport:
    """Over torch.distributed, by a backend that carries tensors of the CPU.

    Messages go through tensors of their own, as a call that fails gives up its memory while messages are on their way;
    and they bear the number of their group, so that a later group does not take what this one has left."""

    def __init__(self, process_group: Any) -> None:
        self._group = process_group
        self._tag = _groups_made.get(process_group, 0)
        _groups_made[process_group] = self._tag + 1
        self._started: "deque[list[Any]]" = deque()

    def start(self, sends: "list[Message]", receives: "list[Message]") -> None:
        works: "list[Any]" = []
        self._started.append(works)
        for message in sends:
            content = _memory_of(message).clone()
            works.append((self._post(torch.distributed.isend, message, content), content, None))
        for message in receives:
            content = torch.empty(message[2], dtype=torch.uint8)
            works.append((self._post(torch.distributed.irecv, message, content), content, message))

    def _post(self, function: Any, message: Message, content: Tensor) -> Any:
        peer = torch.distributed.get_global_rank(self._group, message[0])
        return function(content, peer, group=self._group, tag=self._tag)

    def finish(self) -> None:
        works = self._started[0]
        for work, _, _ in works:
            work.wait()
        for _, content, message in works:
            if message is not None:
                _memory_of(message).copy_(content)
        self._started.popleft()

    def wait(self) -> None:
        for works in self._started:
            for work, _, _ in works:
                work.wait()

    def abort(self) -> None:
        """Others have waited too long after the time-out of the process group."""
        _abandoned.extend(self._started)


def _memory_of(message: Message) -> Tensor:
    _, address, size = message
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)


class Group(_distributed.Group):
    """The ranks that compute together, as one of them sees them: those of a torch.distributed process group.

    All ranks of it make their groups at the same time. On GPUs a group has an NCCL communicator of its own, over which
    calls run beside what else the process group does. In host memory, for an engine that emulates, messages go through
    the process group itself, whose backend must carry tensors of the CPU, as gloo does.

    For one thread at a time. A group over NCCL that is dropped lives on until the process ends, as kernels may still use
    its memory; close() ends it.

    Parameters
    ----------
    process_group : torch.distributed.ProcessGroup
        Of any backend; the default group, of all ranks, when None.
    device : torch.device, str or int
        Whose memory is computed with: a CUDA device, or "cpu". The current CUDA device when None, where there is one,
        else "cpu".
    timeout : datetime.timedelta
        How long an exchange over NCCL may wait for a peer before CommunicationError is raised. Ten minutes when None.
        On the CPU the process group's own time-out says so.

    Attributes
    ----------
    rank, size : int
    device : torch.device
    """

    rank: int
    size: int
    device: torch.device

    def __init__(self, process_group: Any = None, *, device: "Union[torch.device, str, int, None]" = None,
                 timeout: "Optional[datetime.timedelta]" = None) -> None:
        process_group = torch.distributed.group.WORLD if process_group is None else process_group
        if process_group is None:
            raise flashjit.InvalidArgument("process_group: must be given where torch.distributed has no default group, "
                                           "was None; call torch.distributed.init_process_group first")
        self.rank = torch.distributed.get_rank(process_group)
        self.size = torch.distributed.get_world_size(process_group)
        if self.rank < 0:
            raise flashjit.InvalidArgument("process_group: must be one that this process is in, was another")
        self.device = _to_device(device)
        milliseconds = _milliseconds(timeout)
        if self.device.type == "cpu":
            _distributed.carry(self, _ProcessGroupTransport(process_group), self.rank, self.size)
        else:
            unique_id = _share_unique_id(process_group, self.rank, self.device)
            _distributed.join(self, unique_id, self.rank, self.size, self.device.index, milliseconds)

    @classmethod
    def from_nccl(cls, communicator: int, rank: int, size: int,
                  device: "Union[torch.device, str, int, None]" = None, *,
                  timeout: "Optional[datetime.timedelta]" = None) -> "Group":
        """Over an NCCL communicator of the application's, the address of an ncclComm_t of this rank, size and device.

        It stays the application's, and must not be used by others at the same time."""
        group = cls.__new__(cls)
        group.rank, group.size, group.device = rank, size, _to_device(device)
        if group.device.type != "cuda":
            raise flashjit.InvalidArgument(f"device: must be a CUDA device for a communicator, was {group.device}")
        _distributed.wrap(group, communicator, _milliseconds(timeout))
        return group

    @classmethod
    def from_transport(cls, transport: Transport, rank: int, size: int) -> "Group":
        """Over a transport of the application's, in host memory."""
        group = cls.__new__(cls)
        group.rank, group.size, group.device = rank, size, torch.device("cpu")
        _distributed.carry(group, transport, rank, size)
        return group

    def agree(self, engine: "Optional[flashjit.Engine]" = None) -> None:
        """All ranks take the kernel variants that the first one's engine would choose, by its tuning records.

        So bits do not depend on which rank has which records, nor on what is tuned meanwhile: nothing is measured any
        more. All ranks call it at the same time, once for an engine (the default engine when None), before its other
        calls. Raises Unsupported where ranks have different versions of flashjit."""
        _distributed.agree(engine, self)

    def gather(self, shard: Tensor, sharding: Sharding, *, engine: "Optional[flashjit.Engine]" = None) -> Tensor:
        """The whole of a tensor of which each rank has a shard, on every rank.

        shard is float16, bfloat16 or float32 [batch, sharding.length(rank), heads, head_dim], head_dim a multiple of 8.
        Gradients do not go through it. On the current stream."""
        whole = shard.new_empty((*shard.shape[:1], sharding.seqlen, *shard.shape[2:]))
        stream = _current_stream(shard)
        views = export_all({"shard": shard.detach(), "whole": whole}, stream)
        _distributed.gather(engine, self, views["shard"], views["whole"], sharding._exported(), stream)
        return whole

    def wait(self) -> None:
        """Wait, on the host, for all exchanges so far. Raises CommunicationError when the group has failed."""
        _distributed.wait(self)

    def close(self) -> None:
        """End the group, once the GPU has come past its calls. Later calls raise."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        _distributed.close(self)


def _to_device(device: "Union[torch.device, str, int, None]") -> torch.device:
    if device is None:
        found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type not in ("cpu", "cuda"):
        raise flashjit.InvalidArgument(f"device: must be a CUDA device or the CPU, was {found}")
    is_whole = found.type == "cpu" or found.index is not None
    return found if is_whole else torch.device("cuda", torch.cuda.current_device())


def _milliseconds(timeout: "Optional[datetime.timedelta]") -> int:
    """0 stands for the library's default, so what rounds to it becomes 1."""
    if timeout is None:
        return 0
    if not isinstance(timeout, datetime.timedelta) or timeout <= datetime.timedelta():
        raise flashjit.InvalidArgument(f"timeout: must be a positive datetime.timedelta or None, was {timeout!r:.100}")
    return max(1, timeout // datetime.timedelta(milliseconds=1))


def _share_unique_id(process_group: Any, rank: int, device: torch.device) -> bytes:
    """Made on the first rank, whose failure to make one reaches all."""
    shared: "list[Any]" = [None]
    if rank == 0:
        try:
            shared = [_distributed.make_unique_id()]
        except flashjit.Error as error:
            shared = [str(error)]
    source = torch.distributed.get_global_rank(process_group, 0)
    torch.distributed.broadcast_object_list(shared, source, group=process_group)
    if isinstance(shared[0], str):
        raise flashjit.CommunicationError(shared[0])
    return shared[0]


def _current_stream(tensor: Tensor) -> int:
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0


# --- The model of time ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a scheme costs, as its plan says, and by the model of time of docs/distributed.md.

    Attributes
    ----------
    scheme : str
    bytes : int
        That the rank which receives most receives.
    calls : int
        Of attention, of the rank that makes most.
    seconds : float
        Of the slowest rank, by the model.
    """

    scheme: str
    bytes: int
    calls: int
    seconds: float


@in_words({**_WORDS, "num_heads_q": "heads", "num_heads_kv": "heads_kv"})
def estimates(*, sharding: Sharding, heads: int, head_dim: int, heads_kv: "Optional[int]" = None,
              head_dim_v: "Optional[int]" = None, batch: int = 1, sharding_kv: "Optional[Sharding]" = None,
              ranks_of_host: int = 0, causal: bool = False, window: "Optional[Sequence[int]]" = None,
              gradients: bool = False, engine: "Optional[flashjit.Engine]" = None) -> "tuple[Estimate, ...]":
    """What the schemes of attention() would cost that can run, the fastest first, which is what automatic takes; with
    gradients, those of its gradients. Nothing is sent or computed.

    >>> estimates(sharding=Sharding("zigzag", 131072, 8), heads=32, heads_kv=8, head_dim=128, causal=True)[0].scheme
    'ring'

    heads, heads_kv, head_dim and head_dim_v are those of the whole q, k and v, the latter as of q where they are None."""
    _require_sharding("sharding", sharding)
    sizes = (batch, heads, heads if heads_kv is None else heads_kv, head_dim,
             head_dim if head_dim_v is None else head_dim_v)
    keys = None if sharding_kv is None else sharding_kv._exported()
    numbers = CallOptions({"causal": causal, "window": window}, "estimates").export(0)[-1]
    distribution = (sharding._exported(), keys, _SCHEMES.index("automatic"), ranks_of_host)
    found = _distributed.estimates(engine, sizes, gradients, distribution, numbers)
    return tuple(Estimate(_SCHEMES[scheme], *costs) for scheme, *costs in found)


# --- Attention --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Call:
    """What a call and its gradients have in common, but for tensors that autograd watches."""

    group: Group
    queries: Sharding
    keys: Sharding
    scheme: str
    backward_scheme: str
    ranks_of_host: int
    deterministic: bool
    engine: "Optional[flashjit.Engine]"
    options: "dict[str, Any]"

    @in_words(_WORDS)
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> "tuple[Tensor, Tensor]":
        batch, seqlen, heads, _ = q.shape
        out = q.new_empty((batch, seqlen, heads, v.shape[-1]))
        lse = q.new_empty((batch, heads, seqlen), dtype=torch.float32)
        stream = _current_stream(q)
        views = export_all({"q": q, "k": k, "v": v, "out": out, "lse": lse}, stream)
        _distributed.attention(self.engine, self.group, *views.values(), self._distribution("scheme"),
                               *self._exported(stream), stream)
        return out, lse

    @in_words(_WORDS)
    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
                 wanted: "tuple[bool, ...]") -> "tuple[Optional[Tensor], ...]":
        """Of q, k and v, and where they are wanted of bias, of alibi_slopes and of sinks: the latter two sums over all
        ranks."""
        of_options = (self.options[name] if is_wanted else None for name, is_wanted in zip(_WITH_GRADIENTS, wanted))
        gradients = tuple(None if x is None else torch.empty_like(x, memory_format=torch.contiguous_format)
                          for x in (q, k, v, *of_options))
        dout = _as_rows(dout)  # which must live as long as the call
        stream = _current_stream(q)
        views = export_all({"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}, stream)
        into = export_all({name: x for name, x in zip(_GRADIENTS, gradients) if x is not None}, stream)
        deterministic = self.deterministic or torch.are_deterministic_algorithms_enabled()
        _distributed.backward(self.engine, self.group, *views.values(), tuple(map(into.get, _GRADIENTS)), deterministic,
                              self._distribution("backward_scheme"), *self._exported(stream), stream)
        return gradients

    def _distribution(self, scheme: str) -> "tuple[Any, ...]":
        keys = None if self.keys == self.queries else self.keys._exported()
        return (self.queries._exported(), keys, _number_of(scheme, getattr(self, scheme), _SCHEMES),
                self.ranks_of_host)

    def _exported(self, stream: int) -> "tuple[Any, ...]":
        return CallOptions(self.options, "attention").export(stream)


class _Attention(torch.autograd.Function):

    @staticmethod
    def forward(ctx: Any, call: _Call, q: Tensor, k: Tensor, v: Tensor, *of_options: "Optional[Tensor]") -> "tuple[Tensor, Tensor]":
        out, lse = call.forward(q, k, v)
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, _: Any) -> "tuple[Optional[Tensor], ...]":
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv, dbias, *of_options = ctx.call.backward(dout, q, k, v, out, lse, ctx.needs_input_grad[4:])
        # Ranks add them up as they do gradients of weights, so one of them has the sum.
        if ctx.call.group.rank > 0:
            of_options = [x if x is None else torch.zeros_like(x) for x in of_options]
        return None, dq, dk, dv, dbias, *of_options


def _require_no_gradient(options: "dict[str, Any]") -> None:
    """Of tensors for which there is none."""
    given = {}
    for kind in ("score", "mask"):
        captures = getattr(options[kind], "tensors", ())
        given.update((f"{kind}: capture {name}", tensor) for name, tensor in captures)
    for name, tensor in given.items():
        if torch.is_grad_enabled() and getattr(tensor, "requires_grad", False):
            raise flashjit.Unsupported(f"{name}: must not require a gradient over several GPUs; pass "
                                       f"{name.rpartition(' ')[2]}.detach()")


@torch.compiler.disable
def attention(q: Tensor, k: Tensor, v: Tensor, *, sharding: Sharding, group: Group,
              sharding_kv: "Optional[Sharding]" = None, scheme: str = "automatic", backward_scheme: str = "automatic",
              ranks_of_host: int = 0, causal: bool = False, window: "Optional[Sequence[int]]" = None,
              scale: "Optional[float]" = None, softcap: "Optional[float]" = 0.0, sinks: "Optional[Tensor]" = None,
              chunk: "Optional[int]" = None, alibi_slopes: "Optional[Tensor]" = None,
              documents: "Optional[Tensor]" = None, prefix: "Optional[Tensor]" = None,
              bias: "Optional[Tensor]" = None, score: "Union[flashjit.Score, str, None]" = None,
              mask: "Union[flashjit.Mask, str, None]" = None, deterministic: bool = False, lse: bool = False,
              engine: "Optional[flashjit.Engine]" = None) -> "Union[Tensor, tuple[Tensor, Tensor]]":
    """flashjit.attention over sequences of which each rank of the group has the rows that the shardings say.

    >>> out = flashjit.distributed.attention(q, k, v, sharding=sharding, group=group, causal=True)

    All ranks make the same calls in the same order, with the same options and sizes: that is not checked, and ranks wait
    for each other in vain, or a process group over gloo ends its processes. Runs on the current stream; autocast applies. q, k
    and v get gradients, and so do bias, sinks and alibi_slopes: of the latter two the group's first rank has the sum over all
    ranks and the others 0, so that adding up over ranks, as for weights, gives it. All ranks must ask for gradients alike.
    Bits are the same in every run, those of gradients with deterministic.

    Parameters
    ----------
    q : Tensor [batch, sharding.length(rank), heads_q, head_dim]
        float16 or bfloat16, on the group's device. Any strides that are multiples of 8, with a contiguous last
        dimension.
    k : Tensor [batch, sharding_kv.length(rank), heads_kv, head_dim]
    v : Tensor [batch, sharding_kv.length(rank), heads_kv, head_dim_v]
    sharding : Sharding
        Of the queries, of as many ranks as the group has.
    group : Group
    sharding_kv : Sharding
        Of the keys and values; that of the queries when None. With a mask, a window or causal the layout is that of the
        queries; where sequences are packed it is the sharding of the queries.
    scheme : "automatic", "all_gather", "ring", "all_to_all" or "two_level"
        What goes where: docs/distributed.md. automatic: the one that a model of time finds fastest.
    backward_scheme : likewise
        Of gradients.
    ranks_of_host : int
        How many neighbouring ranks are of one host, for the schemes to know; all of them when 0.
    causal, window, scale, softcap, sinks :
        As of flashjit.attention with the whole sequences, at whose positions masks are.
    chunk, alibi_slopes, documents, prefix :
        Likewise, for all_to_all alone, and for a group of one rank; tensors are of the whole, on every rank. Beside packed
        sequences neither documents nor prefix, and slopes of heads alone.
    bias : Tensor [batch or 1, heads_q or 1, sharding.length(rank), sharding_kv.seqlen]
        Of this rank's queries, with the columns of all keys: shard(whole, sharding, rank, dim=2). For all_gather and ring
        of shards that are not striped, its gradients and those beside it for ring; not beside packed sequences.
    score, mask : flashjit.Score or flashjit.Mask, or str
        Likewise, for all_gather and ring of shards that are not striped. They see positions in the whole and may
        capture tensors of the whole, but must not ask for seqlen_q and seqlen_kv.
    deterministic : bool
        Gradients are the same, bit by bit, in every run; also where torch.use_deterministic_algorithms says so.
    lse : bool
        Whether (out, lse) is returned, lse being float32 [batch, heads_q, sharding.length(rank)] without gradients.
    engine : flashjit.Engine
        The default engine when None.

    Returns
    -------
    Tensor [batch, sharding.length(rank), heads_q, head_dim_v], or a pair with the log-sum-exp.

    Raises
    ------
    flashjit.CommunicationError
        When the group has failed: a rank gave up or was not heard of in time. From then on all its calls do.
    flashjit.Error
        As flashjit.attention. What is refused is refused before anything is sent, and the group goes on. What the engine
        of one rank has no kernel for raises on all ranks, with the number of that rank in front where it is another.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 4:
            raise flashjit.InvalidArgument(f"{name}: must be a torch.Tensor of 4 dimensions, was "
                                           f"{tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor)}")
    sharding_kv = sharding if sharding_kv is None else sharding_kv
    _require_sharding("sharding", sharding)
    _require_sharding("sharding_kv", sharding_kv)
    if sharding_kv.cu_seqlens is not None and sharding_kv != sharding:
        raise flashjit.InvalidArgument("sharding_kv: must be the sharding of q where sequences are packed, was another")
    _number_of("backward_scheme", backward_scheme, _SCHEMES)
    q, k, v = _as_autocast_wants(q, k, v)
    with_gradients = (x.detach() if isinstance(x, Tensor) else x for x in (bias, alibi_slopes, sinks))
    options = {"causal": causal, "window": window, "scale": scale, "softcap": softcap, "chunk": chunk,
               **dict(zip(_WITH_GRADIENTS, with_gradients)), "documents": documents, "prefix": prefix, "score": score,
               "mask": mask}
    _require_no_gradient(options)
    call = _Call(group, sharding, sharding_kv, scheme, backward_scheme,
                 ranks_of_host, deterministic, engine, options)
    out, rows = _Attention.apply(call, q, k, v, bias, alibi_slopes, sinks)
    return (out, rows) if lse else out
