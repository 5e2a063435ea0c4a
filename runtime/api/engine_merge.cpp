// SPDX-License-Identifier: Apache-2.0
// Partial results, joined by the engine's device.
#include <algorithm>
#include <span>

#include "flashjit/engine.h"
#include "generator/arguments.h"
#include "runtime/api/engine_impl.h"
#include "runtime/call/merge.h"
#include "runtime/support/reject.h"

namespace flashjit {
namespace {

void require_parts(const std::vector<Partial>& parts, const MergeOptions& opts) {
  constexpr std::size_t kMost = generator::kMostMergeParts;
  if (parts.empty()) runtime::reject("parts: must have at least 1, had 0");
  if (parts.size() > kMost && !opts.lse)
    runtime::reject("lse: must be given with more than {} parts, which are joined in turns, was not", kMost);
}

}  // namespace

void Engine::Impl::merge(std::span<const Partial> parts, const Tensor& out, const MergeOptions& opts) {
  const runtime::MergeCall call = runtime::validate_merge(parts, out, opts.lse);
  if (call.nothing_to_do()) return;
  backend.run(call.operands, opts.stream, [&](const Architecture& architecture) {
    return runtime::make_merge_launch(call, architecture, templates);
  });
}

void Engine::merge(const std::vector<Partial>& parts, const Tensor& out, const MergeOptions& opts) {
  constexpr std::size_t kMost = generator::kMostMergeParts;
  require_parts(parts, opts);
  const std::span<const Partial> all(parts);
  impl_->merge(all.first(std::min(kMost, all.size())), out, opts);
  // What was joined so far is a part of what follows.
  for (std::size_t done = kMost; done < all.size(); done += kMost - 1) {
    std::vector<Partial> turn{{out, *opts.lse}};
    const auto next = all.subspan(done, std::min(kMost - 1, all.size() - done));
    turn.insert(turn.end(), next.begin(), next.end());
    impl_->merge(turn, out, opts);
  }
}

DeviceTensor Engine::merge(const std::vector<Partial>& parts, const MergeOptions& opts) {
  require_parts(parts, opts);
  const Tensor& first = parts.front().out;
  const int device = impl_->backend.output_device(runtime::operands_of_first(parts.front()), opts.stream);
  DeviceTensor out = DeviceTensor::allocate(first.dtype, first.shape, opts.stream, device);
  merge(parts, out.view(), opts);
  return out;
}

}  // namespace flashjit
