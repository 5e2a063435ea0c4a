// SPDX-License-Identifier: Apache-2.0
#include "distributed/workspace.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "distributed/driver.h"
#include "flashjit/error.h"

namespace flashjit::distributed {
namespace {

Tensor moved(Tensor tensor, int dim, std::int64_t first, std::int64_t count) {
  tensor.data =
      static_cast<char*>(tensor.data) + first * tensor.strides[dim] * static_cast<std::int64_t>(size_of(tensor.dtype));
  tensor.shape[dim] = count;
  return tensor;
}

Tensor stepped(const Tensor& tensor, int dim, const RowsView& of) {
  Tensor view = moved(tensor, dim, of.first, of.count);
  view.strides[dim] *= of.step;
  return view;
}

constexpr int kLseHeadsDim = 1, kLseSeqlenDim = 2;

constexpr std::size_t kMostDrawing = 256;  // more calls than a model has; beyond them all are forgotten

// All that a kernel is chosen by: what another engine takes may be illegal for this one.
std::string name_of_call(const Engine& engine, const std::vector<const Tensor*>& tensors,
                         const AttentionOptions& options) {
  const Tensor &q = *tensors[0], &v = *tensors[2];
  std::string name = to_string(
      problem_of(q.dtype, static_cast<int>(q.shape[head_dim_dim]), static_cast<int>(v.shape[head_dim_dim]), options));
  for (const Tensor* tensor : tensors)
    name += fmt::format("; {} {} {}", to_string(tensor->shape), to_string(tensor->strides),
                        reinterpret_cast<std::uintptr_t>(tensor->data) % 128);
  return name +
         fmt::format("; {} {}; {}", options.window.left, options.window.right, static_cast<const void*>(&engine));
}

std::size_t bytes_of(const Tensor& tensor) {
  std::size_t bytes = size_of(tensor.dtype);
  for (const std::int64_t size : tensor.shape) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

}  // namespace

Tensor rows(const Tensor& tensor, const RowsView& of) { return stepped(tensor, seqlen_dim, of); }
Tensor heads(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return moved(tensor, heads_dim, first, count);
}
Tensor lse_rows(const Tensor& lse, const RowsView& of) { return stepped(lse, kLseSeqlenDim, of); }
Tensor lse_heads(const Tensor& lse, std::int64_t first, std::int64_t count) {
  return moved(lse, kLseHeadsDim, first, count);
}

Partial rows(const Partial& partial, const RowsView& of) { return {rows(partial.out, of), lse_rows(partial.lse, of)}; }
Partial heads(const Partial& partial, std::int64_t first, std::int64_t count) {
  return {heads(partial.out, first, count), lse_heads(partial.lse, first, count)};
}

std::optional<Tensor> of_heads(const std::optional<Tensor>& all, const RowRange& of) {
  if (!all) return all;
  return moved(*all, all->shape.size() - 1, of.first, of.count);
}

bool is_empty(const Tensor& tensor) noexcept {
  for (const std::int64_t size : tensor.shape)
    if (size == 0) return true;
  return false;
}

bool is_packed(const Tensor& tensor) noexcept {
  const Dims packed = packed_strides(tensor.shape);
  for (int i = 0; i < packed.size(); ++i)
    if (tensor.shape[i] > 1 && tensor.strides[i] != packed[i]) return false;
  return true;
}

Workspace::Workspace(Engine& engine, Group& group, Stream stream, Turn turn)
    : engine_(engine), transport_(group.transport()), kept_(group.impl_->kept), stream_(stream), turn_(turn) {}

DeviceTensor Workspace::allocate(DType dtype, const Dims& shape) const {
  return DeviceTensor::allocate(dtype, shape, stream_, transport_.device());
}

// On the default stream, as memory is freed on the stream that it was allocated on, and the call's may end before the
// group does.
DeviceTensor Workspace::lasting(const HostTensor& constant) const {
  return constant.to_device(nullptr, transport_.device());
}

Tensor Workspace::constants(const std::vector<std::int64_t>& numbers) const {
  auto found = kept_.numbers.find(numbers);
  if (found == kept_.numbers.end()) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    HostTensor made(DType::i32, {count});
    for (std::int64_t i = 0; i < count; ++i)
      store_element(made.data(), DType::i32, i, static_cast<double>(numbers[static_cast<std::size_t>(i)]));
    found = kept_.numbers.emplace(numbers, lasting(made)).first;
  }
  return found->second;
}

Tensor Workspace::constant(std::int64_t value, std::int64_t count) const {
  return constants(std::vector<std::int64_t>(static_cast<std::size_t>(count), value));
}

const DeviceTensor& Workspace::zeros(std::int64_t count) const {
  const auto found = kept_.zeros.find(count);
  if (found != kept_.zeros.end()) return found->second;
  return kept_.zeros.emplace(count, lasting(HostTensor(DType::f32, {count}))).first->second;
}

void Workspace::attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          AttentionOptions options) const {
  options.stream = stream_;
  if (performs())
    engine_.attention(q, k, v, out, options);
  else
    engine_.prepare(q, k, v, out, options);
}

