// SPDX-License-Identifier: Apache-2.0
// Context parallelism: attention over sequences of which each of several GPUs has a part. In a library of its own,
// libflashjit_distributed. docs/distributed.md.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/engine.h"
#include "flashjit/tensor.h"

struct ncclComm;

namespace flashjit::distributed {

// --- Sharding --------------------------------------------------------------------------------------------------------

// How the positions of a sequence are shared out among ranks.
enum class Layout : std::uint8_t {
  contiguous,  // rank r has the r-th of equal parts: for full attention and for windows
  zigzag,      // of twice as many parts the r-th from the front and the r-th from the back: balanced for a causal mask
  striped,     // positions r, r + ranks, r + 2 ranks, …: likewise
};
const char* to_string(Layout layout) noexcept;  // "contiguous", "zigzag", "striped"
Layout parse_layout(const std::string& text);   // throws Error(invalid_argument)

// The positions first, first + step, …, so many of them.
struct Span {
  std::int64_t first = 0, count = 0, step = 1;

  friend bool operator==(const Span& a, const Span& b) noexcept {
    return a.first == b.first && a.count == b.count && a.step == b.step;
  }
  friend bool operator!=(const Span& a, const Span& b) noexcept { return !(a == b); }
};

struct PackedShards;

// Which positions of a sequence each rank has. A value: equal shardings shard alike, on whatever machine. Parts differ
// by one position in length at most, so any length is shared out; a rank may have none.
class Sharding {
 public:
  // Throws Error(invalid_argument) for a negative seqlen and fewer ranks than one.
  Sharding(Layout layout, std::int64_t seqlen, int ranks);
  // Packed sequences: sequence i has the positions from cu_seqlens[i] to cu_seqlens[i + 1] of tensors of batch 1, and
  // its queries see its own keys alone. These are tokens as they are shared out:
  //   contiguous  equal parts of all of them, wherever sequences begin
  //   zigzag      as many for each rank, but for fewer than there are ranks, and the same work under a causal mask: a
  //               sequence that is more work than a rank's share is zigzag by itself, others stay whole with one rank
  //               as long as one has room
  // Throws Error(invalid_argument) for another layout, fewer ranks than one, and offsets that do not begin with 0 or
  // that fall.
  static Sharding packed(Layout layout, const std::vector<std::int64_t>& cu_seqlens, int ranks);

  Layout layout() const noexcept { return layout_; }
  std::int64_t seqlen() const noexcept { return seqlen_; }
  int ranks() const noexcept { return ranks_; }
  // Of packed sequences; empty for others.
  const std::vector<std::int64_t>& cu_seqlens() const noexcept { return cu_seqlens_; }

  // How many positions a rank has. Throws Error(invalid_argument) for a rank that there is not.
  std::int64_t length(int rank) const;
  // Which ones, in the order of the rows of its tensors: in as few spans as there can be of step 1, or of striped
  // positions one of step ranks(). None is empty. Those of packed sequences need not ascend.
  std::vector<Span> spans(int rank) const;

  friend bool operator==(const Sharding& a, const Sharding& b) noexcept {
    return a.layout_ == b.layout_ && a.seqlen_ == b.seqlen_ && a.ranks_ == b.ranks_ && a.cu_seqlens_ == b.cu_seqlens_;
  }
  friend bool operator!=(const Sharding& a, const Sharding& b) noexcept { return !(a == b); }

 private:
  Layout layout_;
  std::int64_t seqlen_;
  int ranks_;
  std::vector<std::int64_t> cu_seqlens_;
  std::shared_ptr<const PackedShards> shards_;  // of packed sequences, and the same for all copies

