// SPDX-License-Identifier: Apache-2.0
// Faults planted in the real kernels: the emulator finds each of them, and as what it is.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cli/verify/case_pages.h"
#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "runtime/support/parallel.h"
#include "tests/nvrtc/mutations.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/plant.h"
#include "tests/support/sample.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::Mutation;
using tests::Setting;
namespace fs = std::filesystem;

constexpr std::uint64_t kSeeds = 8;   // in which a fault has to show
constexpr std::int32_t kPadding = 7;  // rows before the keys of a ragged setting's first sequence

HostTensor filled_with_nan(DType dtype, const Dims& shape) {
  HostTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.element_count(); ++i)
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
  return tensor;
}

// What one run of a kernel shows.
struct Observation {
  std::uint64_t seed = 0;
  std::vector<emulator::Finding> findings;
  std::string fault;          // the message of Error(kernel_fault)
  bool right_result = false;  // output and LSE

  bool clean() const { return findings.empty() && fault.empty() && right_result; }
};

std::string to_string(const Observation& seen) {
  std::string text = "seed " + std::to_string(seen.seed) + ": ";
  for (const emulator::Finding& finding : seen.findings) text += emulator::to_string(finding) + "\n";
  if (!seen.fault.empty()) text += seen.fault;
  if (seen.findings.empty() && seen.fault.empty())
    text += seen.right_result ? "no finding, right result" : "no finding, wrong result";
  return text;
}

HostTensor random(const Setting& setting, std::int64_t rows, std::int64_t heads, std::uint64_t seed) {
  return HostTensor::random_normal(setting.dtype, {setting.batch, rows, heads, setting.head_dim}, seed);
}
HostTensor queries_of(const Setting& setting) {
  return HostTensor::random_normal(
      setting.dtype, {setting.batch, setting.seqlen_q, setting.num_heads_q, setting.head_dim + setting.rotary_dim}, 1);
}
HostTensor rotary_of(const Setting& setting) {
  return HostTensor::random_normal(setting.dtype,
                                   {setting.batch, setting.seqlen_kv, setting.num_heads_kv, setting.rotary_dim}, 10);
}

// Of both signs; neighbouring heads and the entries of the batch have different ones.
HostTensor slopes_of(const Setting& setting) {
  HostTensor slopes(DType::f32, {setting.batch, setting.num_heads_q});
  for (std::int64_t i = 0; i < setting.batch * setting.num_heads_q; ++i)
    store_element(slopes.data(), DType::f32, i, std::ldexp(i % 3 == 1 ? -1 : 1, static_cast<int>(i % 4) - 2));
  return slopes;
}

// Above the scores of a row and among them, by turns.
HostTensor sinks_of(const Setting& setting) {
  HostTensor sinks(DType::f32, {setting.batch, setting.num_heads_q});
  for (std::int64_t i = 0; i < setting.batch * setting.num_heads_q; ++i)
    store_element(sinks.data(), DType::f32, i, (i % 2 == 0 ? 4 : 0) + static_cast<double>(i % 5) / 4);
  return sinks;
}

// Like the head dim of a tensor that heads come last in.
HostTensor weights_of(const Setting& setting) {
  return HostTensor::random_normal(DType::f16,
                                   {setting.batch, setting.seqlen_q, setting.seqlen_kv, setting.num_heads_q}, 4);
}
Tensor by_head(const HostTensor& weights) {
  const Dims& of = weights.shape();
  const Dims strides = packed_strides(of);
  return Tensor(const_cast<void*>(weights.data()), weights.dtype(), {of[0], of[3], of[1], of[2]},
                {strides[0], strides[3], strides[1], strides[2]});
}

HostTensor bias_of(const Setting& setting) {
  return HostTensor::random_normal(DType::f16,
                                   {setting.batch, setting.num_heads_q, setting.seqlen_q, setting.bias_pitch}, 5);
}
Tensor without_padding(const HostTensor& bias, std::int64_t keys) {
  Tensor rows = Tensor(const_cast<void*>(bias.data()), bias.dtype(), bias.shape());
  rows.shape[3] = keys;
  return rows;
}

HostTensor ids_of(const Setting& setting) {
  HostTensor ids(DType::i32, {setting.batch, setting.seqlen_kv});
  for (std::int64_t i = 0; i < setting.batch * setting.seqlen_kv; ++i)
    store_element(ids.data(), DType::i32, i,
                  static_cast<double>(i % setting.seqlen_kv / (i < setting.seqlen_kv ? 33 : 50)));
  return ids;
}

