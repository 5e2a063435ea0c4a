// SPDX-License-Identifier: Apache-2.0
// New keys and values written into caches in the emulator, against plain loops.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "generator/source.h"
#include "generator/templates.h"
#include "runtime/call/append.h"
#include "runtime/call/plain_kernels.h"
#include "runtime/kernels/nvrtc.h"
#include "tests/support/append_case.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/plant.h"
#include "tests/support/sample.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::AppendCase;
using tests::whole_numbers;

Engine engine_with(const std::string& templates = {}, std::uint64_t seed = 0, bool check_pages = false) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = "sm_80";
  options.emulation.seed = seed;
  options.template_directory = templates;
  options.check_pages = check_pages;
  options.log = nullptr;
  return Engine(options);
}

// What is written: a pool of keys and values, and queries.
struct Written {
  HostTensor pool, q;
};

template <class Append>
Written run(const AppendCase& c, const Append& append) {
  Written written{tests::poisoned(c.dtype, c.pool_shape), tests::poisoned(c.dtype, c.q_shape)};
  if (c.in_place) written.q = c.inputs[AppendCase::q];
  std::vector<Tensor> given;
  for (const HostTensor& input : c.inputs) given.push_back(input.view());
  c.run(given, written.pool.data(), written.q.view(), append);
  return written;
}

Written expected(const AppendCase& c) {
  return run(c, [](const auto&... call) { reference::append(call...); });
}
Written found(Engine& engine, const AppendCase& c) {
  return run(c, [&](const auto&... call) { engine.append(call...); });
}

bool agree(const AppendCase& c, const Written& a, const Written& b) {
  return tests::difference(a.pool, b.pool, c.rotary).elements == 0 && tests::difference(a.q, b.q, true).elements == 0;
}

}  // namespace

TEST_CASE("random tokens are written where they belong, and nothing else is") {
  Engine engine = engine_with();
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const AppendCase c(seed);
    CAPTURE(seed);
    CAPTURE(c.describe());
    const Written is = found(engine, c), should = expected(c);
    const tests::AppendDifference pool = tests::difference(is.pool, should.pool, c.rotary),
                                  q = tests::difference(is.q, should.q, true);
    CHECK(pool.elements == 0);
    CHECK(pool.first == -1);
    CHECK(q.elements == 0);
  }
  // One for each dtype, and with rotary embedding for each pairing and dtype of its tables.
  CHECK(tests::kernels_of(engine) == 14);
}

TEST_CASE("a kernel that is compiled ahead is the one that a call launches") {
  const Architecture& architecture = find_architecture("sm_90a");
  runtime::PlainKernels kernels(generator::embedded_templates());
  std::set<const generator::PlainKernel*> ahead, launched;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    AppendProblem problem;
    problem.dtype = dtype;
    ahead.insert(&append_kernel(problem, architecture, kernels));
    for (const DType table : {DType::f16, DType::bf16, DType::f32})
      for (const bool interleaved : {false, true}) {
        problem.rotary = table, problem.rotary_interleaved = interleaved;
        ahead.insert(&append_kernel(problem, architecture, kernels));
      }
  }
  CHECK(ahead.size() == 14);
  for (std::uint64_t seed = 0; seed < 300; ++seed)
    run(AppendCase(seed),
        [&](const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const AppendOptions& opts) {
          const runtime::AppendCall call(k, v, k_cache, v_cache, opts);
          if (!call.nothing_to_do()) launched.insert(&make_append_launch(call, architecture, kernels).kernel);
        });
  CHECK(launched == ahead);
}

