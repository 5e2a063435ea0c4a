# SPDX-License-Identifier: Apache-2.0
"""flashjit.distributed over NCCL, a process for each of two GPUs: against one call with the whole sequences, equal bits
in a second run, and a process that is killed."""

import datetime
import os
import tempfile
import time
import unittest

try:
    import torch
    import torch.distributed
    import torch.multiprocessing
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch cannot be imported: {error}") from error

import flashjit

RANKS = 2
TIMEOUT = datetime.timedelta(seconds=5)


def whole_tensors(seqlen):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(1, seqlen, heads, 128, generator=generator).to(torch.bfloat16).cuda() for heads in (8, 2, 2, 8)]


def gradients(attend, q, k, v, weights):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = attend(*leaves)
    (out.float() * weights.float()).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def assert_close(found, exact, plain):
    """At most twice the error of one call, and two roundings."""
    bound = 2 * (plain - exact).abs().max() + 2 * 2**-8 * exact.abs().max()
    assert (found - exact).abs().max() <= bound, (found - exact).abs().max()


def join(rank, store):
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    from flashjit import distributed

    return distributed, distributed.Group(timeout=TIMEOUT)


def compare(rank, store):
    """In each process."""
    distributed, group = join(rank, store)
    import flashjit.torch

    for layout, scheme, backward_scheme in (("zigzag", "ring", "all_gather"), ("contiguous", "all_gather", "automatic"),
                                            ("striped", "all_to_all", "all_to_all"),
                                            ("zigzag", "automatic", "automatic")):
        whole = whole_tensors(1021)
        sharding = distributed.Sharding(layout, 1021, RANKS)
        own = [distributed.shard(x, sharding, rank) for x in whole]

        def attend(q, k, v):
            return distributed.attention(q, k, v, sharding=sharding, group=group, causal=True, scheme=scheme,
                                         backward_scheme=backward_scheme, deterministic=True)

        plain = gradients(lambda q, k, v: flashjit.torch.attention(q, k, v, causal=True), *whole)
        exact = gradients(by_definition, *(x.double() for x in whole))
        first, second = gradients(attend, *own), gradients(attend, *own)
        for found, again, of_definition, of_one_call in zip(first, second, exact, plain):
            assert torch.equal(found, again)
            assert_close(found.double(), distributed.shard(of_definition, sharding, rank),
                         distributed.shard(of_one_call, sharding, rank).double())
        assert torch.equal(distributed.shard(group.gather(first[0], sharding), sharding, rank), first[0])
    group.close()
    torch.distributed.destroy_process_group()


def by_definition(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * 128**-0.5
    hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
    return (scores.masked_fill(hidden, -torch.inf).softmax(3) @ v).transpose(1, 2)


def lose_a_rank(rank, store):
    """In each process."""
    distributed, group = join(rank, store)
    sharding = distributed.Sharding("zigzag", 4096, RANKS)
    q, k, v, _ = (distributed.shard(x, sharding, rank) for x in whole_tensors(4096))

    def attend():
        distributed.attention(q, k, v, sharding=sharding, group=group, causal=True, scheme="ring")
        group.wait()

    attend()  # so that connections are there
    torch.distributed.barrier()
    if rank == 1:
        os._exit(0)
    begin = time.monotonic()
    try:
        attend()
        raise AssertionError("the lost rank was not noticed")
    except flashjit.CommunicationError as error:
        print(f"after {time.monotonic() - begin:.1f} s: {error}")
    assert time.monotonic() - begin < 10 * TIMEOUT.total_seconds()
    os._exit(0)  # the process group would wait for it, too


class SeveralGpusTest(unittest.TestCase):

    def setUp(self):
        if torch.cuda.device_count() < RANKS:
            self.skipTest(f"there are fewer than {RANKS} GPUs")

    def spawn(self, work):
        with tempfile.TemporaryDirectory() as directory:
            torch.multiprocessing.spawn(work, (os.path.join(directory, "store"), ), RANKS)

    def test_ranks_compute_what_one_call_computes_and_the_same_bits_again(self):
        self.spawn(compare)

    def test_a_process_that_is_killed_raises_in_the_other(self):
        self.spawn(lose_a_rank)
