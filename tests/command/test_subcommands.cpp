// SPDX-License-Identifier: Apache-2.0
// The command flashjit as a user meets it: the built binary, its output, its exit code and the files that it leaves.
#include <doctest/doctest.h>
#include <flashjit/flashjit.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/io/npy.h"
#include "cli/verify/case_pages.h"
#include "tests/support/cache_entries.h"
#include "tests/support/command.h"
#include "tests/support/temporary_directory.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit;
using namespace flashjit::tests;
using nlohmann::json;

// A directory with inputs in which the command runs, away from the user's cache, GPUs and NVRTC.
class Workshop {
 public:
  Workshop() {
    fs::create_directory(work());
    save("q.npy", q_);
    save("k.npy", k_);
    save("v.npy", v_);
  }

  fs::path work() const { return directory_.path() / "work"; }
  fs::path cache() const { return directory_.path() / "cache"; }

  Outcome run(const std::string& arguments) const {
    return run_command(work(), fmt::format("{} FLASHJIT_CACHE_DIR='{}'", kBareEnvironment, cache().string()),
                       arguments);
  }

  // Runs what must fail, and make or change no file.
  std::string refusal(const std::string& arguments) const {
    const auto before = contents();
    const std::string why = expect_refusal(arguments, run(arguments));
    CHECK(contents() == before);
    return why;
  }

  void save(const std::string& name, const HostTensor& tensor) const {
    write_bytes(work() / name, cli::npy_bytes(tensor));
  }
  HostTensor load(const std::string& name, DType dtype) const { return cli::read_npy((work() / name).string(), dtype); }

  reference::Result expected(DType dtype, const AttentionOptions& options) const {
    const HostTensor q = q_.converted_to(dtype), k = k_.converted_to(dtype), v = v_.converted_to(dtype);
    return reference::attention(q.view(), k.view(), v.view(), options);
  }
  reference::Gradients expected_gradients(const HostTensor& dout, DType dtype, const AttentionOptions& options,
                                          const std::optional<Tensor>& dlse) const {
    const HostTensor q = q_.converted_to(dtype), k = k_.converted_to(dtype), v = v_.converted_to(dtype);
    return reference::attention_backward(dout.converted_to(dtype).view(), q.view(), k.view(), v.view(), options, dlse);
  }

 private:
  std::vector<std::pair<std::string, std::string>> contents() const {
    std::vector<std::pair<std::string, std::string>> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(work())) {
      files.emplace_back(entry.path().filename().string(), entry.is_regular_file() ? read_bytes(entry.path()) : "");
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  TemporaryDirectory directory_;
  HostTensor q_ = HostTensor::random_normal(DType::f32, {2, 5, 4, 16}, 1);
  HostTensor k_ = HostTensor::random_normal(DType::f32, {2, 9, 2, 16}, 2);
  HostTensor v_ = HostTensor::random_normal(DType::f32, {2, 9, 2, 8}, 3);
};

std::vector<double> rounded(DType dtype, const std::vector<double>& values) {
  return HostTensor::from_doubles(dtype, {static_cast<std::int64_t>(values.size())}, values.data(), values.size())
      .to_doubles();
}

HostTensor ints(const std::vector<double>& values, const Dims& shape) {
  return HostTensor::from_doubles(DType::i32, shape, values.data(), values.size());
}

const std::vector<std::string> kSubcommands = {"info",       "attend", "render",   "variants", "compile", "help",
                                               "completion", "verify", "autotune", "bench",    "cache"};

}  // namespace

TEST_CASE("help explains every subcommand with an example") {
  const Workshop shop;
  const Outcome all = shop.run("--help");
  CHECK(all.exit_code == 0);
  for (const std::string& name : kSubcommands) {
    CAPTURE(name);
    CHECK(mentions(all.out, "\n  " + name + " "));
    const Outcome help = shop.run(name + " --help");
    CHECK(help.exit_code == 0);
    CHECK(help.err.empty());
    CHECK(mentions(help.out, "Example"));
    CHECK(mentions(help.out, "\n  flashjit " + name));
  }
  CHECK(shop.run("--version").out == fmt::format("flashjit {}\n", version()));
}

TEST_CASE("a wrong command line is one line which names what is wrong") {
  const Workshop shop;
  CHECK(mentions(shop.refusal("dance"), "dance"));
  CHECK(mentions(shop.refusal("info --loud"), "--loud"));
  CHECK(mentions(shop.refusal("render --head-dim many --arch sm_80"), "--head-dim"));
  CHECK(mentions(shop.refusal("attend q.npy k.npy v.npy"), "--output"));
  CHECK(mentions(shop.refusal("attend q.npy k.npy -o o.npy"), "V"));
  CHECK(mentions(shop.refusal("compile --arch sm_80 --jobs 0"), "--jobs"));
}

TEST_CASE("info works where there is neither GPU nor NVRTC, and says why") {
  const Workshop shop;
  const Outcome outcome = shop.run("info --json");
  CHECK(outcome.exit_code == 0);
  const json info = json::parse(outcome.out);
  CHECK(info.at("version") == version());
  CHECK(info.at("devices").empty());
  CHECK(info.at("nvrtc").at("version").is_null());
  CHECK(mentions(info.at("nvrtc").at("problem"), "/nowhere/libnvrtc.so"));
  CHECK(info.at("cache").at("layers").at(0).at("location") == shop.cache().string());
  CHECK(info.at("architectures").size() == architectures().size());
  const Outcome text = shop.run("info");
  CHECK(text.exit_code == 0);
  CHECK(mentions(text.out, "/nowhere/libnvrtc.so"));
  CHECK(mentions(text.out, shop.cache().string()));
}

TEST_CASE("attend on the CPU writes what the reference computes") {
  const Workshop shop;
  const Outcome plain = shop.run("attend q.npy k.npy v.npy -o o.npy --device cpu --json");
  CHECK(plain.exit_code == 0);
  CHECK(plain.err.empty());
  CHECK(json::parse(plain.out).at("device") == "CPU reference");
  CHECK(json::parse(plain.out).at("shape") == json({2, 5, 4, 8}));
  CHECK(json::parse(plain.out).at("mask") == "full");
  for (const char* feature : {"window", "chunk", "softcap", "alibi_slopes", "sinks"})
    CHECK(json::parse(plain.out).at(feature) == json());
  CHECK(mentions(read_bytes(shop.work() / "o.npy"), "'<f4'"));
  CHECK(shop.load("o.npy", DType::f32).to_doubles() == rounded(DType::bf16, shop.expected(DType::bf16, {}).out));

  AttentionOptions options;
  options.causal = true;
  options.softmax_scale = -0.5f;
  const Outcome causal = shop.run(
      "attend q.npy k.npy v.npy -o o.npy --lse l.npy --mask causal --scale -0.5 --dtype f16 --device cpu --check");
  CHECK(causal.exit_code == 0);
  CHECK(mentions(causal.out, "passed"));
  CHECK(mentions(read_bytes(shop.work() / "o.npy"), "'<f2'"));
  const reference::Result expected = shop.expected(DType::f16, options);
  CHECK(shop.load("o.npy", DType::f16).to_doubles() == rounded(DType::f16, expected.out));
  CHECK(shop.load("l.npy", DType::f32).shape() == Dims{2, 4, 5});
  CHECK(shop.load("l.npy", DType::f32).to_doubles() == rounded(DType::f32, expected.lse));
}

