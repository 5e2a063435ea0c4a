# SPDX-License-Identifier: Apache-2.0
"""flashjit.vllm on an engine that emulates, against attention in double precision. vLLM is that of tests/python/stubs
where it is not installed: the backend is called as vLLM calls it, and no model is served. Needs PyTorch, NVRTC and
Python 3.10, as vLLM does."""

import functools
import importlib
import importlib.util
import pathlib
import re
import subprocess
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch cannot be imported: {error}") from error
if sys.version_info < (3, 10):
    raise unittest.SkipTest("vLLM 0.33 needs Python 3.10")
if importlib.util.find_spec("vllm") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))

import flashjit
import flashjit.vllm.backend
from flashjit.vllm.backend import FlashJITBackend, FlashJITImpl
from support import emulating_engine, reference
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDING = {torch.float16: 4e-3, torch.bfloat16: 2e-2}  # of P and of the output, which are about 1
BLOCK, BLOCKS = 16, 24
PREPARE = flashjit.prepare  # which tests put another function for
MIXED = ((1, 37), (9, 9), (1, 1), (5, 50), (1, 16))  # queries and keys of each request: new tokens, prompts, and parts


def setUpModule():
    """All calls on the default engine go to the emulating one; what builders prepare is noted, and first calls make
    it."""
    for name in ("attention", "append", "plan"):
        patch = mock.patch.object(flashjit, name, functools.partial(getattr(flashjit, name), engine=emulating_engine()))
        patch.start()
        unittest.addModuleCleanup(patch.stop)
    patch = mock.patch.object(flashjit, "prepare")
    patch.start()
    unittest.addModuleCleanup(patch.stop)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def make_cache(heads, dim, dtype, layout=KVCacheLayout.LBNHC):
    """[blocks, heads, block_size, 2 * dim], of the second of two layers, full of NaN."""
    shape = (2, BLOCKS, heads, BLOCK, 2 * dim)
    physical = torch.full([shape[axis] for axis in layout.stride_order], float("nan"), dtype=dtype)
    logical = [layout.stride_order.index(axis) for axis in range(5)]
    return physical.permute(logical)[1]


class Layer:
    """What an impl and a builder see of vLLM's attention layer, with a cache."""

    def __init__(self, heads=4, heads_kv=2, dim=64, dtype=torch.float16, layout=KVCacheLayout.LBNHC, scale=None,
                 k_scale=1.0, v_scale=1.0, **options):
        self.dtype, self.options = dtype, options
        self.impl = FlashJITImpl(heads, dim, scale or dim**-0.5, heads_kv, **options)
        formats = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
        self.format = formats.get(options.get("kv_cache_dtype"))
        cache = make_cache(heads_kv, dim, dtype, layout)
        self.kv_cache = cache.to(self.format).view(torch.uint8) if self.format else cache
        self._k_scale, self._v_scale = torch.tensor(k_scale), torch.tensor(v_scale)

    def rows(self):
        """The cache as numbers: keys and values of [blocks, block_size, heads, dim]."""
        cache = self.kv_cache.view(self.format) if self.format else self.kv_cache
        halves = cache.transpose(1, 2).double().split(self.impl.head_size, dim=-1)
        return [rows * scale.unsqueeze(-1) for rows, scale in zip(halves, (self._k_scale, self._v_scale))]


def make_builder(*layers, dtype=torch.float16):
    by_name = {f"layers.{i}.attn": layer for i, layer in enumerate(layers)}
    config = SimpleNamespace(model_config=SimpleNamespace(dtype=dtype),
                             compilation_config=SimpleNamespace(static_forward_context=by_name))
    impl = layers[0].impl
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=impl.num_kv_heads, head_size=impl.head_size,
                             dtype=layers[0].kv_cache.dtype)
    return FlashJITBackend.get_builder_cls()(spec, list(by_name), config, torch.device("cpu"))


