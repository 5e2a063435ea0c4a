// SPDX-License-Identifier: Apache-2.0
// Options that several subcommands share: which problems, for which architectures.
#pragma once

#include <flashjit/attention.h>
#include <flashjit/engine.h>
#include <flashjit/problem.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/io/command.h"
#include "cli/io/of_pass.h"
#include "cli/io/text_options.h"

namespace flashjit::cli {

// The grammar of problems, the same wherever there is one: --dtype bf16, --head-dim 192x128, --mask causal. A
// subcommand that has many at once takes lists of the same words: --dtype bf16,f16 --head-dim 64,192x128 --mask
// full,causal. So does a file of shapes. Masks are words rather than flags because they exclude each other and there
// will be more of them: a flag for each could not say "all of these", as --mask full,causal does. What goes with any of
// them has an option of its own: --window 1024,0 --softcap 30 --sinks.

struct HeadDims {
  int head_dim, head_dim_v;
};

// What goes with any mask. Its numbers are those of calls; of a problem is only whether there are any.
struct FeatureOptions {
  std::string window;            // "1024,0"; empty: none
  std::optional<int> chunk;      // 0: none
  std::optional<float> softcap;  // 0: none
  bool alibi = false, sinks = false;
  bool bias = false, boolean_mask = false, documents = false, prefix = false, tree = false;
  std::optional<std::string> bias_dtype;  // none: that of the problem
  std::optional<float> dropout;           // 0: none
  std::optional<std::uint64_t> dropout_seed, dropout_offset;
  bool dropout_mask = false, ragged = false, paged = false;
  bool e4m3 = false, token_scales = false, e4m3_queries = false, fast_sums = false, block_scales = false;
  bool k_rotary = false, latent = false, values_transposed = false, out_e4m3 = false, e5m2 = false;

  // Both throw Error(invalid_argument) which names the option.
  Problem problem(DType dtype, const HeadDims& dims, bool causal) const;
  // Of a call, but for tensors.
  AttentionOptions options(bool causal) const;
};

// One problem.
struct ProblemOptions {
  std::string dtype = "bf16", head_dim = "128", mask = "full";
  FeatureOptions features;

  // Throws Error(invalid_argument) which names the option.
  Problem problem() const;
};
void add_problem_options(CLI::App* subcommand, ProblemOptions& options);
// With texts, whose masks are to be put into the options by the caller.
void add_problem_options(CLI::App* subcommand, ProblemOptions& options, TextOptions& texts);
// Of subcommands that have only some of them.
void add_dtype_option(CLI::App* subcommand, std::string& dtype, const std::string& help);
void add_call_features(CLI::App* subcommand, FeatureOptions& features);  // all but flags: a call has tensors
bool is_causal(std::string_view mask);

// All combinations of lists.
struct ProblemLists {
  std::string dtypes = "bf16", head_dims = "128", masks = "full,causal";
  FeatureOptions features;

  // Each problem once. Throws Error(invalid_argument) which names the option.
  std::vector<Problem> problems() const;
};
struct ProblemListOptions {
  CLI::Option *dtypes, *head_dims, *masks;
  std::vector<CLI::Option*> features;  // with those of texts
};
ProblemListOptions add_problem_lists(CLI::App* subcommand, ProblemLists& lists);

// Whether it has what block masks are made of.
bool has_predicate(const Problem& problem);
// With what calls have beside tensors of the library: texts, and block masks.
struct CallProblemLists : ProblemLists {
  TextOptions texts;
  bool block_mask = false;

  std::string mask_words() const { return texts.mask_words().value_or(masks); }
  // With the functions of the texts. Throws Error(invalid_argument) which names the option.
  std::vector<Problem> problems(const Texts& functions) const;
};
ProblemListOptions add_problem_lists(CLI::App* subcommand, CallProblemLists& lists);

// Their parts. Errors begin with the name: that of an option, or of a line of a file and its field.
std::vector<DType> parse_dtypes(std::string_view name, std::string_view text);
std::vector<HeadDims> parse_head_dims(std::string_view name, std::string_view text);  // "64,192x128", or "all"
std::vector<bool> parse_masks(std::string_view name, std::string_view text);          // of each: whether it is causal
std::vector<Problem> combine(const std::vector<DType>& dtypes, const std::vector<HeadDims>& head_dims,
                             const std::vector<bool>& causal, const FeatureOptions& features = {});

// What the epilog of --help says of a --variant.
inline constexpr const char* kVariantEpilog =
    R"(A variant is spelled as 'flashjit variants' prints it. A part of a spelling changes the default: kv64-rare has
key/value blocks of 64 rows and rescales rarely. Parts that only one family of kernels has need its name in front where
the default is of the other one: mma-kv32-k2, hopper-kv64-qs1. v1 to v5 are the steps of the RTX 5090 write-up.)";

// An architecture option: empty takes that of the first usable GPU. Throws Error where there is none.
void add_architecture_option(CLI::App* subcommand, std::string& architecture);
std::string choose_architecture(const Engine& engine, const std::string& architecture);

// "sm_80,sm_90a", or "all". Throws Error(invalid_argument) which names the option.
std::vector<std::string> parse_architectures(const std::string& text);
// Of an option that chooses from the cache; empty where it leaves nothing out. "all" has the emulator's targets too.
std::vector<std::string> parse_wanted_architectures(const std::string& text);
// The same; empty takes that of the first usable GPU.
std::vector<std::string> parse_architectures(const Engine& engine, const std::string& text);

// The default variants, and what tuning records chose on GPUs of the architecture; each once.
template <class OfProblem>
auto chosen_variants(const Engine& engine, const OfProblem& problem, const std::string& architecture) {
  auto variants = default_variants(engine, problem, architecture);
  for (const auto& variant : recorded_variants(engine, problem, architecture))
    if (std::find(variants.begin(), variants.end(), variant) == variants.end()) variants.push_back(variant);
  return variants;
}
// "default", or a spelling that starts from the default for the largest shapes. Throws Error(invalid_argument) when it
// is not legal for the problem on the architecture.
Variant choose_variant(const Engine& engine, const std::string& text, const Problem& problem,
                       const std::string& architecture);

}  // namespace flashjit::cli
