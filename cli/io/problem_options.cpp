// SPDX-License-Identifier: Apache-2.0
#include "cli/io/problem_options.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <sstream>

#include "cli/io/command.h"
#include "cli/io/device.h"
#include "cli/io/for_option.h"
#include "cli/io/words.h"

namespace flashjit::cli {
namespace {

constexpr int kHeadDimStep = 8;
constexpr int kLargestOfAll = 256;  // of "all": that every target has

const std::vector<std::string>& dtype_words() {
  static const std::vector<std::string> words = {"bf16", "f16"};
  return words;
}

const std::vector<std::string>& mask_words() {
  static const std::vector<std::string> words = {"full", "causal"};
  return words;
}

CLI::Option* add_window_option(CLI::App* subcommand, std::string& window) {
  return add_option(
      subcommand, "--window", window, "LEFT,RIGHT",
      "Of these, only key i + seqlen_kv - seqlen_q and so many before and after it; -1: all [default: -1,-1]");
}

CLI::Option* add_chunk_option(CLI::App* subcommand, std::optional<int>& chunk) {
  return add_integer(subcommand, "--chunk", chunk, "N", {0, std::numeric_limits<int>::max()},
                     "Keys are in chunks of N: of these, only those in the chunk of key i + seqlen_kv - seqlen_q; 0: "
                     "all [default: 0]");
}

CLI::Option* add_softcap_option(CLI::App* subcommand, std::optional<float>& softcap) {
  return add_finite(subcommand, "--softcap", softcap,
                    "Scores become X * tanh(score / X); from 1e-6 to 1e6, or 0: as they are [default: 0]");
}

std::vector<CLI::Option*> add_dropout_options(CLI::App* subcommand, FeatureOptions& features) {
  CLI::Option* const dropout =
      add_finite(subcommand, "--dropout", features.dropout,
                 "Probabilities become 0 at random with this probability; at least 0 and below 1 [default: 0]");
  CLI::Option* const seed =
      add_seed(subcommand, "--dropout-seed", features.dropout_seed, "Of the random numbers [default: 0]");
  CLI::Option* const offset = add_seed(subcommand, "--dropout-offset", features.dropout_offset,
                                       "Calls with other offsets drop others [default: 0]");
  need(seed, dropout);
  need(offset, dropout);
  return {dropout, seed, offset};
}

CLI::Option* add_bias_dtype_option(CLI::App* subcommand, std::optional<std::string>& dtype, CLI::Option* bias) {
  CLI::Option* const option = add_choice(subcommand, "--bias-dtype", dtype, {"f16", "bf16", "f32"},
                                         "Precision of the bias [default: that of q]");
  need(option, bias);
  return option;
}

std::vector<CLI::Option*> add_tensor_flags(CLI::App* subcommand, FeatureOptions& features) {
  CLI::Option* const bias =
      add_flag(subcommand, "--bias", features.bias,
               "A tensor is added to scores; calls take normal numbers, and -infinity here and there");
  return {
      bias,
      add_bias_dtype_option(subcommand, features.bias_dtype, bias),
      add_flag(subcommand, "--boolean-mask", features.boolean_mask,
               "A tensor says which keys each query sees; calls take any, and rows that see none"),
      add_flag(subcommand, "--documents", features.documents,
               "Sequences are packed: a query sees the keys of its own document; calls take documents of any length"),
      add_flag(subcommand, "--prefix", features.prefix,
               "Prefix-LM: a query sees the keys up to its own and a prefix of its batch entry; calls take prefixes "
               "of any length"),
      add_flag(subcommand, "--tree", features.tree,
               "The last keys are the queries' own, and a query sees those of its branch of a tree; calls take any, "
               "with as many keys as queries at least")};
}

std::vector<CLI::Option*> add_feature_options(CLI::App* subcommand, FeatureOptions& features) {
  std::vector<CLI::Option*> options = {
      add_window_option(subcommand, features.window), add_chunk_option(subcommand, features.chunk),
      add_softcap_option(subcommand, features.softcap),
      add_flag(subcommand, "--alibi", features.alibi,
               "Scores fall with the distance of the key (ALiBi); calls take the slopes of the paper, "
               "2^(-8 (h + 1) / heads)"),
      add_flag(subcommand, "--sinks", features.sinks,
               "Each row's softmax has one more score, its head's sink, for no key; calls take sinks near 0")};
  const std::vector<CLI::Option*> flags = add_tensor_flags(subcommand, features);
  options.insert(options.end(), flags.begin(), flags.end());
  const std::vector<CLI::Option*> dropout = add_dropout_options(subcommand, features);
  options.insert(options.end(), dropout.begin(), dropout.end());
  options.push_back(add_flag(subcommand, "--dropout-mask", features.dropout_mask,
                             "A tensor says which probabilities stay; calls take any"));
  CLI::Option* const ragged =
      add_flag(subcommand, "--ragged", features.ragged,
               "Sequences have different lengths, which tensors say; calls take any, 0 among them");
  CLI::Option* const paged =
      add_flag(subcommand, "--paged", features.paged,
               "The same, with keys and values in pages that a table names; calls take pages of any size");
  options.push_back(ragged), options.push_back(paged);
  CLI::Option* const e4m3 = add_flag(
      subcommand, "--e4m3", features.e4m3,
      "Keys and values are of e4m3, with a scale for all keys of a head; needs sm_90a, queries of e4m3 or --k-rotary");
  options.push_back(e4m3);
  CLI::Option* const token_scales =
      add_flag(subcommand, "--token-scales", features.token_scales, "The same, with a scale for each key of each head");
  options.push_back(token_scales);
  need(token_scales, e4m3);
  CLI::Option* const queries =
      add_flag(subcommand, "--e4m3-queries", features.e4m3_queries,
               "Queries are of e4m3, too, and so are products; --dtype is of the output; from sm_89 on");
  options.push_back(queries);
  need(queries, e4m3);
  exclude(queries, token_scales);
  options.push_back(add_flag(subcommand, "--fast-sums", features.fast_sums,
                             "The same, with sums of products as the tensor core makes them, and not in f32"));
  need(options.back(), queries);
  options.push_back(add_flag(subcommand, "--block-scales", features.block_scales,
                             "The same, with scales of blocks of 128 rows of queries, keys and values"));
  need(options.back(), queries);
  for (CLI::Option* const other : {options[options.size() - 2], ragged, paged}) exclude(options.back(), other);
  options.push_back(add_flag(subcommand, "--k-rotary", features.k_rotary,
                             "The last columns of keys, those that v does not have, are in a tensor of their own, of "
                             "--dtype, as caches of MLA are; head dims above 256"));
  exclude(options.back(), queries);
  options.push_back(add_flag(subcommand, "--latent", features.latent,
                             "v is the first columns of k, in the same memory, as MLA's latent caches have it; head "
                             "dims above 256"));
  for (CLI::Option* const other : {options[options.size() - 2], e4m3}) exclude(options.back(), other);
  options.push_back(add_flag(subcommand, "--values-transposed", features.values_transposed,
                             "Beside queries of e4m3, v comes transposed: in memory the keys of each dim follow one "
                             "another"));
  need(options.back(), queries);
  for (CLI::Option* const other : {ragged, paged}) exclude(options.back(), other);
  options.push_back(add_flag(subcommand, "--out-e4m3", features.out_e4m3,
                             "Beside queries of e4m3, the output is of e4m3, with a scale for all of it"));
  need(options.back(), queries);
  options.push_back(add_flag(subcommand, "--e5m2", features.e5m2,
                             "Keys and values, and queries, are of e5m2 where --e4m3 and --e4m3-queries say e4m3"));
  need(options.back(), e4m3);
  return options;
}

void add_dimension_options(CLI::App* subcommand, ProblemOptions& options) {
  add_dtype_option(subcommand, options.dtype, "Precision of q, k, v and the output");
  add_option(subcommand, "--head-dim", options.head_dim, "D",
             "Head dimension, a multiple of 8 from 8 to 576, of v to 512; 192x128 is 192 for q and k and 128 for v");
}

CLI::Option* add_dtype_list(CLI::App* subcommand, ProblemLists& lists) {
  return add_option(subcommand, "--dtype", lists.dtypes, "LIST", "Precisions: bf16, f16");
}

CLI::Option* add_head_dim_list(CLI::App* subcommand, ProblemLists& lists) {
  return add_option(subcommand, "--head-dim", lists.head_dims, "LIST",
                    "Head dimensions, or all; 192x128 is 192 for q and k and 128 for v");
}

void add_mask_option(CLI::App* subcommand, std::string& mask) {
  add_choice(subcommand, "--mask", mask, mask_words(),
             "Query i sees all keys, or causal: those up to i + seqlen_kv - seqlen_q");
}

// Empty: none.
Window parse_window(std::string_view name, std::string_view text) {
  if (text.empty()) return {};
  const std::size_t comma = text.find(',');
  if (comma == std::string_view::npos)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: must be like 1024,0 or -1,64: keys before and after, was '{}'", name, text));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return {parse_integer(fmt::format("{}: left", name), text.substr(0, comma), -1, kMost),
          parse_integer(fmt::format("{}: right", name), text.substr(comma + 1), -1, kMost)};
}

// Half of "192x128", or the whole of "64". of: the tensors whose head dim it is.
int parse_head_dim(std::string_view name, std::string_view text, std::string_view item, std::string_view of,
                   int largest) {
  int value = 0;
  const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
  if (error != std::errc() || end != item.data() + item.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: must be like 64, or 192x128 for 192 of q and k and 128 of v, was '{}'", name, text));
  }
  if (value < kHeadDimStep || value > largest || value % kHeadDimStep != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: that of {} must be a multiple of {} from {} to {}, was {}{}", name, of, kHeadDimStep,
                            kHeadDimStep, largest, value, item == text ? "" : fmt::format(" in '{}'", text)));
  }
  return value;
}