TEST_CASE("attend under a window, with either mask and with a side left open") {
  const Workshop shop;
  const auto attend = [&](const std::string& masks) {
    const Outcome outcome = shop.run("attend q.npy k.npy v.npy -o o.npy --device cpu --check --json " + masks);
    CAPTURE(masks);
    CAPTURE(outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK(json::parse(outcome.out).at("check").at("passed") == true);
    return shop.load("o.npy", DType::f32).to_doubles();
  };
  const auto expected = [&](const Window& window, bool causal = false) {
    AttentionOptions options;
    options.window = window;
    options.causal = causal;
    return rounded(DType::bf16, shop.expected(DType::bf16, options).out);
  };
  CHECK(attend("--window 2,1") == expected({2, 1}));
  CHECK(attend("--window -1,1") == expected({-1, 1}));
  CHECK(attend("--window=2,-1") == expected({2, -1}));
  CHECK(attend("--window 2,1 --mask causal") == expected({2, 1}, true));
  CHECK(attend("--window 2,0") == expected({2, 1}, true));
  CHECK(attend("--window -1,0") == expected({}, true));
  CHECK(attend("--window -1,-1") == expected({}));
  CHECK(attend("--window 9223372036854775807,2147483648") == expected({}));
  CHECK(expected({2, 1}) != expected({}));
  const json told =
      json::parse(shop.run("attend q.npy k.npy v.npy -o o.npy --device cpu --json --mask causal --window 2,-1").out);
  CHECK(told.at("mask") == "causal");
  CHECK(told.at("window") == json({2, -1}));
}

TEST_CASE("attend with a cap, and with slopes of heads or of heads and batch entries") {
  const Workshop shop;
  const std::vector<double> numbers = {0.5, 0.25, -0.125, 0.0625, 2, 1, 0, 0.03125};
  const HostTensor of_heads = HostTensor::from_doubles(DType::f32, {4}, numbers.data(), 4);
  const HostTensor of_batch = HostTensor::from_doubles(DType::f32, {2, 4}, numbers.data(), 8);
  shop.save("heads.npy", of_heads);
  shop.save("batch.npy", of_batch);
  const auto attend = [&](const std::string& features) {
    const Outcome outcome = shop.run("attend q.npy k.npy v.npy -o o.npy --device cpu --check --json " + features);
    CAPTURE(features);
    CAPTURE(outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK(json::parse(outcome.out).at("check").at("passed") == true);
    return shop.load("o.npy", DType::f32).to_doubles();
  };
  const auto expected = [&](float softcap, const HostTensor* slopes) {
    AttentionOptions options;
    options.softcap = softcap;
    if (slopes) options.alibi_slopes = slopes->view();
    return rounded(DType::bf16, shop.expected(DType::bf16, options).out);
  };
  CHECK(attend("--softcap 0.5") == expected(0.5f, nullptr));
  CHECK(attend("--softcap 0") == expected(0, nullptr));
  CHECK(attend("--alibi-slopes heads.npy") == expected(0, &of_heads));
  CHECK(attend("--alibi-slopes batch.npy --softcap 0.5") == expected(0.5f, &of_batch));
  CHECK(expected(0, nullptr) != expected(0.5f, nullptr));
  CHECK(expected(0, nullptr) != expected(0, &of_heads));
  CHECK(expected(0.5f, &of_heads) != expected(0.5f, &of_batch));
  const json told = json::parse(
      shop.run("attend q.npy k.npy v.npy -o o.npy --device cpu --json --softcap 0.5 --alibi-slopes heads.npy").out);
  CHECK(told.at("softcap") == 0.5);
  CHECK(told.at("alibi_slopes") == "heads.npy");
}

TEST_CASE("attend in chunks, and with sinks of heads or of heads and batch entries") {
  const Workshop shop;
  const std::vector<double> numbers = {0.5, -1, 2, -0.25, 1, 0, -2, 3};
  const HostTensor of_heads = HostTensor::from_doubles(DType::f32, {4}, numbers.data(), 4);
  const HostTensor of_batch = HostTensor::from_doubles(DType::f32, {2, 4}, numbers.data(), 8);
  shop.save("heads.npy", of_heads);
  shop.save("batch.npy", of_batch);
  const auto attend = [&](const std::string& features) {
    const Outcome outcome =
        shop.run("attend q.npy k.npy v.npy -o o.npy --lse l.npy --device cpu --check --json " + features);
    CAPTURE(features);
    CAPTURE(outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK(json::parse(outcome.out).at("check").at("passed") == true);
    return std::pair(shop.load("o.npy", DType::f32).to_doubles(), shop.load("l.npy", DType::f32).to_doubles());
  };
  const auto expected = [&](std::int64_t chunk, const HostTensor* sinks) {
    AttentionOptions options;
    options.chunk = chunk;
    if (sinks) options.sinks = sinks->view();
    const reference::Result result = shop.expected(DType::bf16, options);
    return std::pair(rounded(DType::bf16, result.out), rounded(DType::f32, result.lse));
  };
  CHECK(attend("--chunk 4") == expected(4, nullptr));
  CHECK(attend("--chunk 0") == expected(0, nullptr));
  CHECK(attend("--chunk 2147483647") == expected(0, nullptr));
  CHECK(attend("--sinks heads.npy") == expected(0, &of_heads));
  CHECK(attend("--sinks batch.npy --chunk 4") == expected(4, &of_batch));
  CHECK(expected(4, nullptr) != expected(0, nullptr));
  CHECK(expected(0, &of_heads) != expected(0, nullptr));
  CHECK(expected(4, &of_batch) != expected(4, &of_heads));
  const json told =
      json::parse(shop.run("attend q.npy k.npy v.npy -o o.npy --device cpu --json --chunk 4 --sinks heads.npy").out);
  CHECK(told.at("chunk") == 4);
  CHECK(told.at("sinks") == "heads.npy");
}

TEST_CASE("attend with tensors of scores and masks") {
  const Workshop shop;
  HostTensor bias = HostTensor::random_normal(DType::f16, {1, 4, 5, 9}, 4), shown(DType::boolean, {2, 1, 1, 9});
  HostTensor documents(DType::i32, {1, 9}), prefix(DType::i32, {2}), tree(DType::i64, {1, 5, 1});
  for (int i = 0; i < 18; ++i) store_element(shown.data(), DType::boolean, i, i % 5 != 1);
  for (int i = 0; i < 9; ++i) store_element(documents.data(), DType::i32, i, i / 5);
  for (int i = 0; i < 2; ++i) store_element(prefix.data(), DType::i32, i, 7 * i);
  for (int i = 0; i < 5; ++i) store_element(tree.data(), DType::i64, i, 1 << i | 1);
  struct Tensors {
    const char *option, *file;
    std::optional<Tensor> AttentionOptions::*field;
    const HostTensor& values;
  };
  const Tensors all[] = {{"--bias", "b.npy", &AttentionOptions::bias, bias},
                         {"--boolean-mask", "m.npy", &AttentionOptions::boolean_mask, shown},
                         {"--documents", "d.npy", &AttentionOptions::documents, documents},
                         {"--prefix", "p.npy", &AttentionOptions::prefix, prefix},
                         {"--tree", "t.npy", &AttentionOptions::tree, tree},
                         {"--dropout-mask", "m.npy", &AttentionOptions::dropout_mask, shown}};
  const auto attend = [&](const std::string& features, const AttentionOptions& options) {
    CAPTURE(features);
    const Outcome outcome = shop.run("attend q.npy k.npy v.npy -o o.npy --device cpu --check --json " + features);
    CAPTURE(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK(json::parse(outcome.out).at("check").at("passed") == true);
    const std::vector<double> expected = rounded(DType::bf16, shop.expected(DType::bf16, options).out);
    CHECK(shop.load("o.npy", DType::f32).to_doubles() == expected);
    CHECK(expected != rounded(DType::bf16, shop.expected(DType::bf16, {}).out));
    return json::parse(outcome.out);
  };
  AttentionOptions options;
  std::string features;
  for (const Tensors& tensor : all) {
    shop.save(tensor.file, tensor.values);
    const std::string feature = fmt::format(" {} {}", tensor.option, tensor.file);
    AttentionOptions alone;
    alone.*tensor.field = options.*tensor.field = tensor.values.view();
    attend(feature, alone);
    features += feature;
  }
  const json told = attend(features, options);
  CHECK(told.at("boolean_mask") == "m.npy");
  AttentionOptions at_random;
  at_random.dropout = {0.5, 7, 8};
  CHECK(attend(" --dropout 0.5 --dropout-seed 7 --dropout-offset 8", at_random).at("dropout") == 0.5);
  CHECK(mentions(shop.refusal("attend q.npy k.npy v.npy -o o.npy --device cpu --dropout 1"),
                 "--dropout: probability must be at least 0 and below 1, was 1"));
  CHECK(mentions(shop.refusal("attend q.npy k.npy v.npy -o o.npy --device cpu --dropout-seed 1"), "--dropout"));
  CHECK(told.at("sinks").is_null());
  CHECK(mentions(shop.refusal("attend q.npy k.npy v.npy -o o.npy --device cpu --bias d.npy"),
                 "bias: dtype must be f16, bf16 or f32, was i32"));
  CHECK(mentions(shop.refusal("attend q.npy k.npy v.npy -o b.npy --device cpu --bias b.npy"),
                 "--output: must be another file than --bias"));
}

TEST_CASE("attend takes the last columns of keys from a file of their own") {
  const Workshop shop;
  const HostTensor latent = shop.load("v.npy", DType::f32),
                   rotary = HostTensor::random_normal(DType::f32, {2, 9, 2, 8}, 4);
  shop.save("rotary.npy", rotary);
  HostTensor whole(DType::f32, {2, 9, 2, 16});
  for (std::int64_t i = 0; i < 2 * 9 * 2 * 16; ++i) {
    const HostTensor& of = i % 16 < 8 ? latent : rotary;
    store_element(whole.data(), DType::f32, i, load_element(of.data(), DType::f32, i / 16 * 8 + i % 8));
  }
  shop.save("whole.npy", whole);
  const auto attend = [&](const std::string& keys) {
    CHECK(shop.run("attend q.npy " + keys + " -o o.npy --mask causal --dtype f16 --device cpu").exit_code == 0);
    return read_bytes(shop.work() / "o.npy");
  };
  CHECK(attend("v.npy v.npy --k-rotary rotary.npy") == attend("whole.npy v.npy"));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"v.npy v.npy --k-rotary missing.npy", "missing.npy: must be a .npy file, does not exist"},
      {"k.npy v.npy --k-rotary rotary.npy", "k: head_dim must be 8 like that of v, was 16"},
      {"v.npy v.npy --k-rotary k.npy", "q: head_dim must be 24, the 8 of k and the 16 of k_rotary, was 16"},
      {"v.npy v.npy --k-rotary rotary.npy --e4m3 --e4m3-queries",
       "--k-rotary: must not be given with --e4m3-queries, was rotary.npy"},
      {"v.npy v.npy --k-rotary rotary.npy --grad q.npy --dq dq.npy",
       "--k-rotary: must not be given with --grad, it has no gradients yet"},
      {"v.npy v.npy --k-rotary ./o.npy", "--output: must be another file than --k-rotary, was o.npy"}};
  for (const auto& [arguments, reason] : cases) {
    const std::string message = shop.refusal("attend q.npy -o o.npy --device cpu " + arguments);
    CAPTURE(message);
    CHECK(mentions(message, reason));
  }
}

TEST_CASE("attend over pages is attend over the same keys in a cache, bit by bit and beside other options") {
  const Workshop shop;
  const HostTensor used = ints({7, 4}, {2}), sinks = HostTensor::random_normal(DType::f32, {4}, 4);
  const cli::CasePages pages =
      cli::in_pages(shop.load("k.npy", DType::f32), shop.load("v.npy", DType::f32), used, 4, 5);
  shop.save("used.npy", used);
  shop.save("sinks.npy", sinks);
  shop.save("pages_k.npy", pages.k);
  shop.save("pages_v.npy", pages.v);
  shop.save("table.npy", pages.table);
  const auto attend = [&](const std::string& arguments) {
    const Outcome outcome = shop.run("attend q.npy -o o.npy --lse l.npy --device cpu --check --json " + arguments);
    CAPTURE(arguments);
    CAPTURE(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK(json::parse(outcome.out).at("seqused_kv") == "used.npy");
    return read_bytes(shop.work() / "o.npy") + read_bytes(shop.work() / "l.npy");
  };
  for (const std::string features :
       {"", " --mask causal", " --window 2,1", " --mask causal --sinks sinks.npy --softcap 0.5", " --chunk 4"}) {
    const std::string in_cache = attend("k.npy v.npy --seqused-kv used.npy" + features);
    CHECK(attend("pages_k.npy pages_v.npy --page-table table.npy --seqused-kv used.npy" + features) == in_cache);
  }
  AttentionOptions options;
  options.chunk = 4, options.seqused_kv = used.view();
  CHECK(shop.load("o.npy", DType::f32).to_doubles() == rounded(DType::bf16, shop.expected(DType::bf16, options).out));
}

TEST_CASE("attend with packed queries gives packed results, in which rows of no sequence are empty") {
  const Workshop shop;
  const HostTensor q = HostTensor::random_normal(DType::f32, {8, 4, 16}, 6), starts = ints({0, 3, 7}, {3});
  const HostTensor of_cache = ints({1, 0}, {2}), padding = ints({2, 0}, {2});
  shop.save("packed.npy", q);
  shop.save("starts.npy", starts);
  shop.save("of_cache.npy", of_cache);
  shop.save("padding.npy", padding);
  const Outcome outcome = shop.run(
      "attend packed.npy k.npy v.npy -o o.npy --lse l.npy --device cpu --check --cu-seqlens-q starts.npy "
      "--batch-indices-kv of_cache.npy --leftpad-kv padding.npy --json");
  CAPTURE(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(json::parse(outcome.out).at("shape") == json({8, 4, 8}));
  AttentionOptions options;
  options.cu_seqlens_q = starts.view(), options.batch_indices_kv = of_cache.view();
  options.leftpad_kv = padding.view();
  const HostTensor low_q = q.converted_to(DType::bf16), k = shop.load("k.npy", DType::bf16),
                   v = shop.load("v.npy", DType::bf16);
  const reference::Result expected = reference::attention(low_q.view(), k.view(), v.view(), options);
  const HostTensor out = shop.load("o.npy", DType::f32), lse = shop.load("l.npy", DType::f32);
  CHECK(out.shape() == Dims{8, 4, 8});
  CHECK(lse.shape() == Dims{4, 8});
  CHECK(out.to_doubles() == rounded(DType::bf16, expected.out));
  CHECK(lse.to_doubles() == rounded(DType::f32, expected.lse));
  CHECK(out.to_doubles().back() == 0);
  CHECK(lse.to_doubles().back() == -std::numeric_limits<double>::infinity());
}

TEST_CASE("attend says what is wrong with pages, lengths and offsets before a kernel is made") {
  const Workshop shop;
  shop.save("pages.npy", HostTensor(DType::f32, {6, 4, 2, 16}));
  shop.save("packed.npy", HostTensor(DType::f32, {8, 4, 16}));
  shop.save("table.npy", ints({0, 1, 2, 3, 4, 5}, {2, 3}));
  shop.save("no_page.npy", ints({0, 1, -1, 3, 6, 5}, {2, 3}));
  shop.save("reals.npy", HostTensor(DType::f32, {2, 3}));
  shop.save("used.npy", ints({8, 7}, {2}));
  shop.save("too_long.npy", ints({8, 13}, {2}));
  shop.save("starts.npy", ints({0, 3, 9}, {3}));
  const std::string pages = "q.npy pages.npy pages.npy ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {pages + "--page-table no_page.npy --seqused-kv used.npy",
       "page_table: entry 1 of sequence 1 must be from 0 to 5, was 6"},
      {pages + "--page-table no_page.npy", "page_table: entry 2 of sequence 0 must be from 0 to 5, was -1"},
      {pages + "--page-table table.npy --seqused-kv too_long.npy",
       "seqused_kv: must be from 0 to 12, as many rows as sequence 1 has, was 13"},
      {pages + "--page-table reals.npy", "reals.npy: the elements must be bool or little-endian int32 or int64"},
      {pages + "--page-table used.npy", "page_table: rank must be 2, was 1"},
      {pages + "--page-table missing.npy", "missing.npy: must be a .npy file, does not exist"},
      {pages + "--seqused-kv used.npy", "k: batch must be 2 like that of q, was 6"},
      {pages + "--page-table table.npy --leftpad-kv used.npy", "leftpad_kv: must not be given beside page_table"},
      {"packed.npy k.npy v.npy --cu-seqlens-q starts.npy", "cu_seqlens_q: must be from 0 to 8, was 9 at 2"},
      {"packed.npy k.npy v.npy --seqused-kv used.npy",
       "or 3 (total, heads, head_dim) beside --cu-seqlens-q, has shape"},
      {"q.npy packed.npy v.npy --cu-seqlens-q starts.npy", "beside --cu-seqlens-kv, has shape [8, 4, 16]"},
      {pages + "--page-table o.npy", "--output: must be another file than --page-table, was o.npy"}};
  for (const auto& [arguments, reason] : cases) {
    const std::string message = shop.refusal("attend " + arguments + " -o o.npy --device emulate");
    CAPTURE(message);
    CHECK(mentions(message, reason));
  }
  CHECK(mentions(shop.refusal("attend " + pages + "--page-table table.npy -o o.npy --device emulate"), "libnvrtc"));
}

TEST_CASE("attend takes texts and captures, and says what is wrong with them") {
  const Workshop shop;
  const auto refusal = [&](const std::string& texts) {
    return shop.refusal("attend q.npy k.npy v.npy -o o.npy " + texts);
  };
  CHECK(mentions(refusal("--device cpu --score 'score / 2'"), "a text must be run by a GPU, or by --device emulate"));
  CHECK(mentions(refusal("--mask 'key > 2'"), "a text must be run by a GPU, or by --device emulate"));
  CHECK(mentions(refusal("--score '#'"), "--score: must not have '#' at line 1, column 1"));
  CHECK(mentions(refusal("--mask '(key'"), "--mask: must have balanced brackets"));
  CHECK(mentions(refusal("--mask casual"), "--mask: must be full or causal, was 'casual'; did you mean 'causal'?"));
  CHECK(mentions(refusal("--mask 'key > 2' --mask 'key > 3'"), "--mask: must be at most one word and one text"));
  CHECK(mentions(refusal("--mask full --mask causal"), "--mask: must be at most one word and one text"));
  CHECK(mentions(refusal("--score 'score + a' --capture a"), "--capture: must be like slope=0.5 or slope=slopes.npy"));
  CHECK(mentions(refusal("--score 'score + a' --capture b=1"),
                 "--capture: b must be used in the text of --score or --mask, was in none"));
  CHECK(
      mentions(refusal("--score 'score + a' --capture a=x"), "--capture: a must be a number or a .npy file, was 'x'"));
  CHECK(mentions(refusal("--score 'score + a' --capture a=a.npy"), "a.npy: must be a .npy file, does not exist"));
  CHECK(mentions(refusal("--score 'score + a' --capture a=1 --capture a=2"), "--score: capture a: must be given once"));
}

TEST_CASE("render shows texts as they were written, with their captures") {
  const Workshop shop;
  shop.save("slopes.npy", HostTensor(DType::f16, {4}));
  const Outcome outcome = shop.run(
      "render --arch sm_90a --head-dim 64 --mask causal --mask 'key > least' "
      "--score 'score - slope(head) * abs(query - key) - least' --capture least=3 --capture slope=slopes.npy");
  CHECK(outcome.exit_code == 0);
  CHECK(mentions(outcome.out, "#line 1 \"score\"\nscore - slope(head) * abs(query - key) - least\n"));
  CHECK(mentions(outcome.out, "#line 1 \"mask\"\nkey > least\n"));
  CHECK(mentions(outcome.out, "Tensor<F16, 1, true> slope;"));
  CHECK(mentions(outcome.out, "int least;"));
  CHECK(mentions(outcome.out, "AllOf<CausalMask>"));
}

TEST_CASE("where nothing is computed the type of a captured tensor stands for it") {
  const Workshop shop;
  const std::string render = "render --arch sm_90a --head-dim 64 --score 'score - slope(head) + table(0, query, key)' ";
  const Outcome outcome = shop.run(render + "--capture slope=f16:1 --capture table=i64:3");
  CHECK(outcome.exit_code == 0);
  CHECK(mentions(outcome.out, "Tensor<F16, 1, true> slope;"));
  CHECK(mentions(outcome.out, "Tensor<I64, 3, true> table;"));
  shop.save("slopes.npy", HostTensor(DType::f16, {4}));
  shop.save("table.npy", HostTensor(DType::i64, {1, 9, 9}));
  CHECK(shop.run(render + "--capture slope=slopes.npy --capture table=table.npy").out == outcome.out);
  CHECK(mentions(shop.refusal(render + "--capture slope=f8:1 --capture table=i64:3"),
                 "--capture: slope: dtype: must be f16, bf16, f32, i32, i64, boolean, e4m3, f64 or e5m2, was f8"));
  CHECK(mentions(shop.refusal(render + "--capture slope=f16:5 --capture table=i64:3"),
                 "--capture: slope: dimensions: must be a whole number from 0 to 4, was '5'"));
  CHECK(mentions(shop.refusal("attend q.npy k.npy v.npy -o o.npy --device emulate --score 'score - a(0)' "
                              "--capture a=f16:1"),
                 "--capture: a must be a number or a .npy file, was 'f16:1'"));
}

TEST_CASE("compile takes texts and block masks") {
  const Workshop shop;
  CHECK(mentions(shop.refusal("compile --arch sm_80 --block-mask"),
                 "--block-mask: must be made of --boolean-mask, --documents, --tree or a text of --mask, had none"));
  CHECK(mentions(shop.refusal("compile --arch sm_80 --score '#'"), "--score: must not have '#' at line 1, column 1"));
}

TEST_CASE("attend without a GPU says that it takes the CPU") {
  const Workshop shop;
  const Outcome outcome = shop.run("attend q.npy k.npy v.npy -o o.npy --check --json");
  CHECK(outcome.exit_code == 0);
  CHECK(mentions(outcome.err, "flashjit: no GPU ("));
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(json::parse(outcome.out).at("check").at("passed") == true);
  CHECK(fs::exists(shop.work() / "o.npy"));
}

TEST_CASE("attend writes through a symbolic link and replaces an existing file") {
  const Workshop shop;
  write_bytes(shop.work() / "old.npy", "old");
  fs::create_symlink("old.npy", shop.work() / "link.npy");
  CHECK(shop.run("attend q.npy k.npy v.npy -o link.npy --device cpu").exit_code == 0);
  CHECK(fs::is_symlink(shop.work() / "link.npy"));
  CHECK(shop.load("old.npy", DType::f32).shape() == Dims{2, 5, 4, 8});
}

TEST_CASE("attend refuses bad input and leaves the files as they were") {
  const Workshop shop;
  shop.save("flat.npy", HostTensor(DType::f32, {2, 5, 64}));
  shop.save("heads3.npy", HostTensor(DType::f32, {2, 9, 3, 16}));
  shop.save("dim32.npy", HostTensor(DType::f32, {2, 9, 2, 32}));
  shop.save("length8.npy", HostTensor(DType::f32, {2, 8, 2, 8}));
  shop.save("slopes3.npy", HostTensor(DType::f32, {3}));
  shop.save("slopes4.npy", HostTensor(DType::f32, {4}));
  shop.save("o.npy", HostTensor(DType::f32, {1}));
  write_bytes(shop.work() / "broken.npy", read_bytes(shop.work() / "q.npy").substr(0, 100));
  ::mkfifo((shop.work() / "pipe").c_str(), 0600);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"missing.npy k.npy v.npy -o o.npy", "missing.npy: must be a .npy file, does not exist"},
      {"broken.npy k.npy v.npy -o o.npy", "broken.npy: ends within"},
      {"flat.npy k.npy v.npy -o o.npy", "flat.npy: must have 4 dimensions (batch, seqlen, heads, head_dim)"},
      {"q.npy heads3.npy heads3.npy -o o.npy", "3"},
      {"q.npy dim32.npy v.npy -o o.npy", "k"},
      {"q.npy k.npy length8.npy -o o.npy", "v"},
      {"q.npy k.npy v.npy -o o.npy --scale nan", "scale"},
      {"q.npy k.npy v.npy -o o.npy --scale wide", "--scale"},
      {"q.npy k.npy v.npy -o o.npy --window 5 --device cpu", "--window: must be like 1024,0"},
      {"q.npy k.npy v.npy -o o.npy --alibi-slopes missing.npy", "missing.npy: must be a .npy file, does not exist"},
      {"q.npy k.npy v.npy -o o.npy --alibi-slopes q.npy",
       "q.npy: must be (heads_q) or (batch, heads_q), has shape [2, 5, 4, 16]"},
      {"q.npy k.npy v.npy -o o.npy --alibi-slopes slopes3.npy", "alibi_slopes: must be [4] or [2, 4]"},
      {"q.npy k.npy v.npy -o o.npy --sinks q.npy",
       "q.npy: must be (heads_q) or (batch, heads_q), has shape [2, 5, 4, 16]"},
      {"q.npy k.npy v.npy -o o.npy --sinks slopes3.npy", "sinks: must be [4] or [2, 4]"},
      {"q.npy k.npy v.npy -o o.npy --sinks slopes4.npy --lse slopes4.npy",
       "--lse: must be another file than --sinks, was slopes4.npy"},
      {"q.npy k.npy v.npy -o o.npy --softcap 1e-6 --scale 1e38", "softmax_scale: must be below 3.4e38 times softcap"},
      {"q.npy k.npy v.npy -o slopes4.npy --alibi-slopes slopes4.npy",
       "--output: must be another file than --alibi-slopes, was slopes4.npy"},
      {"q.npy k.npy v.npy -o o.npy --dtype f32", "--dtype: must be bf16 or f16, was 'f32'"},
      {"q.npy k.npy v.npy -o o.npy --device tpu", "--device: must be auto, gpu, emulate or cpu, was 'tpu'"},
      {"q.npy k.npy v.npy -o o.npy --device gpu", "needs a GPU"},
      {"q.npy k.npy v.npy -o o.npy --device emulate", "/nowhere/libnvrtc.so"},
      {"q.npy k.npy v.npy -o o.npy --device emulate --arch sm_42", "--arch: must be sm_80, sm_86"},
      {"q.npy k.npy v.npy -o o.npy --device emulate --arch sm_80 --variant hopper-q128", "sm_90a"},
      {"q.npy k.npy v.npy -o o.npy --arch sm_80", "--arch: must be given only with --device emulate, was 'sm_80'"},
      {"q.npy k.npy v.npy -o o.npy --variant fast", "fast"},
      {"q.npy k.npy v.npy -o o.npy --variant v1 --device cpu", "--variant: must not be given with --device cpu"},
      {"q.npy k.npy v.npy -o o.npy --lse ./o.npy", "--lse: must be another file than --output"},
      {"q.npy k.npy v.npy -o ./k.npy", "--output: must be another file than K, was ./k.npy"},
      {"q.npy k.npy v.npy -o o.npy --lse q.npy", "--lse: must be another file than Q, was q.npy"},
      {"q.npy k.npy v.npy -o .", "--output: . must be a regular file or not exist"},
      {"q.npy k.npy v.npy -o pipe", "--output: pipe must be a regular file or not exist"},
      {"q.npy k.npy v.npy -o nowhere/o.npy", "--output: nowhere/o.npy cannot be written"},
      {"q.npy k.npy v.npy -o new.npy --lse nowhere/l.npy", "--lse: nowhere/l.npy cannot be written"},
      {"q.npy k.npy v.npy -o new.npy --lse ./new.npy", "--lse: must be another file than --output, was ./new.npy"},
      {"q.npy k.npy v.npy -o ''", "--output"}};
  for (const auto& [arguments, reason] : cases) {
    const std::string message = shop.refusal("attend " + arguments);
    CAPTURE(message);
    CHECK(mentions(message, reason));
  }
  CHECK(shop.run("attend q.npy k.npy v.npy -o o.npy --device cpu").exit_code == 0);
}

