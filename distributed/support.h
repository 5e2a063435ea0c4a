// SPDX-License-Identifier: Apache-2.0
// Which options of attention what schemes serve.
#pragma once

#include <vector>

#include "flashjit/distributed.h"

namespace flashjit::distributed {

// What options need of a scheme.
enum class Support {
  every_scheme,
  whole_sequences,  // calls that have them: positions in part of a sequence cannot be told to what the option does
  told_positions,   // calls that have all heads, of parts without gaps: it is told where they begin
  none,
};
struct OptionSupport {
  const char* name;
  bool (*is_given)(const AttentionOptions&);
  Support support;
};
// Of all options that are not served by every scheme.
const std::vector<OptionSupport>& option_supports();
// Whether it matters at which position a query or a key is: not where all see all.
bool positions_matter(const AttentionOptions& options);

}  // namespace flashjit::distributed
