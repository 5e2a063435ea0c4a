// SPDX-License-Identifier: Apache-2.0
// The grammar of the command: the same words everywhere, help where it is looked for, and errors that say what to type.
#include <doctest/doctest.h>
#include <flashjit/version.h>
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using namespace flashjit::tests;
using nlohmann::json;

Outcome run(const std::string& arguments) {
  const TemporaryDirectory directory;
  return run_command(directory.path(), kBareEnvironment, arguments);
}

std::string refusal(const std::string& arguments) { return expect_refusal(arguments, run(arguments)); }

// Subcommands, and those of cache, as --help lists them.
std::vector<std::string> subcommands(const std::string& path) {
  std::istringstream help(run(path + " --help").out);
  std::vector<std::string> found;
  bool listing = false;
  for (std::string line; std::getline(help, line); listing = line == "Subcommands:" || (listing && !line.empty())) {
    std::smatch match;
    if (listing && std::regex_search(line, match, std::regex("^  (\\w+) "))) found.push_back(match[1]);
  }
  return found;
}

std::vector<std::string> long_options(const std::string& path) {
  const std::string help = run(path + " --help").out;
  const std::regex option("\n  (?:-\\w,)?(--[a-z0-9-]+)");
  std::vector<std::string> found;
  for (std::sregex_iterator each(help.begin(), help.end(), option), end; each != end; ++each)
    found.push_back((*each)[1]);
  return found;
}

// What bash offers behind these words.
std::set<std::string> completions(const std::vector<std::string>& words) {
  const TemporaryDirectory directory;
  write_bytes(directory / "script", run("completion bash").out);
  std::string quoted;
  for (const std::string& word : words) quoted += fmt::format(" '{}'", word);
  write_bytes(directory / "try",
              fmt::format("compopt() {{ :; }}\nsource ./script\nCOMP_WORDS=({})\nCOMP_CWORD={}\n_flashjit\n"
                          "printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
                          quoted, words.size() - 1));
  const std::string line = fmt::format("cd '{}' && bash -u try >out 2>err", directory.path().string());
  CHECK(std::system(line.c_str()) == 0);
  CHECK(read_bytes(directory / "err").empty());
  std::istringstream out(read_bytes(directory / "out"));
  std::set<std::string> found;
  for (std::string word; std::getline(out, word);)
    if (!word.empty()) found.insert(word);
  return found;
}

using Words = std::set<std::string>;

}  // namespace

TEST_CASE("a problem is spelled in one way by all subcommands") {
  const std::string problem = "--dtype f16 --head-dim 192x128 --mask causal";
  CHECK(json::parse(run("variants --arch sm_90a --json " + problem).out).at("problem") == "fwd-f16-d192-v128-causal");
  CHECK(mentions(run("render --arch sm_90a " + problem).out, "fwd-f16-d192-v128-causal"));
  CHECK(mentions(refusal("compile --arch sm_90a " + problem), "libnvrtc"));  // all is read before NVRTC is wanted
  CHECK(
      mentions(refusal("compile --arch sm_90a --dtype f16,bf16 --head-dim 64,192x128 --mask full,causal"), "libnvrtc"));
  const auto verify = run("verify --device emulate " + problem);  // no refusal(): progress comes first on slow machines
  CHECK(verify.exit_code == 2);
  CHECK(verify.out.empty());
  CHECK(mentions(verify.err, "libnvrtc"));
  CHECK(mentions(refusal("autotune --seqlen 512 " + problem), "needs a GPU"));
}

