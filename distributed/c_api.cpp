// SPDX-License-Identifier: Apache-2.0
// The C interface: arguments to those of C++, and exceptions to status codes, by what libflashjit has for its own.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "distributed/reject.h"
#include "flashjit/distributed.h"
#include "flashjit_distributed.h"
#include "flashjit_from_c.h"

struct flashjit_group {
  flashjit::distributed::Group group;
};

namespace flashjit::distributed {
namespace {

using from_c::guarded;
using from_c::StructFacts;

constexpr StructFacts facts_of(const flashjit_group_options&) { return {"flashjit_group_options", 24}; }
constexpr StructFacts facts_of(const flashjit_transport&) { return {"flashjit_transport", 72}; }
constexpr StructFacts facts_of(const flashjit_distributed_options&) { return {"flashjit_distributed_options", 40}; }

template <typename Struct>
Struct read_struct(const Struct& given) {
  Struct known{};
  from_c::read_struct(facts_of(given), &given, &known, sizeof known);
  return known;
}

template <typename Value>
Value& require(const char* name, Value* value) {
  if (!value) reject("{}: must not be null", name);
  return *value;
}

void require_zero(const char* name, std::int32_t value) {
  if (value != 0) reject("{}: must be 0, was {}", name, value);
}

// A number of an enum whose values here and there are the same.
template <typename Enum>
Enum to_enum(const char* name, std::int32_t value, Enum last) {
  if (value < 0 || value > static_cast<std::int32_t>(last))
    reject("{}: must be from 0 to {}, was {}", name, static_cast<int>(last), value);
  return static_cast<Enum>(value);
}
static_assert(static_cast<int>(Layout::striped) == FLASHJIT_STRIPED);
static_assert(kHostMemory == FLASHJIT_HOST_MEMORY);
static_assert(static_cast<int>(Scheme::two_level) == FLASHJIT_SCHEME_TWO_LEVEL);
static_assert(static_cast<int>(Scheme::two_level) == FLASHJIT_MOST_ESTIMATES);  // all but automatic

Sharding to_sharding(const flashjit_sharding& given) {
  return Sharding(to_enum("layout", given.layout, Layout::striped), given.seqlen, given.ranks);
}

// Of so many packed sequences; without offsets, of none.
Sharding to_sharding(const flashjit_sharding& given, const std::int64_t* cu_seqlens, std::size_t sequences) {
  if (!cu_seqlens && sequences != 0) reject("sequences: must be 0 without cu_seqlens, was {}", sequences);
  if (!cu_seqlens) return to_sharding(given);
  const Sharding packed = Sharding::packed(to_enum("layout", given.layout, Layout::striped),
                                           {cu_seqlens, cu_seqlens + sequences + 1}, given.ranks);
  if (packed.seqlen() != given.seqlen)
    reject("seqlen: must be {}, the last of cu_seqlens, was {}", packed.seqlen(), given.seqlen);
  return packed;
}

NcclOptions to_nccl_options(const flashjit_group_options* given) {
  NcclOptions options;
  if (!given) return options;
  const flashjit_group_options c = read_struct(*given);
  require_zero("reserved", c.reserved);
  options.device = c.device;
  if (c.timeout_ms != 0) options.timeout = std::chrono::milliseconds(c.timeout_ms);
  return options;
}

Options to_options(const flashjit_distributed_options* given, AttentionOptions attention) {
  const flashjit_distributed_options c = read_struct(require("distributed", given));
  Options options{to_sharding(c.queries, c.cu_seqlens, c.sequences)};
  if (c.keys) options.keys = to_sharding(*c.keys);
  options.attention = std::move(attention);
  options.scheme = to_enum("scheme", c.scheme, Scheme::two_level);
  options.ranks_of_host = c.ranks_of_host;
  return options;
}

// Functions of C behind the interface of transports.
class CTransport : public Transport {
 public:
  explicit CTransport(const flashjit_transport& given) : c_(given) {}
  ~CTransport() override {
    if (c_.destroy) c_.destroy(c_.context);
  }
  CTransport(const CTransport&) = delete;
  CTransport& operator=(const CTransport&) = delete;

  int rank() const noexcept override { return c_.rank; }
  int size() const noexcept override { return c_.size; }
  int device() const noexcept override { return c_.device; }

  std::uint64_t start(const Exchange& exchange, Stream after) override {
    const std::vector<flashjit_message> sends = to_c(exchange.sends), receives = to_c(exchange.receives);
    call([&](char* error) {
      return c_.start(c_.context, sends.data(), sends.size(), receives.data(), receives.size(), after, error);
    });
    return started_++;
  }
  void finish(std::uint64_t, Stream before) override {
    call([&](char* error) { return c_.finish(c_.context, before, error); });
  }
  void wait() override {
    call([&](char* error) { return c_.wait(c_.context, error); });
  }
  void abort() noexcept override {
    if (failure_.empty()) failure_ = fmt::format("rank {} gave up", c_.rank);
    c_.abort(c_.context);
  }

