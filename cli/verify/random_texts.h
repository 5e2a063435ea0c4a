// SPDX-License-Identifier: Apache-2.0
// Random texts of scores and masks, with captures of any dtype, rank and strides.
#pragma once

#include <flashjit/problem.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/io/text_options.h"
#include "cli/verify/dice.h"

namespace flashjit::cli {

class RandomTexts {
 public:
  RandomTexts(Dice& dice, const CallShape& shape) : dice_(dice), shape_(shape) {}

  // What becomes of a score stays near to it, but that some hide keys, and, where they may be, few are NaN at one
  // place.
  void add_score(bool may_be_nan);
  // Most show many keys; some hide whole rows, or all.
  void add_mask();
  Texts texts() && { return {std::move(score_), std::move(mask_), std::move(tensors_)}; }

 private:
  std::string value();      // of the place: from about -4 to 4, and with the distance
  std::string condition();  // of the place
  std::string tensor();     // a new one, called with its indices
  std::string number();     // a new whole one, at least 2
  std::string real();       // a new one, from 0.25 to 4
  std::string new_name();

  Dice& dice_;
  CallShape shape_;
  int names_ = 0;
  std::vector<Capture> captures_;  // of the text that is being written
  std::vector<CapturedTensor> tensors_;
  std::optional<Score> score_;
  std::optional<Mask> mask_;
};

}  // namespace flashjit::cli
