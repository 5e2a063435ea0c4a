# SPDX-License-Identifier: Apache-2.0
"""flashjit.jax under JAX's transformations, on an engine that emulates: arrays are in host memory, and shards on
devices that JAX makes of the CPU. Needs JAX 0.10 or later, NVRTC, and a build with handlers for JAX."""

import os
import pathlib
import re
import unittest
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")
try:
    import flashjit.jax
    import jax
except ImportError as error:
    raise unittest.SkipTest(str(error)) from error

import flashjit
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import emulating_engine, make_inputs, reference

ROUNDING = 4e-3  # of P, of sums and of the output to float16, for numbers of about 1
DEVICES = 4

jax.config.update("jax_num_cpu_devices", DEVICES)


def setUpModule():
    flashjit.jax._use_engine(emulating_engine())
    unittest.addModuleCleanup(flashjit.jax._use_engine, None)


def make_qkv(queries=32, keys=32, heads=4, heads_kv=2, batch=2, seed=0):
    """As flashjit.jax.attention takes them."""
    return tuple(map(jnp.asarray, make_inputs((batch, queries, heads, 64), keys, heads_kv, seed)))


def normal(*shape, seed=5):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def to_loss(function):
    """A number that depends on each element of what the function gives in its own way."""

    def loss(*arrays):
        out = function(*arrays).astype(jnp.float32)
        return (out * jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)).sum()

    return loss


def gradients_of(function, *arrays):
    return jax.grad(to_loss(function), argnums=tuple(range(len(arrays))))(*arrays)


def of_jax(q, k, v, *arrays, **options):
    """What JAX computes in float32."""
    q, k, v = (array.astype(jnp.float32) for array in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, *arrays, implementation="xla", **options)


def causal(q, k, v):
    return flashjit.jax.attention(q, k, v, causal=True)


class JaxCase(unittest.TestCase):

    def assert_close(self, actual, expected, atol=ROUNDING):
        """Of one array, or of as many; gradients of shared arrays are sums, which round by their size."""
        if isinstance(actual, (tuple, list)):
            self.assertEqual(len(actual), len(expected))
            for one, other in zip(actual, expected):
                self.assert_close(one, other, atol)
            return
        actual, expected = (np.asarray(array, np.float64) for array in (actual, expected))
        self.assertEqual(actual.shape, expected.shape)
        np.testing.assert_allclose(actual, expected, atol=atol * max(1, np.abs(expected).max(initial=0)))


class Attention(JaxCase):

    def test_options_are_those_of_the_library(self):
        q, k, v = make_qkv(queries=16)
        shown = np.arange(32) % 5 != 2
        cases = (
            {},
            {"causal": True, "window": (7, 0)},
            {"chunk": 8, "softcap": 2.0, "scale": 0.5},
            {"alibi_slopes": np.float32([0.5, 0.25, -0.125, 0]), "sinks": np.array(normal(2, 4))},
            {"bias": np.array(normal(1, 4, 16, 32)), "boolean_mask": shown.reshape(1, 1, 1, 32)},
            {"documents": np.int32([[0] * 20 + [1] * 12]), "prefix": np.int32([3, 20])},
        )
        for options in cases:
            with self.subTest(list(options)):
                jitted = jax.jit(lambda q, k, v: flashjit.jax.attention(q, k, v, lse=True, **options))
                names = {"softcap": None, "chunk": None, "window": None, **options}
                self.assert_close(jitted(q, k, v), reference(*map(np.asarray, (q, k, v)), **names))

    def test_lengths_are_those_of_the_library(self):
        q, k, v = make_qkv(queries=1)
        used, padding = np.int32([9, 32]), np.int32([2, 0])
        out = flashjit.jax.attention(q, k, v, seqused_kv=used, leftpad_kv=padding)
        place = np.arange(32)
        shown = (place >= padding[:, None]) & (place < used[:, None])
        self.assert_close(out, reference(*map(np.asarray, (q, k, v)), boolean_mask=shown[:, None, None])[0])

    def test_bfloat16(self):
        q, k, v = (array.astype(jnp.bfloat16) for array in make_qkv())
        out = causal(q, k, v)
        self.assertEqual(out.dtype, jnp.bfloat16)
        self.assert_close(out, of_jax(q, k, v, is_causal=True), 2e-2)

    def test_one_compiled_function_serves_many_calls(self):
        jitted = jax.jit(causal)
        for seed in range(3):
            q, k, v = make_qkv(seed=seed)
            self.assert_close(jitted(q, k, v), of_jax(q, k, v, is_causal=True))
        self.assertEqual(jitted._cache_size(), 1)

    def test_there_may_be_no_rows_and_no_keys(self):
        q, k, v = make_qkv()
        self.assertEqual(causal(q[:0], k[:0], v[:0]).shape, (0, 32, 4, 64))
        self.assertFalse(np.asarray(causal(q, k[:, :0], v[:, :0])).any())


