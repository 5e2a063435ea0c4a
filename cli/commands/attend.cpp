// SPDX-License-Identifier: Apache-2.0
// flashjit attend: attention over NumPy files.
#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "cli/commands/attend_compute.h"
#include "cli/io/command.h"
#include "cli/io/device.h"
#include "cli/io/for_option.h"
#include "cli/io/npy.h"
#include "cli/io/output_file.h"
#include "cli/io/problem_options.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/text_options.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"help(Files: little-endian float16, float32 or float64, those of masks bool, int32 or int64; C or Fortran order. Q, K and
V are (batch, seqlen, heads, head_dim); Q may have more heads than K and V (a multiple), V another head dimension than
Q and K. Texts are C++ for the GPU, which runs them, or the emulator.
Sequences of different lengths: see the options from --cu-seqlens-q to --page-table. With --cu-seqlens-q Q and the result
are (total, heads_q, head_dim) and the LSE is (heads_q, total); with --cu-seqlens-kv so are K and V. Rows of no sequence
become 0, their LSE -inf. Offsets, lengths, indices and pages that there are not are refused where a kernel runs; the CPU
cuts them to what there is.
Output: float32 for bf16, float16 for f16. Files appear whole or not at all; a failed --check writes none.

Examples:
  flashjit attend q.npy k.npy v.npy -o out.npy --mask causal --check
  flashjit attend q.npy k.npy v.npy -o out.npy --lse lse.npy --dtype f16 --scale 0.125 --device cpu
  flashjit attend q.npy k.npy v.npy -o out.npy --softcap 30 --alibi-slopes slopes.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --mask causal --chunk 8192 --sinks sinks.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --score "score - s(head) * abs(query - key)" --capture s=slopes.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --mask causal --mask "(query - key) % step == 0" --capture step=4
  flashjit attend q.npy pages_k.npy pages_v.npy -o out.npy --page-table table.npy --seqused-kv lengths.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --e4m3 --k-scale of_k.npy --v-scale of_v.npy
  flashjit attend q.npy k.npy v.npy -o out.npy --check --device emulate --arch sm_80)help";

// Options of the library that are tensors, each in a file. Empty: none.
struct TensorFiles {
  std::string slopes, sinks, bias, boolean_mask, documents, prefix, tree, dropout_mask;
  std::string cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, leftpad_kv, batch_indices_kv, page_table;
  std::string k_scale, v_scale;
};

// All of them, in the order of --help.
struct TensorOption {
  const char* name;
  std::string TensorFiles::*file;
  std::optional<Tensor> AttentionOptions::*option;
  std::optional<DType> dtype;  // none: that of the file
  const char* help;
};
constexpr TensorOption kTensorOptions[] = {
    {"--alibi-slopes", &TensorFiles::slopes, &AttentionOptions::alibi_slopes, DType::f32,
     "ALiBi: scores lose their head's slope for each key of distance; (heads_q) or (batch, heads_q)"},
    {"--sinks", &TensorFiles::sinks, &AttentionOptions::sinks, DType::f32,
     "Each row's softmax has one more score, its head's sink, for no key; (heads_q) or (batch, heads_q)"},
    {"--bias", &TensorFiles::bias, &AttentionOptions::bias, std::nullopt,
     "Added to scores: (batch, heads_q, seqlen_q, seqlen_kv), the first three may be 1 for all; -inf hides the key"},
    {"--boolean-mask", &TensorFiles::boolean_mask, &AttentionOptions::boolean_mask, DType::boolean,
     "Where it is true the query sees the key: shapes as of --bias"},
    {"--documents", &TensorFiles::documents, &AttentionOptions::documents, DType::i32,
     "Packed sequences: the document of each key, (batch, seqlen_kv), batch may be 1; queries see their own one"},
    {"--prefix", &TensorFiles::prefix, &AttentionOptions::prefix, DType::i32,
     "Prefix-LM: queries see the keys up to their own, and so many of the first ones: (batch)"},
    {"--tree", &TensorFiles::tree, &AttentionOptions::tree, DType::i64,
     "Trees of tokens: bit j of a query is whether it sees query j's key; (batch, seqlen_q, words) of 64 bits"},
    {"--dropout-mask", &TensorFiles::dropout_mask, &AttentionOptions::dropout_mask, DType::boolean,
     "Where it is false the probability becomes 0, in place of a random choice: shapes as of --bias"},
    {"--cu-seqlens-q", &TensorFiles::cu_seqlens_q, &AttentionOptions::cu_seqlens_q, DType::i32,
     "Sequences follow one another in Q: where each begins, and the end of the last; (batch + 1)"},
    {"--cu-seqlens-kv", &TensorFiles::cu_seqlens_kv, &AttentionOptions::cu_seqlens_kv, DType::i32,
     "Likewise in K and V; (batch + 1)"},
    {"--seqused-q", &TensorFiles::seqused_q, &AttentionOptions::seqused_q, DType::i32,
     "How many of its rows of Q a sequence uses; (batch)"},
    {"--seqused-kv", &TensorFiles::seqused_kv, &AttentionOptions::seqused_kv, DType::i32,
     "Likewise of K and V, or of its pages; (batch)"},
    {"--leftpad-kv", &TensorFiles::leftpad_kv, &AttentionOptions::leftpad_kv, DType::i32,
     "How many of these rows are padding before its first key; (batch)"},
    {"--batch-indices-kv", &TensorFiles::batch_indices_kv, &AttentionOptions::batch_indices_kv, DType::i32,
     "Which batch entry of K and V, or row of --page-table, a sequence has; (batch)"},
    {"--page-table", &TensorFiles::page_table, &AttentionOptions::page_table, DType::i32,
     "K and V are pages, (pages, page_size, heads_kv, head_dim): which ones a sequence has; (batch, entries)"},
    {"--k-scale", &TensorFiles::k_scale, &AttentionOptions::k_scale, DType::f32,
     "With --e4m3, what K is multiplied by: (1), (heads_kv), or K without its last dimension"},
    {"--v-scale", &TensorFiles::v_scale, &AttentionOptions::v_scale, DType::f32, "Likewise V"},
};