TEST_CASE("a window is spelled in one way by all subcommands, beside either mask") {
  const auto problem = [](const std::string& masks) {
    return json::parse(run("variants --arch sm_90a --head-dim 64 --json " + masks).out).at("problem");
  };
  CHECK(problem("--window 1024,64") == "fwd-bf16-d64-window");
  CHECK(problem("--window -1,64") == "fwd-bf16-d64-window");
  CHECK(problem("--window=64,-1") == "fwd-bf16-d64-window");
  CHECK(problem("--window 1024,0") == "fwd-bf16-d64-causal-window");
  CHECK(problem("--window 1024,64 --mask causal") == "fwd-bf16-d64-causal-window");
  CHECK(problem("--window -1,-1") == "fwd-bf16-d64");
  CHECK(problem("--window -1,0") == "fwd-bf16-d64-causal");
  CHECK(mentions(refusal("compile --arch sm_90a --window 1024,0"), "libnvrtc"));
  CHECK(mentions(refusal("autotune --seqlen 512 --window 1024,0"), "needs a GPU"));
  const auto verify = run("verify --device emulate --head-dim 64 --dtype bf16 --window 5,3");
  CHECK(verify.exit_code == 2);
  CHECK(verify.out.empty());
  CHECK(mentions(verify.err, "libnvrtc"));
}

TEST_CASE(
    "chunks, a cap, ALiBi and sinks are spelled in one way by all subcommands, and of a number only its presence is "
    "the "
    "problem's") {
  const auto problem = [](const std::string& features) {
    return json::parse(run("variants --arch sm_90a --head-dim 64 --json " + features).out).at("problem");
  };
  CHECK(problem("--chunk 8192") == "fwd-bf16-d64-chunk");
  CHECK(problem("--chunk 1 --mask causal") == "fwd-bf16-d64-causal-chunk");
  CHECK(problem("--chunk 0") == "fwd-bf16-d64");
  CHECK(problem("--sinks") == "fwd-bf16-d64-sinks");
  CHECK(problem("--softcap 30") == "fwd-bf16-d64-softcap");
  CHECK(problem("--softcap 1e-6") == "fwd-bf16-d64-softcap");
  CHECK(problem("--softcap 0") == "fwd-bf16-d64");
  CHECK(problem("--alibi") == "fwd-bf16-d64-alibi");
  CHECK(problem("--sinks --alibi --softcap 50 --chunk 8192 --window 1024,0") ==
        "fwd-bf16-d64-causal-window-chunk-softcap-alibi-sinks");
  CHECK(problem("--bias") == "fwd-bf16-d64-bias.bf16");
  CHECK(problem("--bias --dtype f16") == "fwd-f16-d64-bias.f16");
  CHECK(problem("--dropout 0.1 --dropout-seed 3 --dropout-offset 18446744073709551615 --dropout-mask") ==
        "fwd-bf16-d64-dropout-dropout_mask");
  CHECK(problem("--dropout 0") == "fwd-bf16-d64");
  CHECK(problem("--ragged") == "fwd-bf16-d64-ragged");
  CHECK(problem("--paged") == "fwd-bf16-d64-ragged-paged");
  CHECK(problem("--bias --bias-dtype f32 --boolean-mask --documents --tree") ==
        "fwd-bf16-d64-bias.f32-boolean_mask-documents-tree");
  CHECK(problem("--prefix --mask causal --window 9,-1") == "fwd-bf16-d64-window-prefix");
  CHECK(mentions(refusal("variants --arch sm_90a --prefix --window 9,4"),
                 "--window: right must be -1 with prefix, which shows keys behind the query, was 4"));
  CHECK(mentions(refusal("variants --arch sm_90a --bias-dtype f32"), "--bias"));
  const std::string features = "--chunk 256 --softcap 30 --alibi --sinks";
  CHECK(mentions(run("render --arch sm_90a " + features).out, "fwd-bf16-d128-chunk-softcap-alibi-sinks"));
  CHECK(mentions(refusal("compile --arch sm_90a " + features), "libnvrtc"));
  CHECK(mentions(refusal("autotune --seqlen 512 " + features), "needs a GPU"));
  const auto verify = run("verify --device emulate --head-dim 64 --dtype bf16 " + features);
  CHECK(verify.exit_code == 2);
  CHECK(verify.out.empty());
  CHECK(mentions(verify.err, "libnvrtc"));
}

TEST_CASE("what is no chunk is refused by all subcommands") {
  for (const char* subcommand : {"render --arch sm_90a", "variants --arch sm_90a", "compile --arch sm_90a", "verify",
                                 "autotune --seqlen 512", "attend q k v -o o --device cpu"}) {
    for (const char* text : {"-1", "8k", "1.5", "2147483648"})
      CHECK(mentions(refusal(fmt::format("{} --chunk={}", subcommand, text)),
                     fmt::format("--chunk: must be a whole number from 0 to 2147483647, was '{}'", text)));
    CHECK(mentions(refusal(fmt::format("{} --chunk ''", subcommand)), "--chunk: must not be empty"));
  }
}

