// SPDX-License-Identifier: Apache-2.0
// flashjit attend: attention over NumPy files.
#include <flashjit/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <list>
#include <optional>
#include <string_view>
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
From --grad, the gradient of some number with respect to the result, follow those of Q, K and V: a key/value head has the
sum of its group's. What is an option beside these acts and gets none. There are no gradients yet with --score and --e4m3,
nor, but on the CPU, of sequences of different lengths.
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
  flashjit attend q.npy k.npy v.npy -o out.npy --check --device emulate --arch sm_80
  flashjit attend q.npy k.npy v.npy --mask causal --grad dout.npy --dq dq.npy --dk dk.npy --dv dv.npy --check)help";

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
  bool has_backward = true;  // by kernels
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
     "Sequences follow one another in Q: where each begins, and the end of the last; (batch + 1)", false},
    {"--cu-seqlens-kv", &TensorFiles::cu_seqlens_kv, &AttentionOptions::cu_seqlens_kv, DType::i32,
     "Likewise in K and V; (batch + 1)", false},
    {"--seqused-q", &TensorFiles::seqused_q, &AttentionOptions::seqused_q, DType::i32,
     "How many of its rows of Q a sequence uses; (batch)", false},
    {"--seqused-kv", &TensorFiles::seqused_kv, &AttentionOptions::seqused_kv, DType::i32,
     "Likewise of K and V, or of its pages; (batch)", false},
    {"--leftpad-kv", &TensorFiles::leftpad_kv, &AttentionOptions::leftpad_kv, DType::i32,
     "How many of these rows are padding before its first key; (batch)", false},
    {"--batch-indices-kv", &TensorFiles::batch_indices_kv, &AttentionOptions::batch_indices_kv, DType::i32,
     "Which batch entry of K and V, or row of --page-table, a sequence has; (batch)", false},
    {"--page-table", &TensorFiles::page_table, &AttentionOptions::page_table, DType::i32,
     "K and V are pages, (pages, page_size, heads_kv, head_dim): which ones a sequence has; (batch, entries)", false},
    {"--k-scale", &TensorFiles::k_scale, &AttentionOptions::k_scale, DType::f32,
     "With --e4m3, what K is multiplied by: (1), (heads_kv), or K without its last dimension"},
    {"--v-scale", &TensorFiles::v_scale, &AttentionOptions::v_scale, DType::f32, "Likewise V"},
};

struct Options {
  std::string q, k, v, output, lse, dtype = "bf16", variant;
  std::string grad, dlse, dq, dk, dv;
  TensorFiles tensors;
  TextOptions texts;
  FeatureOptions features;
  DeviceChoice device;
  bool check = false, json = false, e4m3 = false;
  std::optional<float> scale;
  int fixed_split_size = 0;
};

// What may be written, each to a file. Empty: not wanted.
struct ResultFile {
  const char* option;
  std::string Options::*path;
  const HostTensor& (*of)(const Answer& answer);
  bool is_gradient = false;
};
constexpr ResultFile kResultFiles[] = {
    {"--output", &Options::output, [](const Answer& answer) -> const HostTensor& { return answer.out; }},
    {"--lse", &Options::lse, [](const Answer& answer) -> const HostTensor& { return answer.lse; }},
    {"--dq", &Options::dq, [](const Answer& answer) -> const HostTensor& { return *answer.dq; }, true},
    {"--dk", &Options::dk, [](const Answer& answer) -> const HostTensor& { return *answer.dk; }, true},
    {"--dv", &Options::dv, [](const Answer& answer) -> const HostTensor& { return *answer.dv; }, true}};

std::vector<const ResultFile*> wanted_results(const Options& options) {
  std::vector<const ResultFile*> wanted;
  for (const ResultFile& result : kResultFiles)
    if (!(options.*result.path).empty()) wanted.push_back(&result);
  return wanted;
}

constexpr int kRank = 4, kPackedRank = 3;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

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

// That what is in the file is like another tensor of the call.
void require_shape(const std::string& path, const HostTensor& tensor, const char* like, const Dims& shape) {
  if (tensor.shape() == shape) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: must have the shape of the {}, {}, has shape {}", path,
                                                       like, to_string(shape), to_string(tensor.shape())));
}

GradientInputs read_gradients(const Options& options, const Inputs& inputs) {
  const std::string& offsets = options.tensors.cu_seqlens_q;
  GradientInputs gradients;
  gradients.dq = !options.dq.empty(), gradients.dk = !options.dk.empty(), gradients.dv = !options.dv.empty();
  gradients.dout = read_input(options.grad, inputs.q.dtype(), "--cu-seqlens-q", offsets);
  require_shape(options.grad, gradients.dout, "output", inputs.out_shape());
  if (options.dlse.empty()) return gradients;
  HostTensor dlse = read_npy(options.dlse, DType::f32);
  if (!offsets.empty() && dlse.shape().size() == 2) dlse = reshaped(dlse, {1, dlse.shape()[0], dlse.shape()[1]});
  require_shape(options.dlse, dlse, "LSE", inputs.lse_shape());
  gradients.dlse = std::move(dlse);
  return gradients;
}

