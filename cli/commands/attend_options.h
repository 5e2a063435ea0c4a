// SPDX-License-Identifier: Apache-2.0
// The options of flashjit attend: what is given, what may go together, and what is read of the files.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/commands/attend_compute.h"
#include "cli/io/device.h"
#include "cli/io/problem_options.h"
#include "cli/io/text_options.h"

namespace flashjit::cli {

// Options of the library that are tensors, each in a file. Empty: none.
struct TensorFiles {
  std::string slopes, sinks, bias, boolean_mask, documents, prefix, tree, dropout_mask;
  std::string cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, leftpad_kv, batch_indices_kv, page_table;
  std::string q_scale, k_scale, v_scale, k_rotary, out_scale;
};

// All of them, in the order of --help.
struct TensorOption {
  const char* name;
  std::string TensorFiles::*file;
  std::optional<Tensor> AttentionOptions::*option;
  std::optional<DType> dtype;  // none: that of the file
  const char* help;
  bool has_backward = true;  // by kernels
  bool is_of_rows = false;   // of the dtype of the call
};
std::span<const TensorOption> tensor_options();

struct AttendOptions {
  std::string q, k, v, output, lse, dtype = "bf16", variant;
  std::string grad, grad_variant, dlse, dq, dk, dv, dbias, dslopes, dsinks;
  bool deterministic = false;
  TensorFiles tensors;
  TextOptions texts;
  FeatureOptions features;
  DeviceChoice device;
  bool check = false, json = false;
  bool e4m3 = false, e4m3_queries = false, fast_sums = false, v_transposed = false, out_e4m3 = false, e5m2 = false;
  std::optional<float> scale;
  int fixed_split_size = 0;
};

// What may be written, each to a file. Empty: not wanted.
struct ResultFile {
  const char* option;
  std::string AttendOptions::*path;
  const HostTensor& (*of)(const Answer& answer);
  bool is_gradient = false;
  const char* of_option = nullptr;  // the gradient of this one, whose file is
  std::string TensorFiles::*of_file = nullptr;
};
std::span<const ResultFile> result_files();
// In the same order.
std::vector<const ResultFile*> wanted_results(const AttendOptions& options);

// All of these throw Error(invalid_argument) that names an option or a file.
void require_choices(const AttendOptions& options);
// What has no gradients, or none that kernels compute, which then are the only ones.
void require_backward(const AttendOptions& options, bool by_kernels);
// Those that are no tensors and no texts.
AttentionOptions asked_options(const AttendOptions& options);
Inputs read_inputs(const AttendOptions& options, DType dtype);

// Another view of the same elements; without the batch of 1 that packed sequences get.
HostTensor without_batch(const HostTensor& tensor);

}  // namespace flashjit::cli