TEST_CASE("a kernel of append is compiled by an engine, and what there is none of is refused by name") {
  Engine engine(tests::options_with_kept_kernels());
  AppendProblem problem;
  problem.rotary = DType::f32;
  const KernelFacts made = engine.compile_append(problem, "sm_80");
  CHECK(made.name == "append-bf16-rotary-halves-f32.sm_80");
  CHECK((made.registers > 0 && made.spill_bytes == 0 && made.cubin_bytes > 0));
  const auto refusal = [&](const auto& change, const char* architecture) {
    AppendProblem wrong;
    change(wrong);
    try {
      engine.compile_append(wrong, architecture);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  CHECK(refusal([](AppendProblem& wrong) { wrong.dtype = DType::f32; }, "sm_80") ==
        "dtype: must be f16 or bf16, was f32");
  CHECK(refusal([](AppendProblem& wrong) { wrong.rotary = DType::i32; }, "sm_80") ==
        "rotary: must be f16, bf16 or f32, was i32");
  CHECK(refusal([](AppendProblem& wrong) { wrong.rotary_interleaved = true; }, "sm_80") ==
        "rotary_interleaved: must be false without rotary, was true");
  CHECK(refusal([](AppendProblem& wrong) { wrong.cache_dtype = DType::e4m3; }, "sm_86") ==
        "cache_dtype: must be bf16 like dtype on sm_86, which has no instruction for e4m3, was e4m3");
  CHECK(refusal([](AppendProblem& wrong) { wrong.cache_dtype = DType::e4m3; }, "sm_89") == "none");
}

TEST_CASE("kernels of all dtypes and pairings compile for every target without spills") {
  const EngineOptions options = EngineOptions::from_environment();
  runtime::Nvrtc nvrtc({options.nvrtc_path, options.nvrtc_directories});
  for (const Architecture& architecture : architectures())
    for (const generator::Rotary rotary :
         {generator::Rotary::none, generator::Rotary::halves, generator::Rotary::neighbours}) {
      const DType table = architecture.major == 9 ? DType::bf16 : DType::f32;
      const generator::Source source = generator::render_append({DType::bf16, rotary, table}, architecture).source;
      const runtime::CompiledImage image = nvrtc.compile(source.text(), source.name, architecture.name);
      CAPTURE(source.name);
      CHECK(image.spill_bytes == 0);
      CHECK(image.stack_bytes == 0);
    }
}

TEST_CASE("every bit of every element is copied where nothing turns") {
  Engine engine = engine_with();
  HostTensor k(DType::bf16, {64, 8, 128}), v(DType::bf16, {64, 8, 128});
  for (std::size_t i = 0; i < k.element_count(); ++i) {
    static_cast<std::uint16_t*>(k.data())[i] = static_cast<std::uint16_t>(i);
    static_cast<std::uint16_t*>(v.data())[i] = static_cast<std::uint16_t>(~i);
  }
  std::vector<std::int64_t> places;
  for (std::int64_t token = 0; token < 64; ++token) places.push_back(63 - token);
  const HostTensor slots = whole_numbers(DType::i64, places);
  HostTensor k_cache(DType::bf16, {4, 16, 8, 128}), v_cache(DType::bf16, {4, 16, 8, 128});
  AppendOptions opts;
  opts.slots = slots.view();
  engine.append(k.view(), v.view(), k_cache.view(), v_cache.view(), opts);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < k.element_count(); ++i) {
    const std::size_t to = (63 - i / 1024) * 1024 + i % 1024;
    wrong += static_cast<const std::uint16_t*>(k_cache.data())[to] != static_cast<std::uint16_t>(i);
    wrong += static_cast<const std::uint16_t*>(v_cache.data())[to] != static_cast<std::uint16_t>(~i);
  }
  CHECK(wrong == 0);
}

TEST_CASE("a quarter turn makes (-y, x) of each pair (x, y), and leaves what is beyond rotary_dim") {
  Engine engine = engine_with();
  constexpr std::int64_t kHeadDim = 24, kHalf = 8;
  std::vector<double> row;
  for (std::int64_t i = 0; i < kHeadDim; ++i) row.push_back(static_cast<double>(i + 1));
  const HostTensor k = HostTensor::from_doubles(DType::f16, {1, 1, 1, kHeadDim}, row.data(), row.size());
  const std::vector<double> zeros(2 * kHalf, 0.0), ones(2 * kHalf, 1.0);
  const HostTensor cosines = HostTensor::from_doubles(DType::f32, {2, kHalf}, zeros.data(), zeros.size()),
                   sines = HostTensor::from_doubles(DType::f32, {2, kHalf}, ones.data(), ones.size()),
                   used = whole_numbers(DType::i32, {2});
  for (const bool interleaved : {false, true}) {
    HostTensor k_cache(DType::f16, {1, 2, 1, kHeadDim}), v_cache(DType::f16, {1, 2, 1, kHeadDim});
    AppendOptions opts;
    opts.seqused_kv = used.view(), opts.rotary_cos = cosines.view(), opts.rotary_sin = sines.view();
    opts.rotary_interleaved = interleaved;
    engine.append(k.view(), k.view(), k_cache.view(), v_cache.view(), opts);
    std::vector<double> turned = row;
    for (std::size_t i = 0; i < kHalf; ++i) {
      const std::size_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + kHalf;
      turned[first] = -row[second], turned[second] = row[first];
    }
    const std::vector<double> keys = k_cache.to_doubles(), values = v_cache.to_doubles();
    CHECK(std::vector<double>(keys.begin() + kHeadDim, keys.end()) == turned);
    CHECK(std::vector<double>(values.begin() + kHeadDim, values.end()) == row);
    CHECK(std::vector<double>(keys.begin(), keys.begin() + kHeadDim) == std::vector<double>(kHeadDim, 0.0));
  }
}

TEST_CASE("attention of the same step sees new tokens by the same lengths, offsets and pages") {
  Engine engine = engine_with();
  const std::int64_t page_size = 16, heads = 2, head_dim = 64;
  const std::vector<std::int64_t> lengths{21, 5, 40}, starts{0, 3, 4, 9};
  const HostTensor table = whole_numbers(DType::i32, {5, 0, 9, 3, 9, 9, 1, 7, 2}, {3, 3}),
                   used = whole_numbers(DType::i32, lengths), offsets = whole_numbers(DType::i32, starts);
  HostTensor k_cache = HostTensor::random_normal(DType::f16, {9, page_size, heads, head_dim}, 1),
             v_cache = HostTensor::random_normal(DType::f16, {9, page_size, heads, head_dim}, 2);
  const HostTensor k = HostTensor::random_normal(DType::f16, {9, heads, head_dim}, 3),
                   v = HostTensor::random_normal(DType::f16, {9, heads, head_dim}, 4),
                   q = HostTensor::random_normal(DType::f16, {1, 9, heads, head_dim}, 5);
  AppendOptions appended;
  appended.seqused_kv = used.view(), appended.cu_seqlens = offsets.view(), appended.page_table = table.view();
  engine.append(k.view(), v.view(), k_cache.view(), v_cache.view(), appended);
  AttentionOptions opts;
  opts.causal = true;
  opts.seqused_kv = used.view(), opts.cu_seqlens_q = offsets.view(), opts.page_table = table.view();
  const HostTensor out = HostTensor::from_device(engine.attention(q.view(), k_cache.view(), v_cache.view(), opts));
  const reference::Result exact = reference::attention(q.view(), k_cache.view(), v_cache.view(), opts),
                          low = reference::attention_in_low_precision(q.view(), k_cache.view(), v_cache.view(), opts);
  CHECK(reference::compare(out, exact, low).passed);
  const auto row_of = [&](const HostTensor& cache, std::int64_t page, std::int64_t row) {
    const std::size_t bytes = static_cast<std::size_t>(heads * head_dim) * 2;
    return std::string(
        static_cast<const char*>(cache.data()) + static_cast<std::size_t>(page * page_size + row) * bytes, bytes);
  };
  const auto token_of = [&](const HostTensor& tokens, std::int64_t token) {
    const std::size_t bytes = static_cast<std::size_t>(heads * head_dim) * 2;
    return std::string(static_cast<const char*>(tokens.data()) + static_cast<std::size_t>(token) * bytes, bytes);
  };
  // Token 2 is key 20 of the first sequence, token 3 key 4 of the second, tokens 4 and 8 keys 35 and 39 of the third.
  CHECK(row_of(k_cache, 0, 4) == token_of(k, 2));
  CHECK(row_of(v_cache, 3, 4) == token_of(v, 3));
  CHECK(row_of(k_cache, 2, 3) == token_of(k, 4));
  CHECK(row_of(v_cache, 2, 7) == token_of(v, 8));
}

TEST_CASE("a cache of 16 bits whose rows are latent columns and rotary ones is written by views of both") {
  Engine engine = engine_with();
  constexpr std::int64_t kLatent = 512, kRotary = 64, kRow = kLatent + kRotary, kTokens = 3;
  const HostTensor rows = HostTensor::random_normal(DType::bf16, {1, kTokens, 1, kRow}, 1),
                   used = whole_numbers(DType::i32, {4});
  const auto columns = [](const HostTensor& of, std::int64_t first, std::int64_t count) {
    char* const data = static_cast<char*>(const_cast<void*>(of.data())) + first * 2;
    return Tensor(data, DType::bf16, {of.shape()[0], of.shape()[1], 1, count}, {of.shape()[1] * kRow, kRow, kRow, 1});
  };
  HostTensor cache = tests::poisoned(DType::bf16, {1, 5, 1, kRow});
  AppendOptions opts;
  opts.seqused_kv = used.view();
  opts.k_rotary = columns(rows, kLatent, kRotary), opts.k_rotary_cache = columns(cache, kLatent, kRotary);
  const Tensor latent = columns(rows, 0, kLatent), to = columns(cache, 0, kLatent);
  engine.append(latent, latent, to, to, opts);
  HostTensor expected = tests::poisoned(DType::bf16, {1, 5, 1, kRow});
  std::memcpy(static_cast<std::uint16_t*>(expected.data()) + kRow, rows.data(), kTokens * kRow * 2);
  CHECK(tests::difference(cache, expected, false).elements == 0);
}

TEST_CASE("rows outside of the caches are not written, wherever numbers point") {
  Engine engine = engine_with();
  const HostTensor k = HostTensor::random_normal(DType::f16, {4, 1, 2, 16}, 1);
  const auto written_by = [&](const auto& set) {
    HostTensor k_cache(DType::f16, {3, 4, 2, 16}), v_cache(DType::f16, {3, 4, 2, 16});
    AppendOptions opts;
    set(opts);
    engine.append(k.view(), k.view(), k_cache.view(), v_cache.view(), opts);
    std::vector<std::int64_t> rows;
    const std::vector<double> values = k_cache.to_doubles();
    for (std::int64_t row = 0; row < 12; ++row)
      if (values[static_cast<std::size_t>(row * 32)] != 0) rows.push_back(row);
    return rows;
  };
  using Rows = std::vector<std::int64_t>;
  const HostTensor wide = whole_numbers(DType::i64, {12, -1, std::int64_t{1} << 40, 11}),
                   narrow = whole_numbers(DType::i32, {12, -2147483648LL, 2147483647, 0});
  CHECK(written_by([&](AppendOptions& opts) { opts.slots = wide.view(); }) == Rows{11});
  CHECK(written_by([&](AppendOptions& opts) { opts.slots = narrow.view(); }) == Rows{0});
  const HostTensor used = whole_numbers(DType::i32, {1, 5, 9, 0}),
                   table = whole_numbers(DType::i32, {2, 0, 3, -1, 1, 1, 0, 0}, {4, 2});
  CHECK(written_by([&](AppendOptions& opts) { opts.seqused_kv = used.view(), opts.page_table = table.view(); }) ==
        Rows{8});
  const HostTensor lengths = whole_numbers(DType::i32, {1, 2, 3, 5}),
                   entries = whole_numbers(DType::i32, {3, 1, -1, 0});
  CHECK(written_by([&](AppendOptions& opts) {
          opts.seqused_kv = lengths.view(), opts.batch_indices_kv = entries.view();
        }) == Rows{5});
}

TEST_CASE("what is written is the same under every schedule") {
  for (const std::uint64_t of_case : {3, 17, 40}) {
    const AppendCase c(of_case);
    CAPTURE(c.describe());
    const Written should = expected(c);
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      Engine engine = engine_with({}, seed);
      CHECK(agree(c, found(engine, c), should));
    }
  }
}

