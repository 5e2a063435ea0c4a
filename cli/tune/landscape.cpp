// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/landscape.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

namespace flashjit::cli {
namespace {

using Outcome = TunedCandidate::Outcome;

bool is_timed(const TunedCandidate& candidate) {
  return candidate.median_us > 0 && (candidate.outcome == Outcome::measured || candidate.outcome == Outcome::stopped);
}

void add(BestOf& best, const TunedCandidate& candidate) {
  ++best.measured;
  if (!best.candidate || candidate.median_us < best.candidate->median_us) best.candidate = &candidate;
}

using Scheme = std::pair<int, std::string>;  // its place in the list, and its name

Scheme scheme_of(const MmaVariant& variant) {
  static const char* const kPipelines[] = {"serial", "overlap", "rotate"};
  const auto pipeline = static_cast<int>(variant.pipeline);
  return {1000 + pipeline, std::string("mma, ") + kPipelines[pipeline]};
}

Scheme scheme_of(const HopperVariant& variant) {
  static const char* const kOverlaps[] = {"serial", "2-stage", "3-stage"};
  static const char* const kPingPongs[] = {"no ping-pong", "ping-pong in the products", "ping-pong in the softmax"};
  const auto overlap = static_cast<int>(variant.overlap), ping_pong = static_cast<int>(variant.ping_pong);
  return {10 * overlap + ping_pong, std::string("hopper, ") + kOverlaps[overlap] + ", " + kPingPongs[ping_pong]};
}

TileLandscape landscape_of(const std::string& family, const std::map<std::pair<int, int>, BestOf>& tiles) {
  std::set<int> blocks_q, blocks_kv;
  for (const auto& [tile, best] : tiles) {
    blocks_q.insert(tile.first);
    blocks_kv.insert(tile.second);
  }
  TileLandscape landscape{family, {blocks_q.begin(), blocks_q.end()}, {blocks_kv.begin(), blocks_kv.end()}, {}};
  for (const int q : landscape.blocks_q) {
    for (const int kv : landscape.blocks_kv) {
      const auto found = tiles.find({q, kv});
      landscape.cells.push_back(found == tiles.end() ? BestOf() : found->second);
    }
  }
  return landscape;
}

}  // namespace

std::vector<TileLandscape> tile_landscapes(const TuningRecord& record) {
  std::map<std::string, std::map<std::pair<int, int>, BestOf>> families;
  for (const TunedCandidate& candidate : record.candidates) {
    if (!is_timed(candidate)) continue;
    const Variant& variant = candidate.variant;
    add(families[family(variant)][{block_q(variant), block_kv(variant)}], candidate);
  }
  std::vector<TileLandscape> landscapes;
  for (const auto& [family, tiles] : families) landscapes.push_back(landscape_of(family, tiles));
  return landscapes;
}

std::vector<OverlapScheme> overlap_schemes(const TuningRecord& record) {
  std::map<Scheme, BestOf> schemes;
  for (const TunedCandidate& candidate : record.candidates) {
    if (!is_timed(candidate)) continue;
    const Scheme scheme = std::visit([](const auto& variant) { return scheme_of(variant); }, candidate.variant);
    add(schemes[scheme], candidate);
  }
  std::vector<OverlapScheme> list;
  for (const auto& [scheme, best] : schemes) list.push_back({scheme.second, best});
  return list;
}

double best_us(const TuningRecord& record) {
  double best = 0;
  for (const TunedCandidate& candidate : record.candidates) {
    if (is_timed(candidate) && (best == 0 || candidate.median_us < best)) best = candidate.median_us;
  }
  return best;
}

std::vector<const TunedCandidate*> dropped_candidates(const TuningRecord& record) {
  std::vector<const TunedCandidate*> dropped;
  for (const TunedCandidate& candidate : record.candidates) {
    if (candidate.outcome != Outcome::measured && candidate.outcome != Outcome::stopped) dropped.push_back(&candidate);
  }
  return dropped;
}

}  // namespace flashjit::cli
