// SPDX-License-Identifier: Apache-2.0
// flashjit::Cache: the cache as an operator sees it. Entries are those of a compiler that is none.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cache/bundle.h"
#include "flashjit/cache.h"
#include "flashjit/error.h"
#include "flashjit/version.h"
#include "tests/support/cache_entries.h"
#include "tests/support/error_code.h"
#include "tests/support/fake_kernels.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::code_of;
using tests::FakeKernel;
using tests::make_fake_kernels;
using tests::TemporaryDirectory;
namespace fs = std::filesystem;

EngineOptions options_in(const fs::path& directory) {
  EngineOptions options;
  options.cache_directory = directory.string();
  return options;
}

void flip_last_byte(const fs::path& file) {
  std::string bytes = tests::read_bytes(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  tests::write_bytes(file, bytes);
}

const std::vector<FakeKernel> kTwo = {{64, "sm_80"}, {128, "sm_90a"}};

}  // namespace

TEST_CASE("a cache has the layers of an engine with the same options, in their order") {
  const TemporaryDirectory user, system, other;
  make_fake_kernels(options_in(user.path()), kTwo);
  make_fake_kernels(options_in(system.path()), {{64, "sm_80"}});
  REQUIRE(::chmod(system.path().c_str(), 0775) == 0);
  const std::string bundle = make_fake_kernels({}, kTwo);
  tests::write_bytes(other / "a.fjb", bundle);

  EngineOptions options = options_in(user.path());
  options.policy = Policy::off;  // what an engine would look at makes no difference
  options.system_cache_directories = {system.path().string(), (other / "missing").string()};
  options.bundles = {(other / "a.fjb").string(), (other / "missing.fjb").string()};
  options.embedded_bundles = {bundle, bundle};
  const std::vector<CacheLayerInfo> layers = Cache(options).layers();
  REQUIRE(layers.size() == 7);
  CHECK(layers[0].layer == CacheLayer::user);
  CHECK(layers[0].location == user.path().string());
  CHECK(layers[0].entries == 2);
  CHECK(layers[0].bytes > 0);
  CHECK(layers[0].problem.empty());
  CHECK(layers[1].layer == CacheLayer::system);
  CHECK(layers[1].problem == system.path().string() + ": must not be writable by others, has mode 0775");
  CHECK(layers[1].entries == 0);
  CHECK(layers[2].problem.empty());
  CHECK(layers[3].layer == CacheLayer::bundle);
  CHECK(layers[3].entries == 2);
  CHECK(layers[4].problem.starts_with((other / "missing.fjb").string() + ": "));
  CHECK(layers[5].layer == CacheLayer::embedded);
  CHECK(layers[5].location == "embedded");
  CHECK(layers[5].bytes == layers[3].bytes);
  CHECK(layers[6].location == "embedded 2");
}

TEST_CASE("relative directories are those below the working directory of that time") {
  const TemporaryDirectory directory;
  const fs::path before = fs::current_path();
  fs::current_path(directory.path());
  const Cache cache(options_in("below"));
  fs::current_path(before);
  CHECK(fs::equivalent(fs::path(cache.layers().at(0).location).parent_path(), directory.path()));
}

TEST_CASE("entries say what they are, those of each layer by name") {
  const TemporaryDirectory user;
  make_fake_kernels(options_in(user.path()), kTwo);
  const std::string bundle = make_fake_kernels({}, {{64, "sm_80"}});
  EngineOptions options = options_in(user.path());
  options.embedded_bundles = {bundle};
  const std::vector<CacheEntry> entries = Cache(options).entries();
  REQUIRE(entries.size() == 3);
  CHECK(entries[0].name < entries[1].name);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(entries[i].layer == CacheLayer::user);
    CHECK(fs::path(entries[i].location).filename() == entries[i].name + ".fjc");
    CHECK(fs::file_size(entries[i].location) == entries[i].bytes);
    CHECK(entries[i].last_used > 0);
    CHECK(entries[i].facts.at("compile_ms") == "412.500");
  }
  const auto same = std::find_if(entries.begin(), entries.end(),
                                 [](const CacheEntry& entry) { return entry.facts.at("architecture") == "sm_80"; });
  CHECK(entries[2].layer == CacheLayer::embedded);
  CHECK(entries[2].name == same->name);
  CHECK(entries[2].last_used == 0);
  CHECK(entries[2].facts.count("compile_ms") == 0);
  CHECK(entries[2].facts.at("problem") == "fwd-bf16-d64");
  CHECK(entries[2].facts.at("version") == version());
}