TEST_CASE("attend writes the gradients that the reference has, those that are asked for") {
  const Workshop shop;
  const HostTensor dout = HostTensor::random_normal(DType::f32, {2, 5, 4, 8}, 4);
  const HostTensor dlse = HostTensor::random_normal(DType::f32, {2, 4, 5}, 5);
  shop.save("dout.npy", dout);
  shop.save("dlse.npy", dlse);
  AttentionOptions options;
  options.causal = true;
  const auto attend = [&](const std::string& arguments) {
    const Outcome outcome = shop.run("attend q.npy k.npy v.npy --device cpu --check --json --mask causal " + arguments);
    CAPTURE(arguments);
    CAPTURE(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return json::parse(outcome.out);
  };
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const reference::Gradients expected = shop.expected_gradients(dout, dtype, options, dlse.view());
    const json told = attend(fmt::format(
        "--grad dout.npy --dlse dlse.npy --dq dq.npy --dk dk.npy --dv dv.npy --dtype {}", to_string(dtype)));
    CHECK(told.at("output").is_null());
    CHECK(told.at("dk") == "dk.npy");
    for (const char* name : {"out", "lse", "dq", "dk", "dv"}) CHECK(told.at("check").at(name).at("passed") == true);
    CHECK(shop.load("dq.npy", dtype).shape() == Dims{2, 5, 4, 16});
    CHECK(shop.load("dv.npy", dtype).shape() == Dims{2, 9, 2, 8});
    CHECK(shop.load("dq.npy", dtype).to_doubles() == rounded(dtype, expected.dq));
    CHECK(shop.load("dk.npy", dtype).to_doubles() == rounded(dtype, expected.dk));
    CHECK(shop.load("dv.npy", dtype).to_doubles() == rounded(dtype, expected.dv));
    CHECK(mentions(read_bytes(shop.work() / "dq.npy"), dtype == DType::bf16 ? "'<f4'" : "'<f2'"));
  }
  const HostTensor sinks = HostTensor::random_normal(DType::f32, {4}, 6);
  shop.save("sinks.npy", sinks);
  AttentionOptions with_sinks = options;
  with_sinks.sinks = sinks.view();
  CHECK(attend("--sinks sinks.npy --grad dout.npy --dsinks dsinks.npy").at("dsinks") == "dsinks.npy");
  CHECK(shop.load("dsinks.npy", DType::f32).to_doubles() ==
        rounded(DType::f32, shop.expected_gradients(dout, DType::bf16, with_sinks, {}).dsinks));
  const json told = attend("--grad dout.npy --dk alone.npy -o o.npy --lse l.npy");
  CHECK(told.at("dq").is_null());
  CHECK(told.at("output") == "o.npy");
  CHECK(!told.at("check").contains("dq"));
  CHECK(shop.load("alone.npy", DType::f32).to_doubles() ==
        rounded(DType::bf16, shop.expected_gradients(dout, DType::bf16, options, {}).dk));
  CHECK(shop.load("o.npy", DType::f32).to_doubles() == rounded(DType::bf16, shop.expected(DType::bf16, options).out));
}

