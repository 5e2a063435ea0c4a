// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/operation.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <numbers>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "flashjit/batch_plan.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/source_parts.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/function_arguments.h"
#include "runtime/call/ragged.h"
#include "runtime/call/scales.h"
#include "runtime/call/splits.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

using generator::FunctionKind;

constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;

generator::WindowArguments window_arguments(const ForwardCall& call) {
  const auto keys = [](std::int64_t side) {
    constexpr std::int64_t kAll = generator::kWindowReach;
    return static_cast<int>(side < 0 ? kAll : std::min(side, kAll));
  };
  return {keys(call.masks.window.left), keys(call.masks.window.right)};
}

generator::ChunkArguments chunk_arguments(const ForwardCall& call) {
  return {static_cast<int>(std::min<std::int64_t>(call.masks.chunk, generator::kWindowReach))};
}

generator::SoftcapArguments softcap_arguments(const ForwardCall& call) {
  const float cap_log2 = call.softcap * std::numbers::log2e_v<float>;
  return {cap_log2, 1 / cap_log2};
}

template <auto kValues>
generator::HeadArguments of_heads(const ForwardCall& call) {
  return head_arguments(*(call.*kValues));
}

generator::PrefixArguments prefix_arguments(const ForwardCall& call) {
  return {static_cast<const int*>(call.prefix->data)};
}

// Strides of what is one for all are 0.
std::int64_t stride_of(const Tensor& tensor, int dim) { return tensor.shape[dim] > 1 ? tensor.strides[dim] : 0; }

generator::BlockMaskArguments block_mask_arguments(const ForwardCall& call) {
  const Tensor& mask = *call.block_mask;
  return {static_cast<const unsigned*>(mask.data), static_cast<unsigned>(stride_of(mask, 0)),
          static_cast<unsigned>(stride_of(mask, 1)), static_cast<unsigned>(mask.shape[4])};
}

generator::DropoutArguments dropout_arguments(const ForwardCall& call) {
  const double probability = call.dropout.probability;
  const DropoutThreshold threshold = dropout_threshold(probability);
  const double share = call.problem.dropout_mask ? 1 - probability : kept_share(probability);
  generator::DropoutArguments arguments{};
  if (call.dropout_state) arguments.state = static_cast<const unsigned long long*>(call.dropout_state->data);
  arguments.seed = call.dropout.seed;
  arguments.offset = call.dropout.offset;
  arguments.threshold = threshold.bits * 0x10001u;  // in both halves
  arguments.kept_below = threshold.keeps_below ? ~0u : 0;
  arguments.scale = static_cast<float>(1 / share);
  arguments.num_heads_q = static_cast<int>(call.num_heads_q);
  return arguments;
}

generator::E4m3Arguments e4m3_arguments(const ForwardCall& call) {
  return {scale_tensor(call.k_scale), scale_tensor(call.v_scale)};
}

generator::RotaryKeyArguments k_rotary_arguments(const ForwardCall& call) {
  return {static_cast<const char*>(call.k_rotary->data), row_strides(*call.k_rotary)};
}

generator::E4m3QueryArguments e4m3_query_arguments(const ForwardCall& call) { return {scale_tensor(call.q_scale)}; }

generator::OutScaleArguments out_scale_arguments(const ForwardCall& call) {
  return {call.out_scale ? static_cast<const float*>(call.out_scale->data) : nullptr};
}

