// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "flashjit/error.h"
#include "generator/arguments.h"
#include "generator/dtype.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/philox.h"
#include "runtime/call/ragged.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

constexpr std::int64_t kQuantizeHeadDimStep = 16;  // chunks of two lanes: templates/kernels/quantize.cuh
constexpr std::int64_t kEnoughShares = 1024;       // of maxima: some for each multiprocessor
constexpr std::int64_t kMostRowsAtOnce = generator::kQuantizeTileRows * generator::kQuantizeWarps;

bool has_three_dims(const Tensor& x) noexcept { return x.shape.size() == kRank - 1 && x.strides.size() == kRank - 1; }

void check_quantize_options(const QuantizeOptions& opts, bool is_packed) {
  if (opts.scale_of == ScaleOf::block ? opts.block_size < 1 : opts.block_size != 0)
    reject("block_size: must be {}, was {}",
           opts.scale_of == ScaleOf::block ? "at least 1 for scales of blocks" : "0 without scales of blocks",
           opts.block_size);
  check_choice(GivenRotary(opts));
  if (opts.rotary_cos && is_packed && !opts.positions)
    reject("positions: must be given beside rotary_cos for x of three dimensions, was not");
}

void check_x_and_out(const Tensor& x, const Tensor& out) {
  if (!generator::has_kernels(x.dtype))
    reject("x: dtype must be {}, was {}", generator::kernel_dtypes(), to_string(x.dtype));
  check_shape("x", x, kRowsRules);
  const std::int64_t head_dim = x.shape[head_dim_dim];
  if (head_dim == 0 || head_dim % kQuantizeHeadDimStep != 0 || head_dim > generator::kQuantizeMaxHeadDim)
    reject("x: head_dim must be a multiple of {} from {} to {}, was {}", kQuantizeHeadDimStep, kQuantizeHeadDimStep,
           generator::kQuantizeMaxHeadDim, head_dim);
  if (!generator::is_of_8_bits(out.dtype)) reject("out: dtype must be e4m3 or e5m2, was {}", to_string(out.dtype));
  check_shape("out", out, kRowsRules);
  for (int dim = 0; dim < kRank; ++dim) require_size("out", out, kRowsRules, dim, x.shape[dim], "x");
}

void check_scales_of_x(const Tensor& scale, const Dims& wanted) {
  if (scale.dtype != DType::f32) reject("scale: dtype must be f32, was {}", to_string(scale.dtype));
  if (scale.shape != wanted) reject("scale: shape must be {}, was {}", to_string(wanted), to_string(scale.shape));
  check_shape("scale", scale, captured_rules(scale, false));
}

// As [batch, block, head]: from [batch, head, block], of which dimensions at the end or the batch may not be there.
Tensor by_blocks(const Tensor& scale, const QuantizeOptions& opts, bool is_packed) {
  Tensor form{scale.data, scale.dtype, {0, 0, 0}};
  form.strides = {0, 0, 0};
  if (opts.scale_of == ScaleOf::tensor) return form;
  int own = 0;
  if (!is_packed) form.strides[batch_dim] = scale.strides[own++];
  form.strides[heads_dim] = scale.strides[own++];
  if (opts.scale_of == ScaleOf::block) form.strides[seqlen_dim] = scale.strides[own];
  return form;
}

generator::RowStrides strides_in_bytes(const Tensor& scales) noexcept {
  constexpr std::int64_t kElement = sizeof(float);
  return {scales.strides[batch_dim] * kElement, scales.strides[seqlen_dim] * kElement,
          scales.strides[heads_dim] * kElement};
}

