// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/backward.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "generator/backward.h"
#include "generator/family.h"
#include "generator/plan.h"
#include "runtime/call/backward_kernels.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/operands.h"
#include "runtime/call/option_gradients.h"
#include "runtime/call/ragged_backward.h"
#include "runtime/call/tensor_map.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

constexpr std::int64_t kChunkElements = 8;

void check_options(const AttentionOptions& opts) {
  check_places_of_gradients(opts);
  if (opts.plan) reject("plan: must not be given for gradients");
  if (opts.variant)
    reject(
        "variant: must not be given among the options for gradients, whose kernels have variants of their own, was {}",
        to_string(*opts.variant));
  if (opts.fixed_split_size != 0) reject("fixed_split_size: must be 0 for gradients, was {}", opts.fixed_split_size);
  if (opts.lse) reject("lse: must not be given among the options for gradients, which take it as an argument");
}

// In place of a tensor [batch, seqlen, heads, head_dim] of the call's queries.
void check_rows(const char* name, const Tensor& tensor, DType dtype, const Dims& shape) {
  if (tensor.dtype != dtype) reject("{}: dtype must be {}, was {}", name, to_string(dtype), to_string(tensor.dtype));
  check_shape(name, tensor, rows_rules(tensor));
  if (tensor.shape != shape) reject("{}: shape must be {}, was {}", name, to_string(shape), to_string(tensor.shape));
}

void check_lse(const char* name, const Tensor& lse, const Dims& out) {
  const Dims shape{out[batch_dim], out[heads_dim], out[seqlen_dim]};
  if (lse.dtype != DType::f32) reject("{}: dtype must be f32, was {}", name, to_string(lse.dtype));
  check_shape(name, lse, kLseRules);
  if (lse.shape != shape) reject("{}: shape must be {}, was {}", name, to_string(shape), to_string(lse.shape));
}

void add_gradients(BackwardCall& call) {
  const GivenGradients& given = call.given;
  const std::optional<Tensor>&dq = given.into.dq, &dk = given.into.dk, &dv = given.into.dv;
  call.key_gradient = dk ? dk->dtype : dv ? dv->dtype : given.k.dtype;
  if (call.key_gradient != given.k.dtype && call.key_gradient != DType::f32)
    reject("{}: dtype must be {} or f32, was {}", dk ? "dk" : "dv", to_string(given.k.dtype),
           to_string(call.key_gradient));
  if (dk && dv && dk->dtype != dv->dtype)
    reject("dv: dtype must be {} like that of dk, was {}", to_string(dk->dtype), to_string(dv->dtype));
  struct Row {
    const char* name;
    const std::optional<Tensor>& tensor;
    DType dtype;
    const Dims& shape;
  };
  for (const auto& [name, tensor, dtype, shape] : {Row{"dq", dq, given.q.dtype, given.q.shape},
                                                   {"dk", dk, call.key_gradient, given.k.shape},
                                                   {"dv", dv, call.key_gradient, given.v.shape}}) {
    if (!tensor) continue;
    check_rows(name, *tensor, dtype, shape);
    add_operand(call.forward.operands, name, *tensor, Operand::Role::rows, true);
  }
}

char* data_of(const std::optional<Tensor>& tensor) { return tensor ? static_cast<char*>(tensor->data) : nullptr; }
generator::RowStrides strides_of(const std::optional<Tensor>& tensor) {
  return tensor ? row_strides(*tensor) : generator::RowStrides{};
}

// For heads of keys and values that no head of queries has: their gradients are 0.
generator::ForwardSizes sizes_without_queries(const ForwardCall& call) {
  generator::ForwardSizes sizes{};
  sizes.batch = static_cast<int>(call.batch);
  sizes.seqlen_kv = static_cast<int>(call.seqlen_kv);
  sizes.num_heads_q = static_cast<int>(call.num_heads_kv), sizes.heads_per_group = 1;
  return sizes;
}

generator::QueryLayout layout_of(const BackwardCall& call) {
  return generator::query_layout(call.forward.problem, call.variant);
}
// With those that pad.
std::int64_t rows_of_all(const BackwardCall& call) {
  const Dims& q = call.given.q.shape;
  return q[batch_dim] * q[heads_dim] * padded_seqlen(call);
}

