# SPDX-License-Identifier: Apache-2.0
"""Tensors of scores and masks, flashjit.Score and flashjit.Mask, and block masks, on PyTorch tensors of a GPU."""

import unittest

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch cannot be imported: {error}") from error

from torch.nn import functional

import flashjit
import flashjit.torch

BATCH, HEADS, HEADS_KV, QUERIES, KEYS = 2, 4, 2, 200, 330


def make_qkv(head_dim=64, dtype=torch.bfloat16):
    """q, k, v as flashjit.attention takes them."""
    torch.manual_seed(7)
    rows = ((QUERIES, HEADS), (KEYS, HEADS_KV), (KEYS, HEADS_KV))
    return tuple(torch.randn((BATCH, *size, head_dim), dtype=dtype, device="cuda") for size in rows)


def places():
    """(batch, head, query, key) of scores, to be broadcast to all of them."""
    sizes = (BATCH, HEADS, QUERIES, KEYS)
    return tuple(
        torch.arange(size, device="cuda").view([-1 if i == dim else 1 for i in range(4)])
        for dim, size in enumerate(sizes)
    )


def own_key():
    """The position of each query's own key."""
    return places()[2] + KEYS - QUERIES


def by_definition(q, k, v, dtype, change=None, shown=None):
    """Computed in this dtype: change makes other scores, and shown says which keys each query sees."""
    query, key, value = (tensor.transpose(1, 2).to(dtype) for tensor in (q, k, v))
    key, value = (tensor.repeat_interleave(HEADS // HEADS_KV, dim=1) for tensor in (key, value))
    scores = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
    if change is not None:
        scores = change(scores)
    if shown is not None:
        scores = scores.masked_fill(~shown, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0)  # of rows that see no key
    return (weights @ value).transpose(1, 2).double()


def added(values):
    return lambda scores: (scores + values).to(scores.dtype)


class OnGpu(unittest.TestCase):
    def assert_close(self, actual, tensors, **meant):
        """At most twice the error of PyTorch's plain way in this precision, and two roundings."""
        exact = by_definition(*tensors, torch.float64, **meant)
        plain_error = (by_definition(*tensors, tensors[0].dtype, **meant) - exact).abs().max().item()
        rounding = torch.finfo(tensors[0].dtype).eps * exact.abs().max().item()
        self.assertEqual(actual.shape, exact.shape)
        self.assertLess((actual.double() - exact).abs().max().item(), 2 * plain_error + 2 * rounding)


class Masks(OnGpu):
    @staticmethod
    def cases():
        """Of each the options, and which keys they show."""
        batch, _, query, key = places()
        shown = torch.rand((BATCH, 1, QUERIES, KEYS), device="cuda") < 0.3
        documents = (torch.arange(KEYS, device="cuda") // torch.tensor([[70], [33]], device="cuda")).int()
        prefix = torch.tensor([0, 250], dtype=torch.int32, device="cuda")
        tree = torch.randint(-(2**62), 2**62, (1, QUERIES, (QUERIES + 63) // 64), device="cuda")
        node = (key - (KEYS - QUERIES)).clamp(min=0)
        of_tree = tree[0, query.clamp(max=QUERIES - 1), node // 64] >> node % 64 & 1 == 1
        mask = flashjit.Mask("id(batch, key) < limit && (query + key) % 3 != 0", id=documents, limit=4)
        return {
            "boolean_mask": ({"boolean_mask": shown}, shown),
            "documents": (
                {"documents": documents},
                documents[:, None, own_key().flatten(), None] == documents[:, None, None, :],
            ),
            "prefix": ({"prefix": prefix}, (key <= own_key()) | (key < prefix[batch])),
            "tree": ({"tree": tree}, (key < KEYS - QUERIES) | of_tree),
            "mask": ({"mask": mask}, (documents[:, None, None, :] < 4) & ((query + key) % 3 != 0)),
            "mask and boolean_mask": (
                {"mask": "key / 64 == query / 64 || key < 16", "boolean_mask": shown},
                shown & ((key // 64 == query // 64) | (key < 16)),
            ),
        }  # fmt: skip

    def test_numbers(self):
        causal_mask = places()[3] <= own_key()
        for head_dim in (64, 128):
            for dtype in (torch.bfloat16, torch.float16):
                tensors = make_qkv(head_dim, dtype)
                for name, (options, shown) in self.cases().items():
                    for causal in (False, True):
                        with self.subTest(name, head_dim=head_dim, dtype=dtype, causal=causal):
                            seen = shown & causal_mask if causal and name != "prefix" else shown
                            out = flashjit.attention(*tensors, causal=causal, **options)
                            self.assert_close(out, tensors, shown=seen)

    def test_block_masks(self):
        tensors = make_qkv()
        for name, (options, shown) in self.cases().items():
            if name == "prefix":
                continue
            with self.subTest(name):
                blocks = flashjit.block_mask(*tensors[:2], **options)
                self.assertEqual((blocks.dtype, blocks.device), (torch.int32, tensors[0].device))
                self.assertEqual(tuple(blocks.shape[2:]), ((QUERIES + 63) // 64, 2, (KEYS + 511) // 512))
                self.assertEqual(blocks.shape[1], 1)  # for all heads
                out = flashjit.attention(*tensors, block_mask=blocks, **options)
                self.assert_close(out, tensors, shown=shown)
                again = flashjit.block_mask(*tensors[:2], into=torch.full_like(blocks, -1), **options)
                self.assertTrue(torch.equal(again, blocks))

    def test_block_mask_is_made_on_the_current_stream(self):
        tensors = make_qkv()
        wanted = (torch.arange(KEYS, device="cuda") // 50).int().unsqueeze(0)
        expected = flashjit.attention(*tensors, documents=wanted)
        documents = torch.zeros_like(wanted)
        flashjit.block_mask(*tensors[:2], documents=documents)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            documents.copy_(wanted)
            blocks = flashjit.block_mask(*tensors[:2], documents=documents)
            out = flashjit.attention(*tensors, documents=documents, block_mask=blocks)
        stream.synchronize()
        self.assertLess((out.double() - expected.double()).abs().max().item(), 0.02)

    def test_masks_of_scaled_dot_product_attention(self):
        query, key, value = (tensor.transpose(1, 2) for tensor in make_qkv())
        shown = torch.rand((BATCH, 1, QUERIES, KEYS), device="cuda") < 0.5
        bias = torch.randn((1, HEADS, QUERIES, KEYS), dtype=torch.bfloat16, device="cuda")
        for mask, meant in ((shown, {"shown": shown}), (bias, {"change": added(bias)})):
            with self.subTest(dtype=mask.dtype):
                out = flashjit.torch.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
                self.assert_close(out.transpose(1, 2), make_qkv(), **meant)
                peer = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
                self.assertLess((out - peer).abs().max().item(), 0.05)


class Scores(OnGpu):
    def test_biases_of_every_dtype_and_shape(self):
        tensors = make_qkv()
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            for shape in ((BATCH, HEADS, QUERIES, KEYS), (1, HEADS, 1, KEYS), (BATCH, 1, QUERIES, KEYS)):
                with self.subTest(dtype=dtype, shape=shape):
                    bias = torch.randn(shape, device="cuda").to(dtype)
                    self.assert_close(flashjit.attention(*tensors, bias=bias), tensors, change=added(bias))

    def test_captures_of_every_dtype(self):
        tensors = make_qkv()
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.bool):
            values = (torch.randn((HEADS, KEYS), device="cuda") * 2).to(dtype)
            score = flashjit.Score("score + 0.5f * float(value(head, key))", value=values)
            meant = added(0.5 * values.float().view(1, HEADS, 1, KEYS))
            with self.subTest(dtype=dtype):
                self.assert_close(flashjit.attention(*tensors, score=score), tensors, change=meant)

    def test_captured_views_are_read_in_place(self):
        tensors = make_qkv()
        memory = torch.randn((KEYS, 2 * HEADS), device="cuda")
        for name, view in {"transposed": memory[:, :HEADS].T, "apart": memory[:, ::2].T,
                           "repeated": memory[:1, :1].expand(HEADS, KEYS)}.items():  # fmt: skip
            with self.subTest(name):
                out = flashjit.attention(*tensors, score=flashjit.Score("score + a(head, key)", a=view))
                self.assert_close(out, tensors, change=added(view[None, :, None, :]))

    def test_new_values_compile_nothing(self):
        tensors = make_qkv()
        score = lambda table, tilt: flashjit.Score("score - tilt * table(head) * abs(query - key)",
                                                   table=table, tilt=tilt)  # fmt: skip
        table = torch.rand(HEADS, device="cuda") / 8
        flashjit.attention(*tensors, score=score(table, 0.5))
        compiles = flashjit.counters()["compiles"]
        _, _, query, key = places()
        for tilt in (0.25, 2.0):
            for slopes in (table, 3 * table):
                out = flashjit.attention(*tensors, score=score(slopes, tilt))
                distance = -tilt * slopes.view(1, HEADS, 1, 1) * (query - key).abs()
                self.assert_close(out, tensors, change=added(distance))
        self.assertEqual(flashjit.counters()["compiles"], compiles)

    def test_a_captured_tensor_may_be_dropped_after_the_call(self):
        tensors = make_qkv()
        values = torch.randn((HEADS, KEYS), device="cuda")
        meant = added(values.view(1, HEADS, 1, KEYS).clone())
        score = flashjit.Score("score + a(head, key)", a=values.clone())
        torch.cuda._sleep(50_000_000)
        out = flashjit.attention(*tensors, score=score)
        del score
        torch.full((HEADS, KEYS), torch.nan, device="cuda")  # may get its memory
        self.assert_close(out, tensors, change=meant)


class Compiled(OnGpu):
    def test_functions_are_in_one_graph(self):
        tensors = make_qkv()

        def attend(q, k, v, table, limit):
            score = flashjit.Score("score + table(head)", table=table * 2)
            return flashjit.torch.attention(q, k, v, score=score, mask=flashjit.Mask("key < limit", limit=limit))

        torch.compiler.reset()
        compiled = torch.compile(attend, fullgraph=True)
        for limit in (40, 300):
            table = torch.randn(HEADS, device="cuda")
            shown = places()[3] < limit
            meant = added(2 * table.view(1, HEADS, 1, 1))
            self.assert_close(compiled(*tensors, table, limit), tensors, change=meant, shown=shown)

    def test_block_mask_from_outside_of_the_graph(self):
        tensors = make_qkv()
        mask = flashjit.Mask("key / 64 == query / 64 || key < kept", kept=16)
        blocks = flashjit.block_mask(*tensors[:2], mask=mask)
        torch.compiler.reset()
        compiled = torch.compile(
            lambda q, k, v: flashjit.torch.attention(q, k, v, mask=mask, block_mask=blocks), fullgraph=True
        )
        _, _, query, key = places()
        self.assert_close(compiled(*tensors), tensors, shown=(key // 64 == query // 64) | (key < 16))

    def test_operator_passes_the_checks_of_pytorch(self):
        of_heads = torch.ones(HEADS, device="cuda")
        options = {"score": "a(head) * score + b", "score_captures": ["a", "b"], "score_tensors": [of_heads],
                   "score_numbers": [0.5], "mask": "key < 99",
                   "bias": torch.zeros((1, 1, 1, KEYS), device="cuda")}  # fmt: skip
        torch.library.opcheck(torch.ops.flashjit.attention_forward.default, make_qkv(), options)


class BadInput(OnGpu):
    def refuse(self, kind, message, **options):
        tensors = make_qkv()
        with self.assertRaisesRegex(kind, message) as caught:
            flashjit.attention(*tensors, **options)
        print(f"{type(caught.exception).__name__}: {caught.exception}")
        self.assert_close(flashjit.attention(*tensors), tensors)

    def test_says_what_is_wrong(self):
        bias = torch.zeros((1, 1, 1, KEYS), device="cuda")
        self.refuse(flashjit.CompileFailed, "^score: line 1, column 9: ", score="score + nothing")
        self.refuse(flashjit.CompileFailed, "^mask: line 2, column 1: ", mask="key <\nthere")
        self.refuse(flashjit.InvalidArgument, "^score: ", score='asm("")')
        self.refuse(flashjit.InvalidArgument, "a", score=flashjit.Score("score + a(0)", a=torch.ones(1)))  # on the CPU
        self.refuse(flashjit.InvalidArgument, "^bias: ", bias=bias.cpu())
        self.refuse(flashjit.InvalidArgument, "^bias: ", bias=bias[..., 1:])
        self.refuse(flashjit.InvalidArgument, "^documents: .*i32",
                    documents=torch.zeros((1, KEYS), dtype=torch.int64, device="cuda"))  # fmt: skip
        self.refuse(flashjit.InvalidArgument, "^block_mask: ",
                    block_mask=torch.zeros((1, 1, 1, 2, 1), dtype=torch.int32, device="cuda"))  # fmt: skip

    def test_gradients_are_refused(self):
        bias = torch.zeros((1, 1, 1, KEYS), device="cuda", requires_grad=True)
        self.refuse(flashjit.Unsupported, "^bias: must not require a gradient", bias=bias)
        table = torch.zeros(HEADS, device="cuda", requires_grad=True)
        score = flashjit.Score("score + a(head)", a=table)
        self.refuse(flashjit.Unsupported, "must not require a gradient", score=score)
        with self.assertRaisesRegex(flashjit.Unsupported, "must not require a gradient"):
            flashjit.torch.attention(*make_qkv(), score=score).sum().backward()


if __name__ == "__main__":
    unittest.main()
