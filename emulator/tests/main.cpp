// SPDX-License-Identifier: Apache-2.0
// Tests of the emulator alone: PTX, memory, and what an H200 gave for both.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