class Batch:
    """Requests of these numbers of queries and keys, with blocks in any order, and what vLLM says of them. padded: rows
    and requests at the end that are none, as a graph of that size has them."""

    def __init__(self, lengths=MIXED, padded_tokens=0, padded_requests=0, width=None, seed=5, **common):
        self.queries, self.keys = ([length[i] for length in lengths] for i in (0, 1))
        self.tokens = sum(self.queries)
        starts = torch.tensor([0, *self.queries]).cumsum(0)
        width = width or max(self.keys) // BLOCK + 2
        order = iter((torch.randperm(BLOCKS - 1, generator=torch.Generator().manual_seed(seed)) + 1).tolist())
        self.table = torch.zeros(len(lengths) + padded_requests, width, dtype=torch.int32)  # block 0 is nobody's
        for b, keys in enumerate(self.keys):
            for i in range(-(-keys // BLOCK)):
                self.table[b, i] = next(order)
        slots = [self.slot(b, keys - queries + i) for b, (queries, keys) in enumerate(lengths) for i in range(queries)]
        self.slot_mapping = torch.tensor(slots + [-1] * padded_tokens)
        ends = starts[-1:].expand(padded_requests)
        self.common = CommonAttentionMetadata(
            query_start_loc=torch.cat([starts, ends]).int(), query_start_loc_cpu=torch.cat([starts, ends]).int(),
            seq_lens=int32(*self.keys, *[0] * padded_requests), num_reqs=len(lengths) + padded_requests,
            num_actual_tokens=self.tokens + padded_tokens, max_query_len=max(self.queries),
            max_seq_len=max(self.keys) + 11, block_table_tensor=self.table, slot_mapping=self.slot_mapping,
            **common)  # fmt: skip

    def slot(self, request, key):
        return int(self.table[request, key // BLOCK]) * BLOCK + key % BLOCK

    def inputs(self, layer, seed=7):
        """query, key and value of the tokens, with a row more than there are, of NaN; keys before are in the cache."""
        generator = torch.Generator().manual_seed(seed)
        normal = lambda *shape: torch.randn(shape, generator=generator).to(layer.dtype)
        impl = layer.impl
        heads = (impl.num_heads, impl.num_kv_heads, impl.num_kv_heads)
        rows = [normal(len(self.slot_mapping) + 1, count, impl.head_size) for count in heads]
        for part in rows:
            part[self.tokens:] = float("nan")
        before = [self.slot(b, i) for b, (queries, keys) in enumerate(zip(self.queries, self.keys))
                  for i in range(keys - queries)]
        if impl.attn_type == AttentionType.DECODER and before:
            old = [normal(len(before), impl.num_kv_heads, impl.head_size) for _ in range(2)]
            impl.do_kv_cache_update(layer, *old, layer.kv_cache, torch.tensor(before))
        return rows

    def expected(self, layer, query, causal=True, **options):
        """Of each request by itself, from what the cache has now, one behind the other."""
        starts, (k, v) = [0, *torch.tensor(self.queries).cumsum(0).tolist()], layer.rows()
        outs = []
        for b, keys in enumerate(self.keys):
            q = query[starts[b]:starts[b + 1]].double()
            slots = torch.tensor([self.slot(b, i) for i in range(keys)])
            own = [rows.flatten(0, 1)[slots] for rows in (k, v)]
            is_causal = causal if isinstance(causal, bool) else bool(causal[b])
            mask = options if "window" in options else {**options, "causal": is_causal}
            outs.append(torch.from_numpy(reference(*(rows[None].numpy() for rows in (q, *own)), **mask)[0][0]))
        return torch.cat(outs)


def serve(layer, batch, metadata, seed=7):
    """(output, query), as vLLM calls a layer: the cache first. Rows that nobody writes are 7."""
    query, key, value = batch.inputs(layer, seed)
    output = torch.full_like(query, 7.0)
    with torch.inference_mode():
        layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, metadata.slot_mapping)
        returned = layer.impl.forward(layer, query, key, value, layer.kv_cache, metadata, output)
    assert returned is output
    return output, query


class Backend(unittest.TestCase):
    def assert_close(self, actual, expected, limit):
        self.assertEqual(actual.shape, expected.shape)
        difference = (actual.double() - expected).abs()
        self.assertTrue(bool((difference < limit).all()), f"differs by {difference.max().item()}")  # NaN fails

    def check(self, layer, batch=None, causal=True, **options):
        """options: of the reference."""
        batch = batch or Batch()
        metadata = make_builder(layer, dtype=layer.dtype).build(0, batch.common)
        output, query = serve(layer, batch, metadata)
        expected = batch.expected(layer, query, causal=causal, **options)
        self.assert_close(output[: batch.tokens], expected, ROUNDING[layer.dtype])
        self.assertTrue(bool((output[batch.tokens:] == 7).all()), "wrote a row that is of no request")


class Numbers(Backend):
    def test_decoding_and_prefill_in_one_batch(self):
        for dtype in (torch.float16, torch.bfloat16):
            with self.subTest(dtype):
                self.check(Layer(dtype=dtype))

    def test_caches_in_all_layouts_of_vllm(self):
        for layout in KVCacheLayout:
            with self.subTest(layout):
                self.check(Layer(layout=layout))

    def test_one_head_of_keys_whose_stride_says_nothing(self):
        layer = Layer(heads_kv=1)
        strides = layer.kv_cache.stride()
        layer.kv_cache = layer.kv_cache.as_strided(layer.kv_cache.shape, (strides[0], 1, *strides[2:]),
                                                   layer.kv_cache.storage_offset())
        self.check(layer)

    def test_head_sizes(self):
        for dim in (8, 40, 256, 512):
            with self.subTest(dim):
                self.check(Layer(dim=dim))

    def test_a_scale_of_the_model(self):
        self.check(Layer(scale=0.3), scale=0.3)

    def test_a_sliding_window_counts_the_own_key(self):
        self.check(Layer(sliding_window=6), window=(5, 0))

    def test_blocks_before_a_window_may_be_the_null_block(self):
        layer, batch = Layer(sliding_window=6), Batch()
        layer.kv_cache[0] = 0  # as vLLM makes its memory, and nobody writes there
        metadata = make_builder(layer).build(0, batch.common)
        query, key, value = batch.inputs(layer)
        layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, batch.slot_mapping)
        expected = batch.expected(layer, query, window=(5, 0))
        metadata.block_table[0, :1] = metadata.block_table[3, :2] = 0  # vLLM frees what no query sees any more
        output = layer.impl.forward(layer, query, key, value, layer.kv_cache, metadata, torch.empty_like(query))
        self.assert_close(output[: batch.tokens], expected, 4e-3)

    def test_a_sliding_window_without_a_causal_mask_is_open_to_both_sides(self):
        self.check(Layer(sliding_window=6), Batch(causal=False), causal=False, window=(5, 5))

    def test_a_cap_of_scores(self):
        self.check(Layer(logits_soft_cap=0.7), softcap=0.7)

    def test_alibi(self):
        slopes = [0.5, 0.25, 0.125, 0.0625]
        self.check(Layer(alibi_slopes=slopes), alibi_slopes=torch.tensor(slopes).numpy())

    def test_sinks_of_any_dtype_that_are_loaded_after_the_layer_is_made(self):
        sinks = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16), requires_grad=False)
        layer = Layer(sinks=sinks)
        sinks.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0]))
        self.check(layer, sinks=sinks.float().numpy())

    def test_all_of_it_at_once(self):
        slopes, sinks = [0.5, 0.25, 0.125, 0.0625], torch.tensor([0.5, -1.0, 2.0, 0.0])
        layer = Layer(alibi_slopes=slopes, sinks=sinks, sliding_window=20, logits_soft_cap=3.0)
        self.check(layer, alibi_slopes=torch.tensor(slopes).numpy(), sinks=sinks.numpy(), window=(19, 0), softcap=3.0)

    def test_no_causal_mask(self):
        self.check(Layer(), Batch(causal=False), causal=False)

    def test_a_causal_mask_for_some_requests(self):
        causal = int32(1, 0, 1, 0, 0)
        self.check(Layer(), Batch(causal=causal), causal=causal)

    def test_a_cache_of_8_bits_with_a_scale_of_all_and_of_each_head(self):
        for scales in ({"k_scale": 0.25, "v_scale": 0.5}, {"k_scale": [0.25, 0.5], "v_scale": [0.5, 0.125]},
                       {"k_scale": [0.25], "v_scale": [0.5]}):
            for name in ("fp8", "fp8_e4m3", "fp8_e5m2"):
                with self.subTest(name, **scales):
                    self.check(Layer(kv_cache_dtype=name, **scales))

    def test_a_cache_of_e4m3_in_other_layouts(self):
        for layout in (KVCacheLayout.LBHNC, KVCacheLayout.BLHNC):
            with self.subTest(layout):
                self.check(Layer(kv_cache_dtype="fp8", k_scale=0.25, v_scale=0.5, layout=layout))

    def test_rows_and_requests_that_pad_a_graph(self):
        self.check(Layer(), Batch(padded_tokens=3, padded_requests=2))
        self.check(Layer(), Batch(padded_tokens=3, padded_requests=2, causal=int32(1, 0, 1, 0, 0, 0, 0)),
                   causal=int32(1, 0, 1, 0, 0))

    def test_encoders_read_keys_and_values_that_are_in_no_cache(self):
        for kind in (AttentionType.ENCODER, AttentionType.ENCODER_ONLY):
            for window in (None, 4):
                with self.subTest(kind, window=window):
                    layer, batch = Layer(attn_type=kind, sliding_window=window), Batch(((5, 5), (1, 1), (20, 20)))
                    metadata = make_builder(layer).build(0, batch.common)
                    query, key, value = batch.inputs(layer)
                    output = torch.full_like(query, 7.0)
                    layer.impl.forward(layer, query, key, value, torch.empty(0), metadata, output)
                    mask = {} if window is None else {"window": (3, 3)}
                    parts = zip(*(rows[:26].double().split(batch.queries) for rows in (query, key, value)))
                    expected = [reference(*(rows[None].numpy() for rows in part), **mask)[0][0] for part in parts]
                    self.assert_close(output[:26], torch.cat(list(map(torch.from_numpy, expected))), 4e-3)
                    self.assertTrue(bool((output[26:] == 7).all()))

    def test_cross_attention_sees_all_keys_of_the_encoder(self):
        layer, batch = Layer(attn_type=AttentionType.ENCODER_DECODER), Batch(((1, 37), (4, 3), (1, 16)), causal=False)
        of_encoder = Batch([(keys, keys) for keys in batch.keys])
        _, key, value = of_encoder.inputs(layer)
        layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, of_encoder.slot_mapping)
        metadata = make_builder(layer).build(0, batch.common)
        query, *_ = batch.inputs(layer, seed=8)
        output = torch.full_like(query, 7.0)
        layer.impl.forward(layer, query, None, None, layer.kv_cache, metadata, output)
        self.assert_close(output[:6], batch.expected(layer, query, causal=False), 4e-3)