class Gradients(JaxCase):

    def test_are_those_of_jax_in_float32(self):
        for heads_kv in (4, 2, 1):
            with self.subTest(heads_kv=heads_kv):
                arrays = make_qkv(heads_kv=heads_kv)
                got = jax.jit(lambda *arrays: gradients_of(causal, *arrays))(*arrays)
                self.assertEqual([array.dtype for array in got], [jnp.float16] * 3)
                self.assert_close(got, gradients_of(lambda *arrays: of_jax(*arrays, is_causal=True), *arrays))

    def test_of_a_bias_that_batch_entries_and_queries_share(self):
        arrays = make_qkv()
        for shape in ((1, 4, 32, 32), (2, 1, 1, 32)):
            with self.subTest(shape):
                bias = normal(*shape)
                got = gradients_of(lambda q, k, v, bias: flashjit.jax.attention(q, k, v, bias=bias), *arrays, bias)
                self.assert_close(got, gradients_of(of_jax, *arrays, bias))

    def test_of_slopes_and_sinks(self):
        arrays = make_qkv()
        slopes, sinks = np.float32([0.5, 0.25, -0.125, 0]), normal(4)
        got = gradients_of(lambda slopes, sinks: flashjit.jax.attention(*arrays, alibi_slopes=slopes, sinks=sinks),
                           jnp.asarray(slopes), sinks)
        dout = np.cos(np.arange(arrays[0].size)).reshape(arrays[0].shape)
        options = {"alibi_slopes": slopes, "sinks": np.asarray(sinks), "dslopes": True, "dsinks": True}
        expected = emulating_engine().reference_backward(dout, *map(np.asarray, arrays), **options)
        self.assert_close(got, expected[3:])

    def test_reach_through_the_log_sum_exp(self):
        q, k, v = make_qkv()
        both = {"out": lambda out, lse: out, "lse": lambda out, lse: lse,
                "both": lambda out, lse: out * lse.swapaxes(1, 2)[..., None]}

        def exact(q, k):
            scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(jnp.float32), jnp.repeat(k.astype(jnp.float32), 2, 2)) / 8
            return of_jax(q, k, v), jax.nn.logsumexp(scores, axis=-1)

        for name, choose in both.items():
            with self.subTest(name):
                got = gradients_of(lambda q, k: choose(*flashjit.jax.attention(q, k, v, lse=True)), q, k)
                self.assert_close(got, gradients_of(lambda q, k: choose(*exact(q, k)), q, k))

    def test_only_what_is_wanted_is_computed(self):
        q, k, v = make_qkv()
        bias = normal(1, 4, 32, 32)
        loss = to_loss(lambda q, k, v, bias: flashjit.jax.attention(q, k, v, bias=bias))
        for places, results in (((0, ), "dq"), ((1, 2), "dk,dv"), ((0, 3), "dq,dbias"), ((0, ), "dq")):
            text = jax.jit(jax.grad(loss, argnums=places)).lower(q, k, v, bias).as_text()
            self.assertEqual(re.findall(r'results = "(d.*?)"', text), [results])

    def test_may_be_deterministic(self):
        arrays = make_qkv()
        jitted = jax.jit(lambda *arrays: gradients_of(
            lambda q, k, v: flashjit.jax.attention(q, k, v, causal=True, deterministic=True), *arrays))
        self.assertIn("deterministic = true", jitted.lower(*arrays).as_text())
        self.assert_close(jitted(*arrays), gradients_of(causal, *arrays))

    def test_have_none_themselves(self):
        q, k, v = make_qkv()
        with self.assertRaisesRegex(TypeError, "forward-mode"):
            jax.jvp(causal, (q, k, v), (q, k, v))
        with self.assertRaises(NotImplementedError):
            jax.grad(to_loss(lambda q: gradients_of(lambda q: causal(q, k, v), q)[0]))(q)