HeadDims parse_head_dim_pair(std::string_view name, std::string_view text) {
  const std::size_t cross = text.find('x');
  const std::string_view of_v = cross == std::string_view::npos ? text : text.substr(cross + 1);
  return {parse_head_dim(name, text, text.substr(0, cross), "q and k", kLargestHeadDim),
          parse_head_dim(name, text, of_v, "v", kLargestHeadDimV)};
}

std::vector<std::string> split_parts(const std::string& variant) {
  std::vector<std::string> parts;
  std::istringstream stream(variant);
  for (std::string part; std::getline(stream, part, '-');) parts.push_back(part);
  return parts;
}

// Of products of 8 bits: the library knows which head dims they may have, and that there is no dropout.
void require_products(DType of_q, const HeadDims& dims, bool fast_sums, const AttentionOptions& all) {
  constexpr int kAnyHeadDim = 64;
  AttentionOptions plain, with_dropout;
  with_dropout.dropout = all.dropout, with_dropout.dropout_mask = all.dropout_mask;
  plain.accumulate = fast_sums ? Accumulate::fast : Accumulate::exact;
  for_option("--head-dim", [&] { return problem_of(of_q, dims.head_dim, dims.head_dim_v, plain); });
  for_option("--dropout", [&] { return problem_of(of_q, kAnyHeadDim, kAnyHeadDim, with_dropout); });
}

}  // namespace