TEST_CASE("bad arguments are refused by name") {
  Engine engine = engine_with();
  const HostTensor k(DType::f16, {2, 3, 2, 32}), packed(DType::f16, {6, 2, 32}), of_bf16(DType::bf16, {2, 3, 2, 32}),
      narrow(DType::f16, {2, 3, 2, 24}), few(DType::f16, {2, 2, 2, 32}), odd(DType::f16, {2, 3, 2, 12});
  HostTensor cache(DType::f16, {5, 4, 2, 32}), others(DType::f16, {5, 4, 3, 32}), both(DType::f16, {2, 4, 2, 32});
  const HostTensor slots = whole_numbers(DType::i32, {0, 1, 2, 3, 4, 5}), used = whole_numbers(DType::i32, {3, 3}),
                   offsets = whole_numbers(DType::i32, {0, 3, 6}), table(DType::i32, {2, 4}), floats(DType::f32, {6}),
                   cosines(DType::f32, {9, 16}), halves(DType::f16, {9, 16}), wide(DType::f32, {9, 24}),
                   none(DType::f32, {0, 16});
  const Tensor at = k.view(), into = cache.view();
  const auto refusal = [&](const Tensor& of_k, const Tensor& of_v, const Tensor& of_k_cache, const Tensor& of_v_cache,
                           const auto& set) {
    AppendOptions opts;
    set(opts);
    try {
      engine.append(of_k, of_v, of_k_cache, of_v_cache, opts);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      return std::string(error.what());
    }
    return std::string("none");
  };
  HostTensor second(DType::f16, {5, 4, 2, 32});
  const auto by_slots = [&](AppendOptions& opts) { opts.slots = slots.view(); };
  const auto options = [&](const auto& set) { return refusal(at, at, into, second.view(), set); };
  CHECK(refusal(at, at, into, second.view(), by_slots) == "none");
  CHECK(refusal(at, of_bf16.view(), into, second.view(), by_slots) == "v: dtype must be f16 like that of k, was bf16");
  CHECK(refusal(floats.view(), at, into, second.view(), by_slots) == "k: dtype must be f16 or bf16, was f32");
  CHECK(refusal(at, few.view(), into, second.view(), by_slots) == "v: seqlen must be 3 like that of k, was 2");
  CHECK(refusal(at, at, others.view(), second.view(), by_slots) ==
        "k_cache: num_heads must be 2 like that of k, was 3");
  CHECK(refusal(at, at, into, both.view(), by_slots) == "v_cache: batch must be 5 like that of k_cache, was 2");
  CHECK(refusal(at, narrow.view(), into, second.view(), by_slots) ==
        "v_cache: head_dim must be 24 like that of v, was 32");
  CHECK(refusal(odd.view(), at, HostTensor(DType::f16, {5, 4, 2, 12}).view(), into, by_slots) ==
        "k: head_dim must be a multiple of 8, was 12");
  CHECK(refusal(at, at, into, into, by_slots).find("v_cache: must not overlap k_cache") == 0);
  CHECK(refusal(packed.view(), packed.view(), into, second.view(), [&](AppendOptions& opts) {
          opts.seqused_kv = used.view();
        }) == "k: rank must be 4 without slots and cu_seqlens, was 3");
  CHECK(options([](AppendOptions&) {}) == "seqused_kv: must be given without slots, was not");
  CHECK(options([&](AppendOptions& opts) { opts.slots = slots.view(), opts.page_table = table.view(); }) ==
        "page_table: must not be given beside slots, which say where tokens go");
  CHECK(options([&](AppendOptions& opts) { opts.slots = floats.view(); }) ==
        "slots: dtype must be i32 or i64, was f32");
  CHECK(options([&](AppendOptions& opts) { opts.slots = used.view(); }) ==
        "slots: must have 6 elements, one for each token of k, had 2");
  CHECK(options([&](AppendOptions& opts) { opts.seqused_kv = slots.view(); }) ==
        "seqused_kv: must have 2 elements, one for each sequence, had 6");
  CHECK(options([&](AppendOptions& opts) { opts.seqused_kv = used.view(); }) ==
        "k_cache: batch must be 2 like that of k, was 5");
  CHECK(options([&](AppendOptions& opts) { opts.seqused_kv = used.view(), opts.cu_seqlens = offsets.view(); }) ==
        "k: batch must be 1, or not be there, beside cu_seqlens, was 2");
  CHECK(options([&](AppendOptions& opts) {
          opts.seqused_kv = used.view(), opts.page_table = table.view(), opts.leftpad_kv = used.view();
        }) == "leftpad_kv: must not be given beside page_table");
  const auto with_slots = [&](const auto& set) {
    return options([&](AppendOptions& opts) { by_slots(opts), set(opts); });
  };
  CHECK(with_slots([&](AppendOptions& opts) { opts.positions = slots.view(); }) ==
        "positions: must not be given without rotary_cos");
  CHECK(with_slots([&](AppendOptions& opts) { opts.rotary_cos = cosines.view(); }) ==
        "rotary_sin: must be given beside rotary_cos, was not");
  CHECK(with_slots([&](AppendOptions& opts) { opts.rotary_interleaved = true; }) ==
        "rotary_interleaved: must be false without rotary_cos, was true");
  CHECK(with_slots([&](AppendOptions& opts) { opts.rotary_cos = opts.rotary_sin = cosines.view(); }) ==
        "positions: must be given beside slots with rotary_cos, was not");
  const auto with_rotary = [&](const Tensor& of_cosines, const Tensor& of_sines) {
    return with_slots([&](AppendOptions& opts) {
      opts.rotary_cos = of_cosines, opts.rotary_sin = of_sines, opts.positions = slots.view();
    });
  };
  CHECK(with_rotary(cosines.view(), cosines.view()) == "none");
  CHECK(with_rotary(cosines.view(), halves.view()) ==
        "rotary_sin: must be f32 of shape [9, 16] like rotary_cos, was f16 of shape [9, 16]");
  CHECK(with_rotary(wide.view(), wide.view()) ==
        "rotary_cos: rotary_dim / 2 must be a multiple of 8 from 8 to 16, half of head_dim, was 24");
  CHECK(with_rotary(none.view(), none.view()) == "rotary_cos: positions must be at least 1, was 0");
  CHECK(with_rotary(slots.view(), slots.view()) == "rotary_cos: dtype must be f16, bf16 or f32, was i32");
  CHECK(with_slots([&](AppendOptions& opts) {
          opts.rotary_cos = opts.rotary_sin = cosines.view(), opts.positions = slots.view(), opts.q = at;
        }) == "q_out: must be given beside q, was not");
  CHECK(with_slots([&](AppendOptions& opts) {
          opts.rotary_cos = opts.rotary_sin = cosines.view(), opts.positions = slots.view(), opts.q = at;
          opts.q_out = at;
        }).find("q_out: must not overlap k") == 0);
}

