// SPDX-License-Identifier: Apache-2.0
// What flashjit attend reads.
#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/commands/attend_options.h"
#include "cli/io/for_option.h"
#include "cli/io/npy.h"
#include "cli/io/progress.h"
#include "cli/io/transposed_values.h"

namespace flashjit::cli {
namespace {

constexpr int kRank = 4, kPackedRank = 3;

HostTensor reshaped(const HostTensor& tensor, const Dims& shape) {
  HostTensor other(tensor.dtype(), shape);
  std::copy_n(static_cast<const char*>(tensor.data()), tensor.element_count() * size_of(tensor.dtype()),
              static_cast<char*>(other.data()));
  return other;
}

// Packed sequences get a batch of 1. offsets: the file of the option that says where they begin; empty: none.
HostTensor read_input(const std::string& path, DType dtype, const char* offsets_option, const std::string& offsets) {
  HostTensor tensor = read_npy(path, dtype);
  const Dims& shape = tensor.shape();
  if (shape.size() == kRank) return tensor;
  if (shape.size() == kPackedRank && !offsets.empty()) return reshaped(tensor, {1, shape[0], shape[1], shape[2]});
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: must have 4 dimensions (batch, seqlen, heads, head_dim), or 3 (total, heads, head_dim) "
                          "beside {}, has shape {}",
                          path, offsets_option, to_string(shape)));
}

void require_of_heads(const std::string& path, const HostTensor& numbers) {
  if (numbers.shape().size() == 1 || numbers.shape().size() == 2) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: must be (heads_q) or (batch, heads_q), has shape {}", path, to_string(numbers.shape())));
}

HostTensor read_option(const TensorOption& option, const std::string& path, DType of_rows) {
  if (option.is_of_rows) return read_npy(path, of_rows);
  return option.dtype ? read_npy(path, *option.dtype) : read_npy(path);
}

std::vector<OptionTensor> read_tensors(const TensorFiles& files, DType of_rows) {
  std::vector<OptionTensor> tensors;
  for (const TensorOption& option : tensor_options()) {
    const std::string& path = files.*option.file;
    if (path.empty()) continue;
    tensors.push_back({option.option, read_option(option, path, of_rows)});
    if (option.option == &AttentionOptions::alibi_slopes || option.option == &AttentionOptions::sinks)
      require_of_heads(path, tensors.back().values);
  }
  return tensors;
}

// That what is in the file is like another tensor of the call.
void require_shape(const std::string& path, const HostTensor& tensor, const char* like, const Dims& shape) {
  if (tensor.shape() == shape) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: must have the shape of the {}, {}, has shape {}", path,
                                                       like, to_string(shape), to_string(tensor.shape())));
}

GradientInputs read_gradients(const AttendOptions& options, const Inputs& inputs) {
  const std::string& offsets = options.tensors.cu_seqlens_q;
  GradientInputs gradients;
  gradients.dq = !options.dq.empty(), gradients.dk = !options.dk.empty(), gradients.dv = !options.dv.empty();
  gradients.dbias = !options.dbias.empty(), gradients.dslopes = !options.dslopes.empty();
  gradients.dsinks = !options.dsinks.empty();
  gradients.dout = read_input(options.grad, inputs.q.dtype(), "--cu-seqlens-q", offsets);
  require_shape(options.grad, gradients.dout, "output", inputs.out_shape());
  gradients.deterministic = options.deterministic;
  if (!options.grad_variant.empty()) gradients.variant = parse_backward_variant(options.grad_variant);
  if (options.dlse.empty()) return gradients;
  HostTensor dlse = read_npy(options.dlse, DType::f32);
  if (!offsets.empty() && dlse.shape().size() == 2) dlse = reshaped(dlse, {1, dlse.shape()[0], dlse.shape()[1]});
  require_shape(options.dlse, dlse, "LSE", inputs.lse_shape());
  gradients.dlse = std::move(dlse);
  return gradients;
}

}  // namespace

AttentionOptions asked_options(const AttendOptions& options) {
  AttentionOptions asked = options.features.options(options.texts.is_causal());
  asked.softmax_scale = options.scale;
  asked.fixed_split_size = options.fixed_split_size;
  if (options.e4m3_queries) asked.out_dtype = options.out_e4m3 ? DType::e4m3 : parse_dtype(options.dtype);
  if (options.fast_sums) asked.accumulate = Accumulate::fast;
  return asked;
}

HostTensor without_batch(const HostTensor& tensor) {
  return reshaped(tensor, Dims(tensor.shape().begin() + 1, static_cast<std::size_t>(tensor.shape().size()) - 1));
}

Inputs read_inputs(const AttendOptions& options, DType dtype) {
  const ProgressLine progress("reading the inputs");
  const AttentionOptions asked = asked_options(options);
  const TensorFiles& files = options.tensors;
  const DType of_8_bits = options.e5m2 ? DType::e5m2 : DType::e4m3;
  const auto dtype_of = [&](bool is_of_8_bits) { return is_of_8_bits ? of_8_bits : dtype; };
  const auto read_kv = [&](const std::string& path) {
    return read_input(path, dtype_of(options.e4m3), "--cu-seqlens-kv", files.cu_seqlens_kv);
  };
  Inputs inputs{read_input(options.q, dtype_of(options.e4m3_queries), "--cu-seqlens-q", files.cu_seqlens_q),
                read_kv(options.k),
                options.v_transposed ? with_dims_along_rows(read_kv(options.v)) : read_kv(options.v),
                options.v_transposed,
                read_tensors(files, dtype),
                Texts(options.texts),
                asked,
                {}};
  if (!options.grad.empty()) inputs.gradients = read_gradients(options, inputs);
  return inputs;
}

}  // namespace flashjit::cli
