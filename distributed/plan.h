// SPDX-License-Identifier: Apache-2.0
// From options and sizes to what a rank does: which scheme, and its schedule.
#pragma once

#include <string>
#include <vector>

#include "distributed/schedule.h"

namespace flashjit::distributed {

// Whether a tensor has the rows and heads of queries or those of keys.
enum class Side { queries, keys };

// Heads that a rank of a host has of all, of queries and of keys.
struct HeadShare {
  RowRange queries, keys;
};
HeadShare heads_of(const Sizes& sizes, int ranks_of_host, int rank_in_host);

struct Plan {
  Scheme scheme = Scheme::ring;
  Hosts hosts;
  Schedule schedule;  // of the rank's host
};
// For options that were checked. automatic is none.
Plan plan_of(Scheme scheme, const Options& options, int rank);
Plan plan_of_gradients(Scheme scheme, const Options& options, int rank);

// Throws Error(invalid_argument) and Error(unsupported), which name what is wrong, for what no scheme could do.
void check(const Sizes& sizes, const Options& options);
// "8 ranks that share out heads by scheme all_to_all", for errors; with what behind "heads". Where the caller left the
// choice of a scheme, "8 ranks beside chunk": the option that has heads shared out.
std::string sharers_of_heads(int shares, Scheme scheme, const Options& options, const char* what = "");
// Why a scheme cannot do it, attention or gradients; empty where it can.
std::string why_not(Scheme scheme, const Sizes& sizes, const Options& options);
std::string why_no_gradients(Scheme scheme, const Sizes& sizes, const Options& options);
// Why none can, in the words of a caller who named none: of the scheme that serves what was asked for, by one of these.
std::string why_no_scheme(const Sizes& sizes, const Options& options, decltype(why_not)* why);
// What options ask for, or the fastest. Throw Error(unsupported).
Scheme chosen_scheme(const Sizes& sizes, const Options& options);
Scheme chosen_scheme_of_gradients(const Sizes& sizes, const Options& options);

}  // namespace flashjit::distributed
