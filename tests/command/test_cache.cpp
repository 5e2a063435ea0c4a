// SPDX-License-Identifier: Apache-2.0
// flashjit cache as a user meets it. The kernels are real but for their images, which no compiler made.
#include <doctest/doctest.h>
#include <flashjit/error.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/bytes.h"
#include "cli/io/size.h"
#include "tests/support/cache_entries.h"
#include "tests/support/command.h"
#include "tests/support/fake_kernels.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tuning_records.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit;
using namespace flashjit::tests;
using nlohmann::json;

const std::vector<FakeKernel> kThree = {{64, "sm_80"}, {128, "sm_80"}, {128, "sm_90a"}};

// A user's directory with three kernels, and a directory to work in.
class Workshop {
 public:
  Workshop() {
    fs::create_directory(work());
    make_fake_kernels(options(cache()), kThree);
  }

  fs::path work() const { return directory_ / "work"; }
  fs::path cache() const { return directory_ / "cache"; }

  static EngineOptions options(const fs::path& directory) {
    EngineOptions options;
    options.cache_directory = directory.string();
    return options;
  }

  Outcome run(const std::string& arguments, const std::string& environment = "") const {
    const std::string own = fmt::format("{} FLASHJIT_CACHE_DIR='{}' ", kBareEnvironment, cache().string());
    return run_command(work(), own + environment, "cache " + arguments);
  }

  // Of a run with --json that ends with this exit code.
  json result(const std::string& arguments, const std::string& environment = "", int exit_code = 0) const {
    const Outcome outcome = run(arguments + " --json", environment);
    CAPTURE(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.exit_code == exit_code);
    return json::parse(outcome.out);
  }

  std::string refusal(const std::string& arguments, const std::string& environment = "") const {
    return expect_refusal(arguments, run(arguments, environment));
  }

  json entries() const { return result("ls").at("entries"); }