bool is_causal(std::string_view mask) { return mask == "causal"; }

AttentionOptions FeatureOptions::options(bool causal) const {
  AttentionOptions options;
  options.causal = causal;
  options.window = parse_window("--window", window);
  options.chunk = chunk.value_or(0);
  options.softcap = softcap.value_or(0);
  options.dropout = {dropout.value_or(0), dropout_seed.value_or(0), dropout_offset.value_or(0)};
  // The library knows which caps there are, the same for all problems.
  const auto check = [](const char* name, const AttentionOptions& some) {
    for_option(name, [&] { return problem_of(DType::bf16, kHeadDimStep, kHeadDimStep, some); });
  };
  AttentionOptions of_dropout;
  of_dropout.dropout = options.dropout;
  check("--dropout", of_dropout);
  check("--softcap", options);
  return options;
}

Problem FeatureOptions::problem(DType dtype, const HeadDims& dims, bool causal) const {
  AttentionOptions all = options(causal);
  // Of a problem only their dtypes count.
  const auto set = [](std::optional<Tensor>& tensor, bool asked, DType tensor_dtype) {
    if (asked) tensor = Tensor(nullptr, tensor_dtype, {});
  };
  set(all.alibi_slopes, alibi, DType::f32);
  set(all.sinks, sinks, DType::f32);
  set(all.bias, bias, bias_dtype ? parse_dtype(*bias_dtype) : dtype);
  set(all.boolean_mask, boolean_mask, DType::boolean);
  set(all.documents, documents, DType::i32);
  set(all.prefix, prefix, DType::i32);
  set(all.tree, tree, DType::i64);
  set(all.dropout_mask, dropout_mask, DType::boolean);
  set(all.seqused_q, ragged, DType::i32);
  set(all.page_table, paged, DType::i32);
  set(all.k_rotary, k_rotary, dtype);
  if (token_scales) all.k_scale = all.v_scale = Tensor(nullptr, DType::f32, {0, 0, 0});
  if (e4m3_queries) all.out_dtype = out_e4m3 ? DType::e4m3 : dtype;
  if (fast_sums) all.accumulate = Accumulate::fast;
  if (block_scales) all.k_scale = Tensor(nullptr, DType::f32, {0, 0, 0});
  const DType of_8_bits = e5m2 ? DType::e5m2 : DType::e4m3;
  const DType of_q = e4m3_queries ? of_8_bits : dtype, of_kv = e4m3 ? of_8_bits : dtype;
  if (e4m3_queries) require_products(of_q, dims, fast_sums, all);
  Problem problem = for_option(k_rotary ? "--k-rotary" : "--window",
                               [&] { return problem_of(of_q, dims.head_dim, dims.head_dim_v, all, of_kv); });
  problem.latent = latent;
  for_option("--latent", [&] { validate(problem); });
  problem.values_transposed = values_transposed;
  for_option("--values-transposed", [&] { validate(problem); });
  return problem;
}

