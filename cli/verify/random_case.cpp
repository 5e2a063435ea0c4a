// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/random_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cli/io/problem_options.h"
#include "cli/verify/dice.h"
#include "cli/verify/random_texts.h"
#include "flashjit/error.h"

namespace flashjit::cli {
namespace {

// The references compute each score on the CPU.
constexpr std::int64_t kMostScores = 1 << 18;
constexpr std::int64_t kMostLength = 300;

// Some are 1 or few, some at the edge of a block, and most any.
std::int64_t random_length(Dice& dice) {
  switch (dice.from_to(0, 7)) {
    case 0:
      return 1;
    case 1:
      return dice.from_to(2, 20);
    case 2:
    case 3:
      return 64 * dice.from_to(1, 4) + dice.from_to(-1, 1);
    default:
      return dice.from_to(1, kMostLength);
  }
}

Scores random_scores(Dice& dice) {
  if (dice.one_in(2)) return Scores::random;
  return dice.one_of(std::vector<Scores>(std::begin(kHardScores), std::end(kHardScores)));
}

CaseShape random_shape(Dice& dice) {
  CaseShape shape{};
  shape.seqlen_q = dice.one_in(100) ? 0 : random_length(dice);
  shape.seqlen_kv = dice.one_in(40) ? 0 : random_length(dice);
  std::int64_t room = kMostScores / std::max<std::int64_t>(1, shape.seqlen_q * shape.seqlen_kv);
  const auto take = [&room](std::int64_t wanted) {
    const std::int64_t taken = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, room));
    room /= taken;
    return taken;
  };
  const std::int64_t group = take(dice.one_of<std::int64_t>({1, 1, 2, 3, 4, 8}));
  shape.heads_kv = take(dice.from_to(1, 3));
  shape.heads_q = group * shape.heads_kv;
  shape.batch = take(dice.from_to(1, 3));
  shape.scores = random_scores(dice);
  shape.heads_first = dice.one_in(3);
  return shape;
}

// What an option has before its tensor is made: of a problem only the dtype counts.
Tensor placeholder(DType dtype) { return {nullptr, dtype, {}}; }

// Every option but the texts, each present by the same chance; of its tensors the dtypes.
class RandomOptions {
 public:
  // One in so many features is there.
  RandomOptions(Dice& dice, const CaseShape& shape, std::int64_t rarity)
      : dice_(dice), shape_(shape), rarity_(rarity) {}

  AttentionOptions draw() {
    AttentionOptions options;
    add_masks(options);
    add_scores(options);
    add_predicates(options);
    add_dropout(options);
    if (has()) options.seqused_q = placeholder(DType::i32);
    if (options.seqused_q && dice_.one_in(2)) options.page_table = placeholder(DType::i32);
    return options;
  }
  bool has() { return dice_.one_in(rarity_); }

 private:
  void add_masks(AttentionOptions& options) {
    options.causal = has();
    if (has()) options.prefix = placeholder(DType::i32);
    if (has()) options.chunk = dice_.from_to(1, shape_.seqlen_kv + 40);
    if (!has()) return;
    options.window.left = dice_.from_to(-1, shape_.seqlen_kv);
    if (!options.prefix) options.window.right = dice_.from_to(-1, shape_.seqlen_kv);
  }

  void add_scores(AttentionOptions& options) {
    if (has()) options.softcap = dice_.one_of<float>({0.5f, 2, 30, 1000});
    if (has()) options.alibi_slopes = placeholder(DType::f32);
    if (has()) options.sinks = placeholder(DType::f32);
    if (has()) options.bias = placeholder(dice_.one_of<DType>({DType::f16, DType::bf16, DType::f32}));
    // Hard scores are so under the default scale.
    if (shape_.scores == Scores::random && dice_.one_in(4))
      options.softmax_scale = dice_.one_of<float>({0.3f, 1, -0.2f, -1});
  }

  void add_predicates(AttentionOptions& options) {
    if (has()) options.boolean_mask = placeholder(DType::boolean);
    if (has()) options.documents = placeholder(DType::i32);
    if (has() && shape_.seqlen_q <= shape_.seqlen_kv) options.tree = placeholder(DType::i64);
  }

