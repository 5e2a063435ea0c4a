// SPDX-License-Identifier: Apache-2.0
// What a call works with: its engine, its rank's end of the group, its stream, and memory and copies on it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "distributed/positions.h"
#include "flashjit/distributed.h"

namespace flashjit::distributed {

// Dimensions of rows, and of the LSE of rows.
enum RowsDim { batch_dim, seqlen_dim, heads_dim, head_dim_dim };

// Views of some of a tensor's rows and heads.
struct RowsView {
  std::int64_t first = 0, count = 0, step = 1;
};
Tensor rows(const Tensor& tensor, const RowsView& of);
Tensor heads(const Tensor& tensor, std::int64_t first, std::int64_t count);
Tensor lse_rows(const Tensor& lse, const RowsView& of);
Tensor lse_heads(const Tensor& lse, std::int64_t first, std::int64_t count);
Partial rows(const Partial& partial, const RowsView& of);
Partial heads(const Partial& partial, std::int64_t first, std::int64_t count);
// Of a tensor that has a number for each head, such as sinks: those of some heads.
std::optional<Tensor> of_heads(const std::optional<Tensor>& all, const RowRange& of);
bool is_empty(const Tensor& tensor) noexcept;
bool is_packed(const Tensor& tensor) noexcept;

struct PlannedCall;

// What a group keeps from call to call: constants in device memory, and which calls it knows: distributed/rehearsal.h.
struct Kept {
  std::map<std::int64_t, DeviceTensor> zeros;                         // f32, by their count
  std::map<std::vector<std::int64_t>, DeviceTensor> numbers;          // i32
  std::set<std::string> agreed;                                       // kinds of calls, the same on all ranks
  std::set<std::string> rehearsed;                                    // kinds and sizes of calls of this rank
  std::map<std::string, std::shared_ptr<const PlannedCall>> planned;  // distributed/planned_call.h
  // By call, the kernel that is taken in place of one whose blocks share tiles out, if that is another.
  std::map<std::string, std::optional<Variant>> drawing;
};

class Workspace {
 public:
  // In a rehearsal memory is allocated and kernels are made, and neither are these launched nor is anything sent.
  enum class Turn { performance, rehearsal };
  Workspace(Engine& engine, Group& group, Stream stream, Turn turn = Turn::performance);

  int rank() const noexcept { return transport_.rank(); }
  int size() const noexcept { return transport_.size(); }
  Kept& kept() const noexcept { return kept_; }
  DeviceTensor allocate(DType dtype, const Dims& shape) const;

  // A tensor of these numbers, i32. The group keeps it, so that later calls need not wait for it.
  Tensor constants(const std::vector<std::int64_t>& numbers) const;
  // Of count times the value.
  Tensor constant(std::int64_t value, std::int64_t count) const;

  // Kernels and exchanges of the call: all that it does is asked for here. They are on its stream, whatever options
  // say.
  void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, AttentionOptions options) const;
  // The same while an exchange has some of the multiprocessors: by a kernel whose blocks draw their tiles, so that
  // those that begin late compute fewer of them. Others share them out beforehand.
  void attention_beside_exchange(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                 AttentionOptions options) const;
  void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, const GradientTensors& into, AttentionOptions options,
                          const BackwardOptions& backward) const;
  void merge(const std::vector<Partial>& parts, const Tensor& out, const std::optional<Tensor>& lse) const;
  std::uint64_t start(const Exchange& exchange) const;
  void finish(std::uint64_t started) const;
  void give_up() const noexcept;

  // Adds rows up: flashjit::sum. Of none, nothing.
  void sum(const std::vector<Tensor>& parts, const Tensor& into) const;
  // Makes rows 0.
  void clear(const Tensor& rows) const;

  // Copies rows between tensors of one shape and dtype and any strides. The public API has no copy on the device, but
  // its kernel that joins partial results is one when it is given a single part, except for the sign of a zero.
  void copy(const Tensor& from, const Tensor& to) const;
  // The same of rows and their LSE.
  void copy(const Partial& from, const Partial& to) const;
  // Of packed tensors of any size and dtype; and makes one 0.
  void copy_numbers(const Tensor& from, const Tensor& to) const;
  void clear_numbers(const Tensor& tensor) const;

 private:
  bool performs() const noexcept { return turn_ == Turn::performance; }
  std::optional<Variant> drawing_variant(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                         AttentionOptions options) const;
  DeviceTensor lasting(const HostTensor& constant) const;
  const DeviceTensor& zeros(std::int64_t count) const;

  Engine& engine_;
  Transport& transport_;
  Kept& kept_;  // by the group
  Stream stream_;
  Turn turn_;
};

// What a group consists of, and what it keeps from call to call.
struct Group::Impl {
  std::unique_ptr<Transport> transport;
  Kept kept;
};

// An exchange of views of any strides. Views that are not packed go through packed copies, and what a rank sends to
// itself is copied. Empty views are not sent. An exchange that is destroyed before it is finished aborts the group,
// because its memory is about to be freed.
class ViewExchange {
 public:
  explicit ViewExchange(const Workspace& work) : work_(&work) {}
  ViewExchange(ViewExchange&& other) noexcept;
  ViewExchange& operator=(ViewExchange&&) = delete;
  ~ViewExchange();

  void send(int peer, const Tensor& view);
  void receive(int peer, const Tensor& view);
  // Rows and their LSE.
  void send(int peer, const Partial& rows);
  void receive(int peer, const Partial& rows);
  void start();
  void finish();

 private:
  // A copy that is made once the exchange has arrived.
  struct Copied {
    Partial from, to;
    bool has_lse = false;
  };
  DeviceTensor& stage(DType dtype, const Dims& shape);
  void copy(const Copied& of) const;

  const Workspace* work_;
  Exchange exchange_;
  std::vector<Copied> unpacked_, own_sends_, own_receives_;
  std::vector<DeviceTensor> staged_;
  std::optional<std::uint64_t> started_;
};

}  // namespace flashjit::distributed
