// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/report.h"

#include <fmt/format.h>

#include <cmath>

#include "cli/io/html.h"
#include "cli/tune/report_record.h"
#include "cli/tune/report_style.h"
#include "cli/tune/shapes.h"
#include "cli/tune/table.h"

namespace flashjit::cli {
namespace {

constexpr const char* kExplanation = R"(<p>Every row of the list is a problem (what is compiled in) and a bucket of
shapes (what decides which variant is the best). Each was measured with one shape: all candidates in turn, with a cold
L2 cache, those that were clearly slower only until that was clear. The fastest replaces the default only when it is
faster by more than the noise. Gain is how much faster than the default the chosen variant is.</p>
<p>In the maps a cell is the fastest variant with this tile, whatever its other fields, with its time and below it the
share of the ceiling; the greener, the nearer to the fastest of all. The frame is around the tile of the chosen one. A
point stands where nothing was timed.</p>
)";

std::string identity_words(const DeviceIdentity& device) {
  return fmt::format("{}, {} SMs, {} GiB, {} MiB of L2, at most {} MHz; memory {} MHz, {} bits",
                     html_text(device.architecture), device.sm_count, device.memory_gib, device.l2_mib,
                     device.sm_clock_mhz, device.memory_clock_mhz, device.memory_bus_bits);
}

std::string overview_row(const TuningRecord& record, const Ceiling& ceiling) {
  const double tflops = chosen_tflops(record);
  const bool stays = record.chosen == record.default_variant;
  return fmt::format(
      "<tr><td><a href=\"#{}\">{}</a></td><td>{}</td><td>{}</td><td class=\"number\">{}</td><td "
      "class=\"number\">{}</td>"
      "<td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>\n",
      html_text(anchor_of(record)), html_text(to_string(record.problem)), html_text(to_string(record.bucket)),
      shape_text(record.shape), record.chosen_us > 0 ? fmt::format("{:.1f}", record.chosen_us) : "",
      stays ? "" : fmt::format("{:+.1f} %", 100 * (speedup(record) - 1)),
      tflops > 0 ? fmt::format("{:.0f}", tflops) : "", share_text(tflops, ceiling),
      stays ? "the default" : "<code>" + html_text(to_string(record.chosen)) + "</code>");
}

std::string overview(const ReportDevice& device) {
  double sum_of_logs = 0;
  int stayed = 0;
  std::string rows;
  for (const TuningRecord& record : device.records) {
    sum_of_logs += std::log(speedup(record));
    stayed += record.chosen == record.default_variant;
    rows += overview_row(record, device.ceiling);
  }
  const auto count = static_cast<double>(device.records.size());
  return fmt::format(
      "<p>{} records. {:.3f} times the rate of the defaults (geometric mean); in {} of them the default stays.</p>\n"
      "<div class=\"scroll\"><table class=\"list\"><tr><th>problem</th><th>bucket</th><th>measured with</th>"
      "<th class=\"number\">µs</th><th class=\"number\">gain</th><th class=\"number\">TFLOPS</th>"
      "<th class=\"number\">of the ceiling</th><th>chosen</th></tr>\n{}</table></div>\n",
      device.records.size(), std::exp(sum_of_logs / count), stayed, rows);
}

std::string device_section(const ReportDevice& device) {
  if (device.records.empty()) {
    return fmt::format("<section><h2>{}</h2>\n<p>There are no records of it.</p></section>\n", html_text(device.name));
  }
  const DeviceIdentity& identity = device.records.front().device;
  std::string html = fmt::format("<section><h2>{}</h2>\n<p class=\"soft\">{}</p>\n", html_text(identity.name),
                                 identity_words(identity));
  if (device.ceiling.tflops > 0) {
    html += fmt::format("<p class=\"soft\">The ceiling is {:.0f} TFLOPS: {}.</p>\n", device.ceiling.tflops,
                        html_text(device.ceiling.name));
  }
  html += overview(device);
  for (const TuningRecord& record : device.records) html += record_article(record, device.ceiling);
  return html + "</section>\n";
}

}  // namespace

std::string tuning_report(const std::vector<ReportDevice>& devices, const std::string& subtitle) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>What tuning found</title>\n"
      "<style>{}</style></head>\n<body>\n<h1>What tuning found</h1>\n<p class=\"soft\">{}</p>\n{}",
      kReportStyle, html_text(subtitle), kExplanation);
  for (const ReportDevice& device : devices) html += device_section(device);
  return html + "</body></html>\n";
}

}  // namespace flashjit::cli
