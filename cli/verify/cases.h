// SPDX-License-Identifier: Apache-2.0
// The cases of flashjit verify, and one of them computed by attention.
#pragma once

#include <flashjit/engine.h>
#include <flashjit/reference.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/io/option_tensors.h"
#include "cli/io/text_options.h"
#include "cli/verify/case_inputs.h"
#include "cli/verify/compared_case.h"

namespace flashjit::cli {

struct CaseShape {
  std::int64_t batch, seqlen_q, seqlen_kv, heads_q, heads_kv;
  Scores scores = Scores::random;
  bool heads_first = false;  // in memory: [batch, heads, seqlen, head_dim]
};
const std::vector<CaseShape>& verify_shapes();
// Fewer and smaller ones for the emulator: odd lengths, grouped heads, tiles and key/value blocks in plenty.
const std::vector<CaseShape>& emulated_shapes();
// Those that the problem has: a tree needs a key for each query, and a cache of e4m3 a key.
std::vector<CaseShape> shapes_for(const Problem& problem, const std::vector<CaseShape>& shapes);
CallShape call_shape(const CaseShape& shape);
std::string to_string(const CaseShape& shape);  // "b2 q77 kv1 h4/2", "b1 q130 kv420 h2/1 ramp heads-first"

// A case as attention() is given it.
struct CaseCall {
  Tensor q, k, v, out;
  AttentionOptions options;  // with lse
};

// What tells what must come out.
struct References {
  using Reference = std::function<reference::Result(const Tensor& q, const Tensor& k, const Tensor& v,
                                                    const AttentionOptions& options)>;
  Reference exact = [](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
    return reference::attention(q, k, v, options);
  };
  Reference low = [](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
    return reference::attention_in_low_precision(q, k, v, options);
  };
};

// By the engine, which knows users' functions, too.
References references_by(Engine& engine);

// What a case computes, in host memory; users' functions come beside it.
struct CaseInputs {
  HostTensor q, k, v;
  AttentionOptions options;  // but for tensors
  std::vector<OptionTensor> tensors;
  bool latent = false;             // v is in the memory of k
  bool values_transposed = false;  // v comes so
};
inline constexpr std::uint64_t kCaseSeed = 2026;  // of all cases that are not random ones
// Random values with outliers. options: window, chunk and cap of a problem that has one.
CaseInputs case_inputs(const Problem& problem, const CaseShape& shape, const AttentionOptions& options,
                       std::uint64_t seed);

// Inputs on a device, and what must come out.
class VerifyCase : public ComparedCase {
 public:
  VerifyCase(const CaseShape& shape, const CaseInputs& inputs, const Texts& texts, int device,
             const References& references);
  // With case_inputs().
  VerifyCase(const Problem& problem, const CaseShape& shape, int device, const AttentionOptions& options = {},
             const References& references = {}, const Texts& texts = {});

  // Makes the block mask of the case's predicates; its calls have it from then on. Those of a shape with one batch
  // entry or head are for all.
  void make_block_mask(Engine& engine, const CallShape& shape);
  void make_block_mask(Engine& engine);

  // What attention, which computes the call, leaves in poisoned memory.
  CaseOutputs run(const std::optional<Variant>& variant, const std::function<void(const CaseCall&)>& attention) const;
  CaseOutputs run(Engine& engine, const std::optional<Variant>& variant) const override;
  CaseOutputs emulate(Engine& engine, const std::optional<Variant>& variant, const EmulationOptions& options,
                      emulator::Report& report) const override;
  std::string problem_with(CaseOutputs outputs) const override;
  using ComparedCase::problem_with;

 private:
  Tensor values() const;
  void clear_unused(HostTensor& out, HostTensor& lse) const;

  CaseShape shape_;
  CaseLayout layout_;
  AttentionOptions options_;
  reference::Result exact_, low_;
  std::int64_t head_dim_ = 0, head_dim_v_ = 0;
  DeviceTensor q_, k_, v_;             // the latter two with room behind rows that have no multiple of 16 bytes
  bool latent_;                        // there is no v_: it is columns of k_
  bool values_transposed_;             // in memory a row of v_ has the keys of a dim
  std::vector<DeviceTensor> tensors_;  // of the options and their functions
  HostTensor poisoned_out_, poisoned_lse_;
  HostTensor queries_;  // of a ragged batch, how many each sequence has
  int device_;
};

}  // namespace flashjit::cli
