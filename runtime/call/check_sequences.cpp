// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/check_sequences.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "generator/arguments.h"
#include "runtime/call/append.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

// One of the call's operands, as far as there is one.
struct Ints {
  const char* name = "";
  std::vector<std::int32_t> values;
  bool given = false, are_i64 = false;

  Ints() = default;
  Ints(const char* of, const Operands& operands, const ReadInts& read) : name(of) {
    for (const Operand& operand : operands)
      if (std::string_view(operand.name) == name)
        values = read(operand.range), given = true, are_i64 = operand.tensor->dtype == DType::i64;
  }
  std::int64_t at(std::int64_t index) const {
    const auto i = static_cast<std::size_t>(index);
    if (!are_i64) return values[i];
    std::int64_t value = 0;
    std::memcpy(&value, &values[2 * i], sizeof(value));
    return value;
  }
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

// Where sequences lie in a cache: in its pages, or where there is no table in its batch entries.
class Places {
 public:
  Places(const Tensor& cache, const Tensor* table, const Operands& operands, const ReadInts& read)
      : cache_(cache),
        table_(table),
        batch_indices_kv_("batch_indices_kv", operands, read),
        page_table_("page_table", operands, read) {}

  // Of the sequence's keys from first to end.
  void check(std::int64_t sequence, std::int64_t first, std::int64_t end) const {
    const std::int64_t entries = table_ ? table_->shape[0] : cache_.shape[batch_dim];
    const std::int64_t entry = batch_indices_kv_.given ? batch_indices_kv_.at(sequence) : sequence;
    if (batch_indices_kv_.given && (entry < 0 || entry >= entries))
      reject("batch_indices_kv: must be from 0 to {}, was {} of sequence {}", entries - 1, entry, sequence);
    check_pages(sequence, entry, first, end);
  }
  // Likewise, in a row of the table.
  void check_pages(std::int64_t sequence, std::int64_t row, std::int64_t first, std::int64_t end) const {
    if (!table_) return;
    const std::int64_t page_size = cache_.shape[seqlen_dim], pages = cache_.shape[batch_dim];
    for (std::int64_t entry = first / page_size; entry * page_size < end; ++entry) {
      const std::int64_t page = page_table_.at(row * table_->strides[0] + entry);
      if (page < 0 || page >= pages)
        reject("page_table: entry {} of sequence {} must be from 0 to {}, was {}", entry, sequence, pages - 1, page);
    }
  }

 private:
  const Tensor& cache_;
  const Tensor* const table_;
  const Ints batch_indices_kv_, page_table_;
};

// Of a call that goes by the lengths of its plan.
void check_planned_pages(const ForwardCall& call, const ReadInts& read) {
  if (!call.ragged.page_table) return;
  const Places places(*call.k, call.ragged.page_table, call.operands, read);
  const std::vector<std::int32_t> plan = Ints("plan", call.operands, read).values;
  const auto count = static_cast<std::uint32_t>(plan[0]);
  for (std::size_t i = 0; i < count; ++i) {
    generator::PlannedTile tile;
    const std::size_t at = (alignof(generator::PlannedTile) + i * sizeof(tile)) / sizeof(std::int32_t);
    if (at + sizeof(tile) / sizeof(std::int32_t) > plan.size()) break;
    std::memcpy(&tile, &plan[at], sizeof(tile));
    places.check_pages(tile.sequence, tile.key_batch, 0, tile.keys);
  }
}

class Checker {
 public:
  Checker(const ForwardCall& call, const ReadInts& read)
      : call_(call),
        cu_seqlens_q_("cu_seqlens_q", call.operands, read),
        cu_seqlens_kv_("cu_seqlens_kv", call.operands, read),
        seqused_q_("seqused_q", call.operands, read),
        seqused_kv_("seqused_kv", call.operands, read),
        leftpad_kv_("leftpad_kv", call.operands, read),
        places_(*call.k, call.ragged.page_table, call.operands, read) {}

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
    if (used > 0) places_.check(sequence, 0, used);
  }

  const ForwardCall& call_;
  const Ints cu_seqlens_q_, cu_seqlens_kv_, seqused_q_, seqused_kv_, leftpad_kv_;
  const Places places_;
};

// Of new tokens.
class TokenChecker {
 public:
  TokenChecker(const AppendCall& call, const ReadInts& read)
      : call_(call),
        slots_("slots", call.operands, read),
        positions_("positions", call.operands, read),
        cu_seqlens_("cu_seqlens", call.operands, read),
        seqused_kv_("seqused_kv", call.operands, read),
        leftpad_kv_("leftpad_kv", call.operands, read),
        places_(call.k_cache, call.opts.page_table ? &*call.opts.page_table : nullptr, call.operands, read) {}

  void check() const {
    if (slots_.given)
      check_slots();
    else
      check_sequences();
  }

 private:
  void check_slots() const {
    const std::int64_t rows = call_.k_cache.shape[batch_dim] * call_.k_cache.shape[seqlen_dim];
    for (std::int64_t token = 0; token < call_.tokens(); ++token) {
      if (slots_.at(token) >= rows)
        reject("slots: must be below {}, as many rows as k_cache has, was {} of token {}", rows, slots_.at(token),
               token);
      if (slots_.at(token) >= 0) check_position(token);
    }
  }
  void check_sequences() const {
    const Ints none{};
    const Side added(cu_seqlens_, none, call_.k.shape[seqlen_dim]), keys(none, seqused_kv_, call_.rows_of_sequence());
    added.check_offsets();
    for (std::int64_t sequence = 0; sequence < call_.batch; ++sequence)
      if (added.length(sequence) > 0) check_sequence(sequence, added.length(sequence), keys.length(sequence));
  }
  void check_sequence(std::int64_t sequence, std::int64_t added, std::int64_t used) const {
    const std::int64_t padding = leftpad_kv_.given ? leftpad_kv_.at(sequence) : 0;
    if (used < added)
      reject("seqused_kv: must be at least {}, the new tokens of sequence {}, was {}", added, sequence, used);
    if (padding < 0 || padding > used - added)
      reject("leftpad_kv: must be from 0 to {}, the rows before the new tokens of sequence {}, was {}", used - added,
             sequence, padding);
    places_.check(sequence, used - added, used);
    const std::int64_t first = cu_seqlens_.given ? cu_seqlens_.at(sequence) : sequence * added;
    for (std::int64_t token = first; positions_.given && token < first + added; ++token) check_position(token);
    if (call_.opts.rotary_cos && !positions_.given && used - padding > call_.opts.rotary_cos->shape[0])
      reject("rotary_cos: positions must be at least {}, the keys of sequence {}, was {}", used - padding, sequence,
             call_.opts.rotary_cos->shape[0]);
  }
  void check_position(std::int64_t token) const {
    if (!positions_.given) return;
    const std::int64_t last = call_.opts.rotary_cos->shape[0] - 1, position = positions_.at(token);
    if (position < 0 || position > last)
      reject("positions: must be from 0 to {}, was {} of token {}", last, position, token);
  }

  const AppendCall& call_;
  const Ints slots_, positions_, cu_seqlens_, seqused_kv_, leftpad_kv_;
  const Places places_;
};

}  // namespace

void check_tokens(const AppendCall& call, const ReadInts& read) { TokenChecker(call, read).check(); }

void check_sequences(const ForwardCall& call, const ReadInts& read) {
  if (call.plan)
    check_planned_pages(call, read);
  else
    Checker(call, read).check();
}

}  // namespace flashjit::runtime
