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
  bool types_suffice = false;         // nothing is computed, so of a tensor "name=f32:2" will do

  // All throw Error(invalid_argument) which names the option.
  bool is_causal() const;
  std::optional<std::string> mask_words() const;  // "causal"; of a subcommand that takes lists: "full,causal"
  std::optional<std::string> mask() const;        // the text
};
void add_text_options(CLI::App* subcommand, TextOptions& options);
// Of a subcommand that takes lists of masks.
struct TextListOptions {
  CLI::Option *masks, *score, *captures;
};
TextListOptions add_text_list_options(CLI::App* subcommand, TextOptions& options);

// A tensor that texts have by a name, with any strides in packed memory.
struct CapturedTensor {
  std::string name;
  HostTensor memory;
  Tensor view;  // into the memory
};

// The functions, with the tensors that they capture.
class Texts {
 public:
  Texts() = default;
  // With what the files have. Throws Error(invalid_argument) which names the option, and Error(io).
  explicit Texts(const TextOptions& options);
  Texts(std::optional<Score> score, std::optional<Mask> mask, std::vector<CapturedTensor> tensors)
      : tensors_(std::move(tensors)), score_(std::move(score)), mask_(std::move(mask)) {}
  Texts(Texts&&) = default;  // the functions point to the tensors
  Texts& operator=(Texts&&) = default;

  bool empty() const { return !score_ && !mask_; }
  Problem added_to(Problem problem) const;
  AttentionOptions on_host(AttentionOptions options) const;
  AttentionOptions on_device(AttentionOptions options, int device, std::vector<DeviceTensor>& memory) const;

 private:
  Capture capture_of(const std::string& name, const std::string& value, bool types_suffice);
  const Tensor& add_tensor(const std::string& name, const std::string& file);

  std::vector<CapturedTensor> tensors_;
  std::optional<Score> score_;
  std::optional<Mask> mask_;
};

}  // namespace flashjit::cli
