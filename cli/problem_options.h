// SPDX-License-Identifier: Apache-2.0
// Options that several subcommands share: which problems, for which architectures.
#pragma once

#include <flashjit/engine.h>
#include <flashjit/problem.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"

namespace flashjit::cli {

// One problem: --dtype, --head-dim, --head-dim-v, --causal.
struct ProblemOptions {
  std::string dtype = "bf16";
  int head_dim = 128;
  std::optional<int> head_dim_v;  // default: that of q and k
  bool causal = false;

  // Throws Error(invalid_argument) which names the option.
  Problem problem() const;
};
void add_problem_options(CLI::App* subcommand, ProblemOptions& options);

// What the epilog of --help says of a --variant.
inline constexpr const char* kVariantEpilog =
    R"(A variant is spelled as 'flashjit variants' prints it. A part of a spelling changes the default: kv64-rare has
key/value blocks of 64 rows and rescales rarely. Parts that only one family of kernels has need its name in front where
the default is of the other one: mma-kv32-k2, hopper-kv64-qs1. v1 to v5 are the steps of the RTX 5090 write-up.)";

// Of options that take a list of head dimensions.
inline constexpr const char* kHeadDimListHelp = "Head dimensions, or all; 192x128 is 192 for q and k and 128 for v";

// An architecture option: empty takes that of the first usable GPU. Throws Error where there is none.
void add_architecture_option(CLI::App* subcommand, std::string& architecture);
std::string choose_architecture(const Engine& engine, const std::string& architecture);

// Lists as users write them: "bf16,f16", "64,192x128" or "all", "no" "yes" "both", "sm_80,sm_90a" or "all".
// All throw Error(invalid_argument) which names the option.
std::vector<DType> parse_dtypes(const std::string& text);
struct HeadDims {
  int head_dim, head_dim_v;
};
std::vector<HeadDims> parse_head_dims(const std::string& text);
std::vector<bool> parse_causal(const std::string& text);
std::vector<std::string> parse_architectures(const std::string& text);
// The same; empty takes that of the first usable GPU.
std::vector<std::string> parse_architectures(const Engine& engine, const std::string& text);

// All combinations. Throws Error(invalid_argument) for a head dimension that no kernel can have.
std::vector<Problem> combine(const std::vector<DType>& dtypes, const std::vector<HeadDims>& head_dims,
                             const std::vector<bool>& causal);

// The variants of the default rules: one for each length range, and the one for tensors that TMA
// cannot describe; each once.
std::vector<Variant> default_variants(const Engine& engine, const Problem& problem, const std::string& architecture);
// These, and what tuning records chose on GPUs of the architecture; each once.
std::vector<Variant> chosen_variants(const Engine& engine, const Problem& problem, const std::string& architecture);
// "default", or a spelling that starts from the default for long sequences. Throws Error(invalid_argument) when it is
// not legal for the problem on the architecture.
Variant choose_variant(const Engine& engine, const std::string& text, const Problem& problem,
                       const std::string& architecture);

}  // namespace flashjit::cli