class Updates(Backend):
    def test_only_rows_of_tokens_with_a_slot_are_written(self):
        for layout in (KVCacheLayout.LBNHC, KVCacheLayout.LBHNC):
            with self.subTest(layout):
                layer = Layer(layout=layout)
                key, value = (torch.randn(4, 2, 64).half() for _ in range(2))
                layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, torch.tensor([35, -1, 48]))
                for rows, given in zip(layer.rows(), (key, value)):
                    self.assertTrue(torch.equal(rows[2, 3], given[0].double()))
                    self.assertTrue(torch.equal(rows[3, 0], given[2].double()))
                    self.assertEqual(int((~rows.isnan()).any(-1).any(-1).sum()), 2)

    def test_no_token_at_all(self):
        layer = Layer()
        row = torch.randn(4, 2, 64).half()
        layer.impl.do_kv_cache_update(layer, row, row, layer.kv_cache, torch.empty(0, dtype=torch.int64))
        self.assertTrue(bool(layer.kv_cache.isnan().all()))

    def test_a_builder_writes_nothing(self):
        layer = Layer()
        make_builder(layer)
        self.assertTrue(bool(layer.kv_cache.isnan().all()))


class Builders(Backend):
    def counted(self, name, owner=flashjit):
        patch = mock.patch.object(owner, name, autospec=True, side_effect=getattr(owner, name))
        self.addCleanup(patch.stop)
        return patch.start()

    def test_nothing_on_the_device_is_read(self):
        builder, common = make_builder(Layer()), Batch().common
        for name in ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"):
            setattr(common, name, getattr(common, name).to("meta"))  # which has no values
        metadata = builder.build(0, common)
        self.assertTrue(metadata.seq_lens.is_meta)
        self.assertEqual(metadata.num_actual_tokens, 17)

    def test_layers_of_one_problem_share_a_plan(self):
        layers = [Layer(), Layer(scale=0.5), Layer(sliding_window=6), Layer(sliding_window=6)]
        batch, plan = Batch(), self.counted("plan")
        metadata = make_builder(*layers).build(0, batch.common)
        for layer, options in zip(layers, ({}, {"scale": 0.5}, {"window": (5, 0)}, {"window": (5, 0)})):
            output, query = serve(layer, batch, metadata)
            self.assert_close(output[: batch.tokens], batch.expected(layer, query, **options), 4e-3)
        self.assertEqual(plan.call_count, 2)

    def test_a_second_forward_with_the_same_metadata_goes_by_the_lengths_of_then(self):
        layers, batch = [Layer(), Layer()], Batch()
        metadata = make_builder(*layers).build(0, batch.common)
        for layer in layers:
            serve(layer, batch, metadata)
        later = Batch([(queries, keys - 1 if keys > queries else keys) for queries, keys in MIXED])
        metadata.seq_lens.copy_(later.common.seq_lens)
        metadata.slot_mapping.copy_(later.slot_mapping)
        for layer in layers:
            output, query = serve(layer, later, metadata)
            self.assert_close(output[: later.tokens], later.expected(layer, query), 4e-3)

    def test_another_table_of_blocks(self):
        layer, batch, other = Layer(), Batch(), Batch(seed=6)
        builder = make_builder(layer)
        metadata = builder.build(0, batch.common)
        serve(layer, batch, metadata)
        self.assertTrue(builder.supports_update_block_table)
        updated = builder.update_block_table(metadata, other.table, other.slot_mapping)
        output, query = serve(layer, other, updated, seed=8)
        self.assert_close(output[: other.tokens], other.expected(layer, query), 4e-3)

    def test_kernels_are_made_with_the_builder(self):
        engine = emulating_engine()
        with mock.patch.object(flashjit, "prepare", functools.partial(PREPARE, engine=engine)):
            layer = Layer(layout=KVCacheLayout.LBHNC)
            builder = make_builder(layer)
        before = engine.counters()["compiles"]
        for batch in (Batch(), Batch(((1, 90),)), Batch(((70, 70), (60, 90)))):
            serve(layer, batch, builder.build(0, batch.common))
        self.assertEqual(engine.counters()["compiles"], before)

    def test_what_is_compiled_in_is_prepared(self):
        for options, wanted in (
            ({}, {}),
            ({"sliding_window": 5, "logits_soft_cap": 2.0}, {"window": True, "softcap": True}),
            ({"alibi_slopes": [1.0] * 4, "sinks": torch.zeros(4)}, {"alibi": True, "sinks": True}),
            ({"kv_cache_dtype": "fp8"}, {"e4m3": True}),
            ({"kv_cache_dtype": "fp8_e5m2"}, {"e4m3": True, "e5m2": True}),
            ({"attn_type": AttentionType.ENCODER_ONLY}, {"causal": False, "paged": False}),
        ):
            with self.subTest(**options):
                flashjit.prepare.reset_mock()
                make_builder(Layer(**options), Layer(**options))
                plain = dict.fromkeys(("window", "softcap", "alibi", "sinks", "e4m3", "e5m2"), False)
                plain |= {"causal": True, "ragged": True, "paged": True, "device": -1}
                flashjit.prepare.assert_called_once_with(torch.float16, 64, **{**plain, **wanted})