TEST_CASE("attend on the CPU has gradients of packed sequences, in whose rows of none they are 0") {
  const Workshop shop;
  const HostTensor q = HostTensor::random_normal(DType::f32, {8, 4, 16}, 1);
  const HostTensor dout = HostTensor::random_normal(DType::f32, {8, 4, 8}, 2);
  const HostTensor dlse = HostTensor::random_normal(DType::f32, {4, 8}, 3);
  shop.save("packed.npy", q);
  shop.save("dout.npy", dout);
  shop.save("dlse.npy", dlse);
  shop.save("starts.npy", ints({0, 3, 7}, {3}));
  const Outcome outcome = shop.run(
      "attend packed.npy k.npy v.npy --device cpu --check --cu-seqlens-q starts.npy --grad dout.npy --dlse dlse.npy "
      "--dq dq.npy --dv dv.npy");
  CAPTURE(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(mentions(outcome.out, "written   dq.npy, dv.npy\n"));
  CHECK(shop.load("dv.npy", DType::f32).shape() == Dims{2, 9, 2, 8});
  const HostTensor dq = shop.load("dq.npy", DType::f32);
  CHECK(dq.shape() == Dims{8, 4, 16});
  const std::vector<double> values = dq.to_doubles();
  const auto last = values.end() - 4 * 16;
  CHECK(std::all_of(last, values.end(), [](double value) { return value == 0; }));
  CHECK(std::none_of(values.begin(), last, [](double value) { return value == 0; }));
}

TEST_CASE("attend says what is wrong with gradients, and what has none, before a kernel is made") {
  const Workshop shop;
  shop.save("dout.npy", HostTensor(DType::f32, {2, 5, 4, 8}));
  shop.save("dlse.npy", HostTensor(DType::f32, {2, 4, 5}));
  shop.save("used.npy", ints({5, 4}, {2}));
  const std::string dq = "--grad dout.npy --dq dq.npy ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "--output: must be given where --grad is not"},
      {"--lse l.npy", "--output: must be given where --grad is not"},
      {"-o o.npy --dk dk.npy", "--dk: must be given only with --grad, was dk.npy"},
      {"-o o.npy --dlse dlse.npy", "--dlse: must be given only with --grad, was dlse.npy"},
      {"-o o.npy --deterministic", "--deterministic: must be given only with --grad"},
      {"-o o.npy --grad dout.npy",
       "--grad: must be given with --dq, --dk, --dv or another result, was given with none of them"},
      {"-o o.npy --grad dout.npy --dbias db.npy", "--dbias: must be given only with --bias, was db.npy"},
      {"--grad missing.npy --dq dq.npy", "missing.npy: must be a .npy file, does not exist"},
      {"--grad q.npy --dq dq.npy", "q.npy: must have the shape of the output, [2, 5, 4, 8], has shape [2, 5, 4, 16]"},
      {"--grad dlse.npy --dq dq.npy", "dlse.npy: must have 4 dimensions"},
      {dq + "--dlse dout.npy", "dout.npy: must have the shape of the LSE, [2, 4, 5], has shape [2, 5, 4, 8]"},
      {dq + "--dk ./dq.npy", "--dk: must be another file than --dq, was ./dq.npy"},
      {dq + "-o dout.npy", "--output: must be another file than --grad, was dout.npy"},
      {dq + "--dlse dq.npy", "--dq: must be another file than --dlse, was dq.npy"},
      {dq + "--dv nowhere/dv.npy", "--dv: nowhere/dv.npy cannot be written"},
      {dq + "--e4m3", "--e4m3: must not be given with --grad, it has no gradients yet"},
      {"-o o.npy --e4m3 --q-scale dlse.npy", "--q-scale: must be given only with --e4m3-queries, was dlse.npy"},
      {"-o o.npy --v-scale dlse.npy", "--v-scale: must be given only with --e4m3, was dlse.npy"},
      {"-o o.npy --e4m3-queries", "--e4m3-queries requires --e4m3"},
      {"-o o.npy --e4m3 --fast-sums", "--fast-sums requires --e4m3-queries"},
      {"-o o.npy --e4m3 --v-transposed", "--v-transposed requires --e4m3-queries"},
      {"-o o.npy --e4m3 --out-e4m3", "--out-e4m3 requires --e4m3-queries"},
      {"-o o.npy --e4m3 --e4m3-queries --out-scale dlse.npy",
       "--out-scale: must be given only with --out-e4m3, was dlse.npy"},
      {dq + "--grad-variant v1",
       "--grad-variant: variant: 'v1' must be like mma-q64-kv128-w8-r1-s1, which has no 'v1'"},
      {"-o o.npy --grad-variant w8", "--grad-variant: must be given only with --grad, was w8"},
      {dq + "--fixed-split-size 64", "--fixed-split-size: must be 0 with --grad, whose kernels split no keys, was 64"},
      {dq + "--page-table used.npy", "--page-table: must be given with --grad only on the CPU (--device cpu)"},
      {dq + "--page-table used.npy", "--page-table: must be given with --grad only on the CPU (--device cpu)"}};
  for (const auto& [arguments, reason] : cases) {
    const std::string message = shop.refusal("attend q.npy k.npy v.npy --device emulate " + arguments);
    CAPTURE(message);
    CHECK(mentions(message, reason));
  }
  CHECK(mentions(shop.refusal("attend q.npy k.npy v.npy --device emulate " + dq), "libnvrtc"));
  CHECK(mentions(shop.refusal("attend q.npy k.npy v.npy --device cpu --grad-variant w8 " + dq),
                 "--grad-variant: must not be given with --device cpu"));
}