  friend const PackedShards* packed_shards(const Sharding& sharding) noexcept;
};

// What a rank has of a tensor in host memory, any dtype, whose dimension dim is the sequence: 1 in q, k, v and outputs,
// 2 in an LSE. Throws Error(invalid_argument).
HostTensor shard(const HostTensor& whole, const Sharding& sharding, int rank, int dim = 1);
// The tensor of which these are the shards, one for each rank. Throws Error(invalid_argument).
HostTensor gather(const std::vector<HostTensor>& shards, const Sharding& sharding, int dim = 1);

// --- Communication ---------------------------------------------------------------------------------------------------

// Packed memory that goes to a rank or comes from it.
struct Message {
  int peer = 0;
  Tensor memory;
};

// Messages that go at the same time, none to the rank itself. Those between two ranks are received in the order in
// which they are sent, each in as many bytes.
struct Exchange {
  std::vector<Message> sends, receives;
};

// What carries tensors between the ranks of a group, in the order of streams. Shards differ in length, and masks hide
// others from each rank, so everything is sends and receives that are grouped. For one thread at a time, and each rank
// makes the same exchanges in the same order. All throw Error(communication) once the group has failed: when a rank
// gave up, was not heard of in time, or the transport itself failed.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  // Whose memory it carries: a CUDA ordinal, or kHostMemory.
  virtual int device() const noexcept = 0;
  // Begins the exchange once the stream has come so far, beside what follows on it, and does not wait for it. Returns
  // its number. Memory must be left alone until it is finished.
  virtual std::uint64_t start(const Exchange& exchange, Stream after) = 0;
  // What follows on the stream waits for the exchange. In the order in which exchanges were started.
  virtual void finish(std::uint64_t started, Stream before) = 0;
  // Waits, on the host, for all exchanges that were started.
  virtual void wait() = 0;
  // This rank gives up: it gets Error(communication) with its next call, and others do once they hear of it or have
  // waited for it too long.
  virtual void abort() noexcept = 0;
};

// What NCCL's ranks find each other by: made on one of them and brought to all others by the application.
using UniqueId = std::array<char, 128>;
// Throws Error(communication).
UniqueId make_unique_id();

struct NcclOptions {
  // The CUDA device of this rank. Of a communicator that exists it is that communicator's.
  int device = 0;
  // A peer that an exchange waited for longer is taken for dead: the communicator is aborted, and the next call throws.
  // From 1 ms to a year.
  std::chrono::milliseconds timeout{600000};
};

// The ranks that compute together, as one of them sees them. Movable; for one thread at a time. It must live until all
// streams have come past its calls.
class Group {
 public:
  // Over another transport. Throws Error(invalid_argument) for none.
  explicit Group(std::unique_ptr<Transport> transport);
  ~Group();
  Group(Group&& other) noexcept;
  Group& operator=(Group&& other) noexcept;

  // Over NCCL, which is opened here: libnccl.so.2. A communicator of the application's stays its own, and must not be
  // used by others at the same time; after a failure it has been aborted. One that is made here of an id, which all
  // ranks must do at the same time, is destroyed with the group. Throws Error(communication, no_driver, driver,
  // invalid_argument).
  static Group from_nccl(ncclComm* communicator, const NcclOptions& options = {});
  static Group from_unique_id(const UniqueId& id, int rank, int size, const NcclOptions& options = {});

  int rank() const noexcept;
  int size() const noexcept;
  Transport& transport() const noexcept;
  // Waits, on the host, for all exchanges so far. Throws Error(communication) when the group has failed.
  void wait();