TEST_CASE("what is no cap is refused by all subcommands") {
  for (const char* subcommand : {"render --arch sm_90a", "variants --arch sm_90a", "compile --arch sm_90a", "verify",
                                 "autotune --seqlen 512", "attend q k v -o o --device cpu"}) {
    const auto refusal_of = [&](const char* cap) { return refusal(fmt::format("{} --softcap {}", subcommand, cap)); };
    for (const char* text : {"-1", "2000000", "1e-07"})
      CHECK(mentions(refusal_of(text),
                     fmt::format("flashjit: --softcap: must be from 1e-06 to 1000000, or 0 for none, was {}", text)));
    for (const char* text : {"nan", "inf", "wide"})
      CHECK(mentions(refusal_of(text), "--softcap: must be a finite number"));
  }
}

TEST_CASE("what is no window is refused by all subcommands") {
  for (const char* subcommand :
       {"render --arch sm_90a", "variants --arch sm_90a", "compile --arch sm_90a", "verify", "autotune --seqlen 512"}) {
    const auto refusal_of = [&](const char* window) {
      return refusal(fmt::format("{} --window '{}'", subcommand, window));
    };
    for (const char* text : {"5", "none", "5;0", "5x0"})
      CHECK(mentions(refusal_of(text),
                     fmt::format("--window: must be like 1024,0 or -1,64: keys before and after, was '{}'", text)));
    constexpr const char* kLeft = "--window: left: must be a whole number from -1 to 9223372036854775807, was ";
    constexpr const char* kRight = "--window: right: must be a whole number from -1 to 9223372036854775807, was ";
    CHECK(mentions(refusal_of("a,b"), std::string(kLeft) + "'a'"));
    CHECK(mentions(refusal_of("-2,0"), std::string(kLeft) + "'-2'"));
    CHECK(mentions(refusal_of("9223372036854775808,0"), std::string(kLeft) + "'9223372036854775808'"));
    CHECK(mentions(refusal_of(",0"), std::string(kLeft) + "''"));
    CHECK(mentions(refusal_of("0,-2"), std::string(kRight) + "'-2'"));
    CHECK(mentions(refusal_of("1,2,3"), std::string(kRight) + "'2,3'"));
    CHECK(mentions(refusal_of("1,"), std::string(kRight) + "''"));
    CHECK(mentions(refusal_of("1, 2"), std::string(kRight) + "' 2'"));
    CHECK(mentions(refusal_of(""), "--window: must not be empty"));
  }
}

TEST_CASE("one problem is no list, and wrong words are refused by all subcommands") {
  for (const char* subcommand : {"render --arch sm_90a", "variants --arch sm_90a", "attend q k v -o o --device cpu"}) {
    CHECK(mentions(refusal(fmt::format("{} --mask full,causal", subcommand)),
                   "--mask: must be full or causal, was 'full,causal'"));
    CHECK(mentions(refusal(fmt::format("{} --dtype bf16,f16", subcommand)), "--dtype: must be bf16 or f16"));
  }
  for (const char* subcommand :
       {"render --arch sm_90a", "variants --arch sm_90a", "compile --arch sm_90a", "verify", "autotune --seqlen 512"}) {
    CHECK(mentions(refusal(fmt::format("{} --mask casual", subcommand)),
                   "--mask: must be full or causal, was 'casual'; did you mean 'causal'?"));
    CHECK(mentions(refusal(fmt::format("{} --head-dim 12", subcommand)),
                   "--head-dim: that of q and k must be a multiple of 8 from 8 to 576, was 12"));
    CHECK(mentions(refusal(fmt::format("{} --head-dim 64x520", subcommand)),
                   "--head-dim: that of v must be a multiple of 8 from 8 to 512, was 520 in '64x520'"));
    CHECK(mentions(refusal(fmt::format("{} --head-dim 576", subcommand)),
                   "--head-dim: that of v must be a multiple of 8 from 8 to 512, was 576"));
    for (const char* dims : {"64abc", "64x", "x64", "64x64x64", "1e2", "99999999999"})
      CHECK(mentions(
          refusal(fmt::format("{} --head-dim {}", subcommand, dims)),
          fmt::format("--head-dim: must be like 64, or 192x128 for 192 of q and k and 128 of v, was '{}'", dims)));
  }
  CHECK(mentions(refusal("render --arch sm_90a --head-dim 64,128"), "--head-dim: must be like 64"));
}