struct Options {
  std::string q, k, v, output, lse, dtype = "bf16", variant;
  TensorFiles tensors;
  TextOptions texts;
  FeatureOptions features;
  DeviceChoice device;
  bool check = false, json = false, e4m3 = false;
  std::optional<float> scale;
  int fixed_split_size = 0;
};

constexpr int kRank = 4, kPackedRank = 3;

HostTensor reshaped(const HostTensor& tensor, const Dims& shape) {
  HostTensor other(tensor.dtype(), shape);
  std::copy_n(static_cast<const char*>(tensor.data()), tensor.element_count() * size_of(tensor.dtype()),
              static_cast<char*>(other.data()));
  return other;
}
HostTensor without_batch(const HostTensor& tensor) {
  return reshaped(tensor, Dims(tensor.shape().begin() + 1, static_cast<std::size_t>(tensor.shape().size()) - 1));
}

// Packed sequences get a batch of 1. offsets: the file of the option that says where they begin; empty: none.
HostTensor read_input(const std::string& path, DType dtype, const char* offsets_option, const std::string& offsets) {
  HostTensor tensor = read_npy(path, dtype);
  const Dims& shape = tensor.shape();
  if (shape.size() == kRank) return tensor;
  if (shape.size() == kPackedRank && !offsets.empty()) return reshaped(tensor, {1, shape[0], shape[1], shape[2]});
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: must have 4 dimensions (batch, seqlen, heads, head_dim), or 3 (total, heads, head_dim) "
                          "beside {}, has shape {}",
                          path, offsets_option, to_string(shape)));
}

void require_of_heads(const std::string& path, const HostTensor& numbers) {
  if (numbers.shape().size() == 1 || numbers.shape().size() == 2) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: must be (heads_q) or (batch, heads_q), has shape {}", path, to_string(numbers.shape())));
}

std::vector<OptionTensor> read_tensors(const TensorFiles& files) {
  std::vector<OptionTensor> tensors;
  for (const TensorOption& option : kTensorOptions) {
    const std::string& path = files.*option.file;
    if (path.empty()) continue;
    tensors.push_back({option.option, option.dtype ? read_npy(path, *option.dtype) : read_npy(path)});
    if (option.option == &AttentionOptions::alibi_slopes || option.option == &AttentionOptions::sinks)
      require_of_heads(path, tensors.back().values);
  }
  return tensors;
}

AttentionOptions asked_options(const Options& options) {
  AttentionOptions asked = options.features.options(options.texts.is_causal());
  asked.softmax_scale = options.scale;
  asked.fixed_split_size = options.fixed_split_size;
  return asked;
}