// What writes the arguments of the features that have any.
struct PartWriter {
  generator::FeatureField feature;
  void (*write)(const ForwardCall& call, std::byte* scratch, std::byte* at);
};
void write_ragged(const ForwardCall& call, std::byte* scratch, std::byte* at) {
  const generator::RaggedArguments arguments = ragged_arguments(call, scratch);
  std::memcpy(at, &arguments, sizeof(arguments));
}
// Of the library's functions, and of users'.
template <auto kTensor>
void write_tensor(const ForwardCall& call, std::byte*, std::byte* at) {
  write_function_arguments(call, call.*kTensor, at);
}
template <auto kFunction>
void write_function(const ForwardCall& call, std::byte*, std::byte* at) {
  write_function_arguments(call, *(call.*kFunction), at);
}
template <auto kMake>
void write(const ForwardCall& call, std::byte*, std::byte* at) {
  const auto arguments = kMake(call);
  std::memcpy(at, &arguments, sizeof(arguments));
}
constexpr PartWriter kPartWriters[] = {
    {&Problem::window, write<window_arguments>},
    {&Problem::chunk, write<chunk_arguments>},
    {&Problem::softcap, write<softcap_arguments>},
    {&Problem::alibi, write<of_heads<&ForwardCall::alibi_slopes>>},
    {&Problem::sinks, write<of_heads<&ForwardCall::sinks>>},
    {&Problem::prefix, write<prefix_arguments>},
    {&Problem::block_mask, write<block_mask_arguments>},
    {{&Problem::bias, FunctionKind::bias}, write_tensor<&ForwardCall::bias>},
    {{&Problem::boolean_mask, FunctionKind::boolean_mask}, write_tensor<&ForwardCall::boolean_mask>},
    {{&Problem::documents, FunctionKind::documents}, write_tensor<&ForwardCall::documents>},
    {{&Problem::tree, FunctionKind::tree}, write_tensor<&ForwardCall::tree>},
    {{&Problem::score, FunctionKind::score}, write_function<&ForwardCall::score>},
    {{&Problem::mask, FunctionKind::mask}, write_function<&ForwardCall::mask>},
    {&Problem::dropout, write<dropout_arguments>},
    {{&Problem::dropout_mask, FunctionKind::dropout_mask}, write_tensor<&ForwardCall::dropout_mask>},
    {&Problem::ragged, write_ragged},
    {&Problem::paged, write<paged_arguments>},
    {&Problem::e4m3, write<e4m3_arguments>},
    {&Problem::e4m3_queries, write<e4m3_query_arguments>},
    {&Problem::k_rotary, write<k_rotary_arguments>},
    {&Problem::out_e4m3, write<out_scale_arguments>}};

void write_arguments(const generator::FeatureRow& row, const ForwardCall& call, std::byte* scratch, std::byte* at) {
  for (const PartWriter& writer : kPartWriters)
    if (writer.feature == row.asked) return writer.write(call, scratch, at);
  throw std::logic_error("operation: nothing writes the arguments of " + std::string(row.word));
}

}  // namespace

void set_part_arguments(Launch& launch, const ForwardCall& call, std::size_t core_bytes, std::byte* scratch) {
  std::size_t at = core_bytes;
  for (const generator::FeatureRow& row : generator::features()) {
    if (!row.is_in(call.problem) || !row.arguments) continue;
    at = generator::argument_offset(row, at);
    write_arguments(row, call, scratch, launch.arguments + at);
    at += generator::argument_bytes(row, call.problem);
  }
}

namespace {

// What launches have to themselves.
struct OwnMemory {
  Splitting splitting;
  Scratch scratch;
  std::byte* memory;
};

// Made where the launch has them: they are most of its bytes.
template <class Variant>
const auto& set_arguments(Launch& launch, const ForwardCall& call, const Variant& variant, const OwnMemory& own) {
  using Arguments = decltype(make_forward_arguments(call, variant, own.splitting.tiling));
  static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= Launch::kMaxBytes - Launch::kPartBytes);
  auto* const arguments =
      ::new (launch.arguments) Arguments(make_forward_arguments(call, variant, own.splitting.tiling));
  std::size_t core_bytes = sizeof(Arguments);
  if (variant.split_kv) {
    arguments->sizes.batch *= static_cast<int>(own.splitting.count);
    arguments->sizes.num_q_tiles += static_cast<int>(own.splitting.list_entries) * tiling_of(call, variant).cluster;
    launch.write_argument(core_bytes, split_arguments(call, variant, own.splitting, own.scratch, own.memory));
    core_bytes += sizeof(generator::SplitArguments);
  }
  set_part_arguments(launch, call, core_bytes, own.memory);
  return *arguments;
}