TEST_CASE("an old spelling is refused with the new one") {
  for (const char* subcommand : {"render", "variants", "attend", "compile", "verify", "autotune"})
    CHECK(
        mentions(refusal(fmt::format("{} {} --causal", subcommand, mentions(subcommand, "attend") ? "q k v -o o" : "")),
                 "--causal is no option any more: masks are chosen with --mask: full, causal"));
  CHECK(mentions(refusal("compile --causal both"), "--mask: full, causal"));
  CHECK(mentions(refusal("compile --arch sm_80 --mask both"),
                 "--mask: must be full,causal for both of them, was 'both'"));
  CHECK(mentions(refusal("render --head-dim 192 --head-dim-v=128"), "--head-dim takes both: 192x128"));
  CHECK(mentions(refusal("info --causal"), "--causal: must be an option of 'flashjit info'"));
}

TEST_CASE("numbers that are empty, half a number, negative or too large are refused with option, range and text") {
  for (const auto& [arguments, option] :
       std::vector<std::pair<std::string, std::string>>{{"compile --arch sm_80", "--jobs"},
                                                        {"verify", "--schedules"},
                                                        {"verify", "--jobs"},
                                                        {"verify", "--seed"},
                                                        {"autotune --seqlen 512", "--batch"},
                                                        {"autotune --seqlen 512", "--heads"},
                                                        {"autotune --seqlen 512", "--heads-kv"},
                                                        {"autotune --seqlen 512", "--budget"},
                                                        {"autotune --seqlen 512", "--jobs"},
                                                        {"bench --grid jit", "--repeats"}}) {
    CHECK(mentions(refusal(fmt::format("{} {} ''", arguments, option)), option + ": must not be empty"));
    for (const char* text : {"4k", "1e3", "-1", "1.5", "0x4", "99999999999999999999999"}) {
      const std::string message = refusal(fmt::format("{} {}={}", arguments, option, text));
      CAPTURE(message);
      CHECK(mentions(message, option + ": must be a whole number from "));
      CHECK(mentions(message, fmt::format(", was '{}'", text)));
    }
  }
  CHECK(mentions(refusal("autotune --seqlen 512 --batch -4"), "--batch"));
  CHECK(mentions(refusal("attend q k v -o o --scale ''"), "--scale: must not be empty"));
  CHECK(mentions(refusal("attend q k v -o o --scale 1,5"),
                 "--scale: must be a finite number that f32 can hold, such as 0.125, was '1,5'"));
  for (const char* text : {"1e-50", "1e39", "inf", "nan", "0x1"})
    CHECK(mentions(refusal(fmt::format("attend q k v -o o --scale {}", text)), "a finite number that f32 can hold"));
  CHECK(mentions(refusal("render --arch sm_90a --head-dim 0x40"), "from 8 to 576, was 0 in '0x40'"));
  CHECK(mentions(refusal("compile --arch ''"), "--arch: must not be empty"));
  CHECK(mentions(refusal("cache inspect ''"), "ENTRY: must not be empty"));
}

TEST_CASE("what a terminal would obey, and what nobody reads to its end, is not repeated") {
  CHECK(mentions(refusal("cache ls --layer \"$(printf 'a\\033[31mb\\302\\233c\\rd')\""), "was 'a [31mb c d'"));
  const std::string message = refusal("render --arch sm_90a --variant $(head -c 100000 /dev/zero | tr '\\0' x)");
  CHECK(message.size() < 1000);
  CHECK(mentions(message, "xxx…xxx"));
  CHECK(refusal("$(head -c 100000 /dev/zero | tr '\\0' x)").size() < 1000);
}