// Of queries, with the lanes that rows of so many chunks take.
generator::BackwardRows rows_of(const BackwardCall& call, int chunks) {
  const Dims& q = call.given.q.shape;
  return {.count = rows_of_all(call),
          .seqlen = static_cast<int>(q[seqlen_dim]),
          .padded_seqlen = static_cast<int>(padded_seqlen(call)),
          .num_heads = static_cast<int>(q[heads_dim]),
          .lanes_log2 = row_lanes_log2(chunks)};
}

PlainLaunch row_launch(const generator::PlainKernel& kernel, const generator::BackwardRows& rows) {
  const std::int64_t rows_of_block = kernel.threads >> rows.lanes_log2;
  return plain_launch(kernel, ceil_quotient(rows.count, rows_of_block), "q");
}

// What kernels of the Hopper family have tensor maps of.
std::array<std::pair<const char*, const Tensor*>, 5> mapped_tensors(const BackwardCall& call) {
  const GivenGradients& given = call.given;
  return {{{"q", &given.q}, {"k", &given.k}, {"v", &given.v}, {"dout", &given.dout}, {"out", &given.out}}};
}
void require_tensor_maps(const BackwardCall& call) {
  for (const auto& [name, tensor] : mapped_tensors(call)) require_tensor_map(name, *tensor);
}

bool has_elements(const Tensor& tensor) noexcept {
  return std::find(tensor.shape.begin(), tensor.shape.end(), 0) == tensor.shape.end();
}
// Of a query and a key; where there is none all gradients are 0.
bool has_pairs(const BackwardCall& call) noexcept { return has_elements(call.given.q) && has_elements(call.given.k); }

// Kernels of large heads run where there are pairs alone.
bool wants_tensor_maps(const BackwardCall& call) { return has_pairs(call) || !is_in_passes(call); }
bool may_take_hopper(const BackwardCall& call) {
  const auto tensors = mapped_tensors(call);
  return !wants_tensor_maps(call) ||
         std::all_of(tensors.begin(), tensors.end(), [](const auto& each) { return has_tensor_map(*each.second); });
}

BackwardVariant chosen_variant(const BackwardCall& call, const Architecture& architecture,
                               const std::optional<BackwardVariant>& recorded) {
  const std::optional<BackwardVariant>& asked = call.given.backward.variant;
  const Problem& problem = call.forward.problem;
  if (!asked) {
    const bool may_be_hopper = may_take_hopper(call);
    if (recorded && (may_be_hopper || !std::holds_alternative<HopperBackwardVariant>(*recorded))) return *recorded;
    return generator::default_backward_variant(problem, architecture, call.forward.seqlen_q, may_be_hopper);
  }
  const std::string why = generator::why_illegal(problem, *asked, architecture);
  if (!why.empty()) throw Error(ErrorCode::invalid_argument, why);
  if (std::holds_alternative<HopperBackwardVariant>(*asked) && wants_tensor_maps(call)) require_tensor_maps(call);
  return *asked;
}

bool is_deterministic(const BackwardCall& call) { return kernel_gradients(call).deterministic; }
// In the memory of rows, behind LSE and row sums: counters: of tickets, with what else HopperBackwardCounters has, and
// of turns.
unsigned* counters(const BackwardCall& call) { return reinterpret_cast<unsigned*>(row_sums(call) + rows_of_all(call)); }
std::int64_t tickets_of(const BackwardCall& call) {
  constexpr std::int64_t kOfHead = 2;
  return is_whole(call) ? 1 + kOfHead * call.forward.batch * call.forward.num_heads_kv : is_deterministic(call) ? 1 : 0;
}
std::int64_t turns_of(const BackwardCall& call) {
  if (!is_deterministic(call)) return 0;
  const Dims& q = call.given.q.shape;
  return q[batch_dim] * q[heads_dim] * query_places(call) * layout_of(call).adders;
}
unsigned* turns(const BackwardCall& call) { return turns_of(call) == 0 ? nullptr : counters(call) + tickets_of(call); }
std::int64_t counters_of(const BackwardCall& call) { return tickets_of(call) + turns_of(call); }
int chunks_of(std::int64_t head_dim) { return static_cast<int>(head_dim / kChunkElements); }

}  // namespace