Inputs read_inputs(const Options& options, DType dtype) {
  const ProgressLine progress("reading the inputs");
  const AttentionOptions asked = asked_options(options);
  const TensorFiles& files = options.tensors;
  const auto read_kv = [&](const std::string& path) {
    return read_input(path, options.e4m3 ? DType::e4m3 : dtype, "--cu-seqlens-kv", files.cu_seqlens_kv);
  };
  return {read_input(options.q, dtype, "--cu-seqlens-q", files.cu_seqlens_q),
          read_kv(options.k),
          read_kv(options.v),
          read_tensors(files),
          Texts(options.texts),
          asked};
}

bool is_same_file(const std::string& a, const std::string& b) {
  return std::filesystem::weakly_canonical(a) == std::filesystem::weakly_canonical(b);
}

// Results take the place of what is there: not that of the inputs, nor one that of the other.
void require_apart(const Options& options) {
  const auto refuse_same = [](const char* option, const std::string& path, const char* other, const std::string& at) {
    if (path.empty() || !is_same_file(path, at)) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: must be another file than {}, was {}", option, other, path));
  };
  refuse_same("--lse", options.lse, "--output", options.output);
  std::vector<std::pair<const char*, const std::string*>> inputs = {
      {"Q", &options.q}, {"K", &options.k}, {"V", &options.v}};
  for (const TensorOption& option : kTensorOptions) inputs.emplace_back(option.name, &(options.tensors.*option.file));
  for (const auto& [name, input] : inputs) {
    refuse_same("--output", options.output, name, *input);
    refuse_same("--lse", options.lse, name, *input);
  }
}

void require_choices(const Options& options) {
  if (!options.variant.empty()) {
    // A wrong spelling is an error also where no kernel will run.
    for_option("--variant", [&] { return parse_variant(options.variant); });
    if (options.device.device == "cpu") {
      throw Error(ErrorCode::invalid_argument, "--variant: must not be given with --device cpu, which runs no kernel");
    }
  }
  require_apart(options);
}