// Of each batch entry its own: first + step, first + 2 step, …
HostTensor counted(const Setting& setting, int first, int step) {
  HostTensor numbers(DType::i32, {setting.batch});
  for (std::int64_t i = 0; i < setting.batch; ++i)
    store_element(numbers.data(), DType::i32, i, static_cast<double>(first + i * step));
  return numbers;
}

// With bits in both halves.
constexpr std::uint64_t kDropoutSeed = 0x0000002a00000007, kDropoutOffset = 0x0000050000000003;

// Others than those.
HostTensor state_of_dropout() {
  HostTensor state(DType::i64, {2});
  for (int i = 0; i < 2; ++i) store_element(state.data(), DType::i64, i, 1e12 * (3 + 4 * i));
  return state;
}

HostTensor kept_of(const Setting& setting) {
  HostTensor kept(DType::boolean, {setting.batch, setting.num_heads_q, setting.seqlen_q, setting.seqlen_kv});
  std::mt19937 random(9);
  for (std::size_t i = 0; i < kept.element_count(); ++i)
    store_element(kept.data(), DType::boolean, static_cast<std::int64_t>(i), random() % 4 != 0);
  return kept;
}

HostTensor ints(const std::vector<std::int32_t>& values) {
  HostTensor tensor(DType::i32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(tensor.data()));
  return tensor;
}

// Where they are ragged, the first rows belong to no sequence.
HostTensor values_of(const Setting& setting) {
  HostTensor values = random(setting, setting.seqlen_kv, setting.num_heads_kv, 3);
  for (std::int64_t i = 0; setting.ragged && i < kPadding * setting.num_heads_kv * setting.head_dim; ++i)
    store_element(values.data(), setting.dtype, i, std::numeric_limits<double>::quiet_NaN());
  return values;
}

HostTensor stored(const Setting& setting, const HostTensor& rows) {
  return setting.e4m3 ? rows.converted_to(DType::e4m3) : rows;
}
// For each head, or for each token and head: powers of two that differ from one to the next, and are the larger the
// further in front.
HostTensor scales_of(const Setting& setting, const Tensor& rows, std::int64_t step) {
  const Dims& shape = rows.shape;
  HostTensor scales(DType::f32, setting.token_scales ? Dims{shape[0], shape[1], shape[2]} : Dims{shape[2]});
  const std::int64_t last = scales.shape().size() > 1 ? shape[1] - 1 : 0;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(scales.element_count()); ++i) {
    const std::int64_t blocks_behind = last == 0 ? 0 : (last - i / shape[2] % shape[1]) / 64;
    store_element(scales.data(), DType::f32, i,
                  std::ldexp(1, static_cast<int>((i + 1) * step % 7 % 5 + blocks_behind) - 2));
  }
  return scales;
}

constexpr std::int64_t kPagedKeys = 64;  // that a sequence may have

// Keys and values of four sequences in pages, of which so many count; or what of keys stands apart, twice.
cli::CasePages pages_of(const Setting& setting, const HostTensor& lengths, bool is_rotary) {
  const auto rows = [&](std::uint64_t seed) {
    const int columns = is_rotary ? std::max(setting.rotary_dim, 8) : setting.head_dim;
    HostTensor values =
        HostTensor::random_normal(setting.dtype, {lengths.shape()[0], kPagedKeys, setting.num_heads_kv, columns}, seed);
    const std::int64_t row = setting.num_heads_kv * columns;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.element_count()); ++i)
      if (i / row % kPagedKeys >= load_element(lengths.data(), lengths.dtype(), i / row / kPagedKeys))
        store_element(values.data(), setting.dtype, i, std::numeric_limits<double>::quiet_NaN());
    return is_rotary ? values : stored(setting, values);
  };
  constexpr std::int64_t kPageSize = 16;
  return cli::in_pages(rows(6), rows(7), lengths, kPageSize, 8);
}

