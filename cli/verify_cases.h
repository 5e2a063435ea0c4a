// SPDX-License-Identifier: Apache-2.0
// The shapes of flashjit verify, and one of them run by one kernel.
#pragma once

#include <flashjit/engine.h>
#include <flashjit/reference.h>

#include <string>
#include <vector>

namespace flashjit::cli {

struct CaseShape {
  std::int64_t batch, seqlen_q, seqlen_kv, heads_q, heads_kv;
};
const std::vector<CaseShape>& verify_shapes();
std::string to_string(const CaseShape& shape);  // "b2 q77 kv1 h4/2"

// Random inputs with outliers, on the GPU, and what must come out.
class VerifyCase {
 public:
  VerifyCase(const Problem& problem, const CaseShape& shape, int device);

  // Empty when output and LSE of this variant are right; else what is wrong, in one line.
  std::string problem_with(Engine& engine, const Variant& variant) const;

 private:
  AttentionOptions options_;
  reference::Result exact_, low_;
  DeviceTensor q_, k_, v_;
  HostTensor poisoned_out_, poisoned_lse_;
  int device_;
};

}  // namespace flashjit::cli
