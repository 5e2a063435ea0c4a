# SPDX-License-Identifier: Apache-2.0
"""python -m flashjit.compare: flashjit beside cuDNN and FlashAttention on this GPU. --help has the options."""

from __future__ import annotations

import pathlib
import sys


def main() -> None:
    """Run the script that the sources have as bench/compare_peers.py."""
    sys.path.insert(0, str(pathlib.Path(__file__).with_name("bench")))
    import compare_peers
    sys.argv[0] = "python -m flashjit.compare"
    compare_peers.main()


if __name__ == "__main__":
    main()
