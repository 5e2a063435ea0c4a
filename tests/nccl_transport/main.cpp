// SPDX-License-Identifier: Apache-2.0
// The libraries stand in for NCCL and the driver once they are loaded, as they have their names.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
