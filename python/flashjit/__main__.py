# SPDX-License-Identifier: Apache-2.0
"""python -m flashjit: the command that comes with the package, with the same arguments and exit code."""

from __future__ import annotations

import os
import pathlib
import sys

from ._wheels import find_bundles, find_nvrtc


def main() -> None:
    """Become the command. It looks for NVRTC and for kernels where this interpreter has them."""
    command = str(pathlib.Path(__file__).with_name("bin") / "flashjit")
    found = {"FLASHJIT_NVRTC": find_nvrtc(), "FLASHJIT_BUNDLES": find_bundles()}
    environment = {**os.environ, **{name: value for name, value in found.items() if value}}
    os.execve(command, ["flashjit", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