 private:
  static std::vector<flashjit_message> to_c(const std::vector<Message>& messages) {
    std::vector<flashjit_message> all;
    for (const Message& message : messages) {
      std::size_t bytes = size_of(message.memory.dtype);
      for (const std::int64_t size : message.memory.shape) bytes *= static_cast<std::size_t>(size);
      all.push_back({message.memory.data, bytes, message.peer, 0});
    }
    return all;
  }

  // Once a function has failed the group has, and none is called any more.
  template <typename Function>
  void call(const Function& function) {
    char error[FLASHJIT_TRANSPORT_ERROR_BYTES] = "the transport failed";
    if (failure_.empty() && function(error) != 0) {
      error[sizeof error - 1] = '\0';
      failure_ = error;
    }
    if (!failure_.empty()) throw Error(ErrorCode::communication, "group: " + failure_);
  }

  const flashjit_transport c_;
  std::uint64_t started_ = 0;
  std::string failure_;
};

std::unique_ptr<CTransport> to_transport(const flashjit_transport* given) {
  const flashjit_transport c = read_struct(require("transport", given));
  require_zero("reserved", c.reserved);
  if (c.size < 1) reject("size: must be 1 or more, was {}", c.size);
  if (c.rank < 0 || c.rank >= c.size) reject("rank: must be from 0 to {}, was {}", c.size - 1, c.rank);
  if (c.device < 0 && c.device != FLASHJIT_HOST_MEMORY)
    reject("device: must be a CUDA ordinal or FLASHJIT_HOST_MEMORY, {}, was {}", FLASHJIT_HOST_MEMORY, c.device);
  for (const auto& [name, is_given] : {std::pair{"start", c.start != nullptr},
                                       {"finish", c.finish != nullptr},
                                       {"wait", c.wait != nullptr},
                                       {"abort", c.abort != nullptr}})
    if (!is_given) reject("{}: must not be null", name);
  return std::make_unique<CTransport>(c);
}

constexpr const char *kRows = "f16 or bf16", *kGathered = "f16, bf16 or f32";

// Tensors are read one after the other, so that of several errors the first is told.
struct GivenRows {
  GivenRows(const Engine& engine, const DLTensor* of_q, const DLTensor* of_k, const DLTensor* of_v,
            const DLTensor* of_out)
      : q(from_c::tensor_of("q", of_q, engine, kRows)),
        k(from_c::tensor_of("k", of_k, engine, kRows)),
        v(from_c::tensor_of("v", of_v, engine, kRows)),
        out(from_c::tensor_of("out", of_out, engine, kRows)) {}
  Tensor q, k, v, out;
};

}  // namespace
}  // namespace flashjit::distributed

using namespace flashjit::distributed;

