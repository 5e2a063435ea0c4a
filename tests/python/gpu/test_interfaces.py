# SPDX-License-Identifier: Apache-2.0
"""The tests of FlashAttention-3's and of FlexAttention's interface once more, on a GPU. Needs one, and PyTorch."""

import pathlib
import sys
import unittest

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch cannot be imported: {error}") from error

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import test_flash_attn_interface as on_host  # noqa: E402
import test_flex_attention as flex_on_host  # noqa: E402


def setUpModule():
    torch.set_default_device("cuda")
    unittest.addModuleCleanup(torch.set_default_device, None)


class Dense(on_host.Dense):
    pass


class Varlen(on_host.Varlen):
    pass


class Cache(on_host.Cache):
    pass


class Parts(on_host.Parts):
    pass


class Refusals(on_host.Refusals):
    pass


class Installed(on_host.Installed):
    pass


class FlexAttention(flex_on_host.FlexAttention):
    pass
