// SPDX-License-Identifier: Apache-2.0
// flashjit attend: attention over NumPy files.
#include <flashjit/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <list>
#include <optional>
#include <string_view>

#include "cli/commands/attend_compute.h"
#include "cli/commands/attend_options.h"
#include "cli/io/command.h"
#include "cli/io/device.h"
#include "cli/io/npy.h"
#include "cli/io/output_file.h"
#include "cli/io/problem_options.h"
#include "cli/io/streams.h"
#include "cli/io/text_options.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"help(Files: little-endian float16, float32 or float64, those of masks bool, int32 or int64; C or Fortran order. What is to be
e4m3 or e5m2 may also be uint8: its bytes, as they are. Q, K and V are (batch, seqlen, heads, head_dim); Q may have more heads
than K and V (a multiple), V another head dimension than Q and K. Texts are C++ for the GPU, which runs them, or the
emulator.
Sequences of different lengths: see the options from --cu-seqlens-q to --page-table. With --cu-seqlens-q Q and the result
are (total, heads_q, head_dim) and the LSE is (heads_q, total); with --cu-seqlens-kv so are K and V. Rows of no sequence
become 0, their LSE -inf. Offsets, lengths, indices and pages that there are not are refused where a kernel runs; the CPU
cuts them to what there is.
From --grad, the gradient of some number with respect to the result, follow those of Q, K and V, and of --bias,
--alibi-slopes and --sinks: what stands for several heads, rows or batch entries has the sum of theirs. --score is
differentiated by the score; what it captures gets no gradient. There are no gradients yet with --e4m3 and --k-rotary,
nor, but on the CPU, with --page-table and --batch-indices-kv.
Output: float32 for bf16, float16 for f16, bytes for e4m3. Files appear whole or not at all; a failed --check writes none.

Examples:
  flashjit attend q.npy k.npy v.npy -o out.npy --mask causal --check
  flashjit attend q.npy k.npy v.npy -o out.npy --lse lse.npy --dtype f16 --scale 0.125 --device cpu
  flashjit attend q.npy k.npy v.npy -o out.npy --softcap 30 --alibi-slopes slopes.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --mask causal --chunk 8192 --sinks sinks.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --score "score - s(head) * abs(query - key)" --capture s=slopes.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --mask causal --mask "(query - key) % step == 0" --capture step=4
  flashjit attend q.npy pages_k.npy pages_v.npy -o out.npy --page-table table.npy --seqused-kv lengths.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --e4m3 --k-scale of_k.npy --v-scale of_v.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --e4m3 --e4m3-queries --q-scale of_q.npy --check
  flashjit attend q.npy latent.npy latent.npy -o out.npy --k-rotary rotary.npy --e4m3
  flashjit attend q.npy k.npy v.npy -o out.npy --check --device emulate --arch sm_80
  flashjit attend q.npy k.npy v.npy --mask causal --grad dout.npy --dq dq.npy --dk dk.npy --dv dv.npy --check)help";

// engine: made where a kernel is to run.
Answer compute(const AttendOptions& options, const Session& session, const Inputs& inputs,
               std::optional<Engine>& engine) {
  EngineOptions engine_options = session.engine_options();
  choose_device(options.device, engine_options);
  engine_options.check_pages = true;
  if (options.device.device == "cpu") return attend_by_reference(inputs);
  engine.emplace(engine_options);
  const SystemInfo system = engine->system();
  const std::optional<DeviceInfo> device =
      options.device.device == "gpu" ? require_device(system, "--device gpu") : usable_device(system);
  if (device) {
    require_backward(options, true);
    return attend_by_kernel(*engine, *device, inputs, options.variant);
  }
  engine.reset();
  Answer answer = attend_by_reference(inputs);
  tell("no GPU ({}): computed with the CPU reference{}", why_no_gpu(system),
       options.variant.empty() ? "" : ", without the variant");
  return answer;
}

Json describe(const reference::Comparison& comparison) {
  return {{"max_error", comparison.max_error}, {"bound", comparison.bound}, {"passed", comparison.passed}};
}