class Transformations(JaxCase):

    def test_vmap_of_all_arrays(self):
        arrays = [jnp.stack([array, array[::-1] / 2]) for array in make_qkv()]
        expected = jnp.stack([causal(*(array[i] for array in arrays)) for i in (0, 1)])
        self.assert_close(jax.vmap(causal)(*arrays), expected)

    def test_vmap_of_queries_alone_shares_the_rest(self):
        q, k, v = make_qkv()
        bias, slopes = normal(1, 4, 32, 32), normal(4)
        many = jnp.stack([q, q[::-1]], axis=1)

        def attend(q, k, bias, slopes):
            return flashjit.jax.attention(q, k, v, bias=bias, alibi_slopes=slopes)

        mapped = jax.vmap(attend, in_axes=(1, None, None, None))
        expected = jnp.stack([attend(q, k, bias, slopes), attend(q[::-1], k, bias, slopes)])
        self.assert_close(mapped(many, k, bias, slopes), expected)
        got = gradients_of(mapped, many, k, bias, slopes)
        looped = gradients_of(lambda many, *shared: jnp.stack([attend(many[:, i], *shared) for i in (0, 1)]),
                              many, k, bias, slopes)
        self.assert_close(got, looped)

    def test_vmap_of_options(self):
        q, k, v = make_qkv()
        options = {"prefix": jnp.int32([[3, 20], [7, 0]]), "sinks": normal(2, 4), "bias": normal(2, 1, 1, 1, 32)}
        for name, option in options.items():
            with self.subTest(name):

                def attend(option):
                    return flashjit.jax.attention(q, k, v, **{name: option})

                self.assert_close(jax.vmap(attend)(option), jnp.stack([attend(one) for one in option]))

    def test_vmap_of_vmap(self):
        arrays = [array.reshape(2, 2, 1, *array.shape[1:]) for array in make_qkv(batch=4)]
        self.assert_close(jax.vmap(jax.vmap(causal))(*arrays).reshape(4, 32, 4, 64), causal(*make_qkv(batch=4)))

    def test_checkpoint(self):
        q, k, v = make_qkv()
        checkpointed = jax.checkpoint(causal)
        self.assert_close(gradients_of(checkpointed, q, k, v), gradients_of(causal, q, k, v))
        self.assert_close(gradients_of(lambda q: checkpointed(q, k, v), q), gradients_of(lambda q: causal(q, k, v), q))

    def test_scan_over_layers(self):
        q, k, v = make_qkv()
        layers = jnp.stack([k, k[::-1]])

        def scanned(q, layers):
            return jax.lax.scan(lambda x, layer: (causal(x, layer, v), None), q, layers)[0]

        def looped(q, layers):
            for layer in layers:
                q = causal(q, layer, v)
            return q

        self.assert_close(jax.jit(scanned)(q, layers), looped(q, layers))
        self.assert_close(gradients_of(scanned, q, layers), gradients_of(looped, q, layers))

    def test_pmap(self):
        if len(jax.devices()) < 2:
            self.skipTest("needs 2 devices")
        arrays = [array[:, None] for array in make_qkv()]
        self.assert_close(jax.pmap(causal)(*arrays)[:, 0], causal(*make_qkv()))


def collectives(compiled):
    names = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    return set(re.findall(rf"\b({names})(?:-start)?\(", compiled.as_text()))