extern "C" {

flashjit_status flashjit_sharding_spans(const flashjit_sharding* sharding, int32_t rank,
                                        flashjit_span spans[FLASHJIT_MOST_SPANS], size_t* count) {
  return guarded([&] {
    const std::vector<Span> found = to_sharding(require("sharding", sharding)).spans(rank);
    flashjit_span* const into = &require("spans", spans);
    require("count", count) = found.size();
    std::transform(found.begin(), found.end(), into, [](const Span& span) {
      return flashjit_span{span.first, span.count, span.step};
    });
  });
}

flashjit_status flashjit_packed_spans(const flashjit_sharding* sharding, const int64_t* cu_seqlens, size_t sequences,
                                      int32_t rank, flashjit_span* spans, size_t room, size_t* count) {
  return guarded([&] {
    const std::vector<Span> found = to_sharding(require("sharding", sharding), cu_seqlens, sequences).spans(rank);
    require("count", count) = found.size();
    for (std::size_t i = 0; i < std::min(room, found.size()); ++i)
      (&require("spans", spans))[i] = {found[i].first, found[i].count, found[i].step};
  });
}

flashjit_status flashjit_make_unique_id(char id[FLASHJIT_UNIQUE_ID_BYTES]) {
  return guarded([&] {
    char* const into = &require("id", id);
    const UniqueId made = make_unique_id();
    std::copy(made.begin(), made.end(), into);
  });
}

flashjit_status flashjit_group_from_unique_id(const char id[FLASHJIT_UNIQUE_ID_BYTES], int32_t rank, int32_t size,
                                              const flashjit_group_options* options, flashjit_group** group) {
  return guarded([&] {
    require("group", group) = nullptr;
    UniqueId read;
    std::copy_n(&require("id", id), read.size(), read.begin());
    *group = new flashjit_group{Group::from_unique_id(read, rank, size, to_nccl_options(options))};
  });
}

flashjit_status flashjit_group_from_nccl(void* communicator, const flashjit_group_options* options,
                                         flashjit_group** group) {
  return guarded([&] {
    require("group", group) = nullptr;
    *group = new flashjit_group{Group::from_nccl(static_cast<ncclComm*>(communicator), to_nccl_options(options))};
  });
}

flashjit_status flashjit_group_from_transport(const flashjit_transport* transport, flashjit_group** group) {
  return guarded([&] {
    require("group", group) = nullptr;
    *group = new flashjit_group{Group(to_transport(transport))};
  });
}

void flashjit_group_destroy(flashjit_group* group) { delete group; }

flashjit_status flashjit_group_wait(flashjit_group* group) {
  return guarded([&] { require("group", group).group.wait(); });
}

flashjit_status flashjit_distributed_agree(flashjit_engine* engine, flashjit_group* group) {
  return guarded([&] { agree(flashjit::from_c::engine_of(engine), require("group", group).group); });
}

flashjit_status flashjit_distributed_estimates(flashjit_engine* engine, const flashjit_whole_sizes* sizes,
                                               int32_t gradients, const flashjit_attention_options* options,
                                               const flashjit_distributed_options* distributed,
                                               flashjit_estimate estimates[FLASHJIT_MOST_ESTIMATES], size_t* count) {
  return guarded([&] {
    if (gradients != 0 && gradients != 1) reject("gradients: must be 0 or 1, was {}", gradients);
    const flashjit_whole_sizes& c = require("sizes", sizes);
    const Sizes of{c.batch, c.num_heads_q, c.num_heads_kv, c.head_dim, c.head_dim_v};
    flashjit::Engine& computes = flashjit::from_c::engine_of(engine);
    const Options given = to_options(distributed, flashjit::from_c::attention_options_of(options, computes));
    const std::vector<Estimate> found =
        gradients ? gradient_estimates(of, given) : flashjit::distributed::estimates(of, given);
    flashjit_estimate* const into = &require("estimates", estimates);
    require("count", count) = found.size();
    std::transform(found.begin(), found.end(), into, [](const Estimate& estimate) {
      return flashjit_estimate{static_cast<std::int32_t>(estimate.scheme), 0, estimate.bytes, estimate.calls,
                               estimate.seconds};
    });
  });
}

flashjit_status flashjit_distributed_attention(flashjit_engine* engine, flashjit_group* group, const DLTensor* q,
                                               const DLTensor* k, const DLTensor* v, const DLTensor* out,
                                               const flashjit_attention_options* options,
                                               const flashjit_distributed_options* distributed) {
  return guarded([&] {
    flashjit::Engine& computes = flashjit::from_c::engine_of(engine);
    Group& ranks = require("group", group).group;
    const GivenRows rows(computes, q, k, v, out);
    const Options given = to_options(distributed, flashjit::from_c::attention_options_of(options, computes));
    attention(computes, ranks, rows.q, rows.k, rows.v, rows.out, given);
  });
}

flashjit_status flashjit_distributed_attention_backward(flashjit_engine* engine, flashjit_group* group,
                                                        const DLTensor* dout, const DLTensor* q, const DLTensor* k,
                                                        const DLTensor* v, const DLTensor* out, const DLTensor* lse,
                                                        const flashjit_gradients* into,
                                                        const flashjit_attention_options* options,
                                                        const flashjit_distributed_options* distributed) {
  return guarded([&] {
    flashjit::Engine& computes = flashjit::from_c::engine_of(engine);
    Group& ranks = require("group", group).group;
    const flashjit::Tensor of_out = flashjit::from_c::tensor_of("dout", dout, computes, kRows);
    const GivenRows rows(computes, q, k, v, out);
    const flashjit::Tensor of_lse = flashjit::from_c::tensor_of("lse", lse, computes, "f32");
    const flashjit::from_c::GivenGradients gradients = flashjit::from_c::gradients_of(into, computes);
    const Options given = to_options(distributed, flashjit::from_c::attention_options_of(options, computes));
    flashjit::BackwardOptions backward;
    backward.deterministic = gradients.deterministic;
    attention_backward(computes, ranks, of_out, rows.q, rows.k, rows.v, rows.out, of_lse, gradients.into, given,
                       backward);
  });
}

flashjit_status flashjit_distributed_gather(flashjit_engine* engine, flashjit_group* group, const DLTensor* shard,
                                            const DLTensor* whole, const flashjit_sharding* sharding, void* stream) {
  return flashjit_distributed_gather_packed(engine, group, shard, whole, sharding, nullptr, 0, stream);
}

flashjit_status flashjit_distributed_gather_packed(flashjit_engine* engine, flashjit_group* group,
                                                   const DLTensor* shard, const DLTensor* whole,
                                                   const flashjit_sharding* sharding, const int64_t* cu_seqlens,
                                                   size_t sequences, void* stream) {
  return guarded([&] {
    flashjit::Engine& computes = flashjit::from_c::engine_of(engine);
    Group& ranks = require("group", group).group;
    const flashjit::Tensor from = flashjit::from_c::tensor_of("shard", shard, computes, kGathered),
                           to = flashjit::from_c::tensor_of("whole", whole, computes, kGathered);
    gather(computes, ranks, from, to, to_sharding(require("sharding", sharding), cu_seqlens, sequences),
           static_cast<flashjit::Stream>(stream));
  });
}

}  // extern "C"