  // Makes the entry unreadable, and gives its file.
  std::string damage(const json& entry) const {
    const std::string file = entry.at("location");
    std::string bytes = read_bytes(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(file, bytes);
    return file;
  }

 private:
  TemporaryDirectory directory_;
};

std::string digest_of(const json& entry) { return entry.at("facts").at("inputs"); }

std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("sizes are read with a unit or without, and shown with one digit") {
  CHECK(flashjit::parse_size("1") == 1);
  CHECK(flashjit::parse_size("123456789012") == 123456789012);
  CHECK(flashjit::parse_size("3K") == 3072);
  CHECK(flashjit::parse_size("512M") == 512 << 20);
  CHECK(flashjit::parse_size("2G") == std::uint64_t{2} << 30);
  CHECK(flashjit::parse_size("16777215T") == std::uint64_t{16777215} << 40);
  for (const char* text :
       {"", "0", "0M", "-1", "+1", " 1", "1 ", "1.5G", "M", "1MB", "1m", "16777216T", "18446744073709551616", "0x10"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(flashjit::parse_size(text), Error);
  }
  CHECK(cli::size_text(0) == "0 B");
  CHECK(cli::size_text(1023) == "1023 B");
  CHECK(cli::size_text(1536) == "1.5 KiB");
  CHECK(cli::size_text(std::uint64_t{1} << 30) == "1.0 GiB");
  CHECK(cli::size_text(std::uint64_t{1} << 60) == "1048576.0 TiB");
}

TEST_CASE("help explains every subcommand with an example") {
  const Workshop shop;
  const std::string all = shop.run("--help").out;
  for (const std::string name : {"path", "ls", "inspect", "verify", "gc", "clear", "export", "import"}) {
    CAPTURE(name);
    CHECK(mentions(all, "\n  " + name + " "));
    const Outcome help = shop.run(name + " --help");
    CHECK(help.exit_code == 0);
    CHECK(mentions(help.out, "Example"));
    CHECK(mentions(help.out, "flashjit cache " + name));
    CHECK(mentions(help.out, "--json"));
  }
  CHECK(mentions(shop.refusal("dance"), "dance"));
}

TEST_CASE("path prints the user's directory, or why there is none") {
  const Workshop shop;
  const Outcome path = shop.run("path");
  CHECK(path.exit_code == 0);
  CHECK(path.out == shop.cache().string() + "\n");
  const json layers = shop.result("path", "FLASHJIT_SYSTEM_CACHE=/nowhere FLASHJIT_BUNDLES=b.fjb").at("layers");
  REQUIRE(layers.size() == 3);
  CHECK(layers[0].at("layer") == "user");
  CHECK(layers[0].at("entries") == kThree.size());
  CHECK(layers[0].at("problem").is_null());
  CHECK(layers[1].at("location") == "/nowhere");
  CHECK(layers[2].at("layer") == "bundle");
  CHECK(mentions(layers[2].at("problem"), "b.fjb"));
  CHECK(mentions(shop.refusal("path", "FLASHJIT_CACHE_DIR="), "FLASHJIT_CACHE_DIR"));
}

TEST_CASE("a directory that others may write to is refused by all that need it") {
  const Workshop shop;
  REQUIRE(::chmod(shop.cache().c_str(), 0777) == 0);
  for (const std::string command : {"path", "gc", "clear", "gc --dry-run"}) {
    CHECK(mentions(shop.refusal(command), "0777"));
  }
  const json layer = shop.result("path", "", 2).at("layers").at(0);
  CHECK(mentions(layer.at("problem"), "0777"));
  const json verified = shop.result("verify", "", 1);
  CHECK(verified.at("ok") == false);
  CHECK(mentions(verified.at("problems").at(0), "0777"));
  const Outcome list = shop.run("ls");
  CHECK(list.exit_code == 0);
  CHECK(list.out == "0 entries, 0 B\n");
  CHECK(mentions(list.err, "0777"));
  CHECK(count_files(shop.cache(), ".fjc") == 3);
}

TEST_CASE("ls lists the entries of all layers, or of those that are asked for") {
  const Workshop shop;
  CHECK(shop.run("export kernels.fjb --arch sm_90a").exit_code == 0);
  const std::string bundle = "FLASHJIT_BUNDLES=kernels.fjb FLASHJIT_SYSTEM_CACHE=" + shop.cache().string();
  const json all = shop.result("ls", bundle);
  CHECK(all.at("entries").size() == 7);
  CHECK(shop.result("ls --layer bundle", bundle).at("entries").size() == 1);
  CHECK(shop.result("ls --layer system", bundle).at("entries").size() == 3);
  CHECK(shop.result("ls --layer embedded", bundle).at("entries").empty());
  CHECK(shop.result("ls --arch sm_80").at("entries").size() == 2);
  CHECK(shop.result("ls --arch sm_86,sm_90a").at("entries").size() == 1);

  const json entry = all.at("entries").at(0);
  CHECK(entry.at("layer") == "user");
  CHECK(entry.at("facts").at("registers") == 168);
  CHECK(entry.at("bytes") == fs::file_size(entry.at("location").get<std::string>()));
  CHECK(entry.at("last_used").get<std::string>().size() == std::string("2026-01-31T15:00:00Z").size());
  CHECK(all.at("entries").back().at("last_used").is_null());

  const Outcome text = shop.run("ls");
  CHECK(text.exit_code == 0);
  CHECK(text.err.empty());
  CHECK(count_lines(text.out) == 5);
  for (const json& listed : shop.entries()) {
    CHECK(mentions(text.out, listed.at("facts").at("name")));
    CHECK(mentions(text.out, digest_of(listed).substr(0, 8)));
  }
  CHECK(mentions(text.out, "\n3 entries, "));
  CHECK(mentions(shop.refusal("ls --layer attic"), "--layer: must be user, system, bundle or embedded, was 'attic'"));
  CHECK(mentions(shop.refusal("ls --arch sm_1"), "--arch"));
}

TEST_CASE("ls shows an entry whose header is damaged by its file's name") {
  const Workshop shop;
  const std::string file = shop.entries().at(0).at("location");
  write_bytes(file, "not an entry");
  const Outcome list = shop.run("ls");
  CHECK(list.exit_code == 0);
  CHECK(mentions(list.out, fs::path(file).stem().string()));
  CHECK(mentions(list.out, "\n3 entries, "));
}

TEST_CASE("inspect finds an entry by digest, name, kernel and file") {
  const Workshop shop;
  for (const json& entry : shop.entries()) {
    const std::string file = entry.at("location"), digest = digest_of(entry);
    fs::create_symlink(file, shop.work() / "link");
    for (const std::string& name : {digest, digest.substr(0, 8), entry.at("name").get<std::string>(), file,
                                    entry.at("facts").at("name").get<std::string>(), std::string("link")}) {
      CAPTURE(name);
      const json found = shop.result("inspect " + name);
      CHECK(found.at("name") == entry.at("name"));
      CHECK(found.at("facts") == entry.at("facts"));
      CHECK(found.at("intact") == true);
    }
    fs::remove(shop.work() / "link");
  }
}

TEST_CASE("inspect shows every fact in words") {
  const Workshop shop;
  const json entry = shop.entries().at(0);
  const Outcome text = shop.run("inspect " + digest_of(entry));
  CHECK(text.exit_code == 0);
  for (const auto& [name, value] : entry.at("facts").items()) {
    CAPTURE(name);
    if (name != "entry") CHECK(mentions(text.out, value.is_string() ? value.get<std::string>() : value.dump()));
  }
  CHECK(mentions(text.out, entry.at("location")));
  CHECK(mentions(text.out, "  intact         yes\n"));
}

TEST_CASE("inspect prints the source that was compiled") {
  const Workshop shop;
  const std::string digest = digest_of(shop.entries().at(0));
  const Outcome source = shop.run("inspect --source " + digest);
  CHECK(source.exit_code == 0);
  CHECK(mentions(source.out, "__global__"));
  CHECK(shop.result("inspect --source " + digest).at("source") == source.out);
  fs::copy(fs::path(FLASHJIT_SOURCE_DIR) / "templates", shop.work() / "templates", fs::copy_options::recursive);
  std::ofstream(shop.work() / "templates/types.cuh", std::ios::app) << "// A later release.\n";
  CHECK(mentions(shop.refusal("inspect --source " + digest, "FLASHJIT_TEMPLATE_DIR=templates"), "cannot be rendered"));
}

TEST_CASE("inspect says which entries an ambiguous name fits, and refuses an unknown one") {
  const Workshop shop;
  const std::string ambiguous = shop.refusal("inspect fwd-");
  CHECK(mentions(ambiguous, "ENTRY: must fit one entry, but 'fwd-' fits 3: "));
  for (const json& entry : shop.entries()) CHECK(mentions(ambiguous, entry.at("name")));
  CHECK(mentions(shop.refusal("inspect xyz"), "was 'xyz'"));
  CHECK(mentions(shop.refusal("inspect"), "ENTRY"));
  make_fake_kernels(Workshop::options(shop.cache()), {{32, "sm_80"}, {96, "sm_80"}, {256, "sm_80"}});
  const std::string cut = shop.refusal("inspect fwd-");
  CHECK(mentions(cut, "fits 6: "));
  CHECK(mentions(cut, ", ...\n"));
}

TEST_CASE("a damaged entry is found by inspect and verify, and set aside when asked") {
  const Workshop shop;
  const json entry = shop.entries().at(1);
  const std::string file = shop.damage(entry);
  CHECK(shop.result("inspect " + digest_of(entry), "", 1).at("intact") == false);
  CHECK(mentions(shop.run("inspect " + file).out, "  intact         no\n"));

  const json verified = shop.result("verify", "", 1);
  CHECK(verified.at("ok") == false);
  CHECK(verified.at("intact") == 2);
  REQUIRE(verified.at("damaged").size() == 1);
  CHECK(verified.at("damaged").at(0).at("location") == file);
  CHECK(fs::exists(file));

  const Outcome aside = shop.run("verify --set-aside");
  CHECK(aside.exit_code == 1);
  CHECK(mentions(aside.out, "damaged: " + file + "\n"));
  CHECK_FALSE(fs::exists(file));
  CHECK(fs::exists(file + ".bad"));
  const Outcome again = shop.run("verify");
  CHECK(again.exit_code == 0);
  CHECK(mentions(again.out, "2 entries, "));
  CHECK(mentions(again.out, " intact; 0 damaged\n"));
}

TEST_CASE("gc removes what is damaged or too much, and tells the same beforehand") {
  const Workshop shop;
  shop.damage(shop.entries().at(0));
  CHECK(shop.run("verify --set-aside").exit_code == 1);
  const json planned = shop.result("gc --dry-run");
  CHECK(planned.at("dry_run") == true);
  REQUIRE(planned.at("removed").size() == 1);
  CHECK(planned.at("removed").at(0).at("why") == "damaged");
  CHECK(planned.at("removed").at(0).at("bytes") == planned.at("removed_bytes"));
  CHECK(planned.at("kept_entries") == 2);

  std::string plan = shop.run("gc --dry-run --max-size 1").out;
  CHECK(count_lines(plan) == 4);
  CHECK(count_files(shop.cache(), ".fjc") == 2);
  const std::string done = shop.run("gc --max-size 1").out;
  for (std::size_t at = 0; (at = plan.find("would remove")) != std::string::npos;) plan.replace(at, 12, "removed");
  CHECK(plan == done);
  CHECK(mentions(done, "; 0 entries, 0 B stay\n"));
  CHECK(count_files(shop.cache(), ".fjc") == 0);
  CHECK(count_files(shop.cache(), ".bad") == 0);
}

TEST_CASE("gc keeps what the environment or --max-size allows, and refuses sizes that are none") {
  const Workshop shop;
  CHECK(shop.result("gc").at("removed").empty());
  CHECK(shop.result("gc --dry-run", "FLASHJIT_CACHE_SIZE=1").at("removed").size() == 3);
  CHECK(shop.result("gc --dry-run --max-size 1M", "FLASHJIT_CACHE_SIZE=1").at("removed").empty());
  CHECK(mentions(shop.refusal("gc --max-size 0"), "--max-size: must be bytes"));
  CHECK(mentions(shop.refusal("gc --max-size 5X"), "and more than 0, was 5X"));
  CHECK(mentions(shop.refusal("gc", "FLASHJIT_CACHE_SIZE=much"), "FLASHJIT_CACHE_SIZE"));
}

TEST_CASE("clear removes the cache's files and no others") {
  const Workshop shop;
  write_bytes(shop.cache() / "mine.txt", "mine");
  CHECK(shop.result("clear --dry-run").at("removed").size() >= 3);
  CHECK(count_files(shop.cache(), ".fjc") == 3);
  const Outcome cleared = shop.run("clear");
  CHECK(cleared.exit_code == 0);
  CHECK(mentions(cleared.out, "removed " + shop.cache().string()));
  CHECK(count_files(shop.cache(), ".fjc") == 0);
  CHECK(read_bytes(shop.cache() / "mine.txt") == "mine");
  CHECK(shop.entries().empty());
}

TEST_CASE("what clear and gc cannot remove, or not look into, is named with the reason, and ends with 2") {
  const Workshop shop;
  const fs::path link = shop.cache() / "zz", file = shop.cache() / "tuning";
  SUBCASE("a file in the place of a folder") {
    write_bytes(file, "mine");
    const std::string reason =
        file.string() + ": must be a directory of the cache, is a file or a link of others; move it away";
    for (const std::string command : {"clear --dry-run", "gc", "clear"}) {
      CHECK(mentions(shop.result(command, "", 2).at("problem"), reason));
      CHECK(shop.run(command).err == "flashjit: " + reason + "\n");
    }
    CHECK(shop.result("verify", "", 1).at("problems").at(0) == reason);
    CHECK(read_bytes(file) == "mine");
    fs::remove(file);
  }
  SUBCASE("a link that leads nowhere in the place of a folder") {
    fs::create_symlink("/nowhere", shop.cache() / "00");
    CHECK(mentions(shop.result("clear", "", 2).at("problem"), "/00: must be a directory of the cache"));
    CHECK(fs::is_symlink(shop.cache() / "00"));
    fs::remove(shop.cache() / "00");
  }
  CHECK(count_files(shop.cache(), ".fjc") <= 3);
  fs::create_symlink("/nowhere", link);  // no name of the cache
  CHECK(shop.result("clear").at("problem").is_null());
  CHECK(shop.run("verify").exit_code == 0);
}

TEST_CASE("a bundle is usable whatever mode the file had that it replaces, and whatever the umask") {
  const Workshop shop;
  const fs::path bundle = shop.work() / "k.fjb";
  const auto mode = [&] { return fs::status(bundle).permissions() & fs::perms::all; };
  CHECK(run_command(shop.work(),
                    fmt::format("umask 0; {} FLASHJIT_CACHE_DIR='{}'", kBareEnvironment, shop.cache().string()),
                    "cache export k.fjb")
            .exit_code == 0);
  CHECK(mode() == fs::perms{0644});
  REQUIRE(::chmod(bundle.c_str(), 0666) == 0);
  CHECK(shop.result("export k.fjb").at("entries") == 3);
  CHECK(mode() == fs::perms{0644});
}

TEST_CASE("an export that nothing matches is refused, and leaves the file that is there alone") {
  const Workshop shop;
  write_bytes(shop.work() / "k.fjb", "before");
  CHECK(mentions(shop.refusal("export k.fjb --arch sm_121a"),
                 "--arch: must leave something of what is in the cache, but there is nothing for sm_121a; k.fjb is not "
                 "written"));
  CHECK(mentions(shop.refusal("export k.fjb --chosen --arch sm_121a"), "nothing that calls choose for sm_121a"));
  CHECK(read_bytes(shop.work() / "k.fjb") == "before");
  CHECK(mentions(shop.refusal("export k.fjb --chosen", "FLASHJIT_CACHE_DIR=empty"), "--chosen: must leave"));
  CHECK(shop.result("export k.fjb", "FLASHJIT_CACHE_DIR=empty").at("entries") == 0);
}

TEST_CASE("all architectures are those of the emulator too, where the cache is chosen from") {
  const Workshop shop;
  make_fake_kernels(Workshop::options(shop.cache()), {{64, "sm_90a", true}});
  CHECK(shop.result("ls --arch all").at("entries").size() == 4);
  CHECK(shop.result("ls --arch sm_80,sm_90a").at("entries").size() == 3);
  CHECK(shop.result("export k.fjb --arch all").at("entries") == 4);
}

TEST_CASE("what is exported here is found and imported there") {
  const Workshop shop;
  const json exported = shop.result("export kernels.fjb");
  CHECK(exported.at("entries") == 3);
  CHECK(shop.run("verify kernels.fjb").exit_code == 0);
  const std::string elsewhere = "FLASHJIT_CACHE_DIR=../elsewhere ";
  CHECK(shop.result("ls", elsewhere + "FLASHJIT_BUNDLES=kernels.fjb").at("entries").size() == 3);
  CHECK(shop.result("export other.fjb", elsewhere + "FLASHJIT_BUNDLES=kernels.fjb").at("entries") == 3);
  CHECK(read_bytes(shop.work() / "other.fjb") == read_bytes(shop.work() / "kernels.fjb"));

  CHECK(shop.result("import kernels.fjb", elsewhere).at("imported") == 3);
  CHECK(shop.result("import kernels.fjb", elsewhere).at("present") == 3);
  CHECK(shop.run("import kernels.fjb", elsewhere).out == "0 imported, 3 already there, 0 damaged\n");
  CHECK(shop.result("ls --layer user", elsewhere).at("entries").size() == 3);

  CHECK(shop.run("export hopper.fjb --arch sm_90a").exit_code == 0);
  CHECK(shop.result("verify hopper.fjb").at("intact") == 1);
}

TEST_CASE("tuning records are listed, checked and shipped with the entries") {
  const Workshop shop;
  const std::string path = path_of(make_record());
  REQUIRE(cache::UserDirectoryLayer(shop.cache()).store_record(path, to_json(make_record())));
  const json listed = shop.result("ls").at("records");
  REQUIRE(listed.size() == 1);
  CHECK(listed.at(0).at("path") == path);
  CHECK(shop.result("ls --arch sm_80").at("records").empty());
  CHECK(shop.result("ls --arch sm_90a --layer user").at("records").size() == 1);
  const std::string text = shop.run("ls").out;
  CHECK(mentions(text, path));
  CHECK(mentions(text, ", 1 tuning record\n"));
  CHECK(mentions(shop.run("verify").out, " intact, 1 tuning record; 0 damaged\n"));

  CHECK(shop.result("export kernels.fjb").at("records") == 1);
  const std::string elsewhere = "FLASHJIT_CACHE_DIR=../elsewhere ";
  CHECK(mentions(shop.run("import kernels.fjb", elsewhere).out, "tuning records: 1 imported, 0 already there\n"));
  CHECK(shop.result("import kernels.fjb", elsewhere).at("records_present") == 1);

  write_bytes(shop.cache() / path, "{");
  const Outcome verified = shop.run("verify --set-aside");
  CHECK(verified.exit_code == 1);
  CHECK(mentions(verified.out, "damaged: " + (shop.cache() / path).string() + '\n'));
  CHECK(shop.result("ls").at("records").empty());
  CHECK(shop.run("clear").exit_code == 0);
  CHECK(count_files(shop.cache(), ".bad") == 0);
}

TEST_CASE("a bundle with a damaged member gives the others and exit code 1") {
  const Workshop shop;
  CHECK(shop.run("export kernels.fjb").exit_code == 0);
  const fs::path file = shop.work() / "kernels.fjb";
  std::string bytes = read_bytes(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(file, bytes);
  const json verified = shop.result("verify kernels.fjb", "", 1);
  CHECK(verified.at("intact") == 2);
  CHECK(verified.at("damaged").size() == 1);
  const Outcome imported = shop.run("import kernels.fjb", "FLASHJIT_CACHE_DIR=../elsewhere");
  CHECK(imported.exit_code == 1);
  CHECK(imported.out == "2 imported, 0 already there, 1 damaged\n");
  CHECK(mentions(imported.err, "kernels.fjb:"));
}

TEST_CASE("bundles that are missing or none, and outputs that cannot be, are refused by name") {
  const Workshop shop;
  write_bytes(shop.work() / "text.fjb", "text");
  CHECK(mentions(shop.refusal("import missing.fjb"), "missing.fjb"));
  CHECK(mentions(shop.refusal("import text.fjb"), "text.fjb"));
  CHECK(mentions(shop.refusal("verify missing.fjb"), "missing.fjb"));
  CHECK(mentions(shop.result("verify text.fjb", "", 1).at("problems").at(0), "text.fjb"));
  CHECK(mentions(shop.refusal("verify text.fjb --set-aside"), "--set-aside"));
  CHECK(mentions(shop.refusal("export nowhere/k.fjb"), "FILE: nowhere/k.fjb cannot be written"));
  CHECK(mentions(shop.refusal("export k.fjb --arch sm_1"), "--arch"));
  CHECK(mentions(shop.refusal("import text.fjb", "FLASHJIT_CACHE_DIR="), "text.fjb"));
  CHECK_FALSE(fs::exists(shop.work() / "k.fjb"));
}

TEST_CASE("info shows layers, size and what all processes did so far") {
  const Workshop shop;
  const std::string environment =
      fmt::format("{} FLASHJIT_CACHE_DIR='{}' FLASHJIT_CACHE_SIZE=2M FLASHJIT_BUNDLES=b.fjb", kBareEnvironment,
                  shop.cache().string());
  const json cache = json::parse(run_command(shop.work(), environment, "info --json").out).at("cache");
  CHECK(cache.at("max_bytes") == 2 << 20);
  REQUIRE(cache.at("layers").size() == 2);
  CHECK(cache.at("layers").at(0).at("entries") == 3);
  CHECK(mentions(cache.at("layers").at(1).at("problem"), "b.fjb"));
  CHECK(cache.at("totals").at("compiles") == 3);
  CHECK(cache.at("totals").at("user_hits") == 0);
  const std::string text = run_command(shop.work(), environment, "info").out;
  CHECK(mentions(text, "user: " + shop.cache().string() + ", 3 entries, "));
  CHECK(mentions(text, " of at most 2.0 MiB\n"));
  CHECK(mentions(text, "bundle, not used: "));
  CHECK(mentions(text, "3 missed, 3 compiled, "));
}

TEST_CASE("kernels of a cache serve the command where there is no compiler") {
  const Workshop shop;
  const std::string environment = fmt::format("{} FLASHJIT_POLICY=cache_only ", kBareEnvironment);
  const std::string arguments = "compile --arch sm_80 --head-dim 64 --mask full --variant VARIANT --json";
  json entry;
  for (const json& listed : shop.entries()) {
    if (listed.at("facts").at("problem") == "fwd-bf16-d64") entry = listed;
  }
  std::string one = arguments;
  one.replace(one.find("VARIANT"), 7, entry.at("facts").at("variant").get<std::string>());
  CHECK(shop.run("export kernels.fjb").exit_code == 0);
  const Outcome served = run_command(shop.work(), environment + "FLASHJIT_BUNDLES=kernels.fjb", one);
  CAPTURE(served.err);
  CHECK(served.exit_code == 0);
  CHECK(json::parse(served.out).at("kernels").at(0).at("origin") == "bundle");
  CHECK(run_command(shop.work(), environment, one).exit_code == 2);
}

TEST_CASE("a directory of somebody's own is refused by all that would write to it or tidy it") {
  const Workshop shop;
  CHECK(shop.run("export kernels.fjb").exit_code == 0);
  const fs::path own = shop.work() / "own";
  const std::map<std::string, std::string> files = {{"failed/kernel.cu", "__global__ void kernel() {}"},
                                                    {"tuning/models/run1.json", R"({"loss":1})"},
                                                    {"totals.json", R"({"apples":3})"},
                                                    {"ab/x.fjc", "x"}};
  for (const auto& [name, text] : files) {
    fs::create_directories((own / name).parent_path());
    write_bytes(own / name, text);
  }
  const std::string environment = "FLASHJIT_CACHE_DIR=own";
  for (const std::string command : {"path", "gc", "clear", "clear --dry-run", "import kernels.fjb"}) {
    CHECK(mentions(shop.refusal(command, environment), "must be empty or a cache of flashjit"));
  }
  CHECK(shop.result("verify", environment, 1).at("problems").size() == 1);
  CHECK(shop.result("ls", environment).at("records").empty());
  for (const auto& [name, text] : files) CHECK(read_bytes(own / name) == text);
  CHECK(count_files(own, "") == static_cast<int>(files.size()));
  CHECK_FALSE(fs::exists(own / "CACHEDIR.TAG"));
}

TEST_CASE("in a cache verify and clear leave files of others, also those with names like the cache's own") {
  const Workshop shop;
  const std::map<std::string, std::string> files = {{"failed/kernel.cu", "__global__ void kernel() {}"},
                                                    {"tuning/models/run1.json", R"({"loss":1})"},
                                                    {"ab/x.fjc", "x"}};
  for (const auto& [name, text] : files) {
    fs::create_directories((shop.cache() / name).parent_path());
    write_bytes(shop.cache() / name, text);
  }
  CHECK(shop.run("verify --set-aside").exit_code == 0);
  CHECK(shop.run("clear").exit_code == 0);
  for (const auto& [name, text] : files) CHECK(read_bytes(shop.cache() / name) == text);
  CHECK(count_files(shop.cache(), "") == static_cast<int>(files.size()) + 1);  // and lock
}

TEST_CASE("what an entry says cannot make a terminal obey") {
  const Workshop shop;
  const fs::path file = shop.entries().at(0).at("location").get<std::string>();
  std::string bytes = read_bytes(file);
  // As somebody would who wants it to pass every check: lengths and checksum are right.
  const std::string plain = "\"nvrtc\":\"", control = "\"nvrtc\":\"\\u001b[31m";
  const std::size_t at = bytes.find(plain);
  REQUIRE(at != bytes.npos);
  bytes.replace(at, plain.size(), control);
  const std::uint32_t header_bytes = cache::integer_at<std::uint32_t>(bytes, 12);
  std::string length;
  cache::append(length, static_cast<std::uint32_t>(header_bytes + control.size() - plain.size()));
  bytes.replace(12, length.size(), length);
  bytes.resize(bytes.size() - cache::kChecksumBytes);
  write_bytes(file, bytes + cache::checksum_of(bytes));
  CHECK(shop.result("verify").at("intact") == kThree.size());
  for (const std::string& arguments : {std::string("ls"), "inspect " + file.string(), std::string("verify")}) {
    const Outcome outcome = shop.run(arguments);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.out.find('\x1b') == std::string::npos);
    CHECK(outcome.err.find('\x1b') == std::string::npos);
  }
  CHECK(mentions(shop.run("inspect " + file.string()).out, "  NVRTC           [31m"));
  CHECK(shop.result("inspect " + file.string()).at("facts").at("nvrtc").get<std::string>().starts_with(" [31m"));
}

TEST_CASE("without a directory for the cache it is said which variables could name one") {
  const TemporaryDirectory directory;
  for (const char* environment : {"", "HOME=relative", "XDG_CACHE_HOME=relative HOME="}) {
    const Outcome outcome =
        run_command(directory.path(), fmt::format("{} {}", kBareEnvironment, environment), "cache path");
    CHECK(expect_refusal(environment, outcome) ==
          "flashjit: the user's cache: must have a directory, has none: FLASHJIT_CACHE_DIR is not set, and neither "
          "XDG_CACHE_HOME nor HOME names a directory that is there by an absolute path\n");
  }
}