class Sharded(JaxCase):

    def setUp(self):
        self.mesh = self.make_mesh(AxisType.Auto)

    def make_mesh(self, axis_type):
        """Of four devices, or of two that heads are shared among."""
        devices = len(jax.devices())
        if devices < 2:
            self.skipTest(f"needs 2 devices, has {devices}")
        shape = (2, 2) if devices >= DEVICES else (1, 2)
        return jax.make_mesh(shape, ("data", "model"), axis_types=(axis_type, ) * 2)

    def shard(self, arrays, specs):
        return [jax.device_put(array, NamedSharding(self.mesh, spec)) for array, spec in zip(arrays, specs)]

    def test_batch_and_heads_stay_where_they_are(self):
        spec = P("data", None, "model")
        for heads_kv, of_keys in ((4, spec), (2, spec), (1, P("data"))):
            with self.subTest(heads_kv=heads_kv):
                arrays = make_qkv(heads_kv=heads_kv)
                sharded = self.shard(arrays, (spec, of_keys, of_keys))
                compiled = jax.jit(causal).lower(*sharded).compile()
                self.assertEqual(collectives(compiled), set())
                out = compiled(*sharded)
                self.assertEqual(out.sharding.spec, spec)
                self.assert_close(out, causal(*arrays))

    def test_gradients_stay_where_they_are(self):
        spec = P("data", None, "model")
        arrays = make_qkv()
        sharded = self.shard(arrays, (spec, ) * 3)
        compiled = jax.jit(lambda *arrays: gradients_of(causal, *arrays)).lower(*sharded).compile()
        self.assertEqual(collectives(compiled), set())
        got = compiled(*sharded)
        self.assertEqual([array.sharding.spec for array in got], [spec] * 3)
        self.assert_close(got, gradients_of(causal, *arrays))

    def test_gradients_of_what_shards_share_are_summed(self):
        q, k, v = make_qkv(heads_kv=1)
        arrays = (q, k, v, normal(1, 4, 32, 32), normal(4))
        specs = (P("data", None, "model"), P("data"), P("data"), P(None, "model"), P("model"))

        def attend(q, k, v, bias, sinks):
            return flashjit.jax.attention(q, k, v, bias=bias, sinks=sinks)

        sharded = self.shard(arrays, specs)
        compiled = jax.jit(lambda *arrays: gradients_of(attend, *arrays)).lower(*sharded).compile()
        self.assertEqual(collectives(compiled), {"all-reduce"})
        self.assert_close(compiled(*sharded), gradients_of(attend, *arrays))

    def test_heads_that_shards_cannot_have_alike_are_gathered(self):
        arrays = make_qkv(heads=8)
        sharded = self.shard(arrays, (P(None, None, ("data", "model")), P(), P()))
        self.assert_close(jax.jit(causal)(*sharded), causal(*arrays))
        self.assert_close(gradients_of(causal, *sharded), gradients_of(causal, *arrays))

    def test_sequences_are_gathered(self):
        arrays = make_qkv()
        sharded = self.shard(arrays, (P("data", "model"), ) * 3)
        compiled = jax.jit(causal).lower(*sharded).compile()
        self.assertEqual(collectives(compiled), {"all-gather"})
        self.assert_close(compiled(*sharded), causal(*arrays))

    def test_calls_outside_of_jit(self):
        arrays = make_qkv()
        out = causal(*self.shard(arrays, (P("data", None, "model"), ) * 3))
        self.assertEqual(out.sharding.spec, P("data", None, "model"))
        self.assert_close(out, causal(*arrays))

    def test_types_that_say_how_arrays_are_sharded(self):
        arrays = make_qkv()
        self.mesh = self.make_mesh(AxisType.Explicit)
        with jax.set_mesh(self.mesh):
            sharded = self.shard(arrays, (P("data", None, "model", None), ) * 3)
            compiled = jax.jit(lambda *arrays: gradients_of(causal, *arrays)).lower(*sharded).compile()
            self.assertEqual(collectives(compiled), set())
            got = compiled(*sharded)
            self.assertEqual(jax.typeof(got[0]).sharding.spec, P("data", None, "model", None))
        self.assert_close(got, gradients_of(causal, *arrays))

    def test_jaxs_older_partitioner(self):
        jax.config.update("jax_use_shardy_partitioner", False)
        self.addCleanup(jax.config.update, "jax_use_shardy_partitioner", True)
        arrays = make_qkv(heads_kv=4)
        sharded = self.shard(arrays, (P("data", None, "model"), ) * 3)
        compiled = jax.jit(lambda *arrays: gradients_of(causal, *arrays)).lower(*sharded).compile()
        self.assertEqual(collectives(compiled), set())
        self.assert_close(compiled(*sharded), gradients_of(causal, *arrays))

    def test_shard_map(self):
        arrays = make_qkv()
        spec = P("data", None, "model")
        mapped = jax.shard_map(causal, mesh=self.mesh, in_specs=spec, out_specs=spec)
        self.assert_close(jax.jit(mapped)(*arrays), causal(*arrays))
        self.assert_close(gradients_of(mapped, *arrays), gradients_of(causal, *arrays))

    def test_shard_map_over_some_axes_is_refused(self):
        mapped = jax.shard_map(causal, mesh=self.mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
        with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "q: must be sharded by axes .* must be manual"):
            jax.jit(mapped)(*make_qkv())


