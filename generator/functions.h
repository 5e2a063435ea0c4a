// SPDX-License-Identifier: Apache-2.0
// Functions that are written as text, by users and for the library's own features: which texts are taken, how two are
// told apart, and the struct that each becomes in a kernel's source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/function.h"
#include "generator/formula.h"

namespace flashjit::generator {

// Those of users, and the features of the library that are functions of a tensor.
enum class FunctionKind : std::uint8_t { score, mask, bias, boolean_mask, documents, tree, dropout_mask };
inline constexpr int kFunctionKinds = 7;

// Of a capture, all that is compiled in.
struct CaptureType {
  static constexpr int kNumber = -1;

  std::string name;
  DType dtype;         // of a number f32 or i32
  int rank;            // kNumber for a number
  bool packed = true;  // the elements of a tensor's last dimension are neighbours

  bool operator==(const CaptureType&) const = default;
};
CaptureType type_of(const Capture& capture);

// A text with the types of its captures. There is one object for each that differs in anything, and it is never freed:
// whoever has two with one address has one function.
struct FunctionText {
  FunctionKind kind;
  std::string text;
  std::vector<CaptureType> captures;

  std::uint32_t number;              // from 0, in the order in which they came; has kFunctionNumberBits
  std::string digest;                // 16 hexadecimal digits, for names
  std::vector<std::size_t> offsets;  // of the captures in the struct
  std::size_t bytes;                 // of the struct
  std::vector<std::string> labels;   // of the captures, for messages: "score: capture slope"
  Formula formula;                   // of a user's score
};

inline constexpr int kFunctionNumberBits = 24;
inline constexpr std::size_t kMaxTextBytes = 64 << 10;
inline constexpr std::size_t kMaxCaptures = 16;

// Thread-safe. Throws Error(invalid_argument) which says what a text or a capture must be.
const FunctionText& find_function(FunctionKind kind, const std::string& text, std::span<const Capture> captures);

// The function of a library's feature, whose one capture has this dtype.
const FunctionText& library_function(FunctionKind kind, DType dtype);
// What that capture may be of: each with a function of its own.
std::span<const DType> library_dtypes(FunctionKind kind) noexcept;

// "score", "mask": also the names by which the compiler knows the files of the texts. Behind one of these it knows what
// stands before and behind a text by it.
const char* word_of(FunctionKind kind) noexcept;
inline constexpr const char *kBeginOfText = "value of ", *kEndOfText = "end of ";
bool is_users(FunctionKind kind) noexcept;
// The definition of the struct that a text becomes. is_differentiated: a score's, which is called with dual numbers
// (templates/function/dual.cuh) alone, so that all real numbers in it are of their type.
std::string render(const FunctionText& function, bool is_differentiated = false);

}  // namespace flashjit::generator