class Graphs(Backend):
    """What a graph does: at its capture layers are called once; at replays what they launched runs again, and reads the
    same tensors. Here a replay calls the layers again, with metadata that knows nothing of the replay but tensors."""

    def test_graphs_may_be_of_any_batch(self):
        builder = FlashJITBackend.get_builder_cls()
        self.assertIs(builder.get_cudagraph_support(None, None), AttentionCGSupport.ALWAYS)

    def test_replays_go_by_their_own_lengths(self):
        layers = [Layer(), Layer()]
        captured = Batch([(1, 16)] * 20, width=6)
        captured.common.max_query_len, captured.common.max_seq_len = 20, 96  # bounds for all batches of 20 tokens
        metadata = make_builder(*layers).build_for_cudagraph_capture(captured.common)
        with mock.patch.object(flashjit, "plan") as plan:
            for batch in (Batch([(1, 16)] * 20), Batch(MIXED, padded_tokens=3, padded_requests=15), Batch([(20, 33)])):
                self.replay(layers, metadata, batch)
        plan.assert_not_called()

    def replay(self, layers, metadata, batch):
        requests = batch.common.num_reqs
        metadata.query_start_loc.fill_(batch.tokens)[: requests + 1] = batch.common.query_start_loc
        metadata.seq_lens.zero_()[:requests] = batch.common.seq_lens
        metadata.block_table.zero_()[:requests, : batch.table.shape[1]] = batch.table
        metadata.slot_mapping.fill_(-1)[: len(batch.slot_mapping)] = batch.slot_mapping
        for layer in layers:
            output, query = serve(layer, batch, metadata)
            self.assert_close(output[: batch.tokens], batch.expected(layer, query), 4e-3)
            self.assertTrue(bool((output[batch.tokens:] == 7).all()))

    def test_graphs_of_one_size_share_a_plan_and_others_have_their_own(self):
        builder = make_builder(Layer(), Layer())
        plans = [next(iter(builder.build_for_cudagraph_capture(batch.common).plans.values())).plan
                 for batch in (Batch(), Batch(), Batch(padded_tokens=4))]
        self.assertIs(plans[0], plans[1])
        self.assertIsNot(plans[0], plans[2])

    def test_encoders_are_captured_without_a_cache(self):
        layer = Layer(attn_type=AttentionType.ENCODER_ONLY)
        layer.kv_cache = torch.tensor([])
        metadata = make_builder(layer).build_for_cudagraph_capture(Batch(((5, 5), (9, 9))).common)
        self.assertEqual(len(metadata.plans), 1)

    def test_no_plan_is_made_under_capture_and_none_taken_that_ends_before_the_graph(self):
        layer, batch = Layer(), Batch()
        metadata = make_builder(layer).build(0, batch.common)
        self.check_capture(layer, batch, metadata)
        serve(layer, batch, metadata)  # makes one
        self.check_capture(layer, batch, metadata)

    def check_capture(self, layer, batch, metadata):
        with mock.patch.object(flashjit.vllm.backend, "_is_captured", return_value=True):
            with mock.patch.object(flashjit, "plan") as plan, mock.patch.object(flashjit.Plan, "update") as update:
                output, query = serve(layer, batch, metadata)
        plan.assert_not_called()
        update.assert_not_called()
        self.assert_close(output[: batch.tokens], batch.expected(layer, query), 4e-3)