void bind(Launch& launch, const ForwardCall& call, const MmaVariant& variant, const generator::Plan&,
          const DeviceLimits&, const OwnMemory& own) {
  const generator::MmaArguments& arguments = set_arguments(launch, call, variant, own);
  launch.blocks = count_tiles(arguments.sizes);
}

void bind(Launch& launch, const ForwardCall& call, const HopperVariant& variant, const generator::Plan& plan,
          const DeviceLimits& limits, const OwnMemory& own) {
  using Arguments = generator::HopperArguments;
  const Arguments& arguments = set_arguments(launch, call, variant, own);
  const int cluster = own.splitting.cluster;
  launch.cluster = variant.cluster * cluster;
  launch.sizes_cluster = cluster > 1;
  launch.blocks = grid_size(variant, count_tiles(arguments.sizes), limits.resident_blocks / cluster) * cluster;
  launch.overlaps = variant.split_kv;
  const TensorMapBoxes boxes = tensor_map_boxes(call, variant, plan, arguments.packed_heads_log2);
  const auto add_map = [&](std::size_t offset, const Tensor* tensor, const TensorMapBox& box) {
    launch.maps[launch.map_count++] = {offset, tensor, box, call.problem.ragged};
  };
  add_map(offsetof(Arguments, q), call.q, boxes.q);
  add_map(offsetof(Arguments, k), call.k, boxes.k);
  add_map(offsetof(Arguments, v), call.v, boxes.v);
  add_map(offsetof(Arguments, out), call.out, boxes.out);
  if (draws_tiles(variant)) launch.tile_counter_offset = offsetof(Arguments, tile_counter);
}

void bind_batch_plan(Launch& launch, const ForwardCall& call, const Variant& variant, const Splitting& splitting,
                     std::byte* memory) {
  generator::BatchPlanMaker maker = batch_plan_maker(call, memory, splitting.tiling);
  set_splits(maker, call, variant, splitting, memory);
  launch.turn = generator::Turn::batch_plan;
  launch.write_argument(0, maker);
  launch.argument_bytes = sizeof(maker);
  launch.blocks = 1;
  launch.threads = generator::kBatchPlanThreads;
}

void bind_combine(Launch& launch, const ForwardCall& call, const generator::KernelSpec& kernel, const OwnMemory& own) {
  launch.turn = generator::Turn::combine;
  launch.write_argument(0, combine_arguments(call, own.splitting, own.scratch, own.memory));
  launch.argument_bytes = sizeof(generator::CombineArguments);
  launch.blocks = combine_blocks(call, own.splitting);
  launch.threads = generator::kCombineThreads;
  launch.overlaps = generator::can_overlap_launches(kernel.architecture());
}

template <class Arguments>
PlainLaunch make_plain(const ForwardCall& call, const generator::PlainKernel& kernel, const Arguments& core,
                       std::int64_t threads) {
  const std::int64_t blocks = ceil_quotient(threads, kernel.threads);
  PlainLaunch made = plain_launch(kernel, blocks, "shape");
  made.launch.write_argument(0, core);
  set_part_arguments(made.launch, call, sizeof(core), nullptr);
  return made;
}

}  // namespace

PlainLaunch plain_launch(const generator::PlainKernel& kernel, std::int64_t blocks, const char* name) {
  if (blocks > kMaxBlocks) reject("{}: must give at most {} thread blocks, gave {}", name, kMaxBlocks, blocks);
  PlainLaunch made{kernel, {}};
  made.launch.argument_bytes = made.kernel.argument_bytes;
  made.launch.threads = made.kernel.threads;
  made.launch.shared_bytes = made.kernel.smem_bytes;
  made.launch.blocks = blocks;
  return made;
}

int row_lanes_log2(int chunks) noexcept {
  constexpr unsigned kWarpLanes = 32;
  return std::countr_zero(std::min(std::bit_ceil(static_cast<unsigned>(chunks)), kWarpLanes));
}

