// SPDX-License-Identifier: Apache-2.0
// How the parts of a ShapeBucket are spelled, by their values.
#pragma once

#include <string_view>

namespace flashjit::generator {

inline constexpr std::string_view kQueryWords[] = {"q16", "q64", "q128", "qmore"};
inline constexpr std::string_view kKeyWords[] = {"kv1k", "kv2k", "kv8k", "kvmore"};
inline constexpr std::string_view kWorkWords[] = {"w05", "w1", "w2", "w4", "wmore"};

}  // namespace flashjit::generator
