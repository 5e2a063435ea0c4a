// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/check_sequences.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "generator/arguments.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

// One of the call's operands, as far as there is one.
struct Ints {
  const char* name;
  std::vector<std::int32_t> values;
  bool given = false;

  Ints(const char* of, const ForwardCall& call, const ReadInts& read) : name(of) {
    for (const Operand& operand : call.operands)
      if (std::string_view(operand.name) == name) values = read(operand.range), given = true;
  }
  std::int64_t at(std::int64_t index) const { return values[static_cast<std::size_t>(index)]; }
};

// Where sequences of q, or of k and v, lie.
class Side {
 public:
  Side(const Ints& offsets, const Ints& used, std::int64_t rows) : offsets_(offsets), used_(used), rows_(rows) {}

  // Of what stands between two sequences: those of one thing only.
  void check_offsets() const {
    if (!offsets_.given) return;
    const auto last = static_cast<std::int64_t>(offsets_.values.size()) - 1;
    const auto zeros_from =
        std::find_if(offsets_.values.rbegin(), offsets_.values.rend(), [](std::int32_t offset) { return offset != 0; })
            .base() -
        offsets_.values.begin();
    for (std::int64_t i = 0; i <= last; ++i) {
      if (offsets_.at(i) < 0 || offsets_.at(i) > rows_)
        reject("{}: must be from 0 to {}, was {} at {}", offsets_.name, rows_, offsets_.at(i), i);
      if (i > 0 && i < zeros_from && offsets_.at(i) < offsets_.at(i - 1))
        reject("{}: must not decrease, but to zeros behind the last sequence, was {} behind {} at {}", offsets_.name,
               offsets_.at(i), offsets_.at(i - 1), i);
    }
  }
  // How long the sequence is.
  std::int64_t length(std::int64_t sequence) const {
    std::int64_t rows = rows_;
    if (offsets_.given) rows = std::max<std::int64_t>(0, offsets_.at(sequence + 1) - offsets_.at(sequence));
    if (!used_.given) return rows;
    const std::int64_t used = used_.at(sequence);
    if (used < 0 || used > rows)
      reject("{}: must be from 0 to {}, as many rows as sequence {} has, was {}", used_.name, rows, sequence, used);
    return used;
  }

 private:
  const Ints &offsets_, &used_;
  const std::int64_t rows_;
};

void check_bound(const char* name, std::int64_t bound, std::int64_t length, std::int64_t sequence) {
  if (length > bound)
    reject("{}: must be at least {}, the length of sequence {}, was {}", name, length, sequence, bound);
}

// Those that so many keys of a sequence need, in a row of the table.
void check_pages(const ForwardCall& call, const Ints& table, std::int64_t sequence, std::int64_t row,
                 std::int64_t keys) {
  const std::int64_t page_size = call.k->shape[seqlen_dim], pages = call.k->shape[batch_dim];
  const std::int64_t first = row * call.ragged.page_table->strides[0];
  for (std::int64_t entry = 0; entry * page_size < keys; ++entry) {
    const std::int64_t page = table.at(first + entry);
    if (page < 0 || page >= pages)
      reject("page_table: entry {} of sequence {} must be from 0 to {}, was {}", entry, sequence, pages - 1, page);
  }
}

// Of a call that goes by the lengths of its plan.
void check_planned_pages(const ForwardCall& call, const ReadInts& read) {
  if (!call.ragged.page_table) return;
  const Ints table("page_table", call, read);
  const std::vector<std::int32_t> plan = Ints("plan", call, read).values;
  const auto count = static_cast<std::uint32_t>(plan[0]);
  for (std::size_t i = 0; i < count; ++i) {
    generator::PlannedTile tile;
    const std::size_t at = (alignof(generator::PlannedTile) + i * sizeof(tile)) / sizeof(std::int32_t);
    if (at + sizeof(tile) / sizeof(std::int32_t) > plan.size()) break;
    std::memcpy(&tile, &plan[at], sizeof(tile));
    check_pages(call, table, tile.sequence, tile.key_batch, tile.keys);
  }
}

class Checker {
 public:
  Checker(const ForwardCall& call, const ReadInts& read)
      : call_(call),
        cu_seqlens_q_("cu_seqlens_q", call, read),
        cu_seqlens_kv_("cu_seqlens_kv", call, read),
        seqused_q_("seqused_q", call, read),
        seqused_kv_("seqused_kv", call, read),
        leftpad_kv_("leftpad_kv", call, read),
        batch_indices_kv_("batch_indices_kv", call, read),
        page_table_("page_table", call, read) {}

  // Keys of sequences without queries are nobody's.
  void check() const {
    const Side queries(cu_seqlens_q_, seqused_q_, call_.q->shape[seqlen_dim]);
    const Side keys(cu_seqlens_kv_, seqused_kv_, key_rows(*call_.k, call_.ragged.page_table));
    queries.check_offsets();
    keys.check_offsets();
    for (std::int64_t sequence = 0; sequence < call_.batch; ++sequence) {
      const std::int64_t length = queries.length(sequence);
      check_bound("max_seqlen_q", call_.seqlen_q, length, sequence);
      if (length > 0) check_keys(sequence, keys.length(sequence));
    }
  }

 private:
  void check_keys(std::int64_t sequence, std::int64_t used) const {
    const std::int64_t padding = leftpad_kv_.given ? leftpad_kv_.at(sequence) : 0;
    if (padding < 0 || padding > used)
      reject("leftpad_kv: must be from 0 to {}, the keys of sequence {}, was {}", used, sequence, padding);
    check_bound("max_seqlen_kv", call_.seqlen_kv, used - padding, sequence);
    if (used == 0) return;
    const Tensor* const table = call_.ragged.page_table;
    const std::int64_t entries = table ? table->shape[0] : call_.k->shape[batch_dim];
    const std::int64_t entry = batch_indices_kv_.given ? batch_indices_kv_.at(sequence) : sequence;
    if (batch_indices_kv_.given && (entry < 0 || entry >= entries))
      reject("batch_indices_kv: must be from 0 to {}, was {} of sequence {}", entries - 1, entry, sequence);
    if (table) check_pages(call_, page_table_, sequence, entry, used);
  }

  const ForwardCall& call_;
  const Ints cu_seqlens_q_, cu_seqlens_kv_, seqused_q_, seqused_kv_, leftpad_kv_, batch_indices_kv_, page_table_;
};

}  // namespace

void check_sequences(const ForwardCall& call, const ReadInts& read) {
  if (call.plan)
    check_planned_pages(call, read);
  else
    Checker(call, read).check();
}

}  // namespace flashjit::runtime