TEST_CASE("an error of the command line says whose help to read, and what was probably meant") {
  const std::vector<std::vector<std::string>> cases = {
      {"complie", "'complie': must be a subcommand of 'flashjit'; did you mean 'compile'?", "flashjit --help"},
      {"cache lst", "'lst': must be a subcommand of 'flashjit cache'; did you mean 'ls'?", "flashjit cache --help"},
      {"compile --hed-dim 64", "--hed-dim: must be an option of 'flashjit compile'; did you mean '--head-dim'?",
       "flashjit compile --help"},
      {"cache ls --lyaer user", "did you mean '--layer'?", "flashjit cache ls --help"},
      {"cache ls --layer usr", "--layer: must be user, system, bundle or embedded, was 'usr'; did you mean 'user'?",
       "flashjit cache ls --help"},
      {"info now", "'now': must not be there, 'flashjit info' takes no further argument", "flashjit info --help"},
      {"compile render", "'render': must not be there", "flashjit compile --help"},
      {"--verbose info", "--verbose: must stand behind 'flashjit info', whose option it is", "flashjit --help"},
      {"version", "did you mean '--version'?", "flashjit --help"},
      {"tune", "did you mean 'autotune'?", "flashjit --help"},
      {"--versoin info", "did you mean '--version'?", "flashjit --help"},
      {"bench", "--grid is required", "flashjit bench --help"},
      {"bench --grid froward", "did you mean 'forward'?", "flashjit bench --help"},
      {"compile --jobs", "--jobs: must have a value (N) behind it", "flashjit compile --help"},
      {"attend q k v --lse --check", "--lse: must have a value (FILE) behind it, was the option --check",
       "flashjit attend --help"},
      {"render --head-dim= -o x.cu", "--head-dim: must have a value", "flashjit render --help"},
      {"compile --bundle --json", "--bundle: must have a value", "flashjit compile --help"},
      {"compile --jobs 2 --jobs 3", "--jobs: must be given once, was given 2 times", "flashjit compile --help"},
      {"info --json=no", "--json: must be given without a value", "flashjit info --help"},
      {"autotune --head-dim 64", "--seqlen", "flashjit autotune --help"},
      {"autotune --shapes f --mask full", "--mask", "flashjit autotune --help"},
      {"autotune --shapes f --window 5,0", "--window requires --seqlen", "flashjit autotune --help"},
      {"autotune --grid forward --window 5,0", "--window requires --seqlen", "flashjit autotune --help"},
      {"autotune --grid forward --softcap 5", "--softcap requires --seqlen", "flashjit autotune --help"},
      {"autotune --grid forward --chunk 5", "--chunk requires --seqlen", "flashjit autotune --help"},
      {"autotune --shapes f --sinks", "--sinks requires --seqlen", "flashjit autotune --help"},
      {"autotune --shapes f --alibi", "--alibi requires --seqlen", "flashjit autotune --help"},
      {"attend q k v -o o --alibi", "did you mean '--alibi-slopes'?", "flashjit attend --help"},
      {"attend q k v -o o --sinks", "--sinks: must have a value (FILE) behind it", "flashjit attend --help"},
      {"verify --sinks=s.npy", "--sinks: must be given without a value", "flashjit verify --help"},
      {"attend q k v -o o --window", "--window: must have a value (LEFT,RIGHT) behind it", "flashjit attend --help"},
      {"help complie", "did you mean 'compile'?", "flashjit --help"},
      {"help cache lst", "did you mean 'ls'?", "flashjit cache --help"},
      {"completion tcsh", "SHELL: must be bash, zsh or fish, was 'tcsh'", "flashjit completion --help"}};
  for (const std::vector<std::string>& each : cases) {
    const std::string message = refusal(each.at(0));
    CAPTURE(message);
    CHECK(mentions(message, each.at(1)));
    CHECK(mentions(message, "(see " + each.at(2) + ")"));
  }
}