TEST_CASE("an entry whose header is damaged has no facts") {
  const TemporaryDirectory user;
  make_fake_kernels(options_in(user.path()), {{64, "sm_80"}});
  const Cache cache(options_in(user.path()));
  tests::write_bytes(cache.entries().at(0).location, "nothing of it");
  CHECK(cache.entries().at(0).facts.empty());
  CHECK(code_of([&] { cache.source(cache.entries().at(0)); }) == ErrorCode::unsupported);
}

TEST_CASE("the source of an entry is the one that it was compiled from, or it is refused") {
  const TemporaryDirectory user;
  make_fake_kernels(options_in(user.path()), {{64, "sm_80"}, {64, "sm_90a", true}});
  const Cache cache(options_in(user.path()));
  const Engine engine(EngineOptions{});
  const std::vector<CacheEntry> entries = cache.entries();
  REQUIRE(entries.size() == 2);
  for (const CacheEntry& entry : entries) {
    const std::string architecture = runtime::architecture_of(entry.facts.at("architecture"));
    const Problem problem = parse_problem(entry.facts.at("problem"));
    const bool same =
        cache.source(entry) == engine.render(problem, parse_variant(entry.facts.at("variant")), architecture);
    CHECK(same);
  }

  CacheEntry foreign = entries[0];
  foreign.facts["problem"] = "fwd-bf16-d64-causal";
  std::string message;
  CHECK(code_of([&] { cache.source(foreign); }, &message) == ErrorCode::unsupported);
  CHECK(message == foreign.name + ": its source cannot be rendered again: these templates give another one");
  for (const char* fact : {"problem", "variant", "architecture", "inputs"}) {
    CacheEntry odd = entries[0];
    odd.facts[fact] = "odd";
    CHECK(code_of([&] { cache.source(odd); }) == ErrorCode::unsupported);
    odd.facts.erase(fact);
    CHECK(code_of([&] { cache.source(odd); }) == ErrorCode::unsupported);
  }
}

TEST_CASE("sources are rendered from the templates that the options name") {
  const TemporaryDirectory user, templates;
  make_fake_kernels(options_in(user.path()), {{64, "sm_80"}});
  fs::copy(FLASHJIT_SOURCE_DIR "/templates", templates.path(), fs::copy_options::recursive);
  EngineOptions options = options_in(user.path());
  options.template_directory = templates.path().string();
  const Cache cache(options);
  CHECK_FALSE(cache.source(cache.entries().at(0)).empty());
  const fs::path kernel = templates / "kernels/mma_forward.cuh";
  tests::write_bytes(kernel, tests::read_bytes(kernel) + "// changed\n");
  CHECK(code_of([&] { cache.source(cache.entries().at(0)); }) == ErrorCode::unsupported);
  fs::remove_all(templates.path());
  CHECK(code_of([&] { cache.source(cache.entries().at(0)); }) == ErrorCode::io);
}

TEST_CASE("verify reads every entry, and sets aside what is damaged when it is told to") {
  const TemporaryDirectory user, system;
  make_fake_kernels(options_in(user.path()), kTwo);
  make_fake_kernels(options_in(system.path()), kTwo);
  std::string bundle = make_fake_kernels({}, kTwo);
  EngineOptions options = options_in(user.path());
  options.system_cache_directories = {system.path().string()};
  options.embedded_bundles = {bundle};
  const Cache cache(options);
  const CacheVerification sound = cache.verify();
  CHECK(sound.ok());
  CHECK(sound.intact == 6);
  CHECK(sound.bytes > 0);

  const std::vector<CacheEntry> entries = cache.entries();
  for (const std::size_t i : {0, 2}) flip_last_byte(entries[i].location);
  bundle.back() = static_cast<char>(bundle.back() ^ 1);
  for (const bool set_aside : {false, true}) {
    const CacheVerification result = cache.verify(set_aside);
    CHECK_FALSE(result.ok());
    CHECK(result.intact == 3);
    REQUIRE(result.damaged.size() == 3);
    CHECK(result.damaged[0].location == entries[0].location);
    CHECK(result.damaged[1].location == entries[2].location);
    CHECK(result.damaged[2].location == std::max(entries[4].location, entries[5].location));  // the last bytes are its
    CHECK(fs::exists(entries[0].location + ".bad") == set_aside);
  }
  CHECK(cache.verify().damaged.size() == 2);
  CHECK(fs::exists(entries[2].location));
}

TEST_CASE("verify tells which layers cannot be read") {
  const TemporaryDirectory user;
  REQUIRE(::chmod(user.path().c_str(), 0777) == 0);
  EngineOptions options = options_in(user.path());
  options.bundles = {(user / "missing.fjb").string()};
  const CacheVerification result = Cache(options).verify();
  CHECK_FALSE(result.ok());
  REQUIRE(result.problems.size() == 2);
  CHECK(result.problems[0].starts_with(user.path().string() + ": must not be writable by others"));
  CHECK(result.problems[1].starts_with((user / "missing.fjb").string() + ": "));
}