TEST_CASE("what does not fit the rotary columns of keys is refused by name") {
  Engine engine = engine_with();
  const HostTensor k(DType::f16, {2, 3, 2, 32}), v(DType::f16, {2, 3, 2, 32}), slots(DType::i32, {6}),
      rotary(DType::f16, {2, 3, 2, 16}), of_bf16(DType::bf16, {2, 3, 2, 16}), few(DType::f16, {2, 2, 2, 16}),
      odd(DType::f16, {2, 3, 2, 12}), cosines(DType::f32, {9, 8}), wide(DType::f32, {9, 16}),
      q(DType::f16, {2, 3, 4, 16}), q_out(DType::f16, {2, 3, 4, 16});
  HostTensor k_cache(DType::f16, {5, 4, 2, 32}), v_cache = k_cache, to(DType::f16, {5, 4, 2, 16}),
                                                 odd_to(DType::f16, {5, 4, 2, 12}), short_to(DType::f16, {5, 3, 2, 16});
  HostTensor in_e4m3(DType::e4m3, {5, 4, 2, 32}), scale(DType::f32, {1}), other_scale = scale,
                                                                          to_e4m3(DType::e4m3, {5, 4, 2, 16});
  struct Call {
    Tensor k, v, k_cache, v_cache;
    AppendOptions opts;
  };
  const auto refusal = [&](const auto& change) {
    Call call{k.view(), k.view(), k_cache.view(), k_cache.view(), {}};
    call.opts.slots = slots.view(), call.opts.k_rotary = rotary.view(), call.opts.k_rotary_cache = to.view();
    change(call);
    try {
      engine.append(call.k, call.v, call.k_cache, call.v_cache, call.opts);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      return std::string(error.what());
    }
    return std::string("none");
  };
  CHECK(refusal([](Call&) {}) == "none");
  CHECK(refusal([&](Call& call) { call.v = v.view(), call.v_cache = v_cache.view(); }) == "none");
  CHECK(refusal([](Call& call) { call.opts.k_rotary.reset(); }) ==
        "k_rotary: must be given beside k_rotary_cache, was not");
  CHECK(refusal([](Call& call) { call.opts.k_rotary_cache.reset(); }) ==
        "k_rotary_cache: must be given beside k_rotary, was not");
  CHECK(refusal([&](Call& call) { call.opts.k_rotary = of_bf16.view(); }) ==
        "k_rotary: dtype must be f16 like that of k, was bf16");
  CHECK(refusal([&](Call& call) { call.opts.k_rotary = few.view(); }) ==
        "k_rotary: seqlen must be 3 like that of k, was 2");
  CHECK(refusal([&](Call& call) { call.opts.k_rotary_cache = to_e4m3.view(); }) ==
        "k_rotary_cache: dtype must be f16 like that of k, was e4m3");
  CHECK(refusal([&](Call& call) { call.opts.k_rotary_cache = short_to.view(); }) ==
        "k_rotary_cache: seqlen must be 4 like that of k_cache, was 3");
  CHECK(refusal([&](Call& call) { call.opts.k_rotary_cache = k_cache.view(); }) ==
        "k_rotary_cache: head_dim must be 16 like that of k_rotary, was 32");
  CHECK(refusal([&](Call& call) { call.opts.k_rotary = odd.view(), call.opts.k_rotary_cache = odd_to.view(); }) ==
        "k_rotary: head_dim must be a multiple of 8, was 12");
  CHECK(refusal([&](Call& call) { call.v = v.view(); }) == "v: must be k where v_cache is k_cache, was another tensor");
  CHECK(refusal([&](Call& call) {
          call.k_cache = call.v_cache = in_e4m3.view();
          call.opts.k_scale = scale.view(), call.opts.v_scale = other_scale.view();
        }) == "v_scale: must be k_scale where v_cache is k_cache, was another tensor");
  const auto turned_by = [&](const HostTensor& table, const HostTensor& queries) {
    return refusal([&](Call& call) {
      call.opts.rotary_cos = call.opts.rotary_sin = table.view(), call.opts.positions = slots.view();
      call.opts.q = queries.view(), call.opts.q_out = q_out.view();
    });
  };
  CHECK(turned_by(wide, q) ==
        "rotary_cos: rotary_dim / 2 must be a multiple of 8 from 8 to 8, half of head_dim, was 16");
  CHECK(turned_by(cosines, v) == "q: head_dim must be 16 like that of k_rotary, was 32");
}

