// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/tuning_pass.h"

#include "generator/backward.h"
#include "generator/backward_space.h"
#include "generator/variant_space.h"

namespace flashjit::runtime {

std::string ForwardPass::why_illegal(const Problem& problem, const Variant& variant, const Architecture& architecture) {
  return generator::why_illegal(problem, variant, architecture);
}
std::vector<Variant> ForwardPass::candidates(const Problem& problem, const Architecture& architecture) {
  return generator::legal_variants(problem, architecture);
}
Variant ForwardPass::default_of(const Problem& problem, const ShapeBucket& bucket, const Architecture& architecture) {
  return generator::default_variant(problem, architecture, bucket);
}
Variant ForwardPass::default_at(const Problem& problem, const CallShape&, const ShapeBucket& bucket,
                                const Architecture& architecture) {
  return default_of(problem, bucket, architecture);
}

std::string BackwardPass::why_illegal(const Problem& problem, const Variant& variant,
                                      const Architecture& architecture) {
  return generator::why_illegal(generator::backward_problem(problem.attention), variant, architecture);
}
std::vector<BackwardVariant> BackwardPass::candidates(const Problem& problem, const Architecture& architecture) {
  return generator::legal_backward_variants(generator::backward_problem(problem.attention), architecture);
}
BackwardVariant BackwardPass::default_of(const Problem& problem, const ShapeBucket& bucket,
                                         const Architecture& architecture) {
  constexpr std::int64_t kFew = 1, kSome = 128;  // as a bucket does not say how many
  const std::int64_t seqlen_q = bucket.queries <= QueryRange::up_to_64 ? kFew
                                : bucket.keys < KeyRange::below_8k     ? kSome
                                                                       : generator::kManyQueries;
  return generator::default_backward_variant(generator::backward_problem(problem.attention), architecture, seqlen_q);
}
BackwardVariant BackwardPass::default_at(const Problem& problem, const CallShape& shape, const ShapeBucket&,
                                         const Architecture& architecture) {
  return generator::default_backward_variant(generator::backward_problem(problem.attention), architecture,
                                             shape.seqlen_q);
}

bool is_backward_record(std::string_view path) noexcept { return path.substr(path.rfind('/') + 1).starts_with("bwd-"); }

}  // namespace flashjit::runtime