HOPPER = DeviceCapability(9, 0)
CONFIGURATION = {
    "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": None, "use_mla": False,
    "has_sink": False, "use_sparse": False, "use_mm_prefix": False, "use_per_head_quant_scales": False,
    "device_capability": HOPPER, "attn_type": AttentionType.DECODER,
}  # fmt: skip


def reasons(**changes):
    return FlashJITBackend.validate_configuration(**{**CONFIGURATION, **changes})


class Selection(unittest.TestCase):
    def test_what_it_can_is_selected(self):
        for changes in (
            {}, {"head_size": 8}, {"head_size": 40}, {"head_size": 256}, {"head_size": 512}, {"dtype": torch.float16},
            {"kv_cache_dtype": "bfloat16"}, {"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"},
            {"kv_cache_dtype": "fp8_e5m2"},
            {"kv_cache_dtype": None}, {"block_size": 16}, {"block_size": 48}, {"has_sink": True},
            {"kv_cache_dtype": "fp8", "use_per_head_quant_scales": True}, {"has_sliding_window": True},
            {"use_non_causal": True}, {"device_capability": DeviceCapability(8, 0), "has_sink": True},
            {"device_capability": DeviceCapability(12, 0)}, {"use_kv_connector": True},
            *({"attn_type": kind} for kind in AttentionType),
        ):  # fmt: skip
            with self.subTest(**changes):
                self.assertEqual(reasons(**changes), [])

    def test_what_it_cannot_is_refused(self):
        for changes in (
            {"head_size": 520}, {"head_size": 20}, {"dtype": torch.float32},
            {"kv_cache_dtype": "nvfp4"}, {"kv_cache_dtype": "fp8_per_token_head"}, {"kv_cache_dtype": "float16"},
            {"block_size": 8}, {"use_mla": True}, {"use_sparse": True}, {"use_mm_prefix": True},
            {"use_batch_invariant": True}, {"use_pcp": True}, {"use_dcp": True}, {"use_rswa": True},
            {"device_capability": DeviceCapability(7, 5)}, {"device_capability": DeviceCapability(8, 7)},
            {"kv_cache_dtype": "fp8", "device_capability": DeviceCapability(8, 9)},
            {"kv_cache_dtype": "fp8", "head_size": 40},
        ):  # fmt: skip
            with self.subTest(**changes):
                self.assertEqual(len(reasons(**changes)), 1)

    def test_reasons_of_combinations_name_an_argument(self):
        self.assertIn("kv_cache_dtype: must be that of the model, torch.bfloat16, fp8 or fp8_e5m2, was float16",
                      reasons(kv_cache_dtype="float16"))
        self.assertIn("head_size: must be a multiple of 16 up to 256 with a cache of fp8, was 40",
                      reasons(kv_cache_dtype="fp8", head_size=40))
        self.assertIn("kv_cache_dtype: must not be fp8 but on compute capability 9.0",
                      reasons(kv_cache_dtype="fp8", device_capability=DeviceCapability(12, 0)))
        self.assertIn("kv_cache_dtype: must not be fp8_e5m2 but on compute capability 9.0",
                      reasons(kv_cache_dtype="fp8_e5m2", device_capability=DeviceCapability(8, 9)))

    def test_blocks_are_multiples_of_16_and_any_layout_will_do(self):
        self.assertEqual(FlashJITBackend.get_supported_kernel_block_sizes(), [MultipleOf(16)])
        self.assertIsNone(FlashJITBackend.supported_kv_cache_layouts())

    def test_the_cache_is_written_apart_from_forward(self):
        self.assertFalse(FlashJITBackend.forward_includes_kv_cache_update)
        self.assertFalse(FlashJITBackend.supports_alibi_sqrt())
        self.assertFalse(FlashJITImpl.supports_quant_query_input)
        self.assertFalse(FlashJITImpl.can_return_lse_for_decode)


