// SPDX-License-Identifier: Apache-2.0
// Options that several subcommands share: which problems, for which architectures.
#pragma once

#include <flashjit/attention.h>
#include <flashjit/engine.h>
#include <flashjit/problem.h>

#include <string>
#include <string_view>
#include <vector>

#include "cli/io/command.h"

namespace flashjit::cli {

// The grammar of problems, the same wherever there is one: --dtype bf16, --head-dim 192x128, --mask causal. A
// subcommand that has many at once takes lists of the same words: --dtype bf16,f16 --head-dim 64,192x128 --mask
// full,causal. So does a file of shapes. Masks are words rather than flags because they exclude each other and there
// will be more of them: a flag for each could not say "all of these", as --mask full,causal does. A window goes with
// any of them: --window 1024,0.

// --mask and --window.
struct MaskOptions {
  std::string mask = "full", window;

  // Throws Error(invalid_argument) which names the option.
  AttentionOptions options() const;
};

// One problem.
struct ProblemOptions {
  std::string dtype = "bf16", head_dim = "128";
  MaskOptions masks;

  // Throws Error(invalid_argument) which names the option.
  Problem problem() const;
};
void add_problem_options(CLI::App* subcommand, ProblemOptions& options);
// Of a subcommand that has only that of the three.
CLI::Option* add_dtype_option(CLI::App* subcommand, std::string& dtype, const std::string& help);
void add_mask_options(CLI::App* subcommand, MaskOptions& options);

// All combinations of lists.
struct ProblemLists {
  std::string dtypes = "bf16", head_dims = "128", masks = "full,causal", window;

  // Each problem once. Throws Error(invalid_argument) which names the option.
  std::vector<Problem> problems() const;
  // Of calls for one of them.
  AttentionOptions options(const Problem& problem) const;
};
struct ProblemListOptions {
  CLI::Option *dtypes, *head_dims, *masks, *window;
};
ProblemListOptions add_problem_lists(CLI::App* subcommand, ProblemLists& lists);

// Their parts. Errors begin with the name: that of an option, or of a line of a file and its field.
std::vector<DType> parse_dtypes(std::string_view name, std::string_view text);
struct HeadDims {
  int head_dim, head_dim_v;
};
std::vector<HeadDims> parse_head_dims(std::string_view name, std::string_view text);  // "64,192x128", or "all"
std::vector<bool> parse_masks(std::string_view name, std::string_view text);          // of each: whether it is causal
Window parse_window(std::string_view name, std::string_view text);                    // "1024,0"; empty: none
std::vector<Problem> combine(const std::vector<DType>& dtypes, const std::vector<HeadDims>& head_dims,
                             const std::vector<bool>& causal, const Window& window = {});

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
std::vector<Variant> chosen_variants(const Engine& engine, const Problem& problem, const std::string& architecture);
// "default", or a spelling that starts from the default for the largest shapes. Throws Error(invalid_argument) when it
// is not legal for the problem on the architecture.
Variant choose_variant(const Engine& engine, const std::string& text, const Problem& problem,
                       const std::string& architecture);

}  // namespace flashjit::cli
