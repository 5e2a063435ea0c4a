// SPDX-License-Identifier: Apache-2.0
// Tests that need nothing but a CPU.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