// The inputs of a setting, and what its kernel must compute.
class Case {
 public:
  Case(const Setting& setting, Engine& faultless)
      : setting_(setting),
        q_(queries_of(setting)),
        rotary_(rotary_of(setting)),
        k_(stored(setting, random(setting, 2 * setting.seqlen_kv, setting.num_heads_kv, 2))),
        v_(stored(setting, values_of(setting))),
        slopes_(slopes_of(setting)),
        sinks_(sinks_of(setting)),
        weights_(weights_of(setting)),
        ids_(ids_of(setting)),
        query_offsets_(counted(setting, 3, 40)),
        key_offsets_(counted(setting, 11, -4)),
        prefix_(counted(setting, 60, 50)),
        dropout_state_(state_of_dropout()),
        dropout_mask_(kept_of(setting)),
        bias_(bias_of(setting)),
        cu_seqlens_q_(ints({0, 40, 40, 55, static_cast<std::int32_t>(setting.seqlen_q)})),
        cu_seqlens_kv_(ints({0, first_keys(setting), first_keys(setting) + 20, first_keys(setting) + 20,
                             static_cast<std::int32_t>(setting.seqlen_kv)})),
        seqused_kv_(setting.long_sequences ? ints({297, 20, 0, 500}) : ints({57, 20, 0, 61})),
        leftpad_kv_(ints({kPadding, 0, 0, 2})),
        pages_(pages_of(setting, seqused_kv_, false)),
        rotary_pages_(pages_of(setting, seqused_kv_, true)),
        k_scale_(scales_of(setting, v(), 1)),
        v_scale_(scales_of(setting, v(), 5)),
        exact_(faultless.reference(q_.view(), k(), v(), options())),
        low_(faultless.reference_in_low_precision(q_.view(), k(), v(), options())) {}

  Observation run(Engine& engine, std::uint64_t seed) const {
    HostTensor out = filled_with_nan(setting_.dtype, exact_.shape);
    HostTensor lse = filled_with_nan(DType::f32, {setting_.batch, setting_.num_heads_q, setting_.seqlen_q});
    AttentionOptions opts = options();
    opts.lse = lse.view();
    BatchPlan plan;
    if (setting_.planned) plan = engine.plan(q_.view(), k(), v(), opts), opts.plan = &plan;
    Observation seen;
    seen.seed = seed;
    EmulationOptions emulation;
    emulation.seed = seed;
    try {
      const DeviceTensor blocks = setting_.blocks ? block_mask(engine, opts) : DeviceTensor();
      if (setting_.blocks) opts.block_mask = blocks.view();
      seen.findings = engine.emulate(q_.view(), k(), v(), out.view(), opts, emulation).findings;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kernel_fault) throw;
      seen.fault = error.what();
    }
    seen.right_result =
        reference::compare(out, exact_, low_).passed && reference::compare_lse(lse, exact_, low_).passed;
    return seen;
  }

 private:
  AttentionOptions options() const {
    AttentionOptions opts;
    opts.causal = setting_.causal;
    opts.window = setting_.window;
    opts.softmax_scale = setting_.softmax_scale;
    opts.softcap = setting_.softcap;
    if (setting_.slopes) opts.alibi_slopes = slopes_.view();
    if (setting_.sinks) opts.sinks = sinks_.view();
    opts.chunk = setting_.chunk;
    if (setting_.score) opts.score = Score(setting_.score, captures_of(setting_.score));
    if (setting_.mask) opts.mask = Mask(setting_.mask, captures_of(setting_.mask));
    if (setting_.offsets) opts.query_offsets = query_offsets_.view(), opts.key_offsets = key_offsets_.view();
    if (setting_.documents) opts.documents = ids_.view();
    if (setting_.bias_pitch > 0) opts.bias = without_padding(bias_, setting_.seqlen_kv);
    if (setting_.prefix) opts.prefix = prefix_.view();
    if (setting_.dropout > 0) opts.dropout = {setting_.dropout, kDropoutSeed, kDropoutOffset};
    if (setting_.dropout_state) opts.dropout_state = dropout_state_.view();
    if (setting_.dropout_mask) opts.dropout_mask = dropout_mask_.view();
    if (setting_.ragged) opts.cu_seqlens_q = cu_seqlens_q_.view(), opts.seqused_kv = seqused_kv_.view();
    if (setting_.paged)
      opts.page_table = pages_.table.view();
    else if (setting_.ragged)
      opts.cu_seqlens_kv = cu_seqlens_kv_.view(), opts.leftpad_kv = leftpad_kv_.view();
    if (setting_.e4m3) opts.k_scale = k_scale_.view(), opts.v_scale = v_scale_.view();
    if (setting_.rotary_dim > 0) opts.k_rotary = setting_.paged ? rotary_pages_.k.view() : rotary_.view();
    opts.variant = parse_variant(setting_.variant);
    return opts;
  }

  static std::int32_t first_keys(const Setting& setting) { return setting.long_sequences ? 300 : 60; }

  // Of each batch entry the second half: what is before it is nobody's memory.
  Tensor k() const {
    if (setting_.paged) return pages_.k.view();
    Tensor view = k_.view();
    view.shape[1] = setting_.seqlen_kv;
    view.data = static_cast<char*>(view.data) +
                setting_.seqlen_kv * view.strides[1] * static_cast<std::int64_t>(size_of(view.dtype));
    return view;
  }

  Tensor v() const {
    if (setting_.latent_columns == 0) return setting_.paged ? pages_.v.view() : v_.view();
    Tensor columns = k();
    columns.shape[3] = setting_.latent_columns;
    return columns;
  }

  // Those that the text uses.
  std::vector<Capture> captures_of(const std::string& text) const {
    std::vector<Capture> captures;
    if (text.find("weight(") != text.npos) captures.emplace_back("weight", by_head(weights_));
    if (text.find("id(") != text.npos) captures.emplace_back("id", ids_.view());
    return captures;
  }

  DeviceTensor block_mask(Engine& engine, const AttentionOptions& opts) const {
    return engine.block_mask(opts, {setting_.batch, setting_.seqlen_q, setting_.seqlen_kv, 1, 1});
  }

  const Setting& setting_;
  const HostTensor q_, rotary_, k_, v_, slopes_, sinks_, weights_, ids_, query_offsets_, key_offsets_, prefix_,
      dropout_state_, dropout_mask_, bias_, cu_seqlens_q_, cu_seqlens_kv_, seqused_kv_, leftpad_kv_;
  const cli::CasePages pages_, rotary_pages_;
  const HostTensor k_scale_, v_scale_;
  const reference::Result exact_, low_;
};