 private:
  friend class Workspace;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// All ranks take the variants that the first one's engine would choose: its tuning records, and where it has none the
// default rules', as Engine::use_records has it, so that bits do not depend on which rank has which records, nor on
// what is tuned meanwhile. All ranks call it at the same time, once for an engine and before its other calls; it waits
// on the host. Ranks whose GPU is another product take the default rules' variants. Where the first rank's tuning
// policy is off all do so; ranks whose own is off must then not be others. Throws as attention does, and
// Error(unsupported) where ranks have different versions of the library.
void agree(Engine& engine, Group& group);

// --- Attention -------------------------------------------------------------------------------------------------------

// What goes where.
enum class Scheme : std::uint8_t {
  automatic,   // the one that estimates() finds fastest, or gradient_estimates()
  all_gather,  // keys and values that a rank's queries see come all at once: few calls, for short shards
  ring,        // they come from one rank after the other, under the kernels of the one before
  all_to_all,  // heads are shared out in place of positions, for one call with whole sequences; as many ranks as divide
               // the query heads, and divide the key/value heads or are a multiple of them
  two_level,   // all_to_all within hosts, ring across
};
const char* to_string(Scheme scheme) noexcept;  // "automatic", "all_gather", …
Scheme parse_scheme(const std::string& text);   // throws Error(invalid_argument)

// By what the time of schemes is estimated. Ranks must be given the same. The defaults are round numbers of an H200.
struct Machine {
  double flops = 7e14;             // of kernels of attention, a second
  double bytes = 3e11;             // a second, from a rank to others of its host
  double bytes_across = 4e10;      // a second, to those of other hosts
  double exchange = 2e-5;          // seconds until an exchange is under way
  double call = 2e-5;              // seconds that a call of kernels takes beside its work
  double backward_flops = 5.7e14;  // of kernels for gradients, a second
};

struct Options {
  // Of the queries, and of the keys and values: default, as the queries. Of as many ranks as the group has, and both of
  // one layout unless nothing is masked; where sequences are packed, one sharding.
  Sharding queries;
  std::optional<Sharding> keys = std::nullopt;
  // As of a call with the whole sequences, at whose positions masks are. What all schemes take: causal, window,
  // softmax_scale, softcap, sinks, lse and stream; lse is of this rank's queries. What all_to_all takes, too, and any
  // scheme of a group of one rank: chunk, alibi_slopes, documents and prefix, of the whole sequences, on every rank.
  // What all_gather and ring take, of shards that are not striped: score and mask, which see the positions of the whole
  // and may capture tensors of the whole, on every rank, but must not ask for seqlen_q and seqlen_kv; and bias, of
  // which a rank has its queries' rows and the columns of all keys, [batch or 1, num_heads_q or 1,
  // queries.length(rank), keys.seqlen()]. Of packed sequences positions are those in each by itself; documents, prefix,
  // bias and slopes for each batch entry are refused then, and functions that ask for batch. Everything else, and e4m3,
  // is refused by name: Error(unsupported).
  AttentionOptions attention = {};
  Scheme scheme = Scheme::automatic;
  // How many neighbouring ranks are of one host: what two_level exchanges heads among, and across which links are slow.
  // Must divide the ranks. 0: all of them.
  int ranks_of_host = 0;
  Machine machine = {};
};

// The sizes of whole tensors.
struct Sizes {
  std::int64_t batch = 1, num_heads_q = 1, num_heads_kv = 1, head_dim = 128, head_dim_v = 128;
  DType dtype = DType::bf16;
};

// What a scheme costs, as its plan says: bytes of keys, values, queries and outputs, and of gradients of these; and a
// model of the time.
struct Estimate {
  Scheme scheme = Scheme::ring;
  std::int64_t bytes = 0;  // that the rank which receives most receives
  std::int64_t calls = 0;  // of attention, of the rank that makes most
  double seconds = 0;      // of the slowest rank
};
// Of each scheme that can run, the fastest first: of ranks at either end of the group and in its middle. Throws as
// attention does.
std::vector<Estimate> estimates(const Sizes& sizes, const Options& options);
// Likewise of attention_backward().
std::vector<Estimate> gradient_estimates(const Sizes& sizes, const Options& options);

// Attention over sequences of which each rank of the group has the rows that the shardings say.
//   q   [batch, queries.length(rank), num_heads_q,  head_dim]     f16 or bf16; strides as of flashjit::attention
//   k   [batch, keys.length(rank),    num_heads_kv, head_dim]
//   v   [batch, keys.length(rank),    num_heads_kv, head_dim_v]
//   ->  [batch, queries.length(rank), num_heads_q,  head_dim_v]
// All ranks make the same calls in the same order, with the same options and sizes; that is not checked, and they wait
// for each other. Asynchronous on options.attention.stream, but for first calls: docs/distributed.md says which wait
// for what. On an engine that emulates it has finished when it returns. Bits are the same in every run, and within
// rounding those of one call with the whole sequences: partial results are rounded to the dtype of q before they are
// joined. Blocks of keys that a mask hides are neither sent nor computed. Memory for keys and values of other ranks and
// for partial results is allocated and freed in stream order: docs/distributed.md says how much.
// Throws Error. What is refused is refused before anything of the call is sent, and the group goes on. Arguments are
// refused by all ranks alike. What the engine of one rank has no kernel for, or does not take, all ranks throw, with
// the number of that rank in front where it is another: for that the first call of its kind, of this problem whatever
// the lengths, is rehearsed, and ranks tell each other how that went. Later, with new lengths, a rank that alone lacks
// a kernel throws alone, and the others wait for it. After other errors the group has failed on all ranks.
DeviceTensor attention(Engine& engine, Group& group, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Options& options);
// The same into memory of the caller, which must not overlap the inputs.
void attention(Engine& engine, Group& group, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
               const Options& options);

// Gradients of a number that depends on attention(engine, group, q, k, v, options) by dout, as of
// flashjit::attention_backward: of this rank's q, k and v. dout, out and lse are of its queries; options as of that
// call, without lse. Schemes are those of attention:
//   ring        keys and values come by, and what a rank's queries add to their gradients goes straight back to the
//   rank
//               that has them, in f32, under the kernels of the next ones. Shares are added up in f32, in the order of
//               the ring; those of dq are rounded to its dtype before.
//   all_gather  keys and values come to a rank for its dq, and queries with what is of them for its dk and dv: each is
//               made by calls that have all that it depends on, and no gradients move or are added up. Scores are
//               computed twice. Not of striped shards beside a mask, and not beside a bias.
//   all_to_all  as of attention; the ranks must divide the key/value heads.
//   two_level   all_to_all within hosts, ring across; the ranks of a host must divide the key/value heads.
// automatic is the fastest of them by gradient_estimates(). dlse and variant of the backward options are refused
// by name: Error(unsupported).
Gradients attention_backward(Engine& engine, Group& group, const Tensor& dout, const Tensor& q, const Tensor& k,
                             const Tensor& v, const Tensor& out, const Tensor& lse, const Options& options,
                             const BackwardOptions& backward = {});
// The same into memory of the caller, which must not overlap the inputs: dq, dk and dv, each of the shape and dtype of
// what it is of, all of which must be given; and where they are wanted, by all ranks alike, dslopes and dsinks, f32 and
// contiguous of the shape of the option: the sum over the rows of all ranks, the same on each of them; and dbias, f32
// or of the dtype of the bias, contiguous in its shape, of this rank's rows.
void attention_backward(Engine& engine, Group& group, const Tensor& dout, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& out, const Tensor& lse, const GradientTensors& into,
                        const Options& options, const BackwardOptions& backward = {});

// The whole of a tensor of which each rank has a shard, on every rank: f16, bf16 or f32 [batch, length, heads,
// head_dim], head_dim a multiple of 8, strides as of flashjit::attention; heads are those of the tensor. Asynchronous
// on the stream. Throws as attention does.
DeviceTensor gather(Engine& engine, Group& group, const Tensor& shard, const Sharding& sharding,
                    Stream stream = nullptr);
// The same into memory of the caller, which must not overlap the shard.
void gather(Engine& engine, Group& group, const Tensor& shard, const Tensor& whole, const Sharding& sharding,
            Stream stream = nullptr);
// This rank's shard of a tensor as gather() gives it, which the rank has whole: a copy in memory of its own. Nothing is
// sent. Asynchronous on the stream. Throws Error, of which the group knows nothing.
DeviceTensor shard(Engine& engine, Group& group, const Tensor& whole, const Sharding& sharding,
                   Stream stream = nullptr);

}  // namespace flashjit::distributed