std::optional<Variant> Workspace::drawing_variant(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                                  AttentionOptions options) const {
  const std::string name = name_of_call(engine_, {&q, &k, &v, &out}, options);
  const auto known = kept_.drawing.find(name);
  if (known != kept_.drawing.end()) return known->second;
  if (kept_.drawing.size() >= kMostDrawing) kept_.drawing.clear();
  std::optional<Variant>& found = kept_.drawing[name];
  const Variant chosen = engine_.prepare(q, k, v, out, options).variant;
  const auto* const hopper = std::get_if<HopperVariant>(&chosen);
  if (!hopper || hopper->scheduler != Scheduler::fixed) return found;
  HopperVariant drawing = *hopper;
  drawing.scheduler = Scheduler::dynamic;
  options.variant = drawing;
  try {
    engine_.prepare(q, k, v, out, options);
    found = drawing;
  } catch (const Error&) {  // there is none, or it may not be compiled: the one that was chosen will do
  }
  return found;
}

void Workspace::attention_beside_exchange(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                          AttentionOptions options) const {
  options.stream = stream_;
  options.variant = drawing_variant(q, k, v, out, options);
  attention(q, k, v, out, options);
}

void Workspace::attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& out, const Tensor& lse, const GradientTensors& into,
                                   AttentionOptions options, const BackwardOptions& backward) const {
  options.stream = stream_;
  if (performs())
    engine_.attention_backward(dout, q, k, v, out, lse, into, options, backward);
  else
    engine_.prepare_backward(dout, q, k, v, out, lse, into, options, backward);
}

void Workspace::merge(const std::vector<Partial>& parts, const Tensor& out, const std::optional<Tensor>& lse) const {
  MergeOptions options;
  options.lse = lse;
  options.stream = stream_;
  if (performs())
    engine_.merge(parts, out, options);
  else
    engine_.prepare_merge(parts, out, options);
}

void Workspace::sum(const std::vector<Tensor>& parts, const Tensor& into) const {
  if (is_empty(into)) return;
  if (performs())
    engine_.sum(parts, into, stream_);
  else
    engine_.prepare_sum(parts, into, stream_);
}

std::uint64_t Workspace::start(const Exchange& exchange) const {
  return performs() ? transport_.start(exchange, stream_) : 0;
}
void Workspace::finish(std::uint64_t started) const {
  if (performs()) transport_.finish(started, stream_);
}
void Workspace::give_up() const noexcept {
  if (performs()) transport_.abort();
}

void Workspace::clear(const Tensor& rows) const {
  if (is_empty(rows)) return;
  sum({Tensor(zeros(rows.shape[head_dim_dim]).data(), DType::f32, rows.shape, {0, 0, 0, 1})}, rows);
}

void Workspace::copy(const Tensor& from, const Tensor& to) const {
  const std::int64_t of_row = from.shape[heads_dim];
  // Rows and heads change places, so that one row of zeros is the LSE of all.
  const auto turned = [](Tensor view) {
    std::swap(view.shape[seqlen_dim], view.shape[heads_dim]);
    std::swap(view.strides[seqlen_dim], view.strides[heads_dim]);
    return view;
  };
  const Tensor lse(zeros(of_row).data(), DType::f32, {from.shape[batch_dim], from.shape[seqlen_dim], of_row},
                   {0, 0, 1});
  merge({{turned(from), lse}}, turned(to), std::nullopt);
}

void Workspace::copy(const Partial& from, const Partial& to) const {
  // The last dimension of an LSE must be contiguous: so each row is a batch entry, of one row.
  const auto entry = [](const Partial& of, std::int64_t i) {
    const Tensor &out = of.out, &lse = of.lse;
    Partial view = of;
    view.out.data = moved(out, batch_dim, i, 1).data;
    view.out.shape = {out.shape[seqlen_dim], 1, out.shape[heads_dim], out.shape[head_dim_dim]};
    view.out.strides = {out.strides[seqlen_dim], out.strides[seqlen_dim], out.strides[heads_dim], 1};
    view.lse.data = moved(lse, batch_dim, i, 1).data;
    view.lse.shape = {lse.shape[kLseSeqlenDim], lse.shape[kLseHeadsDim], 1};
    view.lse.strides = {lse.strides[kLseSeqlenDim], lse.strides[kLseHeadsDim], 1};
    return view;
  };
  for (std::int64_t i = 0; i < from.out.shape[batch_dim]; ++i) {
    const Partial into = entry(to, i);
    merge({entry(from, i)}, into.out, into.lse);
  }
}

