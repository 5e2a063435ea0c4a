// SPDX-License-Identifier: Apache-2.0
// The library's version, for the preprocessor and for programs.
#pragma once

#define FLASHJIT_VERSION_MAJOR 0
#define FLASHJIT_VERSION_MINOR 1
#define FLASHJIT_VERSION_PATCH 0

namespace flashjit {

// "major.minor.patch" of the library that is linked, which may be newer than these headers.
const char* version() noexcept;

}  // namespace flashjit