generator::QuantizeArguments quantize_arguments(const QuantizeCall& call) {
  const Tensor& x = call.x;
  generator::QuantizeArguments arguments{};
  arguments.x = static_cast<const char*>(x.data);
  arguments.out = static_cast<char*>(call.out.data);
  arguments.x_strides = row_strides(x), arguments.out_strides = row_strides(call.out);
  arguments.seqlen = static_cast<int>(x.shape[seqlen_dim]);
  arguments.num_heads = static_cast<int>(x.shape[heads_dim]);
  arguments.rows_of_block = static_cast<int>(call.rows_of_block());
  arguments.blocks_of_head = static_cast<int>(call.blocks_of_head());
  arguments.blocks = static_cast<int>(call.blocks());
  arguments.warps = static_cast<int>(std::min<std::int64_t>(
      generator::kQuantizeWarps, ceil_quotient(call.rows_of_block(), generator::kQuantizeTileRows)));
  arguments.scale = static_cast<char*>(call.scales.data);
  arguments.scale_strides = strides_in_bytes(call.scales);
  arguments.is_of_head = call.opts.scale_of == ScaleOf::head;
  if (call.needs_maxima()) {
    arguments.maxima = static_cast<float*>(call.maxima.data);
    arguments.shares = static_cast<int>(call.maxima_shape()[1]);
    arguments.blocks_of_a_scale = static_cast<int>(arguments.is_of_head ? call.blocks_of_head() : call.blocks());
  }
  if (call.opts.rotation_seed) {
    const auto signs = rotation_signs(*call.opts.rotation_seed);
    std::copy(signs.begin(), signs.end(), arguments.signs);
  }
  arguments.rotary = rotary_tables(call.rotary());
  arguments.turned = static_cast<int>(call.rotary().pairs() / kStrideStep);
  return arguments;
}

}  // namespace

