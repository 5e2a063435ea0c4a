// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/report_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/io/flops.h"
#include "cli/io/html.h"
#include "cli/tune/landscape.h"
#include "cli/tune/run.h"
#include "cli/tune/table.h"

namespace flashjit::cli {
namespace {

// A causal mask hides half of a chunk, as it does of all keys; under a window queries see about as many keys as the
// shape has.
double rate(const TuningRecord& record, double microseconds) {
  const CallShape& shape = record.shape;
  return tflops(
      forward_flops({shape.batch, shape.seqlen_q, shape.num_heads_q, record.problem.head_dim}, shape.seqlen_kv,
                    record.problem.head_dim_v, record.problem.causal && !record.problem.window),
      microseconds);
}

std::string code(const Variant& variant) { return "<code>" + html_text(to_string(variant)) + "</code>"; }

std::string bucket_words(const ShapeBucket& bucket) {
  static const char* const kQueries[] = {"up to 16 rows", "up to 64 queries", "65 to 128 queries",
                                         "more than 128 queries"};
  static const char* const kKeys[] = {"fewer than 1024 keys", "1024 to 2047 keys", "2048 to 8191 keys",
                                      "8192 keys and more"};
  static const char* const kWork[] = {"at most half a tile for each SM", "up to 1 tile for each SM",
                                      "up to 2 tiles for each SM", "up to 4 tiles for each SM",
                                      "more than 4 tiles for each SM"};
  return fmt::format("{}, {}, {}", kQueries[static_cast<int>(bucket.queries)], kKeys[static_cast<int>(bucket.keys)],
                     kWork[static_cast<int>(bucket.work)]);
}

std::string noise_words(const TuningRecord& record) {
  return record.noise > 0 ? fmt::format(" the noise of {:.1f} %", 100 * record.noise) : " the noise";
}

std::string verdict(const TuningRecord& record) {
  if (record.chosen_us <= 0) return "its times are not known";
  if (record.chosen == record.default_variant) {
    return "the default stays: no other was faster by more than" + noise_words(record);
  }
  return fmt::format("{:.1f} % faster than the default, which is more than{}", 100 * (speedup(record) - 1),
                     noise_words(record));
}

std::string timed_line(const TuningRecord& record, const Variant& variant, double microseconds,
                       const Ceiling& ceiling) {
  std::string text = code(variant);
  if (microseconds <= 0) return text;
  const double tflops = rate(record, microseconds);
  text += fmt::format("<br>{:.1f} µs, {:.0f} TFLOPS", microseconds, tflops);
  const std::string share = share_text(tflops, ceiling);
  return share.empty() ? text : text + ", " + share + " of the ceiling";
}

std::string environment_words(const TuningRecord& record) {
  std::string text;
  for (const auto& [name, value] : record.environment) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", html_text(name), html_text(value));
  }
  return text;
}

std::string facts(const TuningRecord& record, const Ceiling& ceiling) {
  std::string html = fmt::format("<dl><dt>chosen</dt><dd>{}<br>{}</dd>\n",
                                 timed_line(record, record.chosen, record.chosen_us, ceiling), verdict(record));
  html += fmt::format("<dt>default</dt><dd>{}</dd>\n",
                      timed_line(record, record.default_variant, record.default_us, ceiling));
  html += fmt::format("<dt>measured with</dt><dd>{}</dd>\n", shape_text(record.shape));
  if (!is_complete(record))
    html += "<dt>unfinished</dt><dd class=\"bad\">the budget was spent before all were measured</dd>\n";
  return html + fmt::format("<dt>made by</dt><dd class=\"soft\">{}</dd></dl>\n", environment_words(record));
}

// Full colour for the fastest, none from half as slow again.
double heat(double microseconds, double best) { return 0.6 * std::clamp(1 - 2 * (microseconds / best - 1), 0.0, 1.0); }

bool have_one_tile(const Variant& a, const Variant& b) {
  return a.index() == b.index() && block_q(a) == block_q(b) && block_kv(a) == block_kv(b);
}

std::string heat_cell(const TuningRecord& record, const BestOf& best, const Ceiling& ceiling) {
  if (!best.candidate) return "<td class=\"none\">·</td>";
  const double time = best.candidate->median_us;
  const std::string share = share_text(rate(record, time), ceiling);
  return fmt::format("<td{} style=\"--heat:{:.2f}\" title=\"{}, the best of {}\">{:.1f} µs<small>{}</small></td>",
                     have_one_tile(best.candidate->variant, record.chosen) ? " class=\"winner\"" : "",
                     heat(time, best_us(record)), html_text(to_string(best.candidate->variant)), best.measured, time,
                     share.empty() ? fmt::format("{:.0f} TFLOPS", rate(record, time)) : share);
}

std::string heat_map(const TuningRecord& record, const TileLandscape& tiles, const Ceiling& ceiling) {
  std::string html = fmt::format(
      "<div><h4>{}: time by tile</h4>\n<div class=\"scroll\"><table class=\"heat\"><tr><th>BLOCK_Q \\ BLOCK_KV</th>",
      html_text(tiles.family));
  for (const int kv : tiles.blocks_kv) html += fmt::format("<th>{}</th>", kv);
  html += "</tr>\n";
  for (std::size_t row = 0; row < tiles.blocks_q.size(); ++row) {
    html += fmt::format("<tr><th>{}</th>", tiles.blocks_q[row]);
    for (std::size_t column = 0; column < tiles.blocks_kv.size(); ++column) {
      html += heat_cell(record, tiles.at(row, column), ceiling);
    }
    html += "</tr>\n";
  }
  return html + "</table></div></div>\n";
}

std::string scheme_row(const OverlapScheme& scheme, double best) {
  const double time = scheme.best.candidate->median_us;
  return fmt::format(
      "<tr><td>{}</td><td><svg class=\"bar\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"{:.0f} % of the best rate\"><rect class=\"back\" width=\"100\" height=\"8\"/><rect "
      "width=\"{:.1f}\" height=\"8\"/></svg></td><td class=\"number\">{:.1f} µs</td><td class=\"number\">{:+.1f} %</td>"
      "<td>{}</td></tr>\n",
      html_text(scheme.name), 100 * best / time, 100 * best / time, time, 100 * (time / best - 1),
      code(scheme.best.candidate->variant));
}

std::string scheme_table(const TuningRecord& record) {
  const std::vector<OverlapScheme> schemes = overlap_schemes(record);
  if (schemes.empty()) return {};
  std::string html =
      "<h4>Pipelines and ping-pong, each with the best of all else</h4>\n<div class=\"scroll\"><table class=\"list\">"
      "<tr><th>scheme</th><th>rate, of the best</th><th class=\"number\">time</th><th class=\"number\">slower by</th>"
      "<th>its best variant</th></tr>\n";
  for (const OverlapScheme& scheme : schemes) html += scheme_row(scheme, best_us(record));
  return html + "</table></div>\n";
}

std::string dropped_list(const TuningRecord& record) {
  const std::vector<const TunedCandidate*> dropped = dropped_candidates(record);
  if (dropped.empty()) return {};
  std::string html = fmt::format(
      "<h4>Not timed: {}</h4>\n<div class=\"scroll\"><table class=\"list\"><tr><th>candidate</th><th>what</th>"
      "<th>why</th></tr>\n",
      dropped.size());
  for (const TunedCandidate* candidate : dropped) {
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", code(candidate->variant),
                        to_string(candidate->outcome), html_text(candidate->why));
  }
  return html + "</table></div>\n";
}

