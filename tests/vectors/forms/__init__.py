# SPDX-License-Identifier: Apache-2.0
"""The instruction forms whose results on hardware are kept beside this package; ../make_forms.py writes them."""

from . import (arithmetic_half, arithmetic_integer, arithmetic_single, clusters, comparisons, control, conversions,
               copies, matrix, memory, tensor_copies, warps, wgmma)

MODULES = (arithmetic_integer, arithmetic_single, arithmetic_half, comparisons, conversions, memory, control, warps,
           matrix, copies, tensor_copies, clusters, wgmma)


def all_forms():
    """In the order of the files; names are unique."""
    forms = [form for module in MODULES for form in module.forms()]
    names = [form.name for form in forms]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"forms with the same name: {twice}"
    return forms