bool BackwardCall::has_rows() const noexcept {
  return (forward.batch > 0 || forward.problem.ragged) && forward.num_heads_kv > 0;
}
bool BackwardCall::nothing_to_do() const noexcept {
  return (!has_rows() || (!given.into.dq && !given.into.dk && !given.into.dv)) && !option_gradients(*this).any();
}

bool is_whole(const BackwardCall& call) { return layout_of(call).is_whole; }
bool is_in_passes(const BackwardCall& call) { return generator::is_large(call.forward.problem); }
std::int64_t padded_seqlen(const BackwardCall& call) {
  const int rows = layout_of(call).rows;
  if (call.forward.problem.ragged && rows > 1) return query_places(call) * rows;
  return ceil_quotient(call.given.q.shape[seqlen_dim], rows) * rows;
}
float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }
float* lse_log2(const BackwardCall& call) { return floats(call.scratch.rows); }
float* row_sums(const BackwardCall& call) { return lse_log2(call) + rows_of_all(call); }

BackwardCall validate_backward(const GivenGradients& given) {
  check_options(given.opts);
  if (given.opts.k_rotary) throw Error(ErrorCode::unsupported, "k_rotary: must not be given, it has no gradient yet");
  BackwardCall call{validate_inputs(given.q, given.k, given.v, given.opts), given, {}, 0, {}};
  if (call.forward.problem.e4m3)
    throw Error(ErrorCode::unsupported, fmt::format("k: must not be {}, which has no backward kernels yet",
                                                    to_string(kv_dtype(call.forward.problem))));
  call.forward.problem = generator::backward_problem(call.forward.problem);
  const Dims out = call.forward.out_shape();
  Operands& operands = call.forward.operands;
  for (const auto& [name, tensor] : {std::pair{"out", &given.out}, {"dout", &given.dout}}) {
    check_rows(name, *tensor, given.q.dtype, out);
    add_operand(operands, name, *tensor, Operand::Role::rows, false);
  }
  call.forward.out = &given.out;
  for (const auto& [name, tensor] :
       {std::pair{"lse", &given.lse}, {"dlse", given.backward.dlse ? &*given.backward.dlse : nullptr}}) {
    if (!tensor) continue;
    check_lse(name, *tensor, out);
    add_operand(operands, name, *tensor, Operand::Role::lse, false);
  }
  add_gradients(call);
  add_option_gradients(call);
  return call;
}

BackwardProblem problem_of(const BackwardCall& call) {
  const generator::KernelGradients gradients = kernel_gradients(call);
  Problem attention = call.forward.problem;
  attention.latent = false;  // kernels load values wherever they are
  return {attention, gradients.of_keys == DType::f32, gradients.slopes, gradients.bias, false, gradients.deterministic};
}

void choose_variant(BackwardCall& call, const Architecture& architecture, std::int64_t resident_blocks,
                    const std::optional<BackwardVariant>& recorded) {
  call.variant = chosen_variant(call, architecture, recorded);
  call.resident_blocks = std::max<std::int64_t>(1, resident_blocks);
}

BackwardScratch backward_scratch(const BackwardCall& call) {
  const Dims& q = call.given.q.shape;
  BackwardScratch scratch;
  scratch.rows = Tensor(nullptr, DType::f32, {2 * rows_of_all(call) + counters_of(call)});
  const int columns = layout_of(call).columns;
  if (call.given.into.dq && columns > 0)
    scratch.dq = Tensor(nullptr, DType::f32, {q[batch_dim], q[heads_dim], padded_seqlen(call), columns});
  scratch.slopes = slope_gradient_sums(call);
  scratch.bias = bias_gradient_sums(call);
  scratch.key_tiles = key_tile_list(call), scratch.row_tiles = row_tile_list(call);
  return scratch;
}

void add_scratch(BackwardCall& call, const BackwardScratch& scratch) {
  call.scratch = scratch;
  for (const Tensor* tensor : call.scratch.all())
    if (tensor->data) add_operand(call.forward.operands, "scratch", *tensor, Operand::Role::captured_packed, true);
}

namespace {

// The LSE as the caller gave it, and what depends on it.
template <class Arguments>
void set_lse(Arguments& arguments, const BackwardCall& call) {
  const GivenGradients& given = call.given;
  arguments.lse = static_cast<const char*>(given.lse.data);
  arguments.dlse = data_of(given.backward.dlse);
  arguments.lse_strides = lse_strides(given.lse);
  if (given.backward.dlse) arguments.dlse_strides = lse_strides(*given.backward.dlse);
}

}  // namespace