TEST_CASE("render gives the same bytes each time, on stdout and in a file") {
  const Workshop shop;
  const std::string arguments = "render --arch sm_90a --head-dim 64 --mask causal --variant v3";
  const Outcome first = shop.run(arguments), second = shop.run(arguments);
  CHECK(first.exit_code == 0);
  CHECK(first.err.empty());
  CHECK(mentions(first.out, "__global__"));
  CHECK(first.out == second.out);
  CHECK(shop.run(arguments + " -o kernel.cu").out.empty());
  CHECK(read_bytes(shop.work() / "kernel.cu") == first.out);
  CHECK(shop.run("render --arch sm_90a --head-dim 64 --mask causal").out != first.out);
}

TEST_CASE("a window of any size is one kernel, and none where all keys are seen") {
  const Workshop shop;
  const auto render = [&](const std::string& masks) {
    const Outcome outcome = shop.run("render --arch sm_90a --head-dim 64 --variant v3 " + masks);
    CHECK(outcome.exit_code == 0);
    return outcome.out;
  };
  const std::string window = render("--window 1024,64");
  CHECK(mentions(window, "fwd-bf16-d64-window.mma"));
  CHECK(mentions(window, "AllOf<WindowMask>"));
  CHECK(render("--window -1,1") == window);
  CHECK(render("--window 7,-1") == window);
  const std::string causal = render("--window 1024,0");
  CHECK(mentions(causal, "AllOf<CausalMask, WindowMask>"));
  CHECK(render("--window 3,5 --mask causal") == causal);
  CHECK(render("--window -1,-1") == render(""));
  CHECK(render("--window -1,0") == render("--mask causal"));
}