  void add_dropout(AttentionOptions& options) {
    if (has()) options.dropout = {dice_.one_of<double>({0.01, 0.1, 0.5, 0.9}), dice_.bits(), dice_.bits()};
    if (has()) options.dropout_mask = placeholder(DType::boolean);
  }

  Dice& dice_;
  const CaseShape& shape_;
  std::int64_t rarity_;
};

int random_head_dim(Dice& dice) {
  if (dice.one_in(2)) return dice.one_of<int>({64, 128});
  return static_cast<int>(8 * dice.from_to(1, 32));
}

struct ProblemDims {
  DType dtype;
  int head_dim, head_dim_v;
};
ProblemDims random_dims(Dice& dice) {
  const DType dtype = dice.one_in(2) ? DType::f16 : DType::bf16;
  const int head_dim = random_head_dim(dice);
  return {dtype, head_dim, dice.one_in(3) ? random_head_dim(dice) : head_dim};
}

// One of them above 256 at least.
ProblemDims random_large_dims(Dice& dice) {
  const auto draw = [&dice](int smallest, int largest) {
    return dice.one_in(3) ? std::max(smallest, 512) : 8 * static_cast<int>(dice.from_to(smallest / 8, largest / 8));
  };
  constexpr int kSmallest = 8, kSmallestLarge = 264;
  const DType dtype = dice.one_in(2) ? DType::f16 : DType::bf16;
  const int equal = draw(kSmallestLarge, kLargestHeadDimV);
  if (dice.one_in(2)) return {dtype, equal, equal};
  if (dice.one_in(2)) return {dtype, draw(kSmallestLarge, kLargestHeadDim), draw(kSmallest, kLargestHeadDimV)};
  return {dtype, draw(kSmallest, kLargestHeadDim), equal};
}
// Equal ones.
ProblemDims random_large_gradient_dims(Dice& dice) {
  const DType dtype = dice.one_in(2) ? DType::f16 : DType::bf16;
  const int head_dim = dice.one_in(3) ? kLargestHeadDimV : 8 * static_cast<int>(dice.from_to(33, 64));
  return {dtype, head_dim, head_dim};
}
// Few queries of many heads to one of keys.
void widen_group(Dice& dice, CaseShape& shape) {
  shape.heads_q = dice.one_of<std::int64_t>({16, 24, 64, 96, 128});
  shape.heads_kv = shape.batch = 1;
  shape.seqlen_q = std::min<std::int64_t>(shape.seqlen_q, 4);
}

// By dice of its own, so that the rest is the same without it.
struct Stored {
  bool e4m3 = false, token_scales = false;
  // Where the problem may have them.
  bool queries = false, fast_sums = false, block_scales = false, values_transposed = false, out_e4m3 = false;
  bool e5m2 = false;
};
Stored random_stored(std::uint64_t seed) {
  Dice dice(seed ^ 0xe4e3);
  const bool e4m3 = dice.one_in(3), token_scales = e4m3 && dice.one_in(3);
  return {e4m3,           token_scales,          e4m3 && !token_scales && !dice.one_in(3),
          dice.one_in(2), dice.one_in(2),        dice.one_in(2),
          dice.one_in(2), e4m3 && dice.one_in(3)};
}
// Of the next head dims that such products have.
void store_queries(Problem& problem, const Stored& stored) {
  for (int* const head_dim : {&problem.head_dim, &problem.head_dim_v}) *head_dim = (*head_dim + 15) / 16 * 16;
  problem.e4m3_queries = true;
  problem.block_scales = stored.block_scales && !problem.ragged;
  problem.fast_sums = stored.fast_sums && !problem.block_scales;
  problem.values_transposed = stored.values_transposed && !problem.ragged;
  problem.out_e4m3 = stored.out_e4m3;
  if (problem.out_e4m3) problem.dtype = DType::bf16;
}
void store(Problem& problem, const Stored& stored, const RandomScope& scope) {
  if (stored.queries && scope.e4m3_products && !problem.dropout && !problem.dropout_mask)
    store_queries(problem, stored);
  problem.e4m3 = problem.e4m3_queries || (stored.e4m3 && scope.e4m3_keys);
  problem.token_scales = problem.e4m3 && stored.token_scales;
  problem.e5m2 = problem.e4m3 && stored.e5m2;
}

