// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace flashjit::runtime {

// How many parts of size b cover a. a: from 0 on; b: from 1 on.
constexpr std::int64_t ceil_quotient(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

}  // namespace flashjit::runtime
