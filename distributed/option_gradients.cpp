// SPDX-License-Identifier: Apache-2.0
#include "distributed/option_gradients.h"

namespace flashjit::distributed {
namespace {

constexpr std::int64_t kRowStep = 8;    // what lengths of rows are multiples of
constexpr std::size_t kMostParts = 16;  // that one sum has
constexpr int kFirstRank = 0;

std::int64_t count_of(const Dims& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

}  // namespace

OptionGradient::OptionGradient(const Workspace& work, const Tensor& option)
    : work_(work), shape_(option.shape), share_(row()) {
  work.clear(share_);
}

DeviceTensor OptionGradient::row() const {
  return work_.allocate(DType::f32, {1, 1, 1, (count_of(shape_) + kRowStep - 1) / kRowStep * kRowStep});
}

Tensor OptionGradient::share() const { return Tensor(share_.data(), DType::f32, shape_); }

// Those of the other ranks, on the first one.
std::vector<DeviceTensor> OptionGradient::gathered() const {
  std::vector<DeviceTensor> shares;
  ViewExchange exchange(work_);
  if (work_.rank() != kFirstRank) exchange.send(kFirstRank, share_);
  for (int rank = 1; work_.rank() == kFirstRank && rank < work_.size(); ++rank)
    exchange.receive(rank, shares.emplace_back(row()));
  exchange.start();
  exchange.finish();
  return shares;
}

void OptionGradient::write(const Tensor& into) const {
  const std::vector<DeviceTensor> others = gathered();
  const DeviceTensor total = row();
  std::vector<Tensor> parts{share_};
  for (const DeviceTensor& other : others) {
    parts.push_back(other);
    if (parts.size() < kMostParts) continue;
    work_.sum(parts, total);
    parts = {total};
  }
  work_.sum(parts, total);
  ViewExchange exchange(work_);
  if (work_.rank() != kFirstRank) exchange.receive(kFirstRank, total);
  for (int rank = 1; work_.rank() == kFirstRank && rank < work_.size(); ++rank) exchange.send(rank, total);
  exchange.start();
  exchange.finish();
  work_.copy_numbers(Tensor(total.data(), DType::f32, shape_), into);
}

}  // namespace flashjit::distributed