Launch make_batch_plan_launch(const ForwardCall& call, const Tensor& memory, int sm_count) {
  Launch launch;
  bind_batch_plan(launch, call, *call.variant, splitting_of(call, *call.variant, sm_count),
                  static_cast<std::byte*>(memory.data));
  return launch;
}

PlainLaunch make_block_mask_launch(const ForwardCall& call, const Architecture& architecture, PlainKernels& kernels) {
  constexpr std::int64_t kWarp = 32;
  const Tensor& mask = *call.block_mask;
  const generator::BlockMaskMaker core{static_cast<unsigned*>(mask.data),
                                       stride_of(mask, 0),
                                       stride_of(mask, 1),
                                       static_cast<int>(mask.shape[4]),
                                       static_cast<int>(mask.shape[0]),
                                       static_cast<int>(mask.shape[1]),
                                       static_cast<int>(call.seqlen_q),
                                       static_cast<int>(call.seqlen_kv)};
  const std::int64_t warps = mask.shape[0] * mask.shape[1] * mask.shape[2] * mask.shape[4];
  const generator::PlainKernel& kernel = kernels.get(
      fmt::format("block-mask {} {}", to_string(call.problem), architecture.name),
      [&](const auto& templates) { return generator::render_block_mask(call.problem, architecture, templates); });
  return make_plain(call, kernel, core, warps * kWarp);
}

PlainLaunch make_function_scores_launch(const ForwardCall& call, const Tensor& scores,
                                        const std::optional<Tensor>& slopes, const RowsOfHead& rows, bool in_f32,
                                        const Architecture& architecture, PlainKernels& kernels) {
  const generator::FunctionScores core{static_cast<double*>(scores.data),
                                       slopes ? static_cast<double*>(slopes->data) : nullptr,
                                       static_cast<int>(rows.batch),
                                       static_cast<int>(rows.head),
                                       static_cast<int>(rows.first),
                                       static_cast<int>(rows.count),
                                       static_cast<int>(call.seqlen_q),
                                       static_cast<int>(call.seqlen_kv),
                                       in_f32};
  const bool differentiates = slopes.has_value();
  const generator::PlainKernel& kernel =
      kernels.get(fmt::format("function-{} {} {}", differentiates ? "slopes" : "scores", to_string(call.problem),
                              architecture.name),
                  [&](const auto& templates) {
                    return generator::render_function_scores(call.problem, differentiates, architecture, templates);
                  });
  return make_plain(call, kernel, core, rows.count * call.seqlen_kv);
}

bool draws_tiles(const Variant& variant) noexcept {
  const auto* hopper = std::get_if<HopperVariant>(&variant);
  return hopper && hopper->scheduler == Scheduler::dynamic;
}

std::size_t Operation::scratch_bytes(const ForwardCall& call, const generator::KernelSpec& kernel,
                                     const DeviceLimits& limits) {
  if (call.plan || !(call.problem.ragged || generator::splits_kv(kernel.variant()))) return 0;
  return scratch_of(call, kernel.variant(), splitting_of(call, kernel.variant(), limits.sm_count)).bytes;
}

Operation::Operation(const ForwardCall& call, const generator::KernelSpec& kernel, const DeviceLimits& limits,
                     std::byte* scratch) {
  OwnMemory own{splitting_of(call, kernel.variant(), limits.sm_count), {}, scratch};
  own.scratch = scratch_of(call, kernel.variant(), own.splitting);
  if (call.plan) own.memory = static_cast<std::byte*>(call.plan->memory().data);
  if (call.problem.ragged && !call.plan)
    bind_batch_plan(launches_[count_++], call, kernel.variant(), own.splitting, own.memory);
  Launch& launch = launches_[count_++];
  const generator::Plan& plan = kernel.plan();
  std::visit([&](const auto& variant) { bind(launch, call, variant, plan, limits, own); }, kernel.variant());
  launch.threads = plan.threads;
  launch.shared_bytes = plan.smem_bytes;
  launch.argument_bytes = plan.argument_bytes;
  if (own.splitting.any() && !joins_splits(call, kernel.variant()))
    bind_combine(launches_[count_++], call, kernel, own);
}

}  // namespace flashjit::runtime