// "alibi_slopes" of "--alibi-slopes".
std::string json_key(const char* option) {
  std::string key = option + std::string_view("--").size();
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

void print_json(const AttendOptions& options, const Answer& answer, const std::optional<Check>& check) {
  const AttentionOptions asked = asked_options(options);
  Json json = {{"device", answer.device},
               {"dtype", options.dtype},
               {"e4m3", options.e4m3},
               {"e4m3_queries", options.e4m3_queries},
               {"fast_sums", options.fast_sums},
               {"v_transposed", options.v_transposed},
               {"out_e4m3", options.out_e4m3},
               {"e5m2", options.e5m2},
               {"mask", options.texts.is_causal() ? "causal" : "full"},
               {"window", options.features.window.empty() ? Json() : Json({asked.window.left, asked.window.right})},
               {"chunk", options.features.chunk ? Json(*options.features.chunk) : Json()},
               {"softcap", options.features.softcap ? Json(*options.features.softcap) : Json()},
               {"dropout", options.features.dropout ? Json(*options.features.dropout) : Json()},
               {"score", options.texts.score ? Json(*options.texts.score) : Json()},
               {"mask_text", options.texts.mask() ? Json(*options.texts.mask()) : Json()}};
  for (const TensorOption& option : tensor_options()) {
    const std::string& path = options.tensors.*option.file;
    json[json_key(option.name)] = path.empty() ? Json() : Json(path);
  }
  json["grad"] = options.grad.empty() ? Json() : Json(options.grad);
  json["grad_variant"] = options.grad_variant.empty() ? Json() : Json(options.grad_variant);
  json["deterministic"] = options.deterministic;
  json["dlse"] = options.dlse.empty() ? Json() : Json(options.dlse);
  json["shape"] = std::vector<std::int64_t>(answer.out.shape().begin(), answer.out.shape().end());
  if (answer.kernel) {
    json.update({{"variant", to_string(answer.kernel->variant)},
                 {"architecture", answer.kernel->architecture},
                 {"compile_ms", answer.kernel->compile_ms},
                 {"first_call_ms", answer.first_call_ms}});
    if (!options.grad.empty()) json["first_backward_ms"] = answer.first_backward_ms;
    if (answer.speed) json["kernel_us"] = answer.speed->kernel_us;
    if (answer.speed && answer.speed->tflops) json["tflops"] = *answer.speed->tflops;
  } else {
    json["cpu_ms"] = answer.cpu_ms;
  }
  if (check) {
    json["check"] = {{"passed", has_passed(*check)}};
    for (const auto& [name, comparison] : *check) json["check"][name] = describe(comparison);
  }
  const bool written = !check || has_passed(*check);
  for (const ResultFile& result : result_files()) {
    const std::string& path = options.*result.path;
    json[json_key(result.option)] = written && !path.empty() ? Json(path) : Json();
  }
  print_out("{}\n", to_text(json));
}

void print_comparison(const char* name, const reference::Comparison& comparison) {
  print_out("{:<10}max error {:.3g}, bound {:.3g}: {}\n", name, comparison.max_error, comparison.bound,
            comparison.passed ? "passed" : "FAILED");
}

void print_text(const AttendOptions& options, const Answer& answer, const std::optional<Check>& check) {
  print_out("{:<10}{}\n", "device", answer.device);
  if (answer.kernel) {
    print_out("{:<10}{}\n", "variant", to_string(answer.kernel->variant));
    print_out("{:<10}first call {:.2f} ms", "time", answer.first_call_ms);
    if (answer.speed) print_out(", kernel {:.1f} us", answer.speed->kernel_us);
    if (answer.speed && answer.speed->tflops) print_out(", {:.1f} TFLOPS", *answer.speed->tflops);
    if (!options.grad.empty()) print_out(", first call of gradients {:.2f} ms", answer.first_backward_ms);
    print_out("\n");
  } else {
    print_out("{:<10}{:.1f} ms\n", "time", answer.cpu_ms);
  }
  if (check)
    for (const auto& [name, comparison] : *check) print_comparison(name, comparison);
  std::vector<std::string> written;
  for (const ResultFile* result : wanted_results(options)) written.push_back(options.*result->path);
  if (!options.output.empty())
    written.front() += fmt::format(" {} {}", to_string(answer.out.shape()), to_string(answer.out.dtype()));
  const bool is_written = !check || has_passed(*check);
  print_out("{:<10}{}\n", "written", is_written ? fmt::format("{}", fmt::join(written, ", ")) : "nothing");
}

// Packed sequences lose the batch of 1 that they were given.
void unpack(const TensorFiles& files, Answer& answer) {
  const auto without_batch_of = [](std::optional<HostTensor>& gradient) {
    if (gradient) gradient = without_batch(*gradient);
  };
  if (!files.cu_seqlens_q.empty()) {
    answer.out = without_batch(answer.out), answer.lse = without_batch(answer.lse);
    without_batch_of(answer.dq);
  }
  if (!files.cu_seqlens_kv.empty()) without_batch_of(answer.dk), without_batch_of(answer.dv);
}

// files: of the wanted results.
void write_results(const AttendOptions& options, const Answer& answer, std::list<OutputFile>& files) {
  auto file = files.begin();
  for (const ResultFile* result : wanted_results(options)) (file++)->write(npy_bytes(result->of(answer)));
  for (OutputFile& written : files) written.publish();
}

int run(const AttendOptions& options, const Session& session) {
  require_choices(options);
  std::list<OutputFile> files;
  for (const ResultFile* result : wanted_results(options)) files.emplace_back(result->option, options.*result->path);
  const Inputs inputs = read_inputs(options, parse_dtype(options.dtype));
  std::optional<Engine> engine;
  Answer answer = compute(options, session, inputs, engine);
  std::optional<Check> check;
  if (options.check) check = check_against_reference(engine ? &*engine : nullptr, inputs, answer);
  unpack(options.tensors, answer);
  const bool good = !check || has_passed(*check);
  if (good) write_results(options, answer, files);
  (options.json ? print_json : print_text)(options, answer, check);
  return good ? kSuccess : kCheckFailed;
}

void add_gradient_options(CLI::App* attend, AttendOptions& options) {
  add_option(attend, "--grad", options.grad, "FILE",
             "Gradient of a number with respect to the result, in its shape: also compute those of Q, K, V and "
             "options");
  add_option(attend, "--dlse", options.dlse, "FILE",
             "With --grad, likewise with respect to the LSE: float32 (batch, heads_q, seqlen_q) [default: 0]");
  add_option(attend, "--grad-variant", options.grad_variant, "VARIANT",
             "With --grad, the kernel that makes gradients, as mma-q64-kv128-w8-r1-s1 or hopper-q64-kv128 [default: "
             "the best guess]");
  add_flag(attend, "--deterministic", options.deterministic,
           "With --grad, gradients that are the same, bit by bit, in every run");
  add_option(attend, "--dq", options.dq, "FILE", "With --grad, write the gradient of Q, in its shape");
  add_option(attend, "--dk", options.dk, "FILE", "Likewise of K");
  add_option(attend, "--dv", options.dv, "FILE", "Likewise of V");
  add_option(attend, "--dbias", options.dbias, "FILE", "Likewise of --bias");
  add_option(attend, "--dslopes", options.dslopes, "FILE", "Likewise of --alibi-slopes");
  add_option(attend, "--dsinks", options.dsinks, "FILE", "Likewise of --sinks");
}

}  // namespace