class Refusals(unittest.TestCase):
    def refused(self, kind, message, call):
        with self.assertRaisesRegex(kind, f"^{message}"):
            call()

    def test_layers_that_there_are_no_kernels_for(self):
        for message, options in (("kv_cache_dtype: must be one of auto, .*, was int8", {"kv_cache_dtype": "int8"}),
                                 ("head_size: must be a multiple of 8 from 8 to 512, was 520", {"dim": 520})):
            self.refused(flashjit.Unsupported, message, lambda: Layer(**options))
        self.refused(flashjit.InvalidArgument, r"sinks: must be \(4,\), one for each head, was \(3,\)",
                     lambda: Layer(sinks=torch.zeros(3)))
        with self.assertRaisesRegex(TypeError, "chunk_lookback"):
            Layer(chunk_lookback=3)

    def test_outputs_are_not_quantised(self):
        layer, batch = Layer(), Batch()
        self.assertFalse(layer.impl.fused_output_quant_supported(None))
        metadata, rows = make_builder(layer).build(0, batch.common), batch.inputs(layer)
        for name in ("output_scale", "output_block_scale"):
            call = lambda: layer.impl.forward(layer, *rows, layer.kv_cache, metadata, rows[0], **{name: torch.ones(1)})
            self.refused(NotImplementedError, f"{name}: must be None, as outputs are not quantised, was a tensor", call)

    def test_batches_that_there_are_no_kernels_for(self):
        builder = make_builder(Layer())
        for name, value in (("mm_req_doc_ranges", {0: [(1, 3)]}), ("rswa_prefix_lens", int32(1)),
                            ("dcp_local_seq_lens", int32(1))):
            self.refused(flashjit.Unsupported, f"{name}: must be None, as there are no kernels for it, was given",
                         lambda: builder.build(0, Batch(**{name: value}).common))

    def test_a_causal_mask_of_some_requests_beside_a_window(self):
        layer, batch = Layer(sliding_window=5), Batch(causal=int32(1, 0, 1, 0, 0))
        metadata = make_builder(layer).build(0, batch.common)
        self.refused(flashjit.Unsupported, "causal: must be a bool beside a sliding_window, was a tensor",
                     lambda: serve(layer, batch, metadata))

    def test_errors_of_the_library_have_vllms_words(self):
        layer, batch = Layer(), Batch()
        metadata = make_builder(layer).build(0, batch.common)
        metadata.block_table = metadata.block_table.long()
        self.refused(flashjit.InvalidArgument, "block_table: ", lambda: serve(layer, batch, metadata))
        self.refused(flashjit.InvalidArgument, "slot_mapping: ", lambda: layer.impl.do_kv_cache_update(
            layer, *batch.inputs(layer)[1:], layer.kv_cache, batch.slot_mapping.float()))

    def test_a_profiling_run_gives_zeros(self):
        layer, output = Layer(), torch.full((3, 4, 64), float("nan"), dtype=torch.float16)
        rows = torch.zeros(3, 4, 64, dtype=torch.float16)
        layer.impl.forward(layer, rows, rows, rows, torch.empty(0), None, output)
        self.assertTrue(bool((output == 0).all()))


