// SPDX-License-Identifier: Apache-2.0
#include <flashjit.h>

const char* version_through_c(void) { return flashjit_version(); }