void add_dtype_option(CLI::App* subcommand, std::string& dtype, const std::string& help) {
  add_choice(subcommand, "--dtype", dtype, dtype_words(), help);
}

void add_call_features(CLI::App* subcommand, FeatureOptions& features) {
  add_window_option(subcommand, features.window);
  add_chunk_option(subcommand, features.chunk);
  add_softcap_option(subcommand, features.softcap);
  add_dropout_options(subcommand, features);
}

void add_problem_options(CLI::App* subcommand, ProblemOptions& options) {
  add_dimension_options(subcommand, options);
  add_mask_option(subcommand, options.mask);
  add_feature_options(subcommand, options.features);
}

void add_problem_options(CLI::App* subcommand, ProblemOptions& options, TextOptions& texts) {
  add_dimension_options(subcommand, options);
  add_text_options(subcommand, texts);
  add_feature_options(subcommand, options.features);
}

Problem ProblemOptions::problem() const {
  return features.problem(parse_dtype(dtype), parse_head_dim_pair("--head-dim", head_dim), is_causal(mask));
}

ProblemListOptions add_problem_lists(CLI::App* subcommand, ProblemLists& lists) {
  return {add_dtype_list(subcommand, lists), add_head_dim_list(subcommand, lists),
          add_option(subcommand, "--mask", lists.masks, "LIST", "Masks: full, causal"),
          add_feature_options(subcommand, lists.features)};
}

ProblemListOptions add_problem_lists(CLI::App* subcommand, CallProblemLists& lists) {
  CLI::Option *const dtypes = add_dtype_list(subcommand, lists), *const head_dims =
                                                                     add_head_dim_list(subcommand, lists);
  const TextListOptions of_texts = add_text_list_options(subcommand, lists.texts);
  std::vector<CLI::Option*> features = add_feature_options(subcommand, lists.features);
  CLI::Option* const block_mask =
      add_flag(subcommand, "--block-mask", lists.block_mask,
               "Calls have a block mask, which is made of the boolean mask, documents, tree and text of a mask");
  features.insert(features.end(), {of_texts.score, of_texts.captures, block_mask});
  return {dtypes, head_dims, of_texts.masks, features};
}

std::vector<Problem> ProblemLists::problems() const {
  return combine(parse_dtypes("--dtype", dtypes), parse_head_dims("--head-dim", head_dims),
                 parse_masks("--mask", masks), features);
}

bool has_predicate(const Problem& problem) {
  return problem.boolean_mask || problem.documents || problem.tree || problem.mask;
}

std::vector<Problem> CallProblemLists::problems(const Texts& functions) const {
  std::vector<Problem> problems = combine(parse_dtypes("--dtype", dtypes), parse_head_dims("--head-dim", head_dims),
                                          parse_masks("--mask", mask_words()), features);
  for (Problem& problem : problems) {
    problem = functions.added_to(problem);
    if (block_mask && !has_predicate(problem))
      throw Error(ErrorCode::invalid_argument,
                  "--block-mask: must be made of --boolean-mask, --documents, --tree or a text of --mask, had none");
    problem.block_mask = block_mask;
  }
  return problems;
}