PlainLaunch make_backward_prepare_launch(const BackwardCall& call, const Architecture& architecture,
                                         PlainKernels& kernels) {
  const GivenGradients& given = call.given;
  generator::BackwardPrepareArguments arguments{};
  set_lse(arguments, call);
  arguments.lse_log2 = lse_log2(call), arguments.row_sums = row_sums(call);
  arguments.out = static_cast<const char*>(given.out.data);
  arguments.dout = static_cast<const char*>(given.dout.data);
  arguments.out_strides = row_strides(given.out), arguments.dout_strides = row_strides(given.dout);
  arguments.chunks = chunks_of(given.out.shape[head_dim_dim]);
  if (call.scratch.dq.data) arguments.dq_chunks = chunks_of(call.scratch.dq.shape[3]);
  arguments.rows = rows_of(call, arguments.chunks);
  arguments.dq = floats(call.scratch.dq);
  PlainLaunch made = row_launch(backward_prepare_kernel(given.q.dtype, architecture, kernels), arguments.rows);
  made.launch.write_argument(0, arguments);
  return made;
}

PlainLaunch make_clear_launch(unsigned* words, std::int64_t count, const Architecture& architecture,
                              PlainKernels& kernels) {
  const generator::BackwardClearArguments arguments{words, count};
  const generator::PlainKernel& kernel = backward_clear_kernel(architecture, kernels);
  PlainLaunch made = plain_launch(kernel, ceil_quotient(arguments.count, kernel.threads), "k");
  made.launch.write_argument(0, arguments);
  return made;
}

PlainLaunch make_counters_clear_launch(const BackwardCall& call, const Architecture& architecture,
                                       PlainKernels& kernels) {
  return make_clear_launch(counters(call), counters_of(call), architecture, kernels);
}