TEST_CASE("a cap or a chunk of any size is one kernel, and none where there is none") {
  const Workshop shop;
  const auto render = [&](const std::string& features) {
    const Outcome outcome = shop.run("render --arch sm_90a --head-dim 64 --variant v3 " + features);
    CHECK(outcome.exit_code == 0);
    return outcome.out;
  };
  const std::string cap = render("--softcap 30");
  CHECK(mentions(cap, "InTurn<Softcap>"));
  CHECK(render("--softcap 0.25") == cap);
  CHECK(render("--softcap 0") == render(""));
  const std::string chunk = render("--chunk 8192");
  CHECK(mentions(chunk, "AllOf<ChunkMask>"));
  CHECK(render("--chunk 1") == chunk);
  CHECK(render("--chunk 0") == render(""));
  CHECK(mentions(render("--sinks"), "Additions<Sinks>"));
  CHECK(mentions(render("--alibi"), "InTurn<AlibiSlopes>"));
  CHECK(mentions(render("--alibi --softcap 1 --window 7,0"), "InTurn<Softcap, AlibiSlopes>"));
}

TEST_CASE("render refuses what it does not know, by name") {
  const Workshop shop;
  CHECK(mentions(shop.refusal("render --arch sm_12"), "sm_12"));
  CHECK(mentions(shop.refusal("render"), "--arch: must be given where there is no GPU"));
  CHECK(mentions(shop.refusal("render --arch sm_80 --variant fast"), "--variant"));
  CHECK(mentions(shop.refusal("render --arch sm_80 --variant q17"), "17"));
  CHECK(mentions(shop.refusal("render --arch sm_80 --dtype f64"), "--dtype: must be bf16 or f16, was 'f64'"));
  CHECK(mentions(shop.refusal("render --arch sm_80 --head-dim 12"),
                 "--head-dim: that of q and k must be a multiple of 8 from 8 to 576"));
  CHECK(mentions(shop.refusal("render --arch sm_80 --head-dim 64x520"), "--head-dim"));
  CHECK(mentions(shop.refusal("render --arch sm_80 -o nowhere/k.cu"), "--output"));
}

