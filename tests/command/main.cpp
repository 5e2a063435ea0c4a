// SPDX-License-Identifier: Apache-2.0
// Tests of the command, and of its parts, that need nothing but a CPU.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <sys/stat.h>

// The cache refuses files that others may write to; those that a test makes by itself are none, whatever the user says.
[[maybe_unused]] static const mode_t users_mask = ::umask(022);
