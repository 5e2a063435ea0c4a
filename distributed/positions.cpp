// SPDX-License-Identifier: Apache-2.0
#include "distributed/positions.h"

#include <algorithm>
#include <stdexcept>

namespace flashjit::distributed {
namespace {

constexpr std::int64_t kFar = Band::kFar;

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

Band band(const Span& queries, const Span& keys, const Window& mask) {
  const std::int64_t apart = queries.first - keys.first, step = queries.count > 1 ? queries.step : keys.step;
  Band found;
  if (mask.left >= 0 && mask.left < kFar) found.low = -floor_quotient(mask.left - apart, step);
  if (mask.right >= 0 && mask.right < kFar) found.high = floor_quotient(mask.right + apart, step);
  return found;
}

double triangle(double side) { return side > 0 ? side * (side + 1) / 2 : 0; }

// How many pairs are hidden at one end of the keys, when the first query does not see the last first_row keys and each
// further query sees one key more. A row has no more keys than keys, and hides none once it sees all.
double hidden_pairs(std::int64_t first_row, std::int64_t queries, std::int64_t keys) {
  const double first = static_cast<double>(first_row), rows = static_cast<double>(queries),
               columns = static_cast<double>(keys);
  return triangle(first) - triangle(first - rows) - triangle(first - columns) + triangle(first - rows - columns);
}

// The band as a window of a call with so many queries and keys, in which the last query stands at the last key.
Window window_of(const Band& of, std::int64_t queries, std::int64_t keys) {
  Window window;
  if (of.high < keys - 1) window.right = of.high - (keys - queries);
  if (of.low > 1 - queries) window.left = keys - queries - of.low;
  return window;
}

// Within one sequence.
std::optional<Sight> sight_within(const Span& queries, const Span& keys, const Window& mask) {
  if (queries.count == 0 || keys.count == 0) return std::nullopt;
  return sight_of({0, queries.count}, {0, keys.count}, band(queries, keys, mask));
}

// Of the whole sequences from one to another, of which queries and keys are the same rows.
Sight sight_of_whole(std::size_t first, std::size_t last, const PositionMask& mask) {
  Sight found;
  found.window = mask.window;
  found.cu_seqlens = {0};
  for (std::size_t i = first; i <= last; ++i) {
    const Span sequence{0, mask.sequences.end(i) - mask.sequences.begin(i), 1};
    if (const std::optional<Sight> view = sight_within(sequence, sequence, mask.window)) found.pairs += view->pairs;
    found.cu_seqlens.push_back(found.cu_seqlens.back() + sequence.count);
  }
  found.queries = found.keys = {0, found.cu_seqlens.back()};
  return found;
}

std::int64_t end_of(const RowRange& range) { return range.first + range.count; }

RowRange hull(const RowRange& a, const RowRange& b) {
  const std::int64_t first = std::min(a.first, b.first);
  return {first, std::max(end_of(a), end_of(b)) - first};
}

// Rows that see each other by a band.
struct BandOfRows {
  RowRange queries, keys;
  Band band;