namespace {

// Heads of keys whose queries, with what belongs to them, fit so many bytes.
std::int64_t heads_in(const BackwardCall& call, std::int64_t bytes) {
  const Dims& q = call.given.q.shape;
  const std::int64_t row_bytes = (q[head_dim_dim] + call.forward.problem.head_dim_v) * size_of(call.given.q.dtype) +
                                 layout_of(call).columns * static_cast<std::int64_t>(sizeof(float));
  return bytes * std::max<std::int64_t>(1, call.forward.num_heads_kv) /
         std::max<std::int64_t>(1, q[seqlen_dim] * q[heads_dim] * row_bytes);
}
int clamp_section(const BackwardCall& call, std::int64_t heads) {
  const std::int64_t all = call.forward.batch * call.forward.num_heads_kv;
  return static_cast<int>(std::clamp<std::int64_t>(heads, 1, std::max<std::int64_t>(1, all)));
}

// What the families' kernels are told alike.
template <class Arguments>
void set_common(Arguments& arguments, const BackwardCall& call, const generator::ForwardSizes& sizes) {
  const std::optional<Tensor>&dk = call.given.into.dk, &dv = call.given.into.dv;
  arguments.lse_log2 = lse_log2(call), arguments.row_sums = row_sums(call);
  arguments.dk = data_of(dk), arguments.dv = data_of(dv);
  arguments.dk_strides = strides_of(dk), arguments.dv_strides = strides_of(dv);
  arguments.sizes = sizes;
  arguments.sizes.num_q_tiles = static_cast<int>(query_places(call));
  arguments.scale = call.forward.softmax_scale;
  arguments.turns = turns(call);
}

// What kernels of the mma family read, and the sizes of what they read it for.
template <class Arguments>
generator::ForwardSizes set_rows(Arguments& arguments, const BackwardCall& call) {
  const bool has_queries = call.forward.num_heads_q > 0;
  generator::MmaArguments of_forward{};
  if (has_queries) of_forward = make_forward_arguments(call.forward, MmaVariant{});
  arguments.q = of_forward.q, arguments.k = of_forward.k, arguments.v = of_forward.v;
  arguments.dout = static_cast<const char*>(call.given.dout.data);
  arguments.q_strides = of_forward.q_strides, arguments.k_strides = of_forward.k_strides;
  arguments.v_strides = of_forward.v_strides, arguments.dout_strides = row_strides(call.given.dout);
  arguments.key_tiles = static_cast<int>(key_places(call));
  generator::ForwardSizes sizes = has_queries ? of_forward.sizes : sizes_without_queries(call.forward);
  sizes.heads_per_section = clamp_section(call, heads_in(call, kSectionBytes));
  if (call.forward.problem.ragged) {
    sizes.seqlen_q = static_cast<int>(call.given.q.shape[seqlen_dim]);
    sizes.seqlen_kv = static_cast<int>(call.given.k.shape[seqlen_dim]);
  }
  return sizes;
}

std::size_t set_arguments(Launch& launch, const BackwardCall& call, const MmaBackwardVariant&) {
  generator::BackwardArguments arguments{};
  arguments.dq = floats(call.scratch.dq);
  arguments.tickets = counters(call);
  const generator::ForwardSizes sizes = set_rows(arguments, call);
  set_common(arguments, call, sizes);
  launch.write_argument(0, arguments);
  return sizeof(arguments);
}

// All of its tensors have elements.
std::size_t set_arguments(Launch& launch, const BackwardCall& call, const HopperBackwardVariant& variant) {
  using Arguments = generator::HopperBackwardArguments;
  Arguments arguments{};
  generator::ForwardSizes sizes = make_forward_arguments(call.forward, MmaVariant{}).sizes;
  sizes.scale_log2 = std::copysign(sizes.scale_log2, call.forward.softmax_scale);
  set_common(arguments, call, sizes);
  // So many tiles of keys that there are jobs for all blocks between one section's and what waits for them. What sees
  // keys of different numbers begins with the longest of more heads, of three sections at a time. And not more heads
  // than that, as the rows of the first section and of the last two go by themselves: by measurement at 512 tokens.
  constexpr std::int64_t kMostHeads = 16;
  const std::int64_t tiles = ceil_quotient(call.forward.seqlen_kv, variant.block_kv);
  std::int64_t heads = (call.resident_blocks + tiles - 1) / tiles;
  if (generator::backward_order(call.forward.problem, is_deterministic(call)) == TileOrder::longest_first)
    heads = std::max(heads, heads_in(call, kSectionBytes / 2));
  arguments.sizes.heads_per_section = clamp_section(call, std::min(heads, kMostHeads));
  set_lse(arguments, call);
  arguments.dq_sums = floats(call.scratch.dq);
  arguments.dq = data_of(call.given.into.dq), arguments.dq_strides = strides_of(call.given.into.dq);
  arguments.counters = counters(call);
  launch.write_argument(0, arguments);
  launch.blocks = call.resident_blocks;
  launch.overlaps = true;
  const Problem& problem = call.forward.problem;
  const auto add_map = [&](std::size_t offset, const Tensor& tensor, int head_dim, int rows) {
    launch.maps[launch.map_count++] = {
        offset, &tensor, {generator::panels_of(head_dim).columns, 1, rows}, problem.ragged};
  };
  if (problem.ragged) launch.write_argument(generator::row_tiles_offset(problem), row_tiles(call));
  add_map(offsetof(Arguments, q), call.given.q, problem.head_dim, variant.block_q);
  add_map(offsetof(Arguments, k), call.given.k, problem.head_dim, variant.block_kv);
  add_map(offsetof(Arguments, v), call.given.v, problem.head_dim_v, variant.block_kv);
  add_map(offsetof(Arguments, dout), call.given.dout, problem.head_dim_v, variant.block_q);
  add_map(offsetof(Arguments, out), call.given.out, problem.head_dim_v, variant.block_q);
  return sizeof(arguments);
}

}  // namespace

PlainLaunch make_backward_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels) {
  const generator::PlainKernel& kernel =
      backward_kernel(call.forward.problem, call.variant, kernel_gradients(call), architecture, kernels);
  PlainLaunch made = plain_launch(kernel, call.forward.num_heads_kv * most_key_tiles(call), "k");
  const std::size_t core_bytes =
      std::visit([&](const auto& of_family) { return set_arguments(made.launch, call, of_family); }, call.variant);
  set_part_arguments(made.launch, call.forward, core_bytes, static_cast<std::byte*>(call.scratch.key_tiles.data));
  set_score_gradients(made.launch, call, core_bytes);
  return made;
}

