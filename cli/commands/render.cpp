// SPDX-License-Identifier: Apache-2.0
// flashjit render: the source of one kernel.
#include <fmt/format.h>

#include "cli/io/command.h"
#include "cli/io/output_file.h"
#include "cli/io/problem_options.h"
#include "cli/io/streams.h"
#include "cli/io/text_options.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog = R"help(

The source is one self-contained file that NVRTC and nvcc accept; equal options give equal bytes.

Examples:
  flashjit render --arch sm_90a --head-dim 128 --mask causal
  flashjit render --arch sm_90a --score "score - step * abs(query - key)" --capture step=0.25
  flashjit render --arch sm_120a --variant v5 -o kernel.cu && nvcc -cubin -arch sm_120a kernel.cu)help";

struct Options {
  ProblemOptions problem;
  TextOptions texts{.masks = {}, .score = {}, .captures = {}, .types_suffice = true};
  std::string variant = "default";
  std::string architecture;
  std::string output;
};

// With the texts in place.
Problem problem_of(const Options& options) {
  const Texts texts(options.texts);
  ProblemOptions without = options.problem;
  if (options.texts.is_causal()) without.mask = "causal";
  return texts.added_to(without.problem());
}

int run(const Options& options, const Session& session) {
  const Engine engine(session.engine_options());
  const Problem problem = problem_of(options);
  const std::string architecture = choose_architecture(engine, options.architecture);
  const Variant variant = choose_variant(engine, options.variant, problem, architecture);
  const std::string source = engine.render(problem, variant, architecture);
  if (options.output.empty()) {
    print_out("{}", source);
  } else {
    OutputFile file("--output", options.output);
    file.write(source);
    file.publish();
  }
  return kSuccess;
}

}  // namespace

void add_render(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* render = add_subcommand(app, command, "render", "Print the CUDA source of a kernel",
                                    kVariantEpilog + std::string(kEpilog));
  add_problem_options(render, options->problem, options->texts);
  add_option(render, "--variant", options->variant, "VARIANT", "The tunables, see below, or default");
  add_architecture_option(render, options->architecture);
  add_option(render, "-o,--output", options->output, "FILE", "Write to this file [default: standard output]");
  run_when_chosen(render, command, options, run);
}

}  // namespace flashjit::cli