void add_attend(CLI::App& app, Command& command) {
  const auto options = std::make_shared<AttendOptions>();
  CLI::App* attend =
      add_subcommand(app, command, "attend", "Compute softmax(scale * Q K^T) V over NumPy files", kEpilog);
  require(add_option(attend, "Q", options->q, "FILE", "Queries: (batch, seqlen_q, heads_q, head_dim)"));
  require(add_option(attend, "K", options->k, "FILE", "Keys: (batch, seqlen_kv, heads_kv, head_dim)"));
  require(add_option(attend, "V", options->v, "FILE", "Values: (batch, seqlen_kv, heads_kv, head_dim_v)"));
  add_option(attend, "-o,--output", options->output, "FILE",
             "Result: (batch, seqlen_q, heads_q, head_dim_v); must be given without --grad");
  add_option(attend, "--lse", options->lse, "FILE",
             "Also write log(sum(exp(scores))), natural logarithm: float32 (batch, heads_q, seqlen_q)");
  add_gradient_options(attend, *options);
  add_text_options(attend, options->texts);
  add_call_features(attend, options->features);
  for (const TensorOption& option : tensor_options())
    add_option(attend, option.name, options->tensors.*option.file, "FILE", option.help);
  add_finite(attend, "--scale", options->scale, "Factor on the scores [default: 1/sqrt(head_dim)]");
  add_integer(attend, "--fixed-split-size", options->fixed_split_size, "N", {0, std::numeric_limits<int>::max()},
              "Split the keys into parts of so many, whatever the batch: a row's bits depend on that row alone "
              "[default: as the GPU wants it]");
  add_dtype_option(attend, options->dtype, "Precision to compute in");
  CLI::Option* const e4m3 =
      add_flag(attend, "--e4m3", options->e4m3,
               "K and V are what a cache of e4m3 has: their numbers are rounded to it; needs sm_90a, queries of e4m3, "
               "--k-rotary, or the CPU");
  CLI::Option* const queries = add_flag(attend, "--e4m3-queries", options->e4m3_queries,
                                        "So is Q, and products are of e4m3; --dtype is of the result; from sm_89 on");
  need(queries, e4m3);
  need(
      add_flag(attend, "--fast-sums", options->fast_sums,
               "The same, with sums of products as the tensor core makes them, and not in f32; beside scales of blocks "
               "they are in f32 all the same"),
      queries);
  need(add_flag(attend, "--v-transposed", options->v_transposed,
                "V is (batch, heads_kv, head_dim_v, seqlen_kv), and kernels read it as it lies"),
       queries);
  need(add_flag(attend, "--out-e4m3", options->out_e4m3, "The result is e4m3, in place of --dtype: bytes"), queries);
  need(add_flag(attend, "--e5m2", options->e5m2, "K and V, and Q, are of e5m2 where these options say e4m3"), e4m3);
  add_choice(attend, "--device", options->device.device, {"auto", "gpu", "emulate", "cpu"},
             "gpu, emulate (the GPU's kernel in the emulator: for small shapes), cpu (the reference in double "
             "precision), or auto: the GPU if there is one, else the CPU");
  add_emulated_architecture_option(attend, options->device);
  add_option(attend, "--variant", options->variant, "VARIANT",
             "A kernel of 'flashjit variants', where one runs [default: the best guess]");
  add_flag(attend, "--check", options->check,
           "Compare with the reference in double precision; exit code 1 if it fails");
  add_flag(attend, "--json", options->json, "Print one JSON object");
  run_when_chosen(attend, command, options, run);
}

}  // namespace flashjit::cli
