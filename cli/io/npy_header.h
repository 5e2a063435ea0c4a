// SPDX-License-Identifier: Apache-2.0
// The header of a .npy file: a Python dictionary literal.
#pragma once

#include <flashjit/tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace flashjit::cli {

struct NpyHeader {
  std::string descr;  // "<f4"
  bool fortran_order = false;
  Dims shape;
};

// Throws Error(invalid_argument) which names the path.
NpyHeader parse_npy_header(const std::string& path, std::string_view text);

}  // namespace flashjit::cli