// --- Large heads: a launch for each gradient -------------------------------------------------------------------------

namespace {

using generator::GradientPass;

// What a pass makes, and what it adds up.
struct LargePass {
  const std::optional<Tensor>& gradient;
  const Tensor& added;
  float scale;
};
LargePass large_pass(const BackwardCall& call, GradientPass pass) {
  const GivenGradients& given = call.given;
  if (pass == GradientPass::values) return {given.into.dv, given.dout, 1.0f};
  if (pass == GradientPass::keys) return {given.into.dk, given.q, call.forward.softmax_scale};
  return {given.into.dq, given.k, call.forward.softmax_scale};
}

// What the families' kernels are told alike. sizes: of the call.
template <class Arguments>
void set_pass(Arguments& arguments, const BackwardCall& call, GradientPass pass, const generator::ForwardSizes& sizes) {
  const LargePass of = large_pass(call, pass);
  arguments.lse_log2 = lse_log2(call), arguments.row_sums = row_sums(call);
  arguments.gradient = data_of(of.gradient), arguments.gradient_strides = strides_of(of.gradient);
  arguments.scale = of.scale;
  arguments.sizes = sizes;
  arguments.sizes.num_q_tiles = static_cast<int>(query_places(call));
  if (pass == GradientPass::queries) arguments.sizes.heads_per_section *= sizes.heads_per_group;
}

std::size_t set_pass_arguments(Launch& launch, const BackwardCall& call, GradientPass pass, const MmaBackwardVariant&) {
  generator::MmaLargeBackwardArguments arguments{};
  const generator::ForwardSizes sizes = set_rows(arguments, call);
  set_pass(arguments, call, pass, sizes);
  launch.write_argument(0, arguments);
  return sizeof(arguments);
}

// All tensors have elements.
std::size_t set_pass_arguments(Launch& launch, const BackwardCall& call, GradientPass pass,
                               const HopperBackwardVariant& variant) {
  using Arguments = generator::HopperLargeBackwardArguments;
  const Problem& problem = call.forward.problem;
  generator::ForwardSizes sizes = make_forward_arguments(call.forward, MmaVariant{}).sizes;
  sizes.scale_log2 = std::copysign(sizes.scale_log2, call.forward.softmax_scale);
  sizes.heads_per_section = clamp_section(call, heads_in(call, kSectionBytes));
  Arguments arguments{};
  set_pass(arguments, call, pass, sizes);
  arguments.rows_of_head = padded_seqlen(call);
  launch.write_argument(0, arguments);
  const GivenGradients& given = call.given;
  const int columns = generator::panels_of(problem.head_dim).columns;
  const auto add_map = [&](std::size_t offset, const Tensor& tensor, int rows) {
    launch.maps[launch.map_count++] = {offset, &tensor, {columns, 1, rows}, problem.ragged};
  };
  add_map(offsetof(Arguments, q), given.q, variant.block_q);
  add_map(offsetof(Arguments, k), given.k, variant.block_kv);
  add_map(offsetof(Arguments, v), given.v, variant.block_kv);
  add_map(offsetof(Arguments, dout), given.dout, variant.block_q);
  add_map(offsetof(Arguments, added), large_pass(call, pass).added, generator::kLargeBackwardRows);
  return sizeof(arguments);
}

PlainLaunch make_pass_launch(const BackwardCall& call, GradientPass pass, const Architecture& architecture,
                             PlainKernels& kernels) {
  const Problem& problem = call.forward.problem;
  const bool of_queries = pass == GradientPass::queries;
  const generator::PlainKernel& kernel = backward_kernel(
      problem, call.variant, generator::of_pass(problem, kernel_gradients(call), pass), architecture, kernels);
  const std::int64_t blocks =
      of_queries ? call.forward.num_heads_q * most_query_tiles(call) : call.forward.num_heads_kv * most_key_tiles(call);
  PlainLaunch made = plain_launch(kernel, blocks, of_queries ? "q" : "k");
  const std::size_t core_bytes = std::visit(
      [&](const auto& of_family) { return set_pass_arguments(made.launch, call, pass, of_family); }, call.variant);
  const Tensor& list = of_queries ? call.scratch.row_tiles : call.scratch.key_tiles;
  set_part_arguments(made.launch, call.forward, core_bytes, static_cast<std::byte*>(list.data));
  if (pass == GradientPass::keys) set_score_gradients(made.launch, call, core_bytes);
  return made;
}

}  // namespace