// Keys in two tensors, as some large heads have them; by dice of its own, too.
void store_apart(Problem& problem, std::uint64_t seed, const RandomScope& scope) {
  Dice dice(seed ^ 0x407a);
  if (!scope.large_heads || !dice.one_in(3)) return;
  const int columns = dice.one_in(2) ? 512 : 16 * static_cast<int>(dice.from_to(1, kLargestHeadDimV / 16));
  constexpr int kSmallestLarge = 264;
  const int least = std::max(kSmallestLarge - columns, 8), most = kLargestHeadDim - columns;
  problem.head_dim_v = columns;
  problem.head_dim = columns + (dice.one_in(2) ? most : 8 * static_cast<int>(dice.from_to(least / 8, most / 8)));
  problem.k_rotary = true;
  const bool is_of_8_bits = !dice.one_in(3), has_token_scales = is_of_8_bits && dice.one_in(2);
  problem.e5m2 = is_of_8_bits && dice.one_in(3);
  problem.e4m3 = is_of_8_bits && (problem.e5m2 || scope.rotary_e4m3);  // e5m2 is read everywhere
  problem.token_scales = problem.e4m3 && has_token_scales;
}

// Values in the memory of the keys, likewise.
void share_memory(Problem& problem, std::uint64_t seed) {
  Dice dice(seed ^ 0x1a7e);
  constexpr int kLargestUsual = 256, kStep = 128;
  if (problem.e4m3 || problem.k_rotary || problem.head_dim <= kLargestUsual || !dice.one_in(3)) return;
  const int most = std::min(problem.head_dim, kLargestHeadDimV) / kStep;
  problem.head_dim_v = kStep * (dice.one_in(2) ? most : static_cast<int>(dice.from_to(1, most)));
  problem.latent = true;
}

// Those of each batch entry, near 0 or far.
HostTensor random_offsets(Dice& dice, std::int64_t batch) {
  HostTensor offsets(DType::i32, {batch});
  const std::int64_t most = dice.one_of<std::int64_t>({3, 200});
  for (std::int64_t i = 0; i < batch; ++i)
    store_element(offsets.data(), DType::i32, i, static_cast<double>(dice.from_to(-most, most)));
  return offsets;
}

HostTensor random_dropout_state(Dice& dice) {
  HostTensor state(DType::i64, {2});
  for (int i = 0; i < 2; ++i) static_cast<std::uint64_t*>(state.data())[i] = dice.bits();
  return state;
}

void add_nan_row(Dice& dice, HostTensor& q) {
  const std::int64_t rows = q.shape()[0] * q.shape()[1] * q.shape()[2];
  if (rows == 0) return;
  const std::int64_t at = dice.from_to(0, rows - 1) * q.shape()[3];
  store_element(q.data(), q.dtype(), at, std::numeric_limits<double>::quiet_NaN());
}

// For one batch entry or one head, now and then, where the predicates are the same for all.
CallShape block_mask_shape(Dice& dice, const RandomCase& random) {
  CallShape shape = call_shape(random.shape);
  const AttentionOptions options = random.texts.on_host(with_tensors(random.inputs.options, random.inputs.tensors));
  const auto mentions = [&](const char* place) {
    return options.mask && options.mask->text().find(place) != std::string::npos;
  };
  bool by_batch = mentions("batch") || (options.mask && (options.query_offsets || options.key_offsets));
  for (const std::optional<Tensor>* tensor : {&options.boolean_mask, &options.documents, &options.tree})
    by_batch |= *tensor && (*tensor)->shape[0] > 1;
  const bool by_head = mentions("head") || (options.boolean_mask && options.boolean_mask->shape[1] > 1);
  if (!by_batch && dice.one_in(2)) shape.batch = 1;
  if (!by_head && dice.one_in(2)) shape.num_heads_q = shape.num_heads_kv = 1;
  return shape;
}