std::string timed_list(const TuningRecord& record) {
  std::vector<const TunedCandidate*> timed;
  for (const TunedCandidate& candidate : record.candidates) {
    if (candidate.launches > 0) timed.push_back(&candidate);
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const TunedCandidate* a, const TunedCandidate* b) { return a->median_us < b->median_us; });
  std::string html = fmt::format(
      "<details><summary>All {} that were timed</summary>\n<div class=\"scroll\"><table class=\"list\"><tr>"
      "<th class=\"number\">median</th><th class=\"number\">dispersion</th><th class=\"number\">launches</th>"
      "<th>until</th><th>candidate</th></tr>\n",
      timed.size());
  for (const TunedCandidate* candidate : timed) {
    html += fmt::format(
        "<tr><td class=\"number\">{:.1f} µs</td><td class=\"number\">{:.1f} %</td><td "
        "class=\"number\">{}</td><td>{}</td>"
        "<td>{}</td></tr>\n",
        candidate->median_us, 100 * candidate->dispersion, candidate->launches,
        candidate->outcome == TunedCandidate::Outcome::stopped ? "it was clearly slower" : "the end",
        code(candidate->variant));
  }
  return html + "</table></div></details>\n";
}

}  // namespace

double chosen_tflops(const TuningRecord& record) { return rate(record, record.chosen_us); }

std::string share_text(double tflops, const Ceiling& ceiling) {
  return ceiling.tflops > 0 && tflops > 0 ? fmt::format("{:.0f} %", 100 * tflops / ceiling.tflops) : std::string();
}

std::string anchor_of(const TuningRecord& record) {
  return fmt::format("{}.{}.{}", slug(record.device), to_string(record.problem), to_string(record.bucket));
}

std::string record_article(const TuningRecord& record, const Ceiling& ceiling) {
  std::string html =
      fmt::format("<article id=\"{}\"><h3>{}</h3>\n<p class=\"soft\">{}: {}</p>\n{}", html_text(anchor_of(record)),
                  html_text(to_string(record.problem)), html_text(to_string(record.bucket)),
                  bucket_words(record.bucket), facts(record, ceiling));
  if (record.candidates.empty()) {
    return html + "<p class=\"soft\">It ships with the library, which does not keep the candidates.</p></article>\n";
  }
  html += "<div class=\"side\">\n";
  for (const TileLandscape& tiles : tile_landscapes(record)) html += heat_map(record, tiles, ceiling);
  html += "</div>\n";
  return html + scheme_table(record) + dropped_list(record) + timed_list(record) + "</article>\n";
}

}  // namespace flashjit::cli
