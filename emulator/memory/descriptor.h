// SPDX-License-Identifier: Apache-2.0
// Where wgmma finds a matrix in shared memory (PTX ISA 9.7.15.5.1.2, "Shared memory matrix layout" and "Matrix
// descriptor"). Memory is read in chunks of 16 bytes, which the swizzle moves as a whole.
#pragma once

#include <cstdint>

#include "flashjit/emulator.h"

namespace flashjit::emulator {

inline constexpr std::uint32_t kMatrixChunk = 16;  // bytes

// The fields of the 64 bits. Strides are in bytes.
struct Descriptor {
  explicit Descriptor(std::uint64_t bits)
      : address(field(bits, 0, 14) * kMatrixChunk),
        leading(field(bits, 16, 14) * kMatrixChunk),
        stride(field(bits, 32, 14) * kMatrixChunk),
        base_offset(field(bits, 49, 3)),
        swizzle(kSwizzles[field(bits, 62, 2)]),
        reserved(bits & ~kFields) {}

  std::uint32_t address, leading, stride;
  std::uint32_t base_offset;
  TensorSwizzle swizzle;
  std::uint64_t reserved;  // bits outside the fields; they must be 0

 private:
  static constexpr TensorSwizzle kSwizzles[] = {TensorSwizzle::none, TensorSwizzle::bytes_128, TensorSwizzle::bytes_64,
                                                TensorSwizzle::bytes_32};
  static constexpr std::uint64_t kFields = 0xc00e'3fff'3fff'3fff;

  static constexpr std::uint32_t field(std::uint64_t bits, int first, int count) {
    return static_cast<std::uint32_t>(bits >> first & ((1u << count) - 1));
  }
};

enum class Major { k, mn };  // what is contiguous

// A matrix of the canonical layouts. A line is what is strided: a row of A or a column of B when K is contiguous, else
// one k. Its chunks follow one another in the other direction.
class MatrixLayout {
 public:
  MatrixLayout(const Descriptor& descriptor, Major major)
      : start_(descriptor.address),
        chunks_of_row_(chunks_of_row(descriptor.swizzle)),
        swizzle_rows_(chunks_of_row_ - 1) {
    const bool swizzled = descriptor.swizzle != TensorSwizzle::none;
    if (major == Major::k) {
      eight_lines_ = descriptor.stride;
      next_row_ = swizzled ? chunks_of_row_ * kMatrixChunk : descriptor.leading;
    } else {
      eight_lines_ = swizzled ? descriptor.stride : descriptor.leading;
      next_row_ = swizzled ? descriptor.leading : descriptor.stride;
    }
  }

  // The offset in shared memory.
  std::uint32_t chunk(std::uint32_t line, std::uint32_t chunk) const {
    const std::uint32_t plain = start_ + line % 8 * chunks_of_row_ * kMatrixChunk + line / 8 * eight_lines_ +
                                chunk % chunks_of_row_ * kMatrixChunk + chunk / chunks_of_row_ * next_row_;
    return plain ^ (plain / 128 & swizzle_rows_) * kMatrixChunk;
  }

 private:
  static constexpr std::uint32_t chunks_of_row(TensorSwizzle swizzle) {
    switch (swizzle) {
      case TensorSwizzle::none:
        break;
      case TensorSwizzle::bytes_32:
        return 2;
      case TensorSwizzle::bytes_64:
        return 4;
      case TensorSwizzle::bytes_128:
        return 8;
    }
    return 1;
  }

  std::uint32_t start_;
  std::uint32_t chunks_of_row_;                   // of a line, one after the other; a row of the swizzle
  std::uint32_t swizzle_rows_;                    // bits of the row that are XORed to the chunk
  std::uint32_t eight_lines_ = 0, next_row_ = 0;  // strides
};

}  // namespace flashjit::emulator