TEST_CASE("an engine that looks first names the token, the sequence and the entry") {
  Engine engine = engine_with({}, 0, true);
  const HostTensor k(DType::f16, {4, 1, 16});
  const HostTensor cosines(DType::f32, {6, 8});
  HostTensor k_cache(DType::f16, {3, 4, 1, 16}), v_cache(DType::f16, {3, 4, 1, 16});
  struct Numbers {
    std::vector<std::int64_t> slots, used, offsets, positions, table, padding;
    bool rotary = false;
  };
  const auto refusal = [&](const Numbers& numbers) {
    const HostTensor slots = whole_numbers(DType::i64, numbers.slots), used = whole_numbers(DType::i32, numbers.used),
                     offsets = whole_numbers(DType::i32, numbers.offsets),
                     positions = whole_numbers(DType::i64, numbers.positions),
                     padding = whole_numbers(DType::i32, numbers.padding),
                     table = whole_numbers(DType::i32, numbers.table,
                                           {2, static_cast<std::int64_t>(numbers.table.size()) / 2});
    AppendOptions opts;
    if (!numbers.slots.empty()) opts.slots = slots.view();
    if (!numbers.used.empty()) opts.seqused_kv = used.view(), opts.cu_seqlens = offsets.view();
    if (!numbers.table.empty()) opts.page_table = table.view();
    if (!numbers.padding.empty()) opts.leftpad_kv = padding.view();
    if (!numbers.positions.empty()) opts.positions = positions.view();
    if (numbers.rotary) opts.rotary_cos = opts.rotary_sin = cosines.view();
    try {
      engine.append(k.view(), k.view(), k_cache.view(), v_cache.view(), opts);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      return std::string(error.what());
    }
    return std::string("none");
  };
  Numbers good;
  good.slots = {0, 11, -5, 3};
  CHECK(refusal(good) == "none");
  good = {};
  good.used = {4, 2}, good.offsets = {0, 3, 4}, good.table = {0, 1, 2, 7};
  CHECK(refusal(good) == "none");  // the last entry is not needed
  Numbers bad = good;
  bad.used = {2, 2};
  CHECK(refusal(bad) == "seqused_kv: must be at least 3, the new tokens of sequence 0, was 2");
  bad.used = {9, 2};
  CHECK(refusal(bad) == "seqused_kv: must be from 0 to 8, as many rows as sequence 0 has, was 9");
  bad.used = {4, 5};
  CHECK(refusal(bad) == "page_table: entry 1 of sequence 1 must be from 0 to 2, was 7");
  bad = good, bad.offsets = {0, 5, 4};
  CHECK(refusal(bad) == "cu_seqlens: must be from 0 to 4, was 5 at 1");
  bad = good, bad.rotary = true, bad.used = {8, 2};
  CHECK(refusal(bad) == "rotary_cos: positions must be at least 8, the keys of sequence 0, was 6");
  bad.used = {4, 2}, bad.positions = {0, 5, 6, 0};
  CHECK(refusal(bad) == "positions: must be from 0 to 5, was 6 of token 2");
  bad = {};
  bad.used = {4, 2, 2}, bad.offsets = {0, 2, 3, 4}, bad.padding = {2, 0, 1};
  CHECK(refusal(bad) == "none");
  bad.padding = {3, 0, 1};
  CHECK(refusal(bad) == "leftpad_kv: must be from 0 to 2, the rows before the new tokens of sequence 0, was 3");
  bad = {};
  bad.slots = {0, 1, 2, 12};
  CHECK(refusal(bad) == "slots: must be below 12, as many rows as k_cache has, was 12 of token 3");
  bad.slots = {0, -1, 2, 3}, bad.positions = {0, 99, -1, 0}, bad.rotary = true;
  CHECK(refusal(bad) == "positions: must be from 0 to 5, was -1 of token 2");
}

