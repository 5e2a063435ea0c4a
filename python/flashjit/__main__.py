# SPDX-License-Identifier: Apache-2.0
"""python -m flashjit: the command that comes with the package, with the same arguments and exit code."""

from __future__ import annotations

import os
import pathlib
import sys

from ._nvrtc import find_nvrtc


def main() -> None:
    """Become the command. It looks for NVRTC where this interpreter has it."""
    command = str(pathlib.Path(__file__).with_name("bin") / "flashjit")
    path = find_nvrtc()
    environment = {**os.environ, "FLASHJIT_NVRTC": path} if path else os.environ
    os.execve(command, ["flashjit", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