class DotProductAttention(JaxCase):

    def assert_same(self, *arrays, **options):
        """As JAX in float32, in both directions. Gradients are of arrays of floating point."""
        floats = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]

        def both(attend):
            return lambda *floats: attend(*floats, *arrays[len(floats):], **options)

        ours, theirs = both(flashjit.jax.dot_product_attention), both(of_jax)
        self.assert_close(jax.jit(ours)(*floats), theirs(*floats))
        self.assert_close(gradients_of(ours, *floats), gradients_of(theirs, *floats))

    def test_is_jaxs(self):
        lengths = {"query_seq_lengths": jnp.int32([32, 20]), "key_value_seq_lengths": jnp.int32([9, 32])}
        cases = ({}, {"is_causal": True}, {"local_window_size": 5}, {"is_causal": True, "local_window_size": (5, 1)},
                 {"scale": 0.5}, lengths, {"is_causal": True, **lengths})
        for options in cases:
            with self.subTest(options):
                self.assert_same(*make_qkv(), **options)

    def test_biases_and_masks_are_broadcast(self):
        shown = jnp.arange(32) % 5 != 2
        self.assert_same(*make_qkv(), normal(1, 4, 32, 1))
        self.assert_same(*make_qkv(), normal(32, 32), shown[None, None, None])
        out = flashjit.jax.dot_product_attention(*make_qkv(), mask=shown, is_causal=True)
        self.assert_close(out, of_jax(*make_qkv(), mask=shown, is_causal=True))

    def test_fewer_queries_than_keys(self):
        q, k, v = make_qkv(queries=16)
        shown, lengths = jnp.arange(32) % 5 != 2, jnp.int32([9, 32])
        self.assert_same(q, k, v)
        self.assert_same(q, k, v, normal(1, 1, 16, 32), is_causal=True, mask=shown, key_value_seq_lengths=lengths)
        self.assert_same(q, k, v, local_window_size=(5, 0))

    def test_inputs_without_a_batch(self):
        q, k, v = (array[0] for array in make_qkv())
        self.assert_same(q, k, v, is_causal=True)
        out, lse = flashjit.jax.dot_product_attention(q, k, v, return_residual=True)
        self.assertEqual((out.shape, lse.shape), ((32, 4, 64), (32, 4)))

    def test_the_residual_is_the_log_sum_exp(self):
        arrays = make_qkv()
        got = flashjit.jax.dot_product_attention(*arrays, is_causal=True, return_residual=True)
        self.assertEqual(got[1].dtype, jnp.float16)
        self.assert_close(got, of_jax(*arrays, is_causal=True, return_residual=True))
        gradients = gradients_of(lambda q: flashjit.jax.dot_product_attention(q, *arrays[1:], return_residual=True)[1],
                                 arrays[0])
        self.assertFalse(np.asarray(gradients[0]).any())

    def test_rows_that_see_nothing_are_zeros(self):
        arrays = make_qkv()
        out, lse = flashjit.jax.dot_product_attention(*arrays, query_seq_lengths=jnp.int32([32, 20]),
                                                      key_value_seq_lengths=jnp.int32([0, 32]), return_residual=True)
        hidden = np.arange(32) >= np.array([[0], [20]])
        self.assertFalse(np.asarray(out)[hidden].any())
        np.testing.assert_array_equal(np.isneginf(lse), np.broadcast_to(hidden[..., None], lse.shape))

    def test_refusals(self):
        q, k, v = make_qkv()
        cases = (
            (flashjit.Unsupported, "implementation: must be None.* was 'cudnn'", (q, k, v),
             {"implementation": "cudnn"}),
            (flashjit.Unsupported, "is_causal: must be False with 32 queries and 8 keys", (q, k[:, :8], v[:, :8]),
             {"is_causal": True}),
            (flashjit.Unsupported, "local_window_size: must be None with 16 queries and 32 keys", (q[:, :16], k, v),
             {"local_window_size": 2}),
            (flashjit.InvalidArgument, "local_window_size: must be at least 0", (q, k, v),
             {"local_window_size": (-1, 0)}),
            (flashjit.InvalidArgument, "key: must be float16 like query, was float32", (q, k.astype("float32"), v), {}),
            (flashjit.InvalidArgument, "value: seqlen must be 32 like that of key, was 31", (q, k, v[:, :31]), {}),
            (flashjit.InvalidArgument, "mask: must be bool, was int32", (q, k, v, None, jnp.ones((32, 32), int)), {}),
            (flashjit.InvalidArgument, "bias: heads must be 4 or 1, was 3", (q, k, v, normal(3, 32, 32)), {}),
            (flashjit.InvalidArgument, "query_seq_lengths: batch must be 2, was 1", (q, k, v),
             {"query_seq_lengths": jnp.int32([3])}),
        )
        for kind, message, arrays, options in cases:
            with self.subTest(message), self.assertRaisesRegex(kind, "^" + message):
                flashjit.jax.dot_product_attention(*arrays, **options)