Engine make_engine(const Setting& setting, const fs::path& templates) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.template_directory = templates.string();
  options.emulate = setting.architecture;
  options.log = nullptr;
  return Engine(options);
}

// The text of "templates/FILE:LINE" or "templates/FILE:LINE in FUNCTION" below the directory; empty where there is
// none.
std::string source_line(const fs::path& directory, const std::string& frame) {
  const std::string place = frame.substr(0, frame.find(" in "));
  const std::size_t colon = place.rfind(':');
  std::ifstream file(directory / place.substr(0, colon));
  std::string line;
  for (int i = std::stoi(place.substr(colon + 1)); i > 0 && std::getline(file, line);) --i;
  return file ? line : "";
}

// Whether the place, or one that it is inlined at, is a line with this text.
bool names(const emulator::Place& place, const fs::path& directory, const std::string& text) {
  std::vector<std::string> frames = place.inlined_at;
  frames.push_back(place.file + ":" + std::to_string(place.line));
  return std::any_of(frames.begin(), frames.end(), [&](const std::string& frame) {
    return source_line(directory, frame).find(text) != std::string::npos;
  });
}

// Empty when the observation is what the mutation is for, else what is wrong with it.
std::string why_unexpected(const Mutation& mutation, const Observation& seen, const fs::path& directory) {
  if (mutation.fault != nullptr)
    return seen.fault.find(mutation.fault) != std::string::npos ? "" : "another fault was expected";
  if (mutation.kinds.empty())
    return seen.findings.empty() && seen.fault.empty() ? "" : "only a wrong result was expected";
  if (seen.findings.empty()) return "the emulator has nothing to object to";
  const auto is_expected = [&](const emulator::Finding& finding) {
    return std::find(mutation.kinds.begin(), mutation.kinds.end(), finding.kind) != mutation.kinds.end();
  };
  if (!is_expected(seen.findings.front())) return "found as something else";
  // Whoever waits in a deadlock has a finding, in no order that matters.
  const bool found_there =
      mutation.found_at == nullptr ||
      std::any_of(seen.findings.begin(), seen.findings.end(), [&](const emulator::Finding& finding) {
        return is_expected(finding) && names(finding.place, directory, mutation.found_at);
      });
  if (!found_there) return std::string("its place must lead to ") + mutation.found_at;
  return "";
}

// Runs the mutated kernel until something shows. Empty when it is what was expected.
std::string try_mutation(const Mutation& mutation, const Case& c) {
  try {
    const tests::TemporaryDirectory directory;
    const fs::path templates = directory / "templates";
    tests::plant(mutation.file, mutation.original, mutation.replacement, templates);
    Engine engine = make_engine(mutation.setting, templates);
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const Observation seen = c.run(engine, seed);
      if (seen.clean()) continue;
      const std::string reason = why_unexpected(mutation, seen, directory.path());
      return reason.empty() ? "" : reason + "\n" + to_string(seen);
    }
    return "not found";
  } catch (const Error& error) {
    return error.what() + ("\n" + error.log());
  } catch (const std::exception& error) {
    return error.what();
  }
}

