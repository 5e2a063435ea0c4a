// SPDX-License-Identifier: Apache-2.0
// Aligned columns of text.
#pragma once

#include <string>
#include <vector>

namespace flashjit::cli {

class Table {
 public:
  // A column whose title begins with '<' is aligned to the left (the sign is not printed), the others to the right.
  explicit Table(const std::vector<std::string>& titles);
  void add_row(std::vector<std::string> cells);
  bool empty() const { return rows_.size() == 1; }
  std::string text() const;

 private:
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace flashjit::cli