TEST_CASE("a bundle is verified by itself") {
  const TemporaryDirectory directory;
  const std::string bundle = make_fake_kernels({}, kTwo), file = directory / "a.fjb";
  tests::write_bytes(file, bundle);
  CHECK(Cache::verify_bundle(file).ok());
  CHECK(Cache::verify_bundle(file).intact == 2);
  flip_last_byte(file);
  const CacheVerification damaged = Cache::verify_bundle(file);
  CHECK(damaged.intact == 1);
  REQUIRE(damaged.damaged.size() == 1);
  CHECK(damaged.damaged[0].location.starts_with(file + ":"));
  CHECK(damaged.damaged[0].location.ends_with("/" + damaged.damaged[0].name + ".fjc"));
  tests::write_bytes(file, bundle.substr(0, 20));
  CHECK(Cache::verify_bundle(file).problems.size() == 1);
  CHECK_FALSE(Cache::verify_bundle(file).ok());
  std::string message;
  CHECK(code_of([&] { Cache::verify_bundle(directory / "missing.fjb"); }, &message) == ErrorCode::io);
  CHECK(message ==
        (directory / "missing.fjb").string() + ": must be a bundle that can be read, but: No such file or directory");
}

TEST_CASE("collect and clear tell what they remove, and a dry run tells the same") {
  const TemporaryDirectory user;
  make_fake_kernels(options_in(user.path()), kTwo);
  const Cache cache(options_in(user.path()));
  const std::uint64_t bytes = cache.layers().at(0).bytes;
  CHECK(cache.collect().removed.empty());
  CHECK(cache.collect().kept_entries == 2);
  CHECK(cache.collect().kept_bytes == bytes);
  for (const bool dry_run : {true, false}) {
    const CacheCollection collected = cache.collect(bytes - 1, dry_run);
    REQUIRE(collected.removed.size() == 1);
    CHECK(collected.removed[0].why == "evicted");
    CHECK(collected.removed_bytes == collected.removed[0].bytes);
    CHECK(collected.kept_entries == 1);
    CHECK(collected.kept_bytes + collected.removed_bytes == bytes);
    CHECK(cache.entries().size() == (dry_run ? 2 : 1));
  }
  for (const bool dry_run : {true, false}) {
    const CacheCollection cleared = cache.clear(dry_run);
    REQUIRE_FALSE(cleared.removed.empty());
    CHECK(cleared.removed[0].why == "cleared");
    CHECK(cleared.kept_entries == 0);
    CHECK(cache.entries().size() == (dry_run ? 1 : 0));
  }
}

TEST_CASE("what changes the user's directory needs one that may be used") {
  const TemporaryDirectory user, elsewhere;
  tests::write_bytes(elsewhere / "a.fjb", make_fake_kernels({}, kTwo));
  REQUIRE(::chmod(user.path().c_str(), 0777) == 0);
  const std::pair<EngineOptions, ErrorCode> cases[] = {{options_in(user.path()), ErrorCode::io},
                                                       {options_in(elsewhere / "a.fjb"), ErrorCode::io},
                                                       {EngineOptions{}, ErrorCode::invalid_argument}};
  for (const auto& [options, code] : cases) {
    const Cache cache(options);
    CHECK(code_of([&] { cache.collect(); }) == code);
    CHECK(code_of([&] { cache.clear(); }) == code);
    CHECK(code_of([&] { cache.import_bundle(elsewhere / "a.fjb"); }) == code);
    CHECK(cache.entries().empty());
    CHECK(cache.totals().compiles == 0);
  }
  CHECK(Cache(options_in(elsewhere / "not there yet")).clear().removed.empty());
}

TEST_CASE("an export is what an engine would write that holds the same kernels") {
  const TemporaryDirectory user, system;
  const std::string both = make_fake_kernels(options_in(user.path()), kTwo);
  make_fake_kernels(options_in(system.path()), {{64, "sm_80"}, {32, "sm_80"}, {64, "sm_90a", true}});
  EngineOptions options = options_in(user.path());
  CHECK(Cache(options).export_bundle() == both);
  options.system_cache_directories = {system.path().string()};
  options.embedded_bundles = {both};
  const Cache cache(options);
  CHECK(cache.export_bundle() ==
        make_fake_kernels({}, {{32, "sm_80"}, {64, "sm_80"}, {128, "sm_90a"}, {64, "sm_90a", true}}));
  CHECK(cache.export_bundle({{"sm_80"}}) == make_fake_kernels({}, {{32, "sm_80"}, {64, "sm_80"}}));
  CHECK(cache.export_bundle({{"sm_90a", "compute_90a"}}) ==
        make_fake_kernels({}, {{128, "sm_90a"}, {64, "sm_90a", true}}));
  CHECK(cache.export_bundle({{"sm_42"}}) == cache::encode_bundle({}));
  CHECK(Cache(EngineOptions{}).export_bundle() == cache::encode_bundle({}));
}

