// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/attend_options.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "cli/io/for_option.h"

namespace flashjit::cli {
namespace {

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
     "Which batch entry of K and V, or row of --page-table, a sequence has; (batch)", false},
    {"--page-table", &TensorFiles::page_table, &AttentionOptions::page_table, DType::i32,
     "K and V are pages, (pages, page_size, heads_kv, head_dim): which ones a sequence has; (batch, entries)", false},
    {"--q-scale", &TensorFiles::q_scale, &AttentionOptions::q_scale, DType::f32,
     "With --e4m3-queries, what Q is multiplied by: (1), (heads_q), (batch, heads_q) or (batch, heads_q, blocks of 128 "
     "rows)"},
    {"--k-scale", &TensorFiles::k_scale, &AttentionOptions::k_scale, DType::f32,
     "With --e4m3, what K is multiplied by: (1), (heads_kv), or K without its last dimension, or with --e4m3-queries "
     "in its place (batch, heads_kv), or (batch, heads_kv, blocks of 128 keys)"},
    {"--v-scale", &TensorFiles::v_scale, &AttentionOptions::v_scale, DType::f32, "Likewise V"},
    {"--k-rotary", &TensorFiles::k_rotary, &AttentionOptions::k_rotary, std::nullopt,
     "The last columns of the keys, of --dtype, as caches of MLA have them: the shape of K but for the head_dim, which "
     "makes up that of Q with K's; K has the columns of V, of e4m3 from sm_89 on, of e5m2 everywhere",
     false, true},
    {"--out-scale", &TensorFiles::out_scale, &AttentionOptions::out_scale, DType::f32,
     "With --out-e4m3, what the result is to be multiplied by: (1)"},
};

constexpr ResultFile kResultFiles[] = {
    {"--output", &AttendOptions::output, [](const Answer& answer) -> const HostTensor& { return answer.out; }},
    {"--lse", &AttendOptions::lse, [](const Answer& answer) -> const HostTensor& { return answer.lse; }},
    {"--dq", &AttendOptions::dq, [](const Answer& answer) -> const HostTensor& { return *answer.dq; }, true},
    {"--dk", &AttendOptions::dk, [](const Answer& answer) -> const HostTensor& { return *answer.dk; }, true},
    {"--dv", &AttendOptions::dv, [](const Answer& answer) -> const HostTensor& { return *answer.dv; }, true},
    {"--dbias", &AttendOptions::dbias, [](const Answer& answer) -> const HostTensor& { return *answer.dbias; }, true,
     "--bias", &TensorFiles::bias},
    {"--dslopes", &AttendOptions::dslopes, [](const Answer& answer) -> const HostTensor& { return *answer.dslopes; },
     true, "--alibi-slopes", &TensorFiles::slopes},
    {"--dsinks", &AttendOptions::dsinks, [](const Answer& answer) -> const HostTensor& { return *answer.dsinks; }, true,
     "--sinks", &TensorFiles::sinks}};

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

bool is_same_file(const std::string& a, const std::string& b) {
  const auto place = [](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path));
  };
  return place(a) == place(b);
}

// Results take the place of what is there: not that of the inputs, nor one that of another.
void require_apart(const AttendOptions& options) {
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

void require_scales(const AttendOptions& options) {
  const TensorFiles& files = options.tensors;
  if (!files.q_scale.empty() && !options.e4m3_queries)
    refuse(fmt::format("--q-scale: must be given only with --e4m3-queries, was {}", files.q_scale));
  if (!files.out_scale.empty() && !options.out_e4m3)
    refuse(fmt::format("--out-scale: must be given only with --out-e4m3, was {}", files.out_scale));
  for (const auto& [option, given] : {std::pair{"--k-scale", &files.k_scale}, {"--v-scale", &files.v_scale}})
    if (!given->empty() && !options.e4m3)
      refuse(fmt::format("{}: must be given only with --e4m3, was {}", option, *given));
  if (!files.k_rotary.empty() && options.e4m3_queries)
    refuse(fmt::format("--k-rotary: must not be given with --e4m3-queries, was {}", files.k_rotary));
}

void require_results(const AttendOptions& options) {
  const bool has_grad = !options.grad.empty();
  bool wants_gradient = false;
  for (const ResultFile* result : wanted_results(options)) {
    if (!result->is_gradient) continue;
    if (!has_grad)
      refuse(fmt::format("{}: must be given only with --grad, was {}", result->option, options.*result->path));
    if (result->of_file && (options.tensors.*result->of_file).empty())
      refuse(fmt::format("{}: must be given only with {}, was {}", result->option, result->of_option,
                         options.*result->path));
    wants_gradient = true;
  }
  for (const auto& [option, given] : {std::pair{"--dlse", &options.dlse}, {"--grad-variant", &options.grad_variant}})
    if (!given->empty() && !has_grad) refuse(fmt::format("{}: must be given only with --grad, was {}", option, *given));
  if (options.deterministic && !has_grad) refuse("--deterministic: must be given only with --grad");
  if (has_grad && !wants_gradient)
    refuse("--grad: must be given with --dq, --dk, --dv or another result, was given with none of them");
  if (options.output.empty() && !has_grad) refuse("--output: must be given where --grad is not");
}

}  // namespace

std::span<const TensorOption> tensor_options() { return kTensorOptions; }
std::span<const ResultFile> result_files() { return kResultFiles; }

std::vector<const ResultFile*> wanted_results(const AttendOptions& options) {
  std::vector<const ResultFile*> wanted;
  for (const ResultFile& result : kResultFiles)
    if (!(options.*result.path).empty()) wanted.push_back(&result);
  return wanted;
}

void require_backward(const AttendOptions& options, bool by_kernels) {
  if (options.grad.empty()) return;
  if (options.e4m3) refuse("--e4m3: must not be given with --grad, it has no gradients yet");
  if (!options.tensors.k_rotary.empty()) refuse("--k-rotary: must not be given with --grad, it has no gradients yet");
  if (options.fixed_split_size != 0)
    refuse(fmt::format("--fixed-split-size: must be 0 with --grad, whose kernels split no keys, was {}",
                       options.fixed_split_size));
  if (!by_kernels) return;
  for (const TensorOption& option : kTensorOptions) {
    if (!option.has_backward && !(options.tensors.*option.file).empty())
      refuse(fmt::format("{}: must be given with --grad only on the CPU (--device cpu), it has no backward kernels yet",
                         option.name));
  }
}

void require_choices(const AttendOptions& options) {
  if (!options.variant.empty()) {
    // A wrong spelling is an error also where no kernel will run.
    for_option("--variant", [&] { return parse_variant(options.variant); });
    if (options.device.device == "cpu") {
      throw Error(ErrorCode::invalid_argument, "--variant: must not be given with --device cpu, which runs no kernel");
    }
  }
  if (!options.grad_variant.empty()) {
    for_option("--grad-variant", [&] { return parse_backward_variant(options.grad_variant); });
    if (options.device.device == "cpu")
      refuse("--grad-variant: must not be given with --device cpu, which runs no kernel");
  }
  require_scales(options);
  require_results(options);
  require_backward(options, options.device.device == "gpu" || options.device.device == "emulate");
  require_apart(options);
}

}  // namespace flashjit::cli
