// SPDX-License-Identifier: Apache-2.0
// Users' functions on the command line: --score, --mask and --capture.
#pragma once

#include <flashjit/attention.h>
#include <flashjit/tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/io/command.h"

namespace flashjit::cli {

struct TextOptions {
  std::vector<std::string> masks;  // words and texts
  std::optional<std::string> score;
  std::vector<std::string> captures;  // "name=file.npy", "name=0.5"

  // Both throw Error(invalid_argument) which names the option.
  bool is_causal() const;
  std::optional<std::string> mask() const;  // the text
};
void add_text_options(CLI::App* subcommand, TextOptions& options);

// The functions, with what their captures' files have.
class Texts {
 public:
  // Throws Error(invalid_argument) which names the option, and Error(io).
  explicit Texts(const TextOptions& options);
  Texts(Texts&&) = default;  // the functions point to the tensors

  bool empty() const { return !score_ && !mask_; }
  AttentionOptions on_host(AttentionOptions options) const;
  AttentionOptions on_device(AttentionOptions options, int device, std::vector<DeviceTensor>& memory) const;

 private:
  std::vector<std::pair<std::string, HostTensor>> tensors_;  // by name
  std::optional<Score> score_;
  std::optional<Mask> mask_;
};

}  // namespace flashjit::cli
