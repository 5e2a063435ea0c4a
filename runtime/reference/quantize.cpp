// SPDX-License-Identifier: Apache-2.0
// Rows made e4m3 or e5m2 on the CPU, by the words of include/flashjit/quantize.h.
#include "runtime/call/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "flashjit/reference.h"
#include "generator/dtype.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/reference/rotary.h"
#include "runtime/support/reject.h"

namespace flashjit::reference {
namespace {

using runtime::batch_dim;
using runtime::GivenRotary;
using runtime::head_dim_dim;
using runtime::heads_dim;
using runtime::QuantizeCall;
using runtime::reject;
using runtime::rotated_part;
using runtime::seqlen_dim;

// By the Hadamard matrix of as many elements, a power of two.
void multiply_hadamard(double* x, std::int64_t count) {
  for (std::int64_t step = 1; step < count; step *= 2)
    for (std::int64_t i = 0; i < count; ++i) {
      if ((i & step) != 0) continue;
      const double sum = x[i] + x[i + step];
      x[i + step] = x[i] - x[i + step], x[i] = sum;
    }
}

class Quantizer {
 public:
  explicit Quantizer(const QuantizeCall& call)
      : call_(call), rotary_(call.opts), head_dim_(call.x.shape[head_dim_dim]) {}

  void run() const {
    if (call_.opts.scale_of == ScaleOf::tensor) {
      double largest = 0;
      for_heads([&](const auto& head) { largest = std::max(largest, largest_of(head, 0, rows())); });
      const float scale = scale_for(largest, 0);
      for_heads([&](const auto& head) { write(head, 0, rows(), scale); });
      return;
    }
    const std::int64_t step = call_.opts.scale_of == ScaleOf::block ? call_.rows_of_block() : rows();
    for_heads([&](const auto& head) {
      for (std::int64_t begin = 0; begin < rows(); begin += step) {
        const std::int64_t end = std::min(begin + step, rows());
        write(head, begin, end, scale_for(largest_of(head, begin, end), head.in(call_.scales, begin / step)));
      }
    });
  }

 private:
  struct Head {
    std::int64_t batch, head;

    std::int64_t in(const Tensor& tensor, std::int64_t row) const noexcept {
      return batch * tensor.strides[batch_dim] + row * tensor.strides[seqlen_dim] + head * tensor.strides[heads_dim];
    }
  };

  std::int64_t rows() const noexcept { return call_.x.shape[seqlen_dim]; }
  template <class Use>
  void for_heads(Use use) const {
    for (std::int64_t batch = 0; batch < call_.x.shape[batch_dim]; ++batch)
      for (std::int64_t head = 0; head < call_.x.shape[heads_dim]; ++head) use(Head{batch, head});
  }

  static void* element_of(const Tensor& tensor, std::int64_t index) {
    return static_cast<char*>(tensor.data) + index * static_cast<std::int64_t>(size_of(tensor.dtype));
  }
  // Turned and rotated.
  std::vector<double> row_of(const Head& head, std::int64_t row) const {
    const Tensor& x = call_.x;
    std::vector<std::uint16_t> turned(static_cast<std::size_t>(head_dim_));
    std::memcpy(turned.data(), element_of(x, head.in(x, row)), turned.size() * sizeof(turned[0]));
    if (rotary_.cosines) {
      const std::int64_t token = head.batch * rows() + row;
      const std::optional<Tensor>& given = rotary_.positions;
      turn_row(turned.data(), x.dtype, rotary_,
               given ? static_cast<std::int64_t>(load_element(given->data, given->dtype, token)) : row);
    }
    std::vector<double> values(turned.size());
    for (std::int64_t i = 0; i < head_dim_; ++i)
      values[static_cast<std::size_t>(i)] = load_element(turned.data(), x.dtype, i);
    if (call_.opts.rotation_seed) rotate(values);
    return values;
  }
  void rotate(std::vector<double>& values) const {
    const std::int64_t part = rotated_part(head_dim_);
    const double norm = 1 / std::sqrt(static_cast<double>(part));
    for (std::int64_t i = 0; i < head_dim_; ++i)
      values[static_cast<std::size_t>(i)] *= norm * rotation_sign(*call_.opts.rotation_seed, i);
    for (std::int64_t i = 0; i < head_dim_; i += part) multiply_hadamard(values.data() + i, part);
  }

  double largest_of(const Head& head, std::int64_t begin, std::int64_t end) const {
    double largest = 0;
    if (call_.opts.scale_is_given) return largest;
    for (std::int64_t row = begin; row < end; ++row)
      for (const double value : row_of(head, row)) largest = std::fmax(largest, std::fabs(value));  // without NaN
    return std::min<double>(largest, std::numeric_limits<float>::max());
  }
  // The one at this place, given or made.
  float scale_for(double largest, std::int64_t at) const {
    const Tensor& scales = call_.scales;
    if (!call_.opts.scale_is_given)
      store_element(scales.data, DType::f32, at,
                    largest == 0 ? 1
                                 : std::max<double>(largest / generator::largest_of_8_bits(call_.out.dtype),
                                                    std::numeric_limits<float>::min()));
    const auto scale = static_cast<float>(load_element(scales.data, DType::f32, at));
    if (!(std::isnormal(scale) && scale > 0)) reject("scale: must be positive, finite and normal, was {}", scale);
    return scale;
  }
  void write(const Head& head, std::int64_t begin, std::int64_t end, float scale) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::vector<double> values = row_of(head, row);
      void* const into = element_of(call_.out, head.in(call_.out, row));
      for (std::int64_t i = 0; i < head_dim_; ++i)
        store_element(into, call_.out.dtype, i, values[static_cast<std::size_t>(i)] / scale);
    }
  }

  const QuantizeCall& call_;
  const GivenRotary rotary_;
  const std::int64_t head_dim_;
};

}  // namespace

void quantize(const Tensor& x, const Tensor& out, const Tensor& scale, const QuantizeOptions& opts) {
  const QuantizeCall call(x, out, scale, opts);
  if (!call.nothing_to_do()) Quantizer(call).run();
}

}  // namespace flashjit::reference
