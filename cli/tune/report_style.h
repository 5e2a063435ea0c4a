// SPDX-License-Identifier: Apache-2.0
// How the page of flashjit autotune --report looks, in light and in dark.
#pragma once

namespace flashjit::cli {

inline constexpr const char* kReportStyle = R"(
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1d2326; --soft: #5d676c; --line: #dcdfdd; --card: #ffffff;
  --fast: 38 150 92; --accent: #0b6bb8; --bad: #a8442a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181a; --ink: #e6eaeb; --soft: #98a3a8; --line: #2e3639;
  --card: #1b2123; --fast: 52 178 112; --accent: #6cb8f5; --bad: #ef8d70; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1.1rem; margin: 0 0 .25rem; } h4 { font-size: .95rem; margin: 1.25rem 0 .4rem; }
p { margin: .3rem 0; max-width: 60rem; } .soft { color: var(--soft); } .bad { color: var(--bad); }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
code { font: 12.5px/1.5 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.25rem;
  margin: 1rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { font-weight: 600; color: var(--soft); font-size: .85rem; text-align: left; }
th, td { padding: .25rem .7rem .25rem 0; vertical-align: top; }
table.list tr + tr > * { border-top: 1px solid var(--line); }
td.number, th.number { text-align: right; white-space: nowrap; }
td code { display: inline-block; min-width: 18rem; }
table.heat { border-collapse: separate; border-spacing: 3px; }
table.heat th, table.heat td { padding: .35rem .6rem; text-align: right; }
table.heat td { border: 2px solid transparent; border-radius: 6px; min-width: 5rem;
  background: rgb(var(--fast) / var(--heat, 0)); }
table.heat td small { display: block; color: var(--soft); }
table.heat td.winner { border-color: var(--accent); font-weight: 650; }
table.heat td.none { color: var(--soft); background: none; text-align: center; }
svg.bar { display: block; width: 16rem; max-width: 40vw; height: .8rem; margin-top: .3rem; }
svg.bar rect { fill: rgb(var(--fast) / .75); } svg.bar rect.back { fill: var(--line); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
.side { display: flex; flex-wrap: wrap; gap: 0 3rem; }
details { margin-top: 1rem; } summary { cursor: pointer; color: var(--accent); }
@media print { body { max-width: none; } article { break-inside: avoid; } }
)";

}  // namespace flashjit::cli
