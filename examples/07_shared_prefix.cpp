// SPDX-License-Identifier: Apache-2.0
// Sequences that begin with the same tokens, as all users of one system prompt do: attention over these is computed for
// all of them together, so that their keys are read once, and joined with what each sequence has of its own. Beside it
// the same without that, in one call. On the GPU, or with FLASHJIT_DEVICE=emulate without one, for a smaller batch.
#include <flashjit/flashjit.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <vector>

namespace {

using namespace flashjit;

struct Sizes {
  std::int64_t sequences, prefix, own;  // tokens of the prefix and behind it
};
constexpr DType kDType = DType::bf16;
constexpr std::int64_t kHeadsQ = 32, kHeadsKv = 8, kHeadDim = 128, kPageSize = 64;

// New queries, one of each sequence; the prefix's pages come first in every row of the table.
class Batch {
 public:
  Batch(Engine& engine, const Sizes& sizes, int device)
      : engine_(engine),
        sizes_(sizes),
        q_(random({sizes.sequences, 1, kHeadsQ, kHeadDim}, 1, device)),
        k_(random({pages(), kPageSize, kHeadsKv, kHeadDim}, 2, device)),
        v_(random({pages(), kPageSize, kHeadsKv, kHeadDim}, 3, device)),
        table_(make_table().to_device(nullptr, device)),
        of_prefix_(allocate(kDType, {sizes.sequences, 1, kHeadsQ, kHeadDim}, device)),
        of_own_(allocate(kDType, {sizes.sequences, 1, kHeadsQ, kHeadDim}, device)),
        lse_of_prefix_(allocate(DType::f32, {1, kHeadsQ, sizes.sequences}, device)),
        lse_of_own_(allocate(DType::f32, {sizes.sequences, kHeadsQ, 1}, device)) {}

  // All keys of each sequence by themselves.
  void at_once(const Tensor& out) {
    AttentionOptions options;
    options.page_table = table_.view();
    engine_.attention(q_, k_, v_, out, options);
  }

  // The queries of all sequences are those of one over the prefix.
  void in_two_parts(const Tensor& out) {
    AttentionOptions prefix, own;
    prefix.page_table = entries(0, prefix_pages(), 1);
    prefix.lse = lse_of_prefix_.view();
    engine_.attention(as_one(q_), k_, v_, as_one(of_prefix_), prefix);
    own.page_table = entries(prefix_pages(), own_pages(), sizes_.sequences);
    own.lse = lse_of_own_.view();
    engine_.attention(q_, k_, v_, of_own_, own);
    // [1, heads, sequences] as [sequences, heads, 1].
    const Tensor lse(lse_of_prefix_.data(), DType::f32, {sizes_.sequences, kHeadsQ, 1}, {1, sizes_.sequences, 1});
    engine_.merge({{of_prefix_, lse}, {of_own_, lse_of_own_}}, out);
  }

 private:
  std::int64_t prefix_pages() const { return sizes_.prefix / kPageSize; }
  std::int64_t own_pages() const { return sizes_.own / kPageSize; }
  std::int64_t pages() const { return prefix_pages() + sizes_.sequences * own_pages(); }

  static DeviceTensor random(const Dims& shape, std::uint64_t seed, int device) {
    return HostTensor::random_normal(kDType, shape, seed).to_device(nullptr, device);
  }
  static DeviceTensor allocate(DType dtype, const Dims& shape, int device) {
    return DeviceTensor::allocate(dtype, shape, nullptr, device);
  }
  HostTensor make_table() const {
    HostTensor table(DType::i32, {sizes_.sequences, prefix_pages() + own_pages()});
    auto* entry = static_cast<std::int32_t*>(table.data());
    for (std::int64_t i = 0; i < sizes_.sequences; ++i) {
      std::iota(entry, entry + prefix_pages(), 0);
      entry += prefix_pages();
      std::iota(entry, entry + own_pages(), static_cast<std::int32_t>(prefix_pages() + i * own_pages()));
      entry += own_pages();
    }
    return table;
  }

  // Columns of the table.
  Tensor entries(std::int64_t first, std::int64_t count, std::int64_t rows) const {
    const Tensor& table = table_.view();
    return {static_cast<std::int32_t*>(table.data) + first, DType::i32, {rows, count}, table.strides};
  }
  // [sequences, 1, heads, head_dim] as one sequence of so many queries.
  Tensor as_one(const DeviceTensor& tensor) const {
    return {tensor.data(), kDType, {1, sizes_.sequences, kHeadsQ, kHeadDim}};
  }

  Engine& engine_;
  const Sizes sizes_;
  const DeviceTensor q_, k_, v_, table_, of_prefix_, of_own_, lse_of_prefix_, lse_of_own_;
};

double microseconds(const DeviceTensor& out, int calls, const std::function<void()>& call) {
  HostTensor waits(out.dtype(), out.shape());
  call();
  out.copy_to_host(waits.data());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  out.copy_to_host(waits.data());
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / calls;
}

double largest_difference(const DeviceTensor& a, const DeviceTensor& b) {
  const std::vector<double> x = HostTensor::from_device(a).to_doubles(), y = HostTensor::from_device(b).to_doubles();
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    largest = std::max(largest, std::isnan(x[i]) ? 1e9 : std::abs(x[i] - y[i]));
  return largest;
}

}  // namespace

int main() try {
  Engine engine;
  const int device = engine.emulates() ? kHostMemory : -1;
  const Sizes sizes = engine.emulates() ? Sizes{3, 256, 64} : Sizes{64, 8192, 256};
  Batch batch(engine, sizes, device);
  const Dims shape{sizes.sequences, 1, kHeadsQ, kHeadDim};
  const DeviceTensor whole = DeviceTensor::allocate(kDType, shape, nullptr, device);
  const DeviceTensor joined = DeviceTensor::allocate(kDType, shape, nullptr, device);
  std::printf("%d sequences, a prefix of %d tokens, %d of their own\n", static_cast<int>(sizes.sequences),
              static_cast<int>(sizes.prefix), static_cast<int>(sizes.own));
  const int calls = engine.emulates() ? 1 : 100;
  const double one_call = microseconds(whole, calls, [&] { batch.at_once(whole); });
  const double two_parts = microseconds(joined, calls, [&] { batch.in_two_parts(joined); });
  const double difference = largest_difference(whole, joined);
  constexpr double kMost = 0.01;  // of roundings to 16 bits
  if (!engine.emulates())
    std::printf("in one call %.0f us, the prefix once for all %.0f us: %.1f times as fast\n", one_call, two_parts,
                one_call / two_parts);
  std::printf("they differ by %.4f: %s\n", difference, difference < kMost ? "right" : "WRONG");
  return difference < kMost ? 0 : 1;
} catch (const flashjit::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