// engine: made where a kernel is to run.
Answer compute(const Options& options, const Session& session, const Inputs& inputs, std::optional<Engine>& engine) {
  EngineOptions engine_options = session.engine_options();
  choose_device(options.device, engine_options);
  engine_options.check_pages = true;
  if (options.device.device == "cpu") return attend_by_reference(inputs);
  engine.emplace(engine_options);
  const SystemInfo system = engine->system();
  const std::optional<DeviceInfo> device =
      options.device.device == "gpu" ? require_device(system, "--device gpu") : usable_device(system);
  if (device) return attend_by_kernel(*engine, *device, inputs, options.variant);
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
std::string json_key(const TensorOption& option) {
  std::string key = option.name + std::string_view("--").size();
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

void print_json(const Options& options, const Answer& answer, const std::optional<Check>& check) {
  const AttentionOptions asked = asked_options(options);
  Json json = {{"device", answer.device},
               {"dtype", options.dtype},
               {"e4m3", options.e4m3},
               {"mask", options.texts.is_causal() ? "causal" : "full"},
               {"window", options.features.window.empty() ? Json() : Json({asked.window.left, asked.window.right})},
               {"chunk", options.features.chunk ? Json(*options.features.chunk) : Json()},
               {"softcap", options.features.softcap ? Json(*options.features.softcap) : Json()},
               {"dropout", options.features.dropout ? Json(*options.features.dropout) : Json()},
               {"score", options.texts.score ? Json(*options.texts.score) : Json()},
               {"mask_text", options.texts.mask() ? Json(*options.texts.mask()) : Json()}};
  for (const TensorOption& option : kTensorOptions) {
    const std::string& path = options.tensors.*option.file;
    json[json_key(option)] = path.empty() ? Json() : Json(path);
  }
  json["shape"] = std::vector<std::int64_t>(answer.out.shape().begin(), answer.out.shape().end());
  if (answer.kernel) {
    json.update({{"variant", to_string(answer.kernel->variant)},
                 {"architecture", answer.kernel->architecture},
                 {"compile_ms", answer.kernel->compile_ms},
                 {"first_call_ms", answer.first_call_ms}});
    if (answer.speed) json["kernel_us"] = answer.speed->kernel_us;
    if (answer.speed && answer.speed->tflops) json["tflops"] = *answer.speed->tflops;
  } else {
    json["cpu_ms"] = answer.cpu_ms;
  }
  if (check)
    json["check"] = {{"passed", check->passed()}, {"out", describe(check->out)}, {"lse", describe(check->lse)}};
  const bool written = !check || check->passed();
  json["output"] = written ? Json(options.output) : Json();
  json["lse"] = written && !options.lse.empty() ? Json(options.lse) : Json();
  print_out("{}\n", to_text(json));
}

void print_comparison(const char* name, const reference::Comparison& comparison) {
  print_out("{:<10}max error {:.3g}, bound {:.3g}: {}\n", name, comparison.max_error, comparison.bound,
            comparison.passed ? "passed" : "FAILED");
}

void print_text(const Options& options, const Answer& answer, const std::optional<Check>& check) {
  print_out("{:<10}{}\n", "device", answer.device);
  if (answer.kernel) {
    print_out("{:<10}{}\n", "variant", to_string(answer.kernel->variant));
    print_out("{:<10}first call {:.2f} ms", "time", answer.first_call_ms);
    if (answer.speed) print_out(", kernel {:.1f} us", answer.speed->kernel_us);
    if (answer.speed && answer.speed->tflops) print_out(", {:.1f} TFLOPS", *answer.speed->tflops);
    print_out("\n");
  } else {
    print_out("{:<10}{:.1f} ms\n", "time", answer.cpu_ms);
  }
  if (check) {
    print_comparison("out", check->out);
    print_comparison("lse", check->lse);
  }
  if (check && !check->passed()) {
    print_out("{:<10}nothing\n", "written");
  } else {
    print_out("{:<10}{} {} {}{}\n", "written", options.output, to_string(answer.out.shape()), options.dtype,
              options.lse.empty() ? "" : ", " + options.lse);
  }
}

void write_results(const Answer& answer, OutputFile& output, OutputFile* lse) {
  output.write(npy_bytes(answer.out));
  if (lse != nullptr) lse->write(npy_bytes(answer.lse));
  output.publish();
  if (lse != nullptr) lse->publish();
}

int run(const Options& options, const Session& session) {
  require_choices(options);
  OutputFile output("--output", options.output);
  std::optional<OutputFile> lse;
  if (!options.lse.empty()) lse.emplace("--lse", options.lse);
  const Inputs inputs = read_inputs(options, parse_dtype(options.dtype));
  std::optional<Engine> engine;
  Answer answer = compute(options, session, inputs, engine);
  std::optional<Check> check;
  if (options.check) check = check_against_reference(engine ? &*engine : nullptr, inputs, answer);
  if (!options.tensors.cu_seqlens_q.empty())
    answer.out = without_batch(answer.out), answer.lse = without_batch(answer.lse);
  const bool good = !check || check->passed();
  if (good) write_results(answer, output, lse ? &*lse : nullptr);
  (options.json ? print_json : print_text)(options, answer, check);
  return good ? kSuccess : kCheckFailed;
}

}  // namespace

void add_attend(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* attend =
      add_subcommand(app, command, "attend", "Compute softmax(scale * Q K^T) V over NumPy files", kEpilog);
  require(add_option(attend, "Q", options->q, "FILE", "Queries: (batch, seqlen_q, heads_q, head_dim)"));
  require(add_option(attend, "K", options->k, "FILE", "Keys: (batch, seqlen_kv, heads_kv, head_dim)"));
  require(add_option(attend, "V", options->v, "FILE", "Values: (batch, seqlen_kv, heads_kv, head_dim_v)"));
  require(add_option(attend, "-o,--output", options->output, "FILE", "Result: (batch, seqlen_q, heads_q, head_dim_v)"));
  add_option(attend, "--lse", options->lse, "FILE",
             "Also write log(sum(exp(scores))), natural logarithm: float32 (batch, heads_q, seqlen_q)");
  add_text_options(attend, options->texts);
  add_call_features(attend, options->features);
  for (const TensorOption& option : kTensorOptions)
    add_option(attend, option.name, options->tensors.*option.file, "FILE", option.help);
  add_finite(attend, "--scale", options->scale, "Factor on the scores [default: 1/sqrt(head_dim)]");
  add_integer(attend, "--fixed-split-size", options->fixed_split_size, "N", {0, std::numeric_limits<int>::max()},
              "Split the keys into parts of so many, whatever the batch: a row's bits depend on that row alone "
              "[default: as the GPU wants it]");
  add_dtype_option(attend, options->dtype, "Precision to compute in");
  add_flag(attend, "--e4m3", options->e4m3,
           "K and V are what a cache of e4m3 has: their numbers are rounded to it; needs sm_90a, or the CPU");
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