TEST_CASE("variants marks one default for each bucket, and spells many buckets in few words") {
  const Workshop shop;
  for (const std::string architecture : {"sm_86", "sm_90a"}) {
    CAPTURE(architecture);
    const Outcome outcome = shop.run("variants --arch " + architecture + " --head-dim 128 --json");
    CHECK(outcome.exit_code == 0);
    std::vector<std::string> buckets, all;
    const json list = json::parse(outcome.out).at("variants");
    REQUIRE(!list.empty());
    for (const json& entry : list) {
      CHECK(to_string(parse_variant(entry.at("variant").get<std::string>())) == entry.at("variant"));
      for (const json& bucket : entry.at("default_for")) buckets.push_back(bucket);
    }
    for (const ShapeBucket& bucket : shape_buckets()) all.push_back(to_string(bucket));
    std::sort(buckets.begin(), buckets.end());
    std::sort(all.begin(), all.end());
    CHECK(buckets == all);
    const std::string table = shop.run("variants --head-dim 128 --arch " + architecture).out;
    CHECK(mentions(table, list.front().at("variant").get<std::string>()));
    CHECK(mentions(table, architecture == "sm_86" ? " q16-q64 w05\n" : " q16 w05\n"));
    CHECK(mentions(table, architecture == "sm_86" ? " q128+\n" : " q128+ w05\n"));
  }
}

TEST_CASE("variants --explain keeps what variants lists, and says why not the rest") {
  const Workshop shop;
  const std::string arguments = "variants --arch sm_90a --head-dim 128 --json";
  const json list = json::parse(shop.run(arguments).out).at("variants");
  const json explained = json::parse(shop.run(arguments + " --explain").out).at("variants");
  std::vector<json> listed, kept;
  for (const json& entry : list) listed.push_back(entry.at("variant"));
  std::set<std::string> verdicts;
  for (const json& entry : explained) {
    verdicts.insert(entry.at("verdict").get<std::string>());
    if (entry.at("verdict") == "kept") kept.push_back(entry.at("variant"));
    CHECK((entry.at("verdict") == "kept") == (entry.at("reason") == ""));
    CHECK(entry.at("smem_bytes") > 0);
    CHECK(entry.at("registers") > 0);
    CHECK(entry.at("smem_bytes_per_kflop") > 0);
  }
  CHECK(kept == listed);
  CHECK(verdicts == std::set<std::string>{"illegal", "kept", "pruned", "replaced"});
  CHECK(mentions(shop.run("variants --arch sm_90a --explain").out, "bytes/kFLOP"));
}

TEST_CASE("variants of gradients are listed, the defaults first, and explained") {
  const TemporaryDirectory directory;
  const auto list = [&](const std::string& arguments) {
    const Outcome outcome =
        run_command(directory.path(), kBareEnvironment, "variants --pass backward --json " + arguments);
    REQUIRE(outcome.exit_code == 0);
    return json::parse(outcome.out);
  };
  const json on_hopper = list("--arch sm_90a --deterministic");
  CHECK(on_hopper.at("problem") == "bwd-bf16-d128-deterministic");
  CHECK(on_hopper.at("variants").at(0) == json{{"variant", "hopper-q80-kv128"}, {"default", true}});
  CHECK(on_hopper.at("variants").at(1) == json{{"variant", "hopper-q64-kv128"}, {"default", true}});
  CHECK(on_hopper.at("variants").at(2) == json{{"variant", "mma-q64-kv128-w8-r1-s1"}, {"default", true}});
  const json kept = list("--arch sm_80").at("variants"), all = list("--arch sm_80 --explain").at("variants");
  CHECK(all.size() > kept.size());
  CHECK(all.at(kept.size() - 1).at("verdict") == "kept");
  CHECK(all.at(kept.size()).at("verdict") != "kept");
}

TEST_CASE("compile of gradients refuses what has none, by name") {
  const TemporaryDirectory directory;
  const auto refusal = [&](const std::string& arguments) {
    const std::string line = "compile --arch sm_80 " + arguments;
    return expect_refusal(line, run_command(directory.path(), kBareEnvironment, line));
  };
  CHECK(mentions(refusal("--pass backward --paged"), "paged: must not be asked for"));
  CHECK(mentions(refusal("--f32-gradients"), "--f32-gradients: must not be given without --pass backward"));
  CHECK(mentions(refusal("--pass backward --variant q64-kv63"), "--variant"));
  CHECK(mentions(refusal("--pass backward --variant hopper-q64-kv128"), "sm_90a"));
}

TEST_CASE("both families of kernels are listed and rendered where they run") {
  const Workshop shop;
  const std::string everywhere = shop.run("variants --arch sm_86").out, hopper = shop.run("variants --arch sm_90a").out;
  CHECK(mentions(hopper, "\nhopper-"));
  CHECK(mentions(hopper, "\nmma-"));
  CHECK_FALSE(mentions(everywhere, "hopper-"));
  const std::string tail = " --variant hopper-q128-kv64-s2 --head-dim 128 ";
  CHECK(mentions(shop.run("render --arch sm_90a" + tail).out, "forward_hopper<Config>"));
  CHECK(mentions(shop.refusal("render --arch sm_86" + tail), "sm_90a"));
  CHECK(mentions(shop.run("render --arch sm_90a --variant mma-kv32-k2").out, "ForwardMma<Config>"));
}

