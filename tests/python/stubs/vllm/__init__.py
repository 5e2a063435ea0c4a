# SPDX-License-Identifier: Apache-2.0
"""Stands in for vLLM 0.33 in tests of flashjit.vllm: of its modules what that imports or is given, by the same names,
in the same order. scripts/check-vllm-stubs compares it with vLLM's sources. Bodies are the tests' own, and do the least
that these need.
"""