void add_architecture_option(CLI::App* subcommand, std::string& architecture) {
  add_option(subcommand, "--arch", architecture, kArchType,
             "Target, for example sm_90a; 'flashjit info' lists them [default: that of the first GPU]");
}

std::string choose_architecture(const Engine& engine, const std::string& architecture) {
  if (!architecture.empty()) return known_architecture(architecture);
  const std::optional<DeviceInfo> gpu = usable_device(engine.system());
  if (gpu) return gpu->architecture;
  throw Error(ErrorCode::invalid_argument, "--arch: must be given where there is no GPU, for example --arch sm_90a");
}

std::vector<DType> parse_dtypes(std::string_view name, std::string_view text) {
  std::vector<DType> dtypes;
  for (const std::string& item : split_list(name, text)) {
    require_word(name, item, dtype_words());
    dtypes.push_back(parse_dtype(item));
  }
  return dtypes;
}

std::vector<HeadDims> parse_head_dims(std::string_view name, std::string_view text) {
  std::vector<HeadDims> dims;
  if (text == "all") {
    for (int d = kHeadDimStep; d <= kLargestOfAll; d += kHeadDimStep) dims.push_back({d, d});
    return dims;
  }
  for (const std::string& item : split_list(name, text)) dims.push_back(parse_head_dim_pair(name, item));
  return dims;
}

std::vector<bool> parse_masks(std::string_view name, std::string_view text) {
  std::vector<bool> causal;
  for (const std::string& item : split_list(name, text)) {
    if (item == "both") {  // as it was spelled before there were lists
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: must be full,causal for both of them, was 'both'", name));
    }
    require_word(name, item, mask_words());
    causal.push_back(is_causal(item));
  }
  return causal;
}

std::vector<std::string> parse_architectures(const std::string& text) {
  std::vector<std::string> names;
  if (text == "all") {
    for (const Architecture& architecture : architectures()) names.push_back(architecture.name);
    return names;
  }
  for (const std::string& item : split_list("--arch", text)) names.push_back(known_architecture(item));
  return names;
}

std::vector<std::string> parse_wanted_architectures(const std::string& text) {
  return text.empty() || text == "all" ? std::vector<std::string>() : parse_architectures(text);
}

std::vector<std::string> parse_architectures(const Engine& engine, const std::string& text) {
  return text.empty() ? std::vector{choose_architecture(engine, text)} : parse_architectures(text);
}

std::vector<Problem> combine(const std::vector<DType>& dtypes, const std::vector<HeadDims>& head_dims,
                             const std::vector<bool>& causal, const FeatureOptions& features) {
  std::vector<Problem> problems;
  for (const DType dtype : dtypes) {
    for (const HeadDims& dims : head_dims) {
      for (const bool masked : causal) {
        const Problem problem = features.problem(dtype, dims, masked);
        if (std::find(problems.begin(), problems.end(), problem) == problems.end()) problems.push_back(problem);
      }
    }
  }
  return problems;
}

namespace {

// With what is in the place of the first part that no variant has, if it is like one that some variant has.
Variant parse_known_variant(const Engine& engine, const std::string& text, const Variant& base, const Problem& problem,
                            const std::string& architecture) {
  try {
    return parse_variant(text, base);
  } catch (const Error& error) {
    std::set<std::string> known;
    for (const VariantExplanation& each : engine.explain_variants(problem, architecture))
      for (std::string& part : split_parts(to_string(each.variant))) known.insert(std::move(part));
    for (const std::string& part : split_parts(text))
      if (known.count(part) == 0)
        throw Error(error.code(), error.what() + did_you_mean(part, {known.begin(), known.end()}));
    throw;
  }
}

}  // namespace

Variant choose_variant(const Engine& engine, const std::string& text, const Problem& problem,
                       const std::string& architecture) {
  const Variant base = engine.default_variant(problem, architecture);
  if (text == "default") return base;
  return for_option("--variant", [&] {
    const Variant variant = parse_known_variant(engine, text, base, problem, architecture);
    engine.render(problem, variant, architecture);  // refuses what is not legal
    return variant;
  });
}

}  // namespace flashjit::cli