TEST_CASE("a damaged entry is left out of an export, or taken from the next layer") {
  const TemporaryDirectory user;
  const std::string both = make_fake_kernels(options_in(user.path()), kTwo);
  EngineOptions options = options_in(user.path());
  for (const CacheEntry& entry : Cache(options).entries()) {
    if (entry.facts.at("architecture") == "sm_80") flip_last_byte(entry.location);
  }
  CHECK(Cache(options).export_bundle() == make_fake_kernels({}, {{128, "sm_90a"}}));
  options.embedded_bundles = {both};
  CHECK(Cache(options).export_bundle() == both);
}

TEST_CASE("an import stores what is missing, and gives the same export") {
  const TemporaryDirectory user, elsewhere;
  const std::string bundle = make_fake_kernels({}, kTwo), file = elsewhere / "a.fjb";
  tests::write_bytes(file, bundle);
  make_fake_kernels(options_in(user.path()), {{64, "sm_80"}});
  const Cache cache(options_in(user.path()));
  CacheImport imported = cache.import_bundle(file);
  CHECK(imported.imported == 1);
  CHECK(imported.present == 1);
  CHECK(imported.damaged.empty());
  CHECK(cache.export_bundle() == bundle);

  // One that is damaged here is mended; one that is damaged there is refused.
  flip_last_byte(cache.entries().at(0).location);
  CHECK(cache.import_bundle(file).imported == 1);
  CHECK(cache.verify().ok());
  cache.clear();
  flip_last_byte(file);
  imported = cache.import_bundle(file);
  CHECK(imported.imported == 1);
  REQUIRE(imported.damaged.size() == 1);
  CHECK(imported.damaged[0].starts_with(file + ":"));
}

TEST_CASE("an import says why it cannot be") {
  const TemporaryDirectory user;
  const std::string file = user / "a.fjb";
  EngineOptions options = options_in(user / "cache");
  CHECK(code_of([&] { Cache(options).import_bundle(file); }) == ErrorCode::io);
  tests::write_bytes(file, "no bundle");
  std::string message;
  CHECK(code_of([&] { Cache(options).import_bundle(file); }, &message) == ErrorCode::invalid_argument);
  CHECK(message.starts_with(file + ": "));
  tests::write_bytes(file, make_fake_kernels({}, kTwo));
  options.cache_max_bytes = 100;
  CHECK(code_of([&] { Cache(options).import_bundle(file); }, &message) == ErrorCode::io);
  CHECK(message.find(": could not be stored: " + (user / "cache").string()) != std::string::npos);
}

TEST_CASE("totals are those of all engines that have used the directory") {
  const TemporaryDirectory user;
  const Cache cache(options_in(user.path()));
  CHECK(cache.totals().compiles == 0);
  for (int i = 0; i < 3; ++i) make_fake_kernels(options_in(user.path()), kTwo);
  CHECK(cache.totals().compiles == 2);
  CHECK(cache.totals().user_hits == 4);
  cache.clear();
  CHECK(cache.totals().compiles == 0);
}

TEST_CASE("an engine without a compiler serves from a bundle what another engine held") {
  const TemporaryDirectory user;
  const std::string bundle = make_fake_kernels({}, {{64, "sm_80"}});
  EngineOptions options;
  options.nvrtc_path = "/nowhere/libnvrtc.so.13";
  options.embedded_bundles = {bundle};
  options.cache_directory = (user / "cache").string();
  for (const Policy policy : {Policy::compile, Policy::cache_only}) {
    options.policy = policy;
    Engine engine(options);
    Problem problem;
    problem.head_dim = problem.head_dim_v = 64;
    const KernelInfo kernel = engine.compile(problem, engine.default_variant(problem, "sm_80"), "sm_80");
    CHECK(kernel.origin == KernelInfo::Origin::bundle);
    CHECK(kernel.cache_file.starts_with("embedded:"));
    CHECK(kernel.registers == 168);
    CHECK(kernel.compile_ms == 0);
    CHECK(engine.counters().embedded_hits == 1);
    CHECK(engine.bundle() == bundle);
    const SystemInfo system = engine.system();
    REQUIRE(system.cache.size() == 2);
    CHECK(system.cache[0].location == options.cache_directory);
    CHECK(system.cache[1].entries == 1);
    CHECK(system.cache_max_bytes == options.cache_max_bytes);
  }
  CHECK_FALSE(fs::exists(user / "cache"));
  options.policy = Policy::off;
  CHECK(Engine(options).system().cache.empty());
}
