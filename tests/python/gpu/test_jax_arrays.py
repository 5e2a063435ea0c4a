# SPDX-License-Identifier: Apache-2.0
"""The tests of flashjit.jax once more, on a GPU. Needs one, JAX with its plugin for CUDA, and a build with handlers for
JAX; those of shards need two."""

import os
import pathlib
import sys
import unittest

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # JAX would take most of the memory from its neighbours
os.environ.setdefault("JAX_PLATFORMS", "")  # what there is, where the tests would choose the CPU
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import test_jax_transformed as on_host  # noqa: E402, which skips where JAX or the handlers are missing
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def setUpModule():
    if jax.default_backend() != "gpu":
        raise unittest.SkipTest(f"JAX has no GPU here but {jax.default_backend()}")


class Attention(on_host.Attention):

    def test_follows_what_xla_computes_before_and_after(self):
        q, k, v = on_host.make_qkv()
        big = jnp.full((2048, 2048), 2.0**-11, jnp.bfloat16)  # whose powers are itself

        @jax.jit
        def late(q, big):
            zero = 0 * (big @ big @ big)[0, 0].astype(q.dtype)
            return 2 * on_host.causal(q + zero, k, v)

        for _ in range(20):
            self.assert_close(late(q, big) / 2, on_host.of_jax(q, k, v, is_causal=True))


class Gradients(on_host.Gradients):
    pass


class Transformations(on_host.Transformations):
    pass


class Sharded(on_host.Sharded):
    pass


class DotProductAttention(on_host.DotProductAttention):
    pass


class Errors(on_host.Errors):
    pass


if __name__ == "__main__":
    unittest.main()
