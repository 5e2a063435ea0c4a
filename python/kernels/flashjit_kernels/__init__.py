# SPDX-License-Identifier: Apache-2.0
"""Bundles of kernels, a file for each architecture, which flashjit finds here. kernels.txt lists what they are of."""
