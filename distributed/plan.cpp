// SPDX-License-Identifier: Apache-2.0
#include "distributed/plan.h"

#include <algorithm>
#include <iterator>
#include <regex>

#include "distributed/packed.h"
#include "distributed/reject.h"
#include "distributed/support.h"

namespace flashjit::distributed {
namespace {

constexpr const char* kSchemes[] = {"automatic", "all_gather", "ring", "all_to_all", "two_level"};

int ranks_of_host(Scheme scheme, const Options& options) {
  const int ranks = options.queries.ranks();
  if (scheme == Scheme::all_to_all) return ranks;
  if (scheme == Scheme::two_level && options.ranks_of_host > 0) return options.ranks_of_host;
  return scheme == Scheme::two_level ? ranks : 1;
}

bool has_whole_sequences(Scheme scheme, const Options& options) {
  return ranks_of_host(scheme, options) == options.queries.ranks();
}

void check_layouts(const Options& options) {
  if (!options.keys) return;
  const Sharding &queries = options.queries, &keys = *options.keys;
  if (keys.ranks() != queries.ranks())
    reject("keys: must be of {} ranks like the sharding of q, was of {}", queries.ranks(), keys.ranks());
  if (positions_matter(options.attention) && keys.layout() != queries.layout())
    reject("keys: layout must be {} like that of q beside a mask, was {}", to_string(queries.layout()),
           to_string(keys.layout()));
}

void check_packed(const Sizes& sizes, const Options& options) {
  const Sharding& keys = options.keys.value_or(options.queries);
  if (keys.cu_seqlens() != options.queries.cu_seqlens() || (packed_shards(keys) && keys != options.queries))
    reject("keys: must be the sharding of q where sequences are packed, was another");
  if (!packed_shards(options.queries)) return;
  if (sizes.batch != 1) reject("q: batch must be 1 where sequences are packed, was {}", sizes.batch);
  for (const OptionSupport& row : option_supports())
    if (row.has_batch && row.is_given(options.attention))
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: must not be given beside packed sequences over several GPUs, was", row.name));
  const std::optional<Tensor>& slopes = options.attention.alibi_slopes;
  if (slopes && slopes->shape.size() != 1)
    throw Error(ErrorCode::unsupported,
                fmt::format("alibi_slopes: must be [{}] beside packed sequences over several GPUs, was {}",
                            sizes.num_heads_q, to_string(slopes->shape)));
}

void check_machine(const Options& options) {
  const int of_host = options.ranks_of_host, ranks = options.queries.ranks();
  if (of_host < 0 || (of_host > 0 && ranks % of_host != 0))
    reject("ranks_of_host: must be 0 or divide the {} ranks, was {}", ranks, of_host);
  const Machine& machine = options.machine;
  if (!(machine.flops > 0 && machine.backward_flops > 0 && machine.bytes > 0 && machine.bytes_across > 0))
    reject("machine: flops, backward_flops, bytes and bytes_across must be positive, were {}, {}, {} and {}",
           machine.flops, machine.backward_flops, machine.bytes, machine.bytes_across);
  if (!(machine.exchange >= 0 && machine.call >= 0))
    reject("machine: exchange and call must be 0 or more, were {} and {}", machine.exchange, machine.call);
}

bool asks_for(const std::regex& what, const AttentionOptions& options) {
  const auto does = [&](const auto& function) { return function && std::regex_search(function->text(), what); };
  return does(options.score) || does(options.mask);
}

std::string why_positions_are_not_told(Scheme scheme, const Options& options) {
  const AttentionOptions& of = options.attention;
  for (const OptionSupport& row : option_supports()) {
    if (row.support != Support::told_positions || !row.is_given(of)) continue;
    if (const char* const beside = option_of_whole_sequences(of); beside && options.scheme == Scheme::automatic)
      return fmt::format("{}: must not be given beside {} over several GPUs, was", row.name, beside);
    if (ranks_of_host(scheme, options) > 1)
      return fmt::format("{}: must not be given with scheme {}, which shares out heads, was", row.name,
                         to_string(scheme));
    if (options.queries.layout() == Layout::striped && options.queries.ranks() > 1)
      return fmt::format("{}: must not be given with striped shards, of whose positions it cannot be told, was",
                         row.name);
  }
  static const std::regex lengths("\\bseqlen_(q|kv)\\b"), batch("\\bbatch\\b");
  if (packed_shards(options.queries) && asks_for(batch, of))
    return "score and mask: must not ask for batch, as calls have parts of packed sequences, did";
  if (asks_for(lengths, of))
    return "score and mask: must not ask for seqlen_q and seqlen_kv, as calls have parts of sequences, did";
  return "";
}

}  // namespace

const char* to_string(Scheme scheme) noexcept { return kSchemes[static_cast<int>(scheme)]; }

Scheme parse_scheme(const std::string& text) {
  const auto found = std::find(std::begin(kSchemes), std::end(kSchemes), text);
  if (found == std::end(kSchemes))
    reject("scheme: must be automatic, all_gather, ring, all_to_all or two_level, was \"{}\"", text);
  return static_cast<Scheme>(found - std::begin(kSchemes));
}

HeadShare heads_of(const Sizes& sizes, int ranks_of_host, int rank_in_host) {
  const std::int64_t each = sizes.num_heads_q / ranks_of_host, group = sizes.num_heads_q / sizes.num_heads_kv;
  const std::int64_t first = each * rank_in_host, first_kv = first / group;
  return {{first, each}, {first_kv, (first + each - 1) / group + 1 - first_kv}};
}

Plan plan_of(Scheme scheme, const Options& options, int rank) {
  Plan plan;
  plan.scheme = scheme;
  plan.hosts = hosts_of(options, ranks_of_host(scheme, options));
  const int host = rank / plan.hosts.ranks_of_host;
  const Nodes nodes = plan.hosts.nodes();
  plan.schedule = nodes.count() == 1             ? whole_schedule(nodes)
                  : scheme == Scheme::all_gather ? all_gather_schedule(nodes, host)
                                                 : ring_schedule(nodes, host);
  return plan;
}

Plan plan_of_gradients(Scheme scheme, const Options& options, int rank) {
  Plan plan = plan_of(scheme, options, rank);
  const Nodes nodes = plan.hosts.nodes();
  if (nodes.count() > 1 && scheme != Scheme::all_gather)
    plan.schedule = gradient_ring_schedule(nodes, rank / plan.hosts.ranks_of_host);
  return plan;
}

void check(const Sizes& sizes, const Options& options) {
  for (const OptionSupport& row : option_supports())
    if (row.support == Support::none && row.is_given(options.attention))
      throw Error(ErrorCode::unsupported, fmt::format("{}: must not be given over several GPUs, was", row.name));
  if (sizes.dtype != DType::f16 && sizes.dtype != DType::bf16)
    throw Error(ErrorCode::unsupported,
                fmt::format("q: dtype must be f16 or bf16 over several GPUs, was {}", to_string(sizes.dtype)));
  problem_of(sizes.dtype, static_cast<int>(sizes.head_dim), static_cast<int>(sizes.head_dim_v), options.attention);
  if (sizes.batch < 0) reject("batch: must be 0 or more, was {}", sizes.batch);
  if (sizes.num_heads_kv < 1) reject("num_heads_kv: must be 1 or more, was {}", sizes.num_heads_kv);
  if (sizes.num_heads_q < 1 || sizes.num_heads_q % sizes.num_heads_kv != 0)
    reject("num_heads_q: must be a multiple of num_heads_kv, {}, was {}", sizes.num_heads_kv, sizes.num_heads_q);
  check_layouts(options);
  check_packed(sizes, options);
  check_machine(options);
}

std::string sharers_of_heads(int shares, Scheme scheme, const Options& options, const char* what) {
  const char* const because = option_of_whole_sequences(options.attention);
  if (options.scheme == Scheme::automatic && because) return fmt::format("{} ranks{} beside {}", shares, what, because);
  return fmt::format("{} ranks that share out heads{} by scheme {}", shares, what, to_string(scheme));
}

std::string why_no_scheme(const Sizes& sizes, const Options& options, decltype(why_not)* why) {
  return why(option_of_whole_sequences(options.attention) ? Scheme::all_to_all : Scheme::ring, sizes, options);
}

std::string why_not(Scheme scheme, const Sizes& sizes, const Options& options) {
  const char* const wants_whole = option_of_whole_sequences(options.attention);
  if (wants_whole && !has_whole_sequences(scheme, options))
    return fmt::format("{}: must not be given with scheme {}, whose calls have parts of sequences, was", wants_whole,
                       to_string(scheme));
  const std::string untold = why_positions_are_not_told(scheme, options);
  if (!untold.empty()) return untold;
  const int shares = ranks_of_host(scheme, options);
  if (sizes.num_heads_q % shares != 0)
    return fmt::format("num_heads_q: must be a multiple of the {}, was {}", sharers_of_heads(shares, scheme, options),
                       sizes.num_heads_q);
  if (sizes.num_heads_kv % shares != 0 && shares % sizes.num_heads_kv != 0)
    return fmt::format("num_heads_kv: must divide the {}, or be a multiple, was {}",
                       sharers_of_heads(shares, scheme, options), sizes.num_heads_kv);
  return "";
}

std::string why_no_gradients(Scheme scheme, const Sizes& sizes, const Options& options) {
  const std::string problem = why_not(scheme, sizes, options);
  if (!problem.empty()) return problem;
  const int shares = ranks_of_host(scheme, options);
  if (scheme == Scheme::all_gather && options.queries.ranks() > 1 && options.queries.layout() == Layout::striped &&
      positions_matter(options.attention))
    return "queries: layout must be contiguous or zigzag for gradients by scheme all_gather, was striped";
  if (scheme == Scheme::all_gather && options.queries.ranks() > 1 && options.attention.bias)
    return "bias: must not be given for gradients by scheme all_gather, which has others' queries, was";
  if (sizes.num_heads_kv % shares != 0)
    return fmt::format("num_heads_kv: must be a multiple of the {}, was {}",
                       sharers_of_heads(shares, scheme, options, " for gradients"), sizes.num_heads_kv);
  return "";
}

namespace {

Scheme checked_scheme(const Sizes& sizes, const Options& options, decltype(why_not)* why) {
  const std::string problem = why(options.scheme, sizes, options);
  if (!problem.empty()) throw Error(ErrorCode::unsupported, problem);
  return options.scheme;
}

}  // namespace

Scheme chosen_scheme(const Sizes& sizes, const Options& options) {
  return options.scheme == Scheme::automatic ? estimates(sizes, options).front().scheme
                                             : checked_scheme(sizes, options, why_not);
}

Scheme chosen_scheme_of_gradients(const Sizes& sizes, const Options& options) {
  return options.scheme == Scheme::automatic ? gradient_estimates(sizes, options).front().scheme
                                             : checked_scheme(sizes, options, why_no_gradients);
}

}  // namespace flashjit::distributed