  // The keys that a query sees, if any.
  RowRange seen_by(std::int64_t query) const {
    if (query < queries.first || query >= end_of(queries)) return {};
    const std::int64_t first = std::max(keys.first, query + band.low),
                       end = std::min(end_of(keys), query + band.high + 1);
    return first < end ? RowRange{first, end - first} : RowRange{};
  }
  // Between neighbours of these queries, what is seen of the keys at either end changes evenly.
  void add_bends(std::vector<std::int64_t>& bends) const {
    for (const std::int64_t at : {queries.first, end_of(queries) - 1, keys.first - band.low,
                                  end_of(keys) - 1 - band.high, end_of(keys) - 1 - band.low, keys.first - band.high})
      for (const std::int64_t beside : {-1, 0, 1}) bends.push_back(at + beside);
  }
};

// What two see that do not see the same, if it is one range: otherwise nothing, as a gap is.
std::optional<RowRange> both(const RowRange& a, const RowRange& b) {
  if (a.count == 0 || b.count == 0) return a.count == 0 ? b : a;
  if (end_of(a) == b.first || end_of(b) == a.first) return hull(a, b);
  return std::nullopt;
}

bool sees_what_both_see(const BandOfRows& whole, const BandOfRows& a, const BandOfRows& b) {
  std::vector<std::int64_t> bends;
  for (const BandOfRows* of : {&whole, &a, &b}) of->add_bends(bends);
  return std::all_of(bends.begin(), bends.end(), [&](std::int64_t query) {
    if (query < whole.queries.first || query >= end_of(whole.queries)) return true;
    return both(a.seen_by(query), b.seen_by(query)) == whole.seen_by(query);
  });
}

std::optional<Sight> joined(const Sight& a, const Sight& b) {
  if (!a.cu_seqlens.empty() || !b.cu_seqlens.empty()) return std::nullopt;
  const BandOfRows first{a.queries, a.keys, band_of(a)}, second{b.queries, b.keys, band_of(b)};
  for (const std::int64_t low : {first.band.low, second.band.low})
    for (const std::int64_t high : {first.band.high, second.band.high}) {
      const BandOfRows whole{hull(a.queries, b.queries), hull(a.keys, b.keys), {low, high}};
      if (sees_what_both_see(whole, first, second)) return sight_of(whole.queries, whole.keys, whole.band);
    }
  return std::nullopt;
}

std::int64_t last_of(const Span& span) { return span.first + (span.count - 1) * span.step; }

// What of a span is in some sequences, from one to another.
Span within(const Span& span, const Sequences& sequences, std::size_t first, std::size_t last) {
  const std::int64_t begin = std::max(span.first, sequences.begin(first)),
                     end = std::min(span.first + span.count, sequences.end(last));
  return {begin, end - begin, span.step};
}

// The rows of the keys that at least one query sees: ascending ranges that do not touch.
std::vector<RowRange> seen_of(const Span& keys, const OrderedPieces& queries, const PositionMask& mask) {
  std::vector<RowRange> ranges, apart;
  for (const Piece& by : queries.beside(keys))
    if (const std::optional<Sight> view = sight(by.span, keys, mask)) ranges.push_back(view->keys);
  std::sort(ranges.begin(), ranges.end(), [](const RowRange& a, const RowRange& b) { return a.first < b.first; });
  for (const RowRange& range : ranges) {
    if (apart.empty() || range.first > apart.back().first + apart.back().count)
      apart.push_back(range);
    else
      apart.back().count = std::max(apart.back().count, range.first + range.count - apart.back().first);
  }
  return apart;
}

}  // namespace

std::size_t Sequences::at(std::int64_t position) const {
  if (offsets_.empty()) return 0;
  return static_cast<std::size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), position) - offsets_.begin() - 1);
}
std::int64_t Sequences::begin(std::size_t sequence) const { return offsets_.empty() ? -kFar : offsets_[sequence]; }
std::int64_t Sequences::origin(std::size_t sequence) const { return offsets_.empty() ? 0 : offsets_[sequence]; }
std::int64_t Sequences::end(std::size_t sequence) const { return offsets_.empty() ? kFar : offsets_[sequence + 1]; }

std::optional<Sight> sight_of(const RowRange& queries, const RowRange& keys, const Band& band) {
  // Of rows that are counted from the first ones.
  Band of{band.low + queries.first - keys.first, band.high + queries.first - keys.first};
  if (of.low > of.high) return std::nullopt;
  const std::int64_t first = std::max<std::int64_t>(0, of.low),
                     last = std::min(keys.count - 1, queries.count - 1 + of.high);
  const std::int64_t last_query = std::min(queries.count - 1, last - of.low);
  if (first > last || last_query < 0) return std::nullopt;
  Sight found;
  found.queries = {queries.first, last_query + 1};
  found.keys = {keys.first + first, last - first + 1};
  found.first_key = first;
  of.low -= first;
  of.high -= first;
  found.window = window_of(of, found.queries.count, found.keys.count);
  // All pairs, less the keys behind what each query sees, and less those before it, which are counted from the last
  // query backwards.
  found.pairs = static_cast<double>(found.queries.count) * static_cast<double>(found.keys.count) -
                hidden_pairs(found.keys.count - 1 - of.high, found.queries.count, found.keys.count) -
                hidden_pairs(found.queries.count - 1 + of.low, found.queries.count, found.keys.count);
  return found;
}

Band band_of(const Sight& sight) {
  const std::int64_t last = sight.keys.first + sight.keys.count - sight.queries.first - sight.queries.count;
  Band band;
  if (sight.window.left >= 0) band.low = last - sight.window.left;
  if (sight.window.right >= 0) band.high = last + sight.window.right;
  return band;
}

std::optional<Sight> of_queries(const Sight& sight, const RowRange& queries) {
  std::optional<Sight> part = sight_of(queries, sight.keys, band_of(sight));
  if (!part) return part;
  part->first_query = sight.first_query + queries.first - sight.queries.first;
  part->first_key += sight.first_key;
  return part;
}