class Engines(JaxCase):

    def test_calls_go_to_the_one_in_use_whenever_they_were_compiled(self):
        jitted, arrays = jax.jit(causal), make_qkv()
        self.assert_close(jitted(*arrays), of_jax(*arrays, is_causal=True))
        flashjit.jax._use_engine(flashjit.Engine(policy="cache_only", cache_directory="", bundles="", emulate="sm_90a"))
        self.addCleanup(flashjit.jax._use_engine, emulating_engine())
        with self.assertRaisesRegex((jax.errors.JaxRuntimeError, ValueError), "FAILED_PRECONDITION: flashjit: "):
            jax.block_until_ready(jitted(*arrays))


class Errors(JaxCase):

    def test_name_the_argument(self):
        q, k, v = make_qkv()
        cases = (
            ("q: must be \\[batch, seqlen, heads, head_dim\\], had 3 dimensions", (q[0], k, v), {}),
            ("q: must be float16 or bfloat16, was float32", (q.astype("float32"), k, v), {}),
            ("v: must be float16 like q, was bfloat16", (q, k, v.astype(jnp.bfloat16)), {}),
            ("k: head_dim must be 64 like that of q, was 32", (q, k[..., :32], v), {}),
            ("k: heads must divide the 3 of q, was 2", (q[:, :, :3], k, v), {}),
            ("k: must be an array, was str", (q, "keys", v), {}),
            ("sinks: must be float32, was float16", (q, k, v), {"sinks": jnp.zeros(4, jnp.float16)}),
            ("sinks: must be \\[batch, heads\\], had 3 dimensions", (q, k, v), {"sinks": normal(1, 2, 4)}),
            ("bias: seqlen_kv must be 32, was 1", (q, k, v), {"bias": normal(1, 1, 1, 1)}),
            ("prefix: batch must be 2, was 1", (q, k, v), {"prefix": jnp.int32([3])}),
            ("window: must be \\(left, right\\) or None, was 7", (q, k, v), {"window": 7}),
            ("chunk: must be an int, .* was 1.5", (q, k, v), {"chunk": 1.5}),
            ("causal: must be True or False, was 1", (q, k, v), {"causal": 1}),
        )
        for message, arrays, options in cases:
            with self.subTest(message), self.assertRaisesRegex(flashjit.InvalidArgument, "^" + message):
                flashjit.jax.attention(*arrays, **options)

    def test_numbers_must_be_known_when_a_function_is_traced(self):
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^softcap: must be a number, which jax.jit has to know"):
            jax.jit(lambda cap: flashjit.jax.attention(*make_qkv(), softcap=cap))(2.0)

    def test_the_librarys_message_comes_when_the_call_runs(self):
        q, k, v = make_qkv()
        with self.assertRaisesRegex((jax.errors.JaxRuntimeError, ValueError),
                                    "INVALID_ARGUMENT: flashjit: q: head_dim must be a multiple of 8 .* was 60"):
            jax.block_until_ready(flashjit.jax.attention(q[..., :60], k[..., :60], v))

    def test_a_build_without_handlers_says_so(self):
        with mock.patch.object(pathlib.Path, "exists", return_value=False):
            with self.assertRaisesRegex(ImportError, "has no handlers for JAX"):
                flashjit.jax._load_handlers()


if __name__ == "__main__":
    unittest.main()