bool is_legal(const Engine& engine, const Problem& problem, const Variant& variant, std::string_view architecture) {
  try {
    engine.render(problem, variant, architecture);
    return true;
  } catch (const Error&) {
    return false;
  }
}
// Of kernels whose warps share rows.
const std::vector<const char*> kSharedRows{"hopper-q16-kv64-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv",
                                           "hopper-q16-kv128-s1-qs1-whole-serial-ppoff-always-fixed-split-splitkv"};
// Of those that multiply them without tensor cores, too, which keys of 8 bits are not for.
const std::vector<const char*> kFewRows{kSharedRows[0],
                                        kSharedRows[1],
                                        "hopper-q4-kv64-s1-qs1-whole-serial-ppoff-always-fixed-split-splitkv",
                                        "hopper-q4-kv128-s1-qs1-whole-serial-ppoff-rare-fixed-split-splitkv",
                                        "hopper-q8-kv64-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv",
                                        "hopper-q8-kv128-s1-qs1-whole-serial-ppoff-always-fixed-split-splitkv"};
bool is_hopper(const Variant& variant) { return std::holds_alternative<HopperVariant>(variant); }

// Masks that are spans of keys, sinks, scales and lengths.
AttentionOptions spans_of(AttentionOptions options) {
  options.softcap = 0;
  options.alibi_slopes.reset(), options.bias.reset();
  options.boolean_mask.reset(), options.documents.reset(), options.tree.reset();
  options.dropout = {}, options.dropout_mask.reset();
  return options;
}

}  // namespace

RandomCase random_case(std::uint64_t seed, const RandomScope& scope) {
  Dice dice(seed);
  RandomCase random;
  random.shape = random_shape(dice);
  if (!scope.far_scores && is_far(random.shape.scores)) random.shape.scores = Scores::random;
  if (scope.large_heads && dice.one_in(3)) widen_group(dice, random.shape);
  // Some have few features and some nearly all.
  RandomOptions draw(dice, random.shape, dice.one_of<std::int64_t>({2, 4, 8}));
  AttentionOptions options = draw.draw();
  if (!scope.pages) options.page_table.reset();
  if (scope.spans_alone) options = spans_of(options);
  RandomTexts texts(dice, call_shape(random.shape));
  if (draw.has() && !scope.spans_alone) texts.add_score(scope.far_scores);
  if (draw.has() && !scope.spans_alone) texts.add_mask();
  random.texts = std::move(texts).texts();
  const ProblemDims dims = scope.spans_alone   ? random_large_gradient_dims(dice)
                           : scope.large_heads ? random_large_dims(dice)
                                               : random_dims(dice);
  random.problem = random.texts.added_to(problem_of(dims.dtype, dims.head_dim, dims.head_dim_v, options));
  store(random.problem, random_stored(seed), scope);
  if (scope.mla_caches) store_apart(random.problem, seed, scope);
  if (scope.large_heads && scope.mla_caches && !has_far_keys(random.shape.scores)) share_memory(random.problem, seed);
  if (random.problem.e4m3) random.shape.seqlen_kv = std::max<std::int64_t>(1, random.shape.seqlen_kv);
  random.inputs = case_inputs(random.problem, random.shape, options, dice.bits());
  if (!random.texts.empty()) {
    for (const auto offsets : {&AttentionOptions::query_offsets, &AttentionOptions::key_offsets})
      if (dice.one_in(4)) random.inputs.tensors.push_back({offsets, random_offsets(dice, random.shape.batch)});
  }
  if (options.dropout.probability > 0 && !options.dropout_mask && dice.one_in(3))
    random.inputs.tensors.push_back({&AttentionOptions::dropout_state, random_dropout_state(dice)});
  if (scope.far_scores && dice.one_in(8)) add_nan_row(dice, random.inputs.q);
  random.problem.block_mask =
      scope.block_masks && has_predicate(random.problem) && !random.problem.ragged && dice.one_in(2);
  if (random.problem.block_mask) random.block_mask = block_mask_shape(dice, random);
  return random;
}