std::vector<Sight> joined_calls(const std::vector<Sight>& calls) {
  std::vector<Sight> found;
  for (const Sight& call : calls) {
    found.push_back(call);
    while (found.size() > 1) {
      const std::optional<Sight> both = joined(found[found.size() - 2], found.back());
      if (!both) break;
      found.pop_back();
      found.back() = *both;
    }
  }
  return found;
}

std::optional<Sight> sight(const Span& queries, const Span& keys, const PositionMask& mask) {
  if (queries.count == 0 || keys.count == 0) return std::nullopt;
  const Sequences& of = mask.sequences;
  const std::size_t first = std::max(of.at(queries.first), of.at(keys.first)),
                    last = std::min(of.at(last_of(queries)), of.at(last_of(keys)));
  if (first > last) return std::nullopt;
  const Span by = within(queries, of, first, last), on = within(keys, of, first, last);
  std::optional<Sight> found = first == last ? sight_within(by, on, mask.window) : sight_of_whole(first, last, mask);
  if (!found) return std::nullopt;
  if (first < last && (found->queries.count != by.count || by != on))
    throw std::logic_error("sequences that are not whole must be in spans of their own");
  found->first_query = by.first - of.origin(first) - mask.query_shift;
  found->first_key = on.first + found->keys.first * on.step - of.origin(first);
  found->queries.first += by.first - queries.first;
  found->keys.first += on.first - keys.first;
  return found;
}

std::int64_t length(const std::vector<Span>& spans) {
  std::int64_t sum = 0;
  for (const Span& span : spans) sum += span.count;
  return sum;
}

std::vector<Piece> pieces(const std::vector<Span>& spans) {
  std::vector<Piece> all;
  std::int64_t row = 0;
  for (const Span& span : spans) {
    all.push_back({span, row});
    row += span.count;
  }
  return all;
}

OrderedPieces::OrderedPieces(std::vector<Piece> pieces, const Sequences& sequences)
    : sequences_(sequences), pieces_(std::move(pieces)) {
  for (const Piece& piece : pieces_) {
    first_.push_back(sequences.at(piece.span.first));
    last_.push_back(sequences.at(last_of(piece.span)));
  }
}

std::span<const Piece> OrderedPieces::beside(const Span& span) const {
  const auto begin = std::lower_bound(last_.begin(), last_.end(), sequences_.at(span.first)) - last_.begin(),
             end = std::upper_bound(first_.begin(), first_.end(), sequences_.at(last_of(span))) - first_.begin();
  return {pieces_.data() + begin, static_cast<std::size_t>(end - begin)};
}

std::vector<Piece> seen(const std::vector<Span>& queries, const std::vector<Span>& keys, const PositionMask& mask) {
  std::vector<Piece> found;
  const OrderedPieces by(pieces(queries), mask.sequences);
  for (const Piece& of : pieces(keys))
    for (const RowRange& range : seen_of(of.span, by, mask))
      found.push_back({{of.span.first + range.first * of.span.step, range.count, of.span.step}, of.row + range.first});
  return found;
}

std::vector<Span> joined(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.first < b.first; });
  std::vector<Span> found;
  for (const Span& span : spans) {
    if (!found.empty() && found.back().step == 1 && span.step == 1 &&
        found.back().first + found.back().count == span.first)
      found.back().count += span.count;
    else
      found.push_back(span);
  }
  return found;
}

std::vector<Span> cut(const std::vector<Span>& spans, const Sequences& sequences) {
  std::vector<Span> found;
  for (Span left : spans)
    while (left.count > 0) {
      const std::size_t first = sequences.at(left.first), last = sequences.at(last_of(left));
      const std::int64_t end = left.first + left.count;
      // A part of the first sequence; else the whole ones; else, of one that begins here, a part.
      std::int64_t behind = end;
      if (sequences.begin(first) < left.first)
        behind = std::min(end, sequences.end(first));
      else if (first < last && sequences.end(last) > end)
        behind = sequences.begin(last);
      const Span piece{left.first, behind - left.first, left.step};
      found.push_back(piece);
      left = {behind, end - behind, left.step};
    }
  return found;
}

RowsOfSpan rows_of(const Span& span, const std::vector<Piece>& in) {
  auto of = std::upper_bound(in.begin(), in.end(), span.first,
                             [](std::int64_t first, const Piece& piece) { return first < piece.span.first; });
  while (of != in.begin()) {  // once, unless they are striped
    --of;
    const std::int64_t behind = span.first - of->span.first;
    if (behind % of->span.step == 0 && behind / of->span.step < of->span.count)
      return {of->row + behind / of->span.step, std::max<std::int64_t>(1, span.step / of->span.step)};
  }
  throw std::logic_error("positions that a tensor should have are not in it");
}

}  // namespace flashjit::distributed