void Workspace::copy_numbers(const Tensor& from, const Tensor& to) const {
  const std::size_t bytes = bytes_of(from);
  if (!performs() || bytes == 0) return;
  if (transport_.device() == kHostMemory) {
    std::memcpy(to.data, from.data, bytes);
    return;
  }
  const DeviceContext context(transport_.device());
  const DeviceContext::Scope current(context);
  const DriverFunctions& driver = context.driver();
  driver.check(driver.cuMemcpyDtoDAsync_v2(reinterpret_cast<std::uintptr_t>(to.data),
                                           reinterpret_cast<std::uintptr_t>(from.data), bytes, stream_),
               "cuMemcpyDtoDAsync");
}

void Workspace::clear_numbers(const Tensor& tensor) const {
  const std::size_t bytes = bytes_of(tensor);
  if (!performs() || bytes == 0) return;
  if (transport_.device() == kHostMemory) {
    std::memset(tensor.data, 0, bytes);
    return;
  }
  const DeviceContext context(transport_.device());
  const DeviceContext::Scope current(context);
  const DriverFunctions& driver = context.driver();
  driver.check(driver.cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(tensor.data), 0, bytes, stream_),
               "cuMemsetD8Async");
}

ViewExchange::ViewExchange(ViewExchange&& other) noexcept
    : work_(other.work_),
      exchange_(std::move(other.exchange_)),
      unpacked_(std::move(other.unpacked_)),
      own_sends_(std::move(other.own_sends_)),
      own_receives_(std::move(other.own_receives_)),
      staged_(std::move(other.staged_)),
      started_(std::exchange(other.started_, std::nullopt)) {}

ViewExchange::~ViewExchange() {
  if (started_) work_->give_up();
}

DeviceTensor& ViewExchange::stage(DType dtype, const Dims& shape) {
  return staged_.emplace_back(work_->allocate(dtype, shape));
}

void ViewExchange::send(int peer, const Tensor& view) {
  if (is_empty(view)) return;
  if (peer == work_->rank()) {
    own_sends_.push_back({{view, {}}, {}});
  } else if (is_packed(view)) {
    exchange_.sends.push_back({peer, view});
  } else {
    const Tensor packed = stage(view.dtype, view.shape);
    work_->copy(view, packed);
    exchange_.sends.push_back({peer, packed});
  }
}

void ViewExchange::receive(int peer, const Tensor& view) {
  if (is_empty(view)) return;
  if (peer == work_->rank()) {
    own_receives_.push_back({{}, {view, {}}});
  } else if (is_packed(view)) {
    exchange_.receives.push_back({peer, view});
  } else {
    const Tensor packed = stage(view.dtype, view.shape);
    exchange_.receives.push_back({peer, packed});
    unpacked_.push_back({{packed, {}}, {view, {}}});
  }
}

void ViewExchange::send(int peer, const Partial& of) {
  if (is_empty(of.out)) return;
  if (peer == work_->rank()) {
    own_sends_.push_back({of, {}, true});
    return;
  }
  const Partial packed{stage(of.out.dtype, of.out.shape), stage(DType::f32, of.lse.shape)};
  work_->copy(of, packed);
  exchange_.sends.push_back({peer, packed.out});
  exchange_.sends.push_back({peer, packed.lse});
}

void ViewExchange::receive(int peer, const Partial& of) {
  if (is_empty(of.out)) return;
  if (peer == work_->rank()) {
    own_receives_.push_back({{}, of, true});
    return;
  }
  const Partial packed{stage(of.out.dtype, of.out.shape), stage(DType::f32, of.lse.shape)};
  exchange_.receives.push_back({peer, packed.out});
  exchange_.receives.push_back({peer, packed.lse});
  unpacked_.push_back({packed, of, true});
}

void ViewExchange::start() {
  if (!exchange_.sends.empty() || !exchange_.receives.empty()) started_ = work_->start(exchange_);
  for (std::size_t i = 0; i < own_sends_.size(); ++i) {
    own_receives_[i].from = own_sends_[i].from;
    copy(own_receives_[i]);  // under what comes from others
  }
}

void ViewExchange::copy(const Copied& of) const {
  if (of.has_lse)
    work_->copy(of.from, of.to);
  else
    work_->copy(of.from.out, of.to.out);
}

void ViewExchange::finish() {
  if (started_) work_->finish(*started_);
  started_.reset();
  for (const Copied& of : unpacked_) copy(of);
}

}  // namespace flashjit::distributed
