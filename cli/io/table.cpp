// SPDX-License-Identifier: Apache-2.0
#include "cli/io/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace flashjit::cli {

Table::Table(const std::vector<std::string>& titles) {
  std::vector<std::string> header;
  for (const std::string& title : titles) {
    left_.push_back(title.front() == '<');
    header.push_back(title.substr(left_.back() ? 1 : 0));
  }
  rows_.push_back(std::move(header));
}

void Table::add_row(std::vector<std::string> cells) {
  cells.resize(left_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(left_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += left_[i] ? fmt::format("{:<{}}  ", row[i], widths[i]) : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace flashjit::cli