class Registration(unittest.TestCase):
    def setUp(self):
        self.addCleanup(AttentionBackendEnum.CUSTOM.clear_override)
        AttentionBackendEnum.CUSTOM.clear_override()

    def test_the_backend_is_found_by_its_name_and_others_are_left_alone(self):
        for _ in range(2):  # vLLM calls it in each process, and may do so again
            flashjit.vllm.register()
        self.assertIs(AttentionBackendEnum[FlashJITBackend.get_name()].get_class(), FlashJITBackend)
        self.assertFalse(AttentionBackendEnum.FLASH_ATTN.is_overridden())

    def test_a_custom_backend_of_another_package_stays(self):
        importlib.import_module("vllm.v1.attention.backends.registry").register_backend(
            AttentionBackendEnum.CUSTOM, "collections.OrderedDict")
        with self.assertLogs("flashjit.vllm", "WARNING") as logs:
            flashjit.vllm.register()
        self.assertEqual(AttentionBackendEnum.CUSTOM.get_path(), "collections.OrderedDict")
        self.assertIn("which is collections.OrderedDict; VLLM_PLUGINS=flashjit", logs.output[0])

    def test_another_vllm_is_told_of_and_goes_on(self):
        with mock.patch.dict(sys.modules, {"vllm.v1.attention.backends.registry": None}):
            with self.assertLogs("flashjit.vllm", "WARNING") as logs:
                flashjit.vllm.register()
        self.assertIn("it must be version 0.33", logs.output[0])

    def test_importing_the_plugin_imports_neither_vllm_nor_pytorch(self):
        program = "import sys, flashjit.vllm; sys.exit(any(name in sys.modules for name in ('vllm', 'torch')))"
        self.assertEqual(subprocess.run([sys.executable, "-c", program]).returncode, 0)

    def test_the_package_has_the_entry_point(self):
        text = (ROOT / "pyproject.toml").read_text()
        section = re.escape('[project.entry-points."vllm.general_plugins"]')
        found = re.search(rf'^{section}\nflashjit = "([\w.]+):(\w+)"$', text, re.MULTILINE)
        self.assertIs(getattr(importlib.import_module(found[1]), found[2]), flashjit.vllm.register)


if __name__ == "__main__":
    unittest.main()
