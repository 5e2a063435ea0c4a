// SPDX-License-Identifier: Apache-2.0
#include "distributed/part.h"

#include <algorithm>

namespace flashjit::distributed {
namespace {

constexpr int kQueriesDim = 2, kKeysDim = 3;  // of a tensor of queries and keys

std::int64_t longest(const std::vector<std::int64_t>& cu_seqlens) {
  std::int64_t found = 0;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) found = std::max(found, cu_seqlens[i] - cu_seqlens[i - 1]);
  return found;
}

Tensor narrowed(Tensor tensor, int dim, const RowRange& of) {
  const std::int64_t skipped = of.first * tensor.strides[dim] * static_cast<std::int64_t>(size_of(tensor.dtype));
  tensor.data = static_cast<char*>(tensor.data) + skipped;
  tensor.shape[dim] = of.count;
  return tensor;
}

}  // namespace

Tensor seen_block(const Tensor& tensor, const Sight& sight) {
  return narrowed(narrowed(tensor, kQueriesDim, sight.queries), kKeysDim, {sight.first_key, sight.keys.count});
}

AttentionOptions options_of_part(const Workspace& work, const AttentionOptions& of, const Sight& sight,
                                 std::int64_t batch) {
  AttentionOptions options = of;
  options.causal = false;  // the window says it
  options.window = sight.window;
  if (of.bias) options.bias = seen_block(*of.bias, sight);
  const auto sequences = sight.cu_seqlens.empty() ? batch : static_cast<std::int64_t>(sight.cu_seqlens.size()) - 1;
  if (options.score || options.mask) {
    options.query_offsets = work.constant(sight.first_query, sequences);
    options.key_offsets = work.constant(sight.first_key, sequences);
  }
  if (sight.cu_seqlens.empty()) return options;
  options.cu_seqlens_q = options.cu_seqlens_kv = work.constants(sight.cu_seqlens);
  options.max_seqlen_q = options.max_seqlen_kv = longest(sight.cu_seqlens);
  return options;
}

}  // namespace flashjit::distributed