Inputs read_inputs(const Options& options, DType dtype) {
  const ProgressLine progress("reading the inputs");
  const AttentionOptions asked = asked_options(options);
  const TensorFiles& files = options.tensors;
  const auto read_kv = [&](const std::string& path) {
    return read_input(path, options.e4m3 ? DType::e4m3 : dtype, "--cu-seqlens-kv", files.cu_seqlens_kv);
  };
  Inputs inputs{read_input(options.q, dtype, "--cu-seqlens-q", files.cu_seqlens_q),
                read_kv(options.k),
                read_kv(options.v),
                read_tensors(files),
                Texts(options.texts),
                asked,
                {}};
  if (!options.grad.empty()) inputs.gradients = read_gradients(options, inputs);
  return inputs;
}

bool is_same_file(const std::string& a, const std::string& b) {
  const auto place = [](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path));
  };
  return place(a) == place(b);
}

// Results take the place of what is there: not that of the inputs, nor one that of another.
void require_apart(const Options& options) {
  std::vector<std::pair<const char*, const std::string*>> others = {
      {"Q", &options.q}, {"K", &options.k}, {"V", &options.v}, {"--grad", &options.grad}, {"--dlse", &options.dlse}};
  for (const TensorOption& option : kTensorOptions) others.emplace_back(option.name, &(options.tensors.*option.file));
  for (const ResultFile* result : wanted_results(options)) {
    const std::string& path = options.*result->path;
    for (const auto& [other, at] : others) {
      if (!at->empty() && is_same_file(path, *at))
        refuse(fmt::format("{}: must be another file than {}, was {}", result->option, other, path));
    }
    others.emplace_back(result->option, &path);
  }
}

void require_results(const Options& options) {
  const bool has_grad = !options.grad.empty();
  bool wants_gradient = false;
  for (const ResultFile* result : wanted_results(options)) {
    if (!result->is_gradient) continue;
    if (!has_grad)
      refuse(fmt::format("{}: must be given only with --grad, was {}", result->option, options.*result->path));
    wants_gradient = true;
  }
  if (!options.dlse.empty() && !has_grad)
    refuse(fmt::format("--dlse: must be given only with --grad, was {}", options.dlse));
  if (has_grad && !wants_gradient) refuse("--grad: must be given with --dq, --dk or --dv, was given with none of them");
  if (options.output.empty() && !has_grad) refuse("--output: must be given where --grad is not");
}

// What has no gradients, or none that kernels compute, which then are the only ones.
void require_backward(const Options& options, bool by_kernels) {
  if (options.grad.empty()) return;
  if (options.e4m3) refuse("--e4m3: must not be given with --grad, it has no gradients yet");
  if (!options.variant.empty())
    refuse(fmt::format("--variant: must not be given with --grad, whose kernels have none, was {}", options.variant));
  if (options.fixed_split_size != 0)
    refuse(fmt::format("--fixed-split-size: must be 0 with --grad, whose kernels split no keys, was {}",
                       options.fixed_split_size));
  if (options.texts.score) refuse("--score: must not be given with --grad, it has no backward kernels yet");
  if (!by_kernels) return;
  for (const TensorOption& option : kTensorOptions) {
    if (!option.has_backward && !(options.tensors.*option.file).empty())
      refuse(fmt::format("{}: must be given with --grad only on the CPU (--device cpu), it has no backward kernels yet",
                         option.name));
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
  require_results(options);
  require_backward(options, options.device.device == "gpu" || options.device.device == "emulate");
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
    json[json_key(option.name)] = path.empty() ? Json() : Json(path);
  }
  json["grad"] = options.grad.empty() ? Json() : Json(options.grad);
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
  for (const ResultFile& result : kResultFiles) {
    const std::string& path = options.*result.path;
    json[json_key(result.option)] = written && !path.empty() ? Json(path) : Json();
  }
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
    if (!options.grad.empty()) print_out(", first call of gradients {:.2f} ms", answer.first_backward_ms);
    print_out("\n");
  } else {
    print_out("{:<10}{:.1f} ms\n", "time", answer.cpu_ms);
  }
  if (check)
    for (const auto& [name, comparison] : *check) print_comparison(name, comparison);
  std::vector<std::string> written;
  for (const ResultFile* result : wanted_results(options)) written.push_back(options.*result->path);
  if (!options.output.empty()) written.front() += fmt::format(" {} {}", to_string(answer.out.shape()), options.dtype);
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
void write_results(const Options& options, const Answer& answer, std::list<OutputFile>& files) {
  auto file = files.begin();
  for (const ResultFile* result : wanted_results(options)) (file++)->write(npy_bytes(result->of(answer)));
  for (OutputFile& written : files) written.publish();
}

int run(const Options& options, const Session& session) {
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

void add_gradient_options(CLI::App* attend, Options& options) {
  add_option(attend, "--grad", options.grad, "FILE",
             "Gradient of a number with respect to the result, in its shape: also compute those of Q, K and V");
  add_option(attend, "--dlse", options.dlse, "FILE",
             "With --grad, likewise with respect to the LSE: float32 (batch, heads_q, seqlen_q) [default: 0]");
  add_option(attend, "--dq", options.dq, "FILE", "With --grad, write the gradient of Q, in its shape");
  add_option(attend, "--dk", options.dk, "FILE", "Likewise of K");
  add_option(attend, "--dv", options.dv, "FILE", "Likewise of V");
}

}  // namespace

void add_attend(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
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
