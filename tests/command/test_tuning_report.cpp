// SPDX-License-Identifier: Apache-2.0
// The page of flashjit autotune --report, and how it sees a record.
#include <doctest/doctest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "cli/io/html.h"
#include "cli/tune/landscape.h"
#include "cli/tune/report.h"
#include "cli/tune/report_record.h"
#include "cli/tune/table.h"
#include "tests/support/tuning_records.h"

namespace {

using namespace flashjit;
using namespace flashjit::tests;

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

// Empty when every element is closed in the right order; else what is wrong.
std::string why_unbalanced(const std::string& html) {
  static const std::regex tag(R"re(<(/?)([a-zA-Z0-9!]+)((?:[^>"]|"[^"]*")*?)(/?)>)re");
  static const std::vector<std::string> open_only = {"!DOCTYPE", "meta", "br"};
  std::vector<std::string> open;
  std::string rest = html;
  const std::size_t style = rest.find("<style>") + 7;  // CSS has no tags, but signs that look like some
  rest.erase(style, rest.find("</style>") - style);
  for (std::sregex_iterator it(rest.begin(), rest.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if ((*it)[4] == "/" || std::count(open_only.begin(), open_only.end(), name) != 0) continue;
    if ((*it)[1] != "/") {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

std::string page_of(const std::vector<TuningRecord>& records) {
  return cli::tuning_report({{"Sample", {1070, "a ceiling <computed>"}, records}}, "flashjit 0.1.0 & more");
}

}  // namespace

TEST_CASE("text in a page cannot become markup") {
  CHECK(cli::html_text("a<b>&\"c") == "a&lt;b&gt;&amp;&quot;c");
  const std::string page = page_of({sample_record()});
  CHECK(mentions(page, "Sample &lt;GPU&gt; &amp; Co"));
  CHECK(mentions(page, "row 3: 1 &gt; 0.5 &amp; &lt;more&gt;"));
  CHECK(!mentions(page, "<GPU>"));
  CHECK(!mentions(page, "<more>"));
}

TEST_CASE("the page is well-formed and asks nothing of the network") {
  TuningRecord brief = sample_record({DType::f16, 64, 64, true});  // as records are that ship inside the library
  brief.candidates.clear();
  brief.chosen_us = brief.default_us = 0;
  brief.shape = {};
  for (const std::string& page : {page_of({}), page_of({sample_record()}), page_of({sample_record(), brief})}) {
    CHECK(why_unbalanced(page) == "");
    CHECK(mentions(page, "<title>"));
    for (const char* outside : {"http", "//", "<script", "<link", "<img", "url(", "@import", " src="}) {
      CAPTURE(outside);
      CHECK(!mentions(page, outside));
    }
    CHECK(!mentions(page, "nan"));
    CHECK(!mentions(page, "inf "));
  }
}

TEST_CASE("the page shows every candidate, the winner, the default, the gain and the share of the ceiling") {
  const TuningRecord record = sample_record();
  const std::string page = page_of({record});
  for (const TunedCandidate& candidate : record.candidates) {
    CAPTURE(to_string(candidate.variant));
    CHECK(mentions(page, "<code>" + to_string(candidate.variant) + "</code>"));
    CHECK(mentions(page, cli::html_text(candidate.why)));
  }
  CHECK(mentions(page, "6.9 % faster than the default, which is more than the noise of 1.2 %"));
  CHECK(mentions(page, "734 TFLOPS, 69 % of the ceiling"));
  CHECK(mentions(page, "a ceiling &lt;computed&gt;"));
  CHECK(mentions(page, "Not timed: 5"));
  CHECK(count(page, "class=\"winner\"") == 1);
  CHECK(mentions(page, "more than 128 queries, 8192 keys and more, more than 4 tiles for each SM"));
}

TEST_CASE("a causal mask counts as half, of chunks too, but not beside a window") {
  const auto tflops_of = [](const Problem& problem) { return cli::chosen_tflops(sample_record(problem)); };
  const double whole = tflops_of({});
  REQUIRE(whole > 0);
  CHECK(tflops_of({.chunk = true}) == whole);
  CHECK(tflops_of({.causal = true}) == whole / 2);
  CHECK(tflops_of({.causal = true, .chunk = true}) == whole / 2);
  CHECK(tflops_of({.causal = true, .window = true}) == whole);
}

TEST_CASE("the page says when the default stays, when there is no record and when one is unfinished") {
  TuningRecord record = sample_record();
  record.chosen = record.default_variant;
  record.chosen_us = record.default_us;
  record.environment.back().second = "budget";
  const std::string page = page_of({record});
  CHECK(mentions(page, "the default stays"));
  CHECK(mentions(page, "unfinished"));
  record.candidates.clear();
  CHECK(mentions(page_of({record}), "ships with the library"));
  record.chosen_us = 0;
  CHECK(mentions(page_of({record}), "its times are not known"));
  CHECK(mentions(page_of({}), "There are no records"));
  CHECK(!mentions(page_of({sample_record()}), "unfinished"));
}

TEST_CASE("a landscape has the fastest variant of each tile, and a hole where nothing was timed") {
  const TuningRecord record = sample_record();
  const std::vector<cli::TileLandscape> families = cli::tile_landscapes(record);
  REQUIRE(families.size() == 2);
  const cli::TileLandscape& hopper = families[0];
  CHECK(hopper.family == "hopper");
  CHECK(hopper.blocks_q == std::vector{128, 192});
  CHECK(hopper.blocks_kv == std::vector{64, 80, 96, 128});
  CHECK(hopper.at(0, 3).measured == 2);
  CHECK(hopper.at(0, 3).candidate == &record.candidates[2]);
  CHECK(hopper.at(1, 1).candidate == &record.candidates[1]);
  CHECK(hopper.at(1, 0).candidate == nullptr);
  CHECK(families[1].family == "mma");
  CHECK(cli::best_us(record) == 750);
}

TEST_CASE("schemes are compared by the best variant of each, pipelines and ping-pong in the order of the enums") {
  const TuningRecord record = sample_record();
  std::vector<std::string> names;
  for (const cli::OverlapScheme& scheme : cli::overlap_schemes(record)) names.push_back(scheme.name);
  CHECK(names == std::vector<std::string>{"hopper, serial, ping-pong in the softmax",
                                          "hopper, 2-stage, ping-pong in the products",
                                          "hopper, 3-stage, ping-pong in the products", "mma, overlap"});
  CHECK(cli::overlap_schemes(record)[1].best.candidate == &record.candidates[1]);
  CHECK(cli::dropped_candidates(record).size() == 5);
}
