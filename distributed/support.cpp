// SPDX-License-Identifier: Apache-2.0
#include "distributed/support.h"

#include <algorithm>

namespace flashjit::distributed {

const std::vector<OptionSupport>& option_supports() {
  using Given = AttentionOptions;
  static const std::vector<OptionSupport> rows = {
      {"chunk", [](const Given& o) { return o.chunk != 0; }, Support::whole_sequences},
      {"alibi_slopes", [](const Given& o) { return o.alibi_slopes.has_value(); }, Support::whole_sequences},
      {"documents", [](const Given& o) { return o.documents.has_value(); }, Support::whole_sequences, true},
      {"prefix", [](const Given& o) { return o.prefix.has_value(); }, Support::whole_sequences, true},
      {"bias", [](const Given& o) { return o.bias.has_value(); }, Support::told_positions, true},
      {"boolean_mask", [](const Given& o) { return o.boolean_mask.has_value(); }, Support::none},
      {"tree", [](const Given& o) { return o.tree.has_value(); }, Support::none},
      {"score", [](const Given& o) { return o.score.has_value(); }, Support::told_positions},
      {"mask", [](const Given& o) { return o.mask.has_value(); }, Support::told_positions},
      {"query_offsets", [](const Given& o) { return o.query_offsets.has_value(); }, Support::none},
      {"key_offsets", [](const Given& o) { return o.key_offsets.has_value(); }, Support::none},
      {"block_mask", [](const Given& o) { return o.block_mask.has_value(); }, Support::none},
      {"dropout", [](const Given& o) { return o.dropout.probability != 0; }, Support::none},
      {"dropout_state", [](const Given& o) { return o.dropout_state.has_value(); }, Support::none},
      {"dropout_mask", [](const Given& o) { return o.dropout_mask.has_value(); }, Support::none},
      {"cu_seqlens_q", [](const Given& o) { return o.cu_seqlens_q.has_value(); }, Support::none},
      {"cu_seqlens_kv", [](const Given& o) { return o.cu_seqlens_kv.has_value(); }, Support::none},
      {"seqused_q", [](const Given& o) { return o.seqused_q.has_value(); }, Support::none},
      {"seqused_kv", [](const Given& o) { return o.seqused_kv.has_value(); }, Support::none},
      {"leftpad_kv", [](const Given& o) { return o.leftpad_kv.has_value(); }, Support::none},
      {"batch_indices_kv", [](const Given& o) { return o.batch_indices_kv.has_value(); }, Support::none},
      {"page_table", [](const Given& o) { return o.page_table.has_value(); }, Support::none},
      {"k_scale", [](const Given& o) { return o.k_scale.has_value(); }, Support::none},
      {"v_scale", [](const Given& o) { return o.v_scale.has_value(); }, Support::none},
      {"k_rotary", [](const Given& o) { return o.k_rotary.has_value(); }, Support::none},
      {"q_scale", [](const Given& o) { return o.q_scale.has_value(); }, Support::none},
      {"accumulate", [](const Given& o) { return o.accumulate != Accumulate::exact; }, Support::none},
      {"out_dtype", [](const Given& o) { return o.out_dtype.has_value(); }, Support::none},
      {"out_scale", [](const Given& o) { return o.out_scale.has_value(); }, Support::none},
      {"max_seqlen_q", [](const Given& o) { return o.max_seqlen_q != 0; }, Support::none},
      {"max_seqlen_kv", [](const Given& o) { return o.max_seqlen_kv != 0; }, Support::none},
      {"fixed_split_size", [](const Given& o) { return o.fixed_split_size != 0; }, Support::none},
      {"plan", [](const Given& o) { return o.plan != nullptr; }, Support::none},
      {"variant", [](const Given& o) { return o.variant.has_value(); }, Support::none},
  };
  return rows;
}

const char* option_of_whole_sequences(const AttentionOptions& options) {
  for (const OptionSupport& row : option_supports())
    if (row.support == Support::whole_sequences && row.is_given(options)) return row.name;
  return nullptr;
}

bool positions_matter(const AttentionOptions& options) {
  const std::vector<OptionSupport>& rows = option_supports();
  return options.causal || options.window.left >= 0 || options.window.right >= 0 ||
         std::any_of(rows.begin(), rows.end(),
                     [&](const OptionSupport& row) { return row.support != Support::none && row.is_given(options); });
}

bool tells_positions(const AttentionOptions& options) {
  const std::vector<OptionSupport>& rows = option_supports();
  return std::any_of(rows.begin(), rows.end(), [&](const OptionSupport& row) {
    return row.support == Support::told_positions && row.is_given(options);
  });
}

}  // namespace flashjit::distributed
