// SPDX-License-Identifier: Apache-2.0
#include "generator/stand_ins.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>

namespace flashjit::generator {
namespace {

// --- Scores: factors are powers of two, so that their products are exact and a difference is rounded once, whether or
// not a compiler makes one instruction of both.

// Far keys lose little, so that a score that jumps stays a jump.
constexpr const char* kFallingText = "score - 0.00390625f * abs(query - key)";
template <class Number>
Number falling_score(Number score, const FunctionPlace& place) {
  return score - Number{0.00390625} * static_cast<Number>(std::abs(place.query - place.key));
}
double falling_slope(const FunctionPlace&) { return 1; }

double factor_of(std::int64_t key, std::int64_t /*keys*/) { return key % 3 == 0 ? 0.5 : 1; }
double slope_of_head(std::int64_t head, std::int64_t /*heads*/) {
  return std::exp2(-8 - static_cast<double>(head % 4));
}
constexpr StandInTensor kScaledTensors[] = {{"factor", DType::f32, StandInTensor::Of::keys, factor_of},
                                            {"slope", DType::f32, StandInTensor::Of::heads, slope_of_head}};
constexpr const char* kScaledText = "score * factor(key) - slope(head) * abs(query - key)";
template <class Number>
Number scaled_score(Number score, const FunctionPlace& place) {
  const auto factor = static_cast<Number>(factor_of(place.key, place.seqlen_kv));
  const auto slope = static_cast<Number>(slope_of_head(place.head, 0));
  return score * factor - slope * static_cast<Number>(std::abs(place.query - place.key));
}
double scaled_slope(const FunctionPlace& place) { return factor_of(place.key, place.seqlen_kv); }

// --- Masks: the same for all heads and batch entries. Where there are hundreds of keys, some blocks of them are whole,
// some are partly seen and some are empty.

// Local and strided, as in Sparse Transformers.
constexpr const char* kStridedText = "abs(query - key) <= seqlen_kv / 4 || (key / 128 % 4 == 1 && key % 2 == 0)";
bool strided_mask(const FunctionPlace& place) {
  return std::abs(place.query - place.key) <= place.seqlen_kv / 4 || (place.key / 128 % 4 == 1 && place.key % 2 == 0);
}

// Packed sequences, of which the last one goes on with the first.
double document_of(std::int64_t key, std::int64_t keys) {
  constexpr std::int64_t kDocuments = 3;
  return static_cast<double>(key / (keys / 4 + 3) % kDocuments);
}
constexpr StandInTensor kPackedTensors[] = {{"document", DType::i32, StandInTensor::Of::keys, document_of}};
constexpr const char* kPackedText = "document(query) == document(key)";
bool packed_mask(const FunctionPlace& place) {
  const std::int64_t keys = place.seqlen_kv;
  const double of_query = place.query < keys ? document_of(place.query, keys) : 0;  // outside of its tensor
  return of_query == document_of(place.key, keys);
}

constexpr StandIn kStandIns[] = {
    {FunctionKind::score, "arithmetic", kFallingText, {}, falling_score<double>, falling_score<float>, falling_slope},
    {FunctionKind::score, "tensors", kScaledText, kScaledTensors, scaled_score<double>, scaled_score<float>,
     scaled_slope},
    {FunctionKind::mask, "arithmetic", kStridedText, {}, nullptr, nullptr, nullptr, strided_mask},
    {FunctionKind::mask, "tensors", kPackedText, kPackedTensors, nullptr, nullptr, nullptr, packed_mask}};

bool reads_tensors(const FunctionText& function) noexcept {
  return std::any_of(function.captures.begin(), function.captures.end(),
                     [](const CaptureType& type) { return type.rank != CaptureType::kNumber; });
}

const FunctionText& make_function_of(const StandIn& stand_in) {
  std::vector<Capture> captures;
  for (const StandInTensor& tensor : stand_in.tensors)
    captures.emplace_back(tensor.name, Tensor(nullptr, tensor.dtype, {1}));
  return find_function(stand_in.kind, stand_in.text, captures);
}

}  // namespace

std::span<const StandIn> stand_ins() noexcept { return kStandIns; }

const StandIn& stand_in_of(const FunctionText& function) noexcept {
  return *std::find_if(std::begin(kStandIns), std::end(kStandIns), [&](const StandIn& each) {
    return each.kind == function.kind && each.tensors.empty() != reads_tensors(function);
  });
}

const FunctionText& function_of(const StandIn& stand_in) {
  static const auto functions = [] {
    std::array<const FunctionText*, std::size(kStandIns)> all{};
    std::transform(std::begin(kStandIns), std::end(kStandIns), all.begin(),
                   [](const StandIn& each) { return &make_function_of(each); });
    return all;
  }();
  return *functions.at(static_cast<std::size_t>(&stand_in - kStandIns));
}

bool is_stand_in(const FunctionText& function) { return &function_of(stand_in_of(function)) == &function; }

}  // namespace flashjit::generator