TEST_CASE("planted faults of the append are found") {
  struct Fault {
    const char *name, *original, *replacement, *file = "kernels/append.cuh";
  };
  constexpr const char* kRotary = "tile/rotary.cuh";
  const Fault faults[] = {
      {"tokens before the block's are counted as if each had one block", "block / blocks_of_token", "block"},
      {"all blocks of a token have its first rows", "(block % blocks_of_token) * (kAppendThreads",
       "0 * (kAppendThreads"},
      {"rows beyond the last head are moved", "row < static_cast<uint32>(rows.heads)",
       "row <= static_cast<uint32>(rows.heads)"},
      {"slots beyond the cache are written", "return {true, is_below(place.batch, args.pages) &&",
       "return {true, place.batch >= 0 &&"},
      {"wide slots are read as narrow ones", "if (numbers.are_i64 != 0)", "if (false)", kRotary},
      {"new tokens go behind the last row", "args.used[sequence] - (end - token)",
       "args.used[sequence] - (end - token) + 1"},
      {"padding counts as keys", "row - args.padding[sequence]", "row"},
      {"indices of batch entries are passed over", "args.entries == nullptr ? sequence : args.entries[sequence]",
       "sequence"},
      {"a token of no sequence is the first one's", "if (thread == 0) shared.sequence = -1;",
       "if (thread == 0) shared.sequence = 0;"},
      {"threads read the sequence before it is found", "= sequence;\n    ptx::bar_sync();", "= sequence;\n"},
      {"the sequence is reset after it was found", "shared.sequence = -1;\n    ptx::bar_sync();",
       "shared.sequence = -1;\n"},
      {"a sequence ends with its first token's neighbour", "min(args.offsets[sequence + 1], args.new_rows)",
       "min(args.offsets[sequence] + 1, args.new_rows)"},
      {"the entry of a page is that of its row", "row / args.page_size], row", "row % args.page_size], row"},
      {"wide rows end early", "i < rows.chunks - rows.turned; i += lanes", "i < lanes; i += lanes"},
      {"what does not turn moves up", "copy(from, to, i + rows.turned);", "copy(from, to, i);"},
      {"values begin behind a row of none", "row -= static_cast<uint32>(rows.heads);",
       "row -= static_cast<uint32>(rows.heads) + 1;"},
      {"pairs are neighbours' halves", "kRotary == Rotary::halves ? index : 2 * index", "index"},
      {"sines turn the other way", "-(y * sine)", "y * sine", kRotary},
      {"both chunks turn by the first one's angles", "cosines + index * Octets<Table>::kBytes", "cosines", kRotary},
      {"neighbours of the second chunk are those of the first", "Octet& pairs = i < kChunkElements / 2 ? x : y;",
       "Octet& pairs = x;", kRotary},
      {"positions are places in the sequence", "position = number_of_token(given, token);", ""},
      {"a position beyond the tables reads beyond them", "static_cast<int64>(tables.positions) - 1",
       "static_cast<int64>(1) << 40", kRotary},
  };
  for (const Fault& fault : tests::sample(std::vector<Fault>(std::begin(faults), std::end(faults)))) {
    CAPTURE(std::string(fault.name));
    const tests::TemporaryDirectory directory;
    const auto templates = directory / "templates";
    tests::plant(fault.file, fault.original, fault.replacement, templates);
    Engine engine = engine_with(templates.string());
    bool right = true;
    try {
      for (std::uint64_t seed = 0; right && seed < 120; ++seed) {
        AppendCase c(seed);
        right = agree(c, found(engine, c), expected(c));
      }
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kernel_fault);
      right = false;
    }
    CHECK_FALSE(right);
  }
}