PlainLaunch make_value_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                       PlainKernels& kernels) {
  return make_pass_launch(call, GradientPass::values, architecture, kernels);
}
PlainLaunch make_key_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                     PlainKernels& kernels) {
  return make_pass_launch(call, GradientPass::keys, architecture, kernels);
}
PlainLaunch make_query_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                       PlainKernels& kernels) {
  return make_pass_launch(call, GradientPass::queries, architecture, kernels);
}

PlainLaunch make_backward_finish_launch(const BackwardCall& call, const Architecture& architecture,
                                        PlainKernels& kernels) {
  const GivenGradients& given = call.given;
  generator::BackwardFinishArguments arguments{};
  arguments.chunks = chunks_of(given.q.shape[head_dim_dim]);
  arguments.rows = rows_of(call, arguments.chunks);
  arguments.sums = floats(call.scratch.dq);
  arguments.dq = data_of(given.into.dq);
  arguments.dq_strides = strides_of(given.into.dq);
  arguments.scale = call.forward.softmax_scale;
  PlainLaunch made = row_launch(backward_finish_kernel(given.q.dtype, architecture, kernels), arguments.rows);
  made.launch.write_argument(0, arguments);
  return made;
}

namespace {

// Where no pair is the gradients of what there is are cleared by a kernel that has no tensor maps, if that of a ragged
// batch was not done yet.
std::vector<MakeBackwardLaunch> launches_of_passes(const BackwardCall& call) {
  struct Row {
    const std::optional<Tensor>& gradient;
    bool makes_more;
    MakeBackwardLaunch pass, clear;
  };
  const GradientTensors& into = call.given.into;
  const bool is_ragged = call.forward.problem.ragged, is_mma = std::holds_alternative<MmaBackwardVariant>(call.variant);
  const bool of_scores = option_gradients(call).of_scores() && has_elements(call.given.k);
  std::vector<MakeBackwardLaunch> launches;
  for (const auto& [gradient, makes_more, pass, clear] :
       {Row{into.dv, false, make_value_gradient_launch, make_clear_dv_launch},
        {into.dk, of_scores, make_key_gradient_launch, make_clear_dk_launch},
        {into.dq, false, make_query_gradient_launch, make_clear_dq_launch}}) {
    if (!makes_more && (!gradient || !has_elements(*gradient))) continue;
    if (has_pairs(call) || is_mma)
      launches.push_back(pass);
    else if (!is_ragged)
      launches.push_back(clear);
  }
  return launches;
}

}  // namespace

std::vector<MakeBackwardLaunch> backward_launches(const BackwardCall& call) {
  std::vector<MakeBackwardLaunch> launches;
  const GradientTensors& into = call.given.into;
  const OptionGradients of_options = option_gradients(call);
  if (of_options.bias) launches.push_back(make_bias_clear_launch);
  if (call.has_rows()) {
    if (call.forward.problem.ragged) {
      launches.push_back(make_key_tiles_launch);
      if (wants_row_tiles(call)) launches.push_back(make_row_tiles_launch);
      if ((is_whole(call) || is_in_passes(call)) && into.dq) launches.push_back(make_clear_dq_launch);
      if (into.dk) launches.push_back(make_clear_dk_launch);
      if (into.dv) launches.push_back(make_clear_dv_launch);
    }
    if (counters_of(call) > 0) launches.push_back(make_counters_clear_launch);
    if (!is_whole(call)) launches.push_back(make_backward_prepare_launch);
    if (is_in_passes(call)) {
      for (const MakeBackwardLaunch make : launches_of_passes(call)) launches.push_back(make);
    } else if (into.dq || into.dk || into.dv || of_options.of_scores() || is_whole(call)) {
      launches.push_back(make_backward_launch);
    }
    if (into.dq && !is_whole(call) && !is_in_passes(call)) launches.push_back(make_backward_finish_launch);
  }
  if (of_options.sinks) launches.push_back(make_sink_gradient_launch);
  if (of_options.slopes) launches.push_back(make_slope_gradient_launch);
  if (of_options.bias && call.scratch.bias.data) launches.push_back(make_bias_gradient_launch);
  return launches;
}

}  // namespace flashjit::runtime