std::array<std::uint32_t, generator::kQuantizeMaxHeadDim / 32> rotation_signs(std::uint64_t seed) noexcept {
  std::array<std::uint32_t, generator::kQuantizeMaxHeadDim / 32> signs{};
  for (std::size_t i = 0; i < signs.size(); i += 4) {
    const PhiloxWords block =
        philox({static_cast<std::uint32_t>(i / 4), 0, 0, 0}, {lower_word(seed), upper_word(seed)});
    std::copy(block.begin(), block.end(), signs.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return signs;
}

std::int64_t rotated_part(std::int64_t head_dim) noexcept { return head_dim & -head_dim; }

QuantizeCall::QuantizeCall(const Tensor& of_x, const Tensor& of_out, const Tensor& scale, const QuantizeOptions& of)
    : x(of_x), out(of_out), opts(of) {
  const bool is_packed = has_three_dims(of_x);
  check_quantize_options(opts, is_packed);
  if (is_packed) x = with_batch(of_x);
  if (is_packed && has_three_dims(of_out)) out = with_batch(of_out);
  check_x_and_out(x, out);
  check_scales_of_x(scale, scale_shape(of_x, opts));
  scales = by_blocks(scale, opts, is_packed);
  add_operand(operands, "x", x, Operand::Role::rows, false);
  add_rotary(operands, rotary(), x.shape[head_dim_dim], x.shape[batch_dim] * x.shape[seqlen_dim],
             "one for each token of x");
  add_operand(operands, "scale", scale, Operand::Role::captured, !opts.scale_is_given);
  add_operand(operands, "out", out, Operand::Role::rows, true);
}

bool QuantizeCall::nothing_to_do() const noexcept {
  return x.shape[batch_dim] == 0 || x.shape[seqlen_dim] == 0 || x.shape[heads_dim] == 0;
}

std::int64_t QuantizeCall::rows_of_block() const noexcept {
  return std::min(opts.scale_of == ScaleOf::block ? opts.block_size : kMostRowsAtOnce, x.shape[seqlen_dim]);
}
std::int64_t QuantizeCall::blocks_of_head() const noexcept {
  return ceil_quotient(x.shape[seqlen_dim], rows_of_block());
}
std::int64_t QuantizeCall::blocks() const noexcept {
  return x.shape[batch_dim] * blocks_of_head() * x.shape[heads_dim];
}

Dims QuantizeCall::maxima_shape() const noexcept {
  const bool is_of_head = opts.scale_of == ScaleOf::head;
  const std::int64_t count = is_of_head ? x.shape[batch_dim] * x.shape[heads_dim] : 1;
  return {count, std::min(is_of_head ? blocks_of_head() : blocks(), ceil_quotient(kEnoughShares, count))};
}

void QuantizeCall::add_maxima(const Tensor& memory) {
  maxima = memory;
  add_operand(operands, "maxima", maxima, Operand::Role::captured, true);
}

Dims scale_shape(const Tensor& x, const QuantizeOptions& opts) {
  const int rank = x.shape.size();
  if (rank != kRank && rank != kRank - 1)
    reject("x: rank must be 3 or 4, was {} with shape {}", rank, to_string(x.shape));
  if (opts.scale_of == ScaleOf::tensor) return {1};
  const std::int64_t heads = x.shape[rank - 2];
  const std::int64_t blocks = opts.block_size > 0 ? ceil_quotient(x.shape[rank - 3], opts.block_size) : 0;
  const bool of_blocks = opts.scale_of == ScaleOf::block;
  if (rank < kRank) return of_blocks ? Dims{heads, blocks} : Dims{heads};
  return of_blocks ? Dims{x.shape[0], heads, blocks} : Dims{x.shape[0], heads};
}

void check_given_scales(const QuantizeCall& call, const ReadInts& read) {
  const Operand* const given = std::find_if(call.operands.begin(), call.operands.end(), [](const Operand& operand) {
    return std::string_view(operand.name) == "scale";
  });
  const std::vector<std::int32_t> bits = read(given->range);
  for (std::int64_t i = 0; i < call.blocks(); ++i) {
    const std::int64_t heads = call.x.shape[heads_dim], blocks = call.blocks_of_head();
    const auto at = static_cast<std::size_t>(i / heads / blocks * call.scales.strides[batch_dim] +
                                             i / heads % blocks * call.scales.strides[seqlen_dim] +
                                             i % heads * call.scales.strides[heads_dim]);
    float scale = 0;
    std::memcpy(&scale, &bits[at], sizeof(scale));
    if (!(std::isnormal(scale) && scale > 0)) reject("scale: must be positive, finite and normal, was {}", scale);
  }
}

generator::QuantizePass last_pass(const QuantizeCall& call) noexcept {
  using generator::QuantizePass;
  if (call.opts.scale_is_given) return QuantizePass::by_given;
  if (call.needs_maxima()) return QuantizePass::by_maxima;
  return call.rows_of_block() > kMostRowsAtOnce ? QuantizePass::by_many_rows : QuantizePass::by_rows;
}

PlainLaunch make_quantize_launch(const QuantizeCall& call, generator::QuantizePass pass,
                                 const Architecture& architecture, std::int64_t resident_blocks,
                                 PlainKernels& kernels) {
  if (!generator::converts_to_8_bits(architecture))
    throw Error(ErrorCode::unsupported, fmt::format("out: dtype {} takes compute capability 8.9 or more, was on {}",
                                                    to_string(call.out.dtype), architecture.name));
  const generator::QuantizeKernel wanted{
      call.x.dtype,         call.x.shape[head_dim_dim],        call.opts.rotation_seed.has_value(),
      call.rotary().kind(), call.rotary().dtype(call.x.dtype), call.out.dtype};
  const generator::PlainKernel& kernel = kernels.get(
      fmt::format("quantize {} {} {} {} {} {} {} {}", static_cast<int>(pass), to_string(wanted.dtype),
                  to_string(wanted.stored), wanted.head_dim, wanted.rotates, static_cast<int>(wanted.rotary),
                  to_string(wanted.table), architecture.name),
      [&](const auto& templates) { return generator::render_quantize(wanted, pass, architecture, templates); });
  PlainLaunch made = plain_launch(kernel, call.blocks(), "x");
  const generator::QuantizeArguments arguments = quantize_arguments(call);
  const Dims maxima = call.maxima_shape();
  const std::int64_t resident = resident_blocks * kernel.blocks_of_sm * generator::kQuantizeWarps / arguments.warps;
  made.launch.blocks =
      pass == generator::QuantizePass::maxima ? maxima[0] * maxima[1] : std::min(call.blocks(), resident);
  constexpr int kWarpLanes = 32;
  made.launch.threads = arguments.warps * kWarpLanes;
  made.launch.shared_bytes = kernel.smem_bytes / generator::kQuantizeWarps * arguments.warps;
  made.launch.write_argument(0, arguments);
  return made;
}

}  // namespace flashjit::runtime

namespace flashjit {

Dims quantize_scale_shape(const Tensor& x, const QuantizeOptions& opts) { return runtime::scale_shape(x, opts); }

int rotation_sign(std::uint64_t seed, std::int64_t element) {
  const auto block = runtime::philox({static_cast<std::uint32_t>(element / 128), 0, 0, 0},
                                     {runtime::lower_word(seed), runtime::upper_word(seed)});
  return (block[static_cast<std::size_t>(element / 32 % 4)] >> element % 32 & 1) != 0 ? -1 : 1;
}

}  // namespace flashjit
