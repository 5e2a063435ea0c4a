// SPDX-License-Identifier: Apache-2.0
#include "distributed/rehearsal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string_view>

#include "flashjit/error.h"

namespace flashjit::distributed {
namespace {

// More than applications have at a time. Beyond them all are forgotten: of kinds on every rank at the same call.
constexpr std::size_t kMostKept = 4096;

void keep(std::set<std::string>& kept, const std::string& text) {
  if (kept.size() >= kMostKept) kept.clear();
  kept.insert(text);
}

constexpr std::int32_t kNobody = INT32_MAX;

// Of UTF-8.
bool is_inside_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u; }

// Which rank refused, and why.
struct Refusal {
  std::int32_t rank = kNobody;
  ErrorCode code = ErrorCode::invalid_argument;
  std::string why;

  HostTensor message() const {
    HostTensor bytes(DType::boolean, {kRefusalBytes});
    char* const into = static_cast<char*>(bytes.data());
    const auto number = static_cast<std::int32_t>(code);
    std::memcpy(into, &rank, sizeof rank);
    std::memcpy(into + sizeof rank, &number, sizeof number);
    std::size_t length = std::min(why.size(), kRefusalBytes - kNumbers - 1);
    while (length < why.size() && is_inside_character(why[length])) --length;
    std::memcpy(into + kNumbers, why.data(), length);
    into[kNumbers + length] = '\0';
    return bytes;
  }
  static Refusal read(const HostTensor& bytes) {
    const char* const from = static_cast<const char*>(bytes.data());
    Refusal read;
    std::int32_t number = 0;
    std::memcpy(&read.rank, from, sizeof read.rank);
    std::memcpy(&number, from + sizeof read.rank, sizeof number);
    read.code = static_cast<ErrorCode>(number);
    read.why = from + kNumbers;
    return read;
  }

 private:
  static constexpr std::size_t kNumbers = 2 * sizeof(std::int32_t);
};

Refusal swap(Transport& transport, const Refusal& own, int to, int from) {
  const DeviceTensor sent = own.message().to_device(nullptr, transport.device()),
                     received = DeviceTensor::allocate(DType::boolean, sent.shape(), nullptr, transport.device());
  transport.finish(transport.start({{{to, sent.view()}}, {{from, received.view()}}}, nullptr), nullptr);
  transport.wait();
  return Refusal::read(HostTensor::from_device(received));
}

// The refusal of the lowest rank that has one, on all ranks: after each turn a rank knows what twice as many ranks
// before it do.
Refusal first_of_all(Transport& transport, Refusal known) {
  const int rank = transport.rank(), ranks = transport.size();
  for (int ahead = 1; ahead < ranks; ahead *= 2) {
    const Refusal other = swap(transport, known, (rank + ahead) % ranks, (rank - ahead + ranks) % ranks);
    if (other.rank < known.rank) known = other;
  }
  return known;
}

std::string text_of(const Sharding& sharding) {
  const std::vector<std::int64_t>& offsets = sharding.cu_seqlens();
  const std::string_view bytes(reinterpret_cast<const char*>(offsets.data()), offsets.size() * sizeof offsets.front());
  return fmt::format("{} {} {}, packed as {:x}", to_string(sharding.layout()), sharding.seqlen(), sharding.ranks(),
                     std::hash<std::string_view>()(bytes));
}

std::string text_of(const std::optional<Tensor>& tensor) {
  return tensor ? fmt::format("{} {}", to_string(tensor->dtype), to_string(tensor->shape)) : "none";
}

std::string text_of(const AttentionOptions& of) {
  return fmt::format("window {} {}, chunk {}, scale {}, softcap {}, slopes {}, sinks {}, documents {}, prefix {}",
                     of.window.left, of.window.right, of.chunk, of.softmax_scale.value_or(0), of.softcap,
                     text_of(of.alibi_slopes), text_of(of.sinks), text_of(of.documents), text_of(of.prefix));
}

}  // namespace

Kind kind_of(const char* call, const Sizes& sizes, const Options& options, Scheme scheme) {
  const Problem problem =
      problem_of(sizes.dtype, static_cast<int>(sizes.head_dim), static_cast<int>(sizes.head_dim_v), options.attention);
  const Sharding& keys = options.keys.value_or(options.queries);
  return {fmt::format("{} by {} of {}: heads {} {}; {} {}; ranks of host {}", call, to_string(scheme),
                      to_string(problem), sizes.num_heads_q, sizes.num_heads_kv, to_string(options.queries.layout()),
                      to_string(keys.layout()), options.ranks_of_host),
          fmt::format("batch {}; {}; {}; {}", sizes.batch, text_of(options.queries), text_of(keys),
                      text_of(options.attention))};
}

namespace {

// On all ranks what the call throws on the lowest that it throws on.
void rehearse_together(Group& group, const Workspace& work, const std::function<void(const Workspace&)>& call) {
  Refusal own;
  std::exception_ptr thrown;
  const Refusal first = together(group, [&] {
    try {
      call(work);
    } catch (const Error& error) {
      own = {group.rank(), error.code(), error.what()};
      thrown = std::current_exception();
    }
    return first_of_all(group.transport(), own);
  });
  if (thrown) std::rethrow_exception(thrown);
  if (first.rank != kNobody) throw Error(first.code, fmt::format("rank {}: {}", first.rank, first.why));
}

}  // namespace

void rehearse(Engine& engine, Group& group, Stream stream, const Kind& kind,
              const std::function<void(const Workspace&)>& call) {
  const Workspace work(engine, group, stream, Workspace::Turn::rehearsal);
  Kept& kept = work.kept();
  const std::string whole = kind.agreed + "; " + kind.sizes;
  if (kept.rehearsed.count(whole) > 0) return;
  if (kept.agreed.count(kind.agreed) > 0) {
    call(work);
  } else {
    rehearse_together(group, work, call);
    keep(kept.agreed, kind.agreed);
  }
  keep(kept.rehearsed, whole);
}

}  // namespace flashjit::distributed