TEST_CASE("a mistyped target or part of a variant comes back with the right one") {
  CHECK(mentions(refusal("render --arch sm_90"), "was 'sm_90'; did you mean 'sm_90a'?"));
  CHECK(mentions(refusal("render --arch sm_90a --variant hopper-2stag"), "did you mean '2stage'?"));
  CHECK(mentions(refusal("render --arch sm_90a --variant mma-q64-q128"),
                 "--variant: must have one part for each tunable, "
                 "but has 'q64' and 'q128' in 'mma-q64-q128'"));
}

TEST_CASE("the command alone shows its help, as an error") {
  for (const std::string path : {"", "cache"}) {
    const Outcome alone = run(path);
    CHECK(alone.exit_code == 2);
    CHECK(alone.out.empty());
    CHECK(alone.err == run(path + " --help").out);
  }
}

TEST_CASE("help is found by word and by option, the version by two") {
  CHECK(run("help").out == run("--help").out);
  for (const std::string& name : subcommands("")) {
    CHECK(run("help " + name).out == run(name + " --help").out);
    CHECK(run(name + " -h").out == run(name + " --help").out);
  }
  CHECK(run("help cache ls").out == run("cache ls --help").out);
  CHECK(run("-V").out == fmt::format("flashjit {}\n", version()));
  CHECK(run("--version").out == run("-V").out);
}

TEST_CASE("bash completes subcommands, options and words") {
  CHECK(completions({"flashjit", "com"}) == Words{"compile", "completion"});
  CHECK(completions({"flashjit", "cache", "in"}) == Words{"inspect"});
  CHECK(completions({"flashjit", "render", "--mask", ""}) == Words{"full", "causal"});
  CHECK(completions({"flashjit", "render", "--mask", "=", "c"}) == Words{"causal"});
  CHECK(completions({"flashjit", "render", "--arch", "sm_9"}) == Words{"sm_90a"});
  CHECK(completions({"flashjit", "bench", "--grid", "f"}) == Words{"forward"});
  CHECK(completions({"flashjit", "completion", ""}) == Words{"bash", "zsh", "fish"});
  CHECK(completions({"flashjit", "attend", "q.npy", "--sc"}) == Words{"--score", "--scale"});
  CHECK(completions({"flashjit", "cache", "verify", "--s"}) == Words{"--set-aside"});
  CHECK(completions({"flashjit", "verify", "--s"}) ==
        Words{"--schedules", "--score", "--seed", "--sinks", "--softcap"});
  CHECK(completions({"flashjit", "compile", "--jobs", ""}).empty());
}

TEST_CASE("every option that --help lists is completed, in every shell") {
  const std::string zsh = run("completion zsh").out, fish = run("completion fish").out;
  std::vector<std::string> paths = {""};
  for (const std::string& name : subcommands("")) paths.push_back(name);
  for (const std::string& name : subcommands("cache")) paths.push_back("cache " + name);
  CHECK(paths.size() > 18);
  for (const std::string& path : paths) {
    std::istringstream stream("flashjit " + path);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    words.push_back("--");
    const std::set<std::string> offered = completions(words);
    const std::vector<std::string> options = long_options(path);
    CAPTURE(path);
    CHECK(offered == std::set<std::string>(options.begin(), options.end()));
    for (const std::string& option : options) {
      CHECK(mentions(zsh, "'" + option + "["));
      CHECK(mentions(fish, " -l " + option.substr(2) + " "));
    }
  }
}

TEST_CASE("the shells read their scripts") {
  const TemporaryDirectory directory;
  for (const auto& [shell, command] : std::vector<std::pair<std::string, std::string>>{
           {"bash", "bash -uc '. ./bash'"},
           {"zsh", "zsh -fc 'autoload -Uz compinit && compinit -uD && . ./zsh'"},
           {"fish", "fish -c '. ./fish'"}}) {
    if (std::system(fmt::format("command -v {} >/dev/null", shell).c_str()) != 0) {
      MESSAGE("skipped: there is no " << shell);
      continue;
    }
    write_bytes(directory / shell, run("completion " + shell).out);
    const std::string line = fmt::format("cd '{}' && HOME=. {} 2>err", directory.path().string(), command);
    CHECK(std::system(line.c_str()) == 0);
    CHECK(read_bytes(directory / "err") == "");
  }
}
