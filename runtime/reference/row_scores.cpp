// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/row_scores.h"

namespace flashjit::reference {
namespace {

constexpr std::int64_t kFarthest = std::int64_t{1} << 40;  // keys of a window; beyond any length

}  // namespace

double value_of_head(const std::optional<Tensor>& values, std::int64_t batch, std::int64_t head, double none) noexcept {
  if (!values) return none;
  const int rank = values->shape.size();
  const std::int64_t of_batch = rank > 1 ? batch * values->strides[0] : 0;
  return load_element(values->data, values->dtype, of_batch + head * values->strides[rank - 1]);
}

double round_to(DType dtype, double value) noexcept {
  store_element(&value, dtype, 0, value);
  return load_element(&value, dtype, 0);
}

float low_precision_tanh(float x) noexcept {
  int exponent = 0;
  const float digits = std::frexp(std::tanh(x), &exponent);
  return std::ldexp(std::nearbyint(digits * 2048), exponent - 11);
}

KeyRange visible_keys(const AttentionOptions& opts, const QueryPlace& place) noexcept {
  const std::int64_t position = place.position(), chunk_size = opts.chunk;
  const Window& window = opts.window;
  KeyRange keys{0, place.seqlen_kv};
  if (opts.prefix)
    keys.end = std::min(keys.end, std::max(position + 1, prefix_of(*opts.prefix, place.batch)));
  else if (opts.causal)
    keys.end = std::min(keys.end, position + 1);
  if (window.left >= 0) keys.begin = std::max(keys.begin, position - std::min(window.left, kFarthest));
  if (chunk_size > 0) {
    const std::int64_t chunk = position >= 0 ? position / chunk_size : -1;
    keys.begin = std::max(keys.begin, chunk * chunk_size);
    keys.end = std::min(keys.end, chunk * chunk_size + chunk_size);
  }
  if (window.right >= 0) keys.end = std::min(keys.end, position + std::min(window.right, kFarthest) + 1);
  return keys;
}

}  // namespace flashjit::reference