TEST_CASE("compile refuses bad lists before it compiles, and says where it looked for NVRTC") {
  const Workshop shop;
  CHECK(mentions(shop.refusal("compile --arch sm_80,sm_1"), "sm_1"));
  CHECK(mentions(shop.refusal("compile --arch sm_80 --dtype bf16,,f16"), "--dtype"));
  CHECK(mentions(shop.refusal("compile --arch sm_80 --head-dim 64,192y128"), "--head-dim"));
  CHECK(mentions(shop.refusal("compile --arch sm_80 --mask maybe"), "--mask: must be full or causal, was 'maybe'"));
  CHECK(mentions(shop.refusal("compile --arch sm_80 --window 5"), "--window: must be like 1024,0"));
  CHECK(mentions(shop.refusal("compile --arch sm_80 --variant fast"), "--variant"));
  CHECK(mentions(shop.refusal("compile --arch sm_80"), "/nowhere/libnvrtc.so"));
  CHECK(mentions(shop.refusal("compile --arch sm_80 --bundle nowhere/b.fjb"), "--bundle: nowhere/b.fjb cannot be"));
  CHECK(mentions(shop.refusal("compile --arch sm_80 --bundle b.fjb"), "/nowhere/libnvrtc.so"));
  CHECK(!fs::exists(shop.cache()));
}

TEST_CASE("verify in the emulator refuses what it cannot do, by name") {
  const Workshop shop;
  CHECK(
      mentions(shop.refusal("verify --device emulate --head-dim 8 --dtype bf16 --mask full"), "/nowhere/libnvrtc.so"));
  CHECK(mentions(shop.refusal("verify --device cpu"), "--device: must be auto, gpu or emulate, was 'cpu'"));
  CHECK(mentions(shop.refusal("verify --device emulate --arch sm_42"), "--arch: must be sm_80, sm_86"));
  CHECK(mentions(shop.refusal("verify --device emulate --variant fast"), "--variant"));
  CHECK(mentions(shop.refusal("verify --device emulate --schedules 0"), "--schedules"));
  CHECK(mentions(shop.refusal("verify --arch sm_80"), "--arch: must be given only with --device emulate"));
}

TEST_CASE("verify of what MLA's caches have takes their head dims, where none are asked for") {
  const Workshop shop;
  for (const std::string feature : {"--latent", "--k-rotary"}) {
    const std::string verify = "verify --device emulate --arch sm_90a " + feature;
    CHECK(mentions(shop.run(verify + " --dtype bf16 --mask full").err, "/nowhere/libnvrtc.so"));
    CHECK(mentions(shop.refusal(verify + " --head-dim 64"), feature + ": "));
    CHECK(mentions(shop.refusal(verify + " --head-dim 8,40,64,80,96,128,192x128,64x256,256"), feature + ": "));
  }
}

TEST_CASE("verify takes texts beside lists of masks, and says what is wrong with them") {
  const Workshop shop;
  shop.save("slopes.npy", HostTensor(DType::f32, {4}));
  const auto refusal = [&](const std::string& options) { return shop.refusal("verify --device emulate " + options); };
  CHECK(mentions(refusal("--head-dim 8 --dtype bf16 --mask full,causal --mask 'key > a' --capture a=2 --block-mask "
                         "--score 'score - slope(head)' --capture slope=slopes.npy"),
                 "/nowhere/libnvrtc.so"));
  CHECK(mentions(refusal("--mask '(key'"), "--mask: must have balanced brackets"));
  CHECK(mentions(refusal("--mask full,casual"), "--mask: must be full or causal, was 'casual'"));
  CHECK(mentions(refusal("--mask full --mask causal"), "--mask: must be at most one word and one text"));
  CHECK(mentions(refusal("--score 'score + a' --capture b=1"), "--capture: b must be used in the text"));
  CHECK(mentions(refusal("--block-mask --bias"), "--block-mask: must be made of --boolean-mask, --documents, --tree"));
}

TEST_CASE("verify draws random combinations from nothing but a seed") {
  const Workshop shop;
  CHECK(mentions(shop.refusal("verify --device emulate --random 1 --seed 3"), "--seed 3: "));
  CHECK(mentions(shop.refusal("verify --random 1 --seed 3"), "verify: needs a GPU"));
  CHECK(mentions(shop.refusal("verify --random 0"), "--random: must be a whole number from 1 to 1000000, was '0'"));
  for (const std::string option : {"--head-dim 64", "--mask full", "--mask 'key > 2'", "--score score", "--bias",
                                   "--window 5,0", "--block-mask", "--variant v1", "--all-variants"}) {
    const std::string name = option.substr(0, option.find(' '));
    CHECK(mentions(shop.refusal("verify --random 1 " + option),
                   name + ": must not be given with --random, which draws it"));
  }
}

TEST_CASE("verify of gradients refuses what has none, by name") {
  const Workshop shop;
  for (const std::string option : {"--paged", "--e4m3", "--documents --block-mask", "--variant v1", "--all-variants"}) {
    const std::string name =
        option.substr(option.rfind("--"), option.find(' ', option.rfind("--")) - option.rfind("--"));
    CHECK(mentions(shop.refusal("verify --pass backward --device emulate " + option),
                   name + ": must not be given with --pass backward"));
  }
  CHECK(mentions(shop.refusal("verify --pass sideways"), "--pass: must be forward or backward, was 'sideways'"));
  CHECK(mentions(shop.refusal("verify --pass backward"), "verify: needs a GPU"));
  CHECK(mentions(shop.refusal("verify --pass backward --device emulate --random 1 --seed 3"), "--seed 3: "));
}

TEST_CASE("verify and the GPU grids of bench say that they need a GPU") {
  const Workshop shop;
  CHECK(mentions(shop.refusal("verify"), "verify: needs a GPU"));
  CHECK(mentions(shop.refusal("verify --device gpu"), "verify: needs a GPU"));
  CHECK(mentions(shop.refusal("bench --grid forward --json r.json"), "bench --grid forward: needs a GPU"));
  CHECK(mentions(shop.refusal("bench --grid 5090"), "bench --grid 5090: needs a GPU"));
  CHECK(mentions(shop.refusal("bench --grid ablation"), "bench --grid ablation: needs a GPU"));
  for (const std::string grid : {"decode", "ragged", "window", "quantize"})
    CHECK(mentions(shop.refusal("bench --quick --grid " + grid), "bench --grid " + grid + ": needs a GPU"));
  CHECK(mentions(
      shop.refusal("bench --grid all"),
      "--grid: must be forward, tuned, ablation, 5090, decode, ragged, window, quantize, accuracy or jit, was 'all'"));
  CHECK(mentions(shop.refusal("bench --grid jit --dtype f32"), "--dtype"));
  CHECK(mentions(shop.refusal("bench --grid jit --json nowhere/r.json"), "--json"));
}

TEST_CASE("templates that cannot be used are not the fault of --variant") {
  const Workshop shop;
  const std::string arguments = "render --arch sm_80 --variant q64";
  const auto refusal_with = [&](const fs::path& templates) {
    const std::string environment = fmt::format("{} FLASHJIT_TEMPLATE_DIR='{}'", kBareEnvironment, templates.string());
    return expect_refusal(arguments, run_command(shop.work(), environment, arguments));
  };
  const fs::path templates = shop.work() / "templates";
  fs::create_directory(templates);
  CHECK(
      mentions(refusal_with(templates), "flashjit: template_directory (FLASHJIT_TEMPLATE_DIR): must hold *.cuh files"));
  write_bytes(templates / "other.cuh", "");
  CHECK(refusal_with(templates) ==
        "flashjit: template_directory (FLASHJIT_TEMPLATE_DIR): must hold kernels/mma_forward.cuh\n");
}
