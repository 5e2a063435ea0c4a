// SPDX-License-Identifier: Apache-2.0
// Which options of attention each scheme can serve.
#pragma once

#include <vector>

#include "flashjit/distributed.h"

namespace flashjit::distributed {

// What an option needs of a scheme.
enum class Support {
  every_scheme,
  whole_sequences,  // calls with whole sequences, because the option cannot be told where a part of one begins
  told_positions,   // calls with all heads, and parts without gaps: the option is told where they begin, or cut there
  none,             // no scheme serves it
};
struct OptionSupport {
  const char* name;
  bool (*is_given)(const AttentionOptions&);
  Support support;
  bool has_batch = false;  // of something for each sequence, which packed ones over several GPUs do not have
};
// Of all options that are not served by every scheme.
const std::vector<OptionSupport>& option_supports();
// The name of the first option that wants whole sequences; null where none does.
const char* option_of_whole_sequences(const AttentionOptions& options);
// Whether a mask or a function looks at positions. If not, all queries see all keys.
bool positions_matter(const AttentionOptions& options);
// Whether an option is told the positions of a call's rows, or has an element for each.
bool tells_positions(const AttentionOptions& options);

}  // namespace flashjit::distributed
