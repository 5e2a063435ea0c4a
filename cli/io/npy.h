// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy files: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <flashjit/tensor.h>

#include <string>

namespace flashjit::cli {

// A little-endian float16, float32 or float64 array in C or Fortran order, as a packed tensor whose elements are
// rounded once to dtype; for e4m3 and e5m2 also one of its bytes (uint8); for i32, i64 and boolean one of bool, int32
// or int64. Throws Error(io) when the file cannot be read, and Error(invalid_argument) which names the path and what is
// wrong in it: not a whole .npy file, another element type, more than eight dimensions, a finite value that becomes
// infinite in dtype, or a whole one that does not fit.
HostTensor read_npy(const std::string& path, DType dtype);
// The same in the dtype that the elements have; float64 as f32.
HostTensor read_npy(const std::string& path);

// The bytes of a format 1.0 file in C order: bf16 as float32, e4m3 and e5m2 as uint8, all others as they are.
std::string npy_bytes(const HostTensor& tensor);

}  // namespace flashjit::cli