const std::vector<const Setting*>& settings() {
  static const std::vector<const Setting*> all = [] {
    std::vector<const Setting*> found;
    for (const auto* mutations : tests::kAllMutations)
      for (const Mutation& mutation : *mutations)
        if (std::find(found.begin(), found.end(), &mutation.setting) == found.end()) found.push_back(&mutation.setting);
    return found;
  }();
  return all;
}

const Case& case_of(const Setting& setting) {
  static const std::map<const Setting*, std::unique_ptr<const Case>> cases = [] {
    std::map<const Setting*, std::unique_ptr<const Case>> made;
    Engine faultless = make_engine(Setting{}, tests::kTemplates);
    for (const Setting* each : settings()) made[each] = std::make_unique<const Case>(*each, faultless);
    return made;
  }();
  return *cases.at(&setting);
}

void expect_found(const std::vector<Mutation>& all) {
  const std::vector<Mutation> mutations = tests::sample(all);
  std::vector<std::string> problems(mutations.size());
  runtime::parallel_for(mutations.size(), [&](std::size_t i) {
    problems[i] = try_mutation(mutations[i], case_of(mutations[i].setting));
  });
  for (std::size_t i = 0; i < mutations.size(); ++i) CHECK_MESSAGE(problems[i] == "", std::string(mutations[i].name));
}

}  // namespace

TEST_SUITE_BEGIN("planted faults");

TEST_CASE("without a fault the kernels are clean and right under the same seeds") {
  const std::vector<const Setting*> chosen = tests::sample(settings());
  std::vector<std::string> problems(chosen.size());
  runtime::parallel_for(chosen.size(), [&](std::size_t i) {
    Engine engine = make_engine(*chosen[i], tests::kTemplates);
    for (std::uint64_t seed = 0; seed < kSeeds && problems[i].empty(); ++seed) {
      const Observation seen = case_of(*chosen[i]).run(engine, seed);
      if (!seen.clean()) problems[i] = to_string(seen);
    }
  });
  for (std::size_t i = 0; i < problems.size(); ++i) CHECK_MESSAGE(problems[i] == "", std::string(chosen[i]->variant));
}

// Which ones are tried is a matter of the sample.
TEST_CASE("the texts of all faults stand in the templates") {
  for (const std::vector<Mutation>* mutations : tests::kAllMutations)
    for (const Mutation& fault : *mutations)
      CHECK_NOTHROW(
          tests::place_of_fault(fault.file, tests::read_template(tests::kTemplates / fault.file), fault.original));
}

TEST_CASE("rings and their barriers") { expect_found(tests::kRingFaults); }
TEST_CASE("waits and releases") { expect_found(tests::kWaitFaults); }
TEST_CASE("bytes and boxes of copies") { expect_found(tests::kCopyFaults); }
TEST_CASE("matrix instructions of a warpgroup") { expect_found(tests::kWgmmaFaults); }
TEST_CASE("fences, barriers, turns and registers") { expect_found(tests::kFenceFaults); }
TEST_CASE("roles, votes and tiles") { expect_found(tests::kRoleFaults); }
TEST_CASE("masks and the output") { expect_found(tests::kOutputFaults); }
TEST_CASE("the window") { expect_found(tests::kWindowFaults); }
TEST_CASE("softcap and ALiBi") { expect_found(tests::kScoreFaults); }
TEST_CASE("attention sinks") { expect_found(tests::kSinkFaults); }
TEST_CASE("chunks") { expect_found(tests::kChunkFaults); }
TEST_CASE("texts and block masks") { expect_found(tests::kTextFaults); }
TEST_CASE("dropout") { expect_found(tests::kDropoutFaults); }
TEST_CASE("ragged batches") { expect_found(tests::kRaggedFaults); }

TEST_CASE("split keys") { expect_found(tests::kSplitFaults); }
TEST_CASE("tiles of few rows") { expect_found(tests::kDecodeFaults); }
TEST_CASE("tiles of few rows without tensor cores") { expect_found(tests::kFmaFaults); }
TEST_CASE("large heads") { expect_found(tests::kLargeHeadFaults); }
TEST_CASE("large heads in the mma.sync family") { expect_found(tests::kLargeMmaFaults); }
TEST_CASE("keys in two tensors, and scales that warps share") { expect_found(tests::kLatentFaults); }
TEST_CASE("keys and values of e4m3") { expect_found(tests::kStoredFaults); }
TEST_CASE("the mma.sync family") { expect_found(tests::kMmaFaults); }

TEST_SUITE_END();
