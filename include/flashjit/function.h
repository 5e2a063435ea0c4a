// SPDX-License-Identifier: Apache-2.0
// Functions that users write as text: what becomes of a score, and which keys a query sees. docs/masks-and-scores.md
// has a gallery, and says what a text may use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "flashjit/tensor.h"

namespace flashjit {

namespace generator {
struct FunctionText;
}

// What a text takes by a name, beside its own arguments: a number, which the text sees as float or int, or a tensor of
// rank 0 to 4, which it calls like a function: bias(head, query, key). An index outside of a tensor gives 0. Tensors
// are of f16, bf16 or f32 (the text gets a float), i32, i64 or boolean (int, long long, bool), with any strides that
// are not negative, on the device of q; nothing is copied, so they must live until the call has run.
struct Capture {
  Capture(std::string name_, const Tensor& tensor) : name(std::move(name_)), value(tensor) {}
  Capture(std::string name_, const DeviceTensor& tensor) : name(std::move(name_)), value(tensor.view()) {}
  Capture(std::string name_, double number) : name(std::move(name_)), value(static_cast<float>(number)) {}
  Capture(std::string name_, std::int32_t number) : name(std::move(name_)), value(number) {}

  std::string name;
  std::variant<float, std::int32_t, Tensor> value;
};

// A text and its captures. Kernels are made for the text, and for the names of the captures, their dtypes and ranks and
// whether a tensor's last dimension is contiguous: values, shapes and other strides compile nothing. Copies share the
// text. As safe for threads as a std::vector.
class Function {
 public:
  const std::string& text() const noexcept;
  const std::vector<Capture>& captures() const noexcept { return captures_; }  // in the order of their names
  // Another value for the capture of this name. Throws Error(invalid_argument).
  void set(const Capture& capture);
  // Equal for equal texts with captures of equal names and types, and for no others.
  const generator::FunctionText* source() const noexcept { return source_; }

 protected:
  Function(const generator::FunctionText& source, std::vector<Capture> captures)
      : source_(&source), captures_(std::move(captures)) {}

 private:
  const generator::FunctionText* source_;
  std::vector<Capture> captures_;
};

// What becomes of a score before the softmax: C++ for the GPU, an expression or a body with `return`, over
//   score        softmax_scale * q k^T, after softcap and ALiBi; a number whose type is `Number`
//   batch, head  of the query, int
//   query, key   their positions in the sequence, from 0 or from what the call's offsets say: whole numbers that become
//                int where one is asked for, but cannot be assigned to
//   seqlen_q, seqlen_kv
// and the captures: Score("score - slope(head) * abs(query - key)", {{"slope", slopes}}). -infinity hides the key; NaN
// reaches the row that it is in, and no other. It is code that runs on the GPU, with all that code can do there.
// attention_backward differentiates it by the score: `Number`, and `float` and `double` in it, have a derivative there.
// Throws Error(invalid_argument) for texts and captures that cannot be; what the compiler finds comes from the call
// that compiles, as Error(compile_failed) with the text's own lines and columns.
class Score : public Function {
 public:
  explicit Score(const std::string& text, std::vector<Capture> captures = {});
};

// Which keys a query sees: the same without `score`; true where it sees the key. Beside a causal mask, a window and
// chunks a query sees what all of them show. A row that sees no key gives 0, and -infinity as its LSE.
class Mask : public Function {
 public:
  explicit Mask(const std::string& text, std::vector<Capture> captures = {});
};

}  // namespace flashjit