GradientChoices random_gradients(std::uint64_t seed) {
  Dice dice(~seed);
  const std::int64_t wanted = dice.from_to(1, 7);
  return {(wanted & 1) != 0, (wanted & 2) != 0, (wanted & 4) != 0, dice.one_in(2),
          dice.one_in(3),    dice.one_in(2),    dice.one_in(2)};
}

std::optional<Variant> random_variant(const Engine& engine, const RandomCase& random, std::string_view architecture,
                                      std::uint64_t seed) {
  Dice dice(~seed);  // not the choices that made the case
  if (dice.one_in(4)) return {};
  std::vector<Variant> variants = engine.variants(random.problem, architecture);
  const bool has_hopper = std::any_of(variants.begin(), variants.end(), is_hopper);
  const bool wants_hopper = has_hopper && random.shape.seqlen_kv > 0 && !dice.one_in(3);
  std::erase_if(variants, [&](const Variant& variant) { return is_hopper(variant) != wants_hopper; });
  if (variants.empty()) return {};
  const Variant chosen = dice.one_of(variants);
  const Variant splitting = wants_hopper && dice.one_in(2)
                                ? parse_variant(dice.one_of(random.problem.e4m3 ? kSharedRows : kFewRows))
                                : parse_variant("splitkv", chosen);
  return is_legal(engine, random.problem, splitting, architecture) ? splitting : chosen;
}

std::optional<BackwardVariant> random_backward_variant(const Engine& engine, const RandomCase& random,
                                                       std::string_view architecture, std::uint64_t seed) {
  Dice dice(seed ^ 0xbac4);  // not the choices that made the case, nor which gradients it asks for
  if (dice.one_in(2)) return {};
  const auto is_hopper = [](const BackwardVariant& variant) {
    return std::holds_alternative<HopperBackwardVariant>(variant);
  };
  std::vector<BackwardVariant> variants = engine.backward_variants({random.problem}, architecture);
  const bool has_hopper = std::any_of(variants.begin(), variants.end(), is_hopper);
  const bool has_rows = random.shape.seqlen_q > 0 && random.shape.seqlen_kv > 0;
  const bool wants_hopper = has_hopper && has_rows && !dice.one_in(3);
  std::erase_if(variants, [&](const BackwardVariant& variant) { return is_hopper(variant) != wants_hopper; });
  if (variants.empty()) return {};
  return dice.one_of(variants);
}

std::string describe(const RandomCase& random) {
  std::string text = to_string(random.shape);
  const AttentionOptions options = random.texts.on_host(with_tensors(random.inputs.options, random.inputs.tensors));
  if (options.window != Window()) text += fmt::format(" window {},{}", options.window.left, options.window.right);
  if (options.chunk != 0) text += fmt::format(" chunk {}", options.chunk);
  if (options.softcap != 0) text += fmt::format(" softcap {}", options.softcap);
  if (options.softmax_scale) text += fmt::format(" scale {}", *options.softmax_scale);
  if (options.dropout.probability > 0) text += fmt::format(" dropout {}", options.dropout.probability);
  if (options.page_table) text += fmt::format(" pages of {}", random.inputs.k.shape()[1]);
  for (const auto& [name, tensor] : {std::pair{"bias", &options.bias},
                                     {"boolean mask", &options.boolean_mask},
                                     {"documents", &options.documents},
                                     {"tree", &options.tree},
                                     {"dropout mask", &options.dropout_mask}})
    if (*tensor) text += fmt::format(" {} {}", name, to_string((*tensor)->shape));
  if (options.score) text += fmt::format(" score '{}'", options.score->text());
  if (options.mask) text += fmt::format(" mask '{}'", options.mask->text());
  if (random.block_mask)
    text += fmt::format(" block mask for b{} h{}", random.block_mask->batch, random.block_mask->num_heads_q);
  return text;
}

}  // namespace flashjit::cli
