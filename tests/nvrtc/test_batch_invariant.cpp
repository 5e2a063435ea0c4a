// SPDX-License-Identifier: Apache-2.0
// Splits of a fixed size: a row's bits are the same alone, in any packing, and as a row of a prompt. In the emulator.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;
using tests::engine_for;

constexpr std::int64_t kKeys = 333, kHeads = 4, kHeadsKv = 2, kDim = 64, kSize = 100;  // 100: splits of 128

HostTensor ints(const std::vector<std::int32_t>& values) {
  HostTensor tensor(DType::i32, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.data(), values.data(), values.size() * sizeof(std::int32_t));
  return tensor;
}

// Rows of a tensor [batch, rows, ...] of one batch entry, one after the other.
HostTensor rows_of(const HostTensor& from, std::int64_t first, std::int64_t count) {
  Dims shape = from.shape();
  shape[1] = count;
  HostTensor rows(from.dtype(), shape);
  const std::size_t row = from.element_count() / static_cast<std::size_t>(from.shape()[1]) * size_of(from.dtype());
  std::memcpy(rows.data(), static_cast<const char*>(from.data()) + static_cast<std::size_t>(first) * row,
              static_cast<std::size_t>(count) * row);
  return rows;
}
// Copies of them, behind one another.
void put(HostTensor& into, std::int64_t at, const HostTensor& rows) {
  const std::size_t row = rows.element_count() / static_cast<std::size_t>(rows.shape()[1]) * size_of(rows.dtype());
  std::memcpy(static_cast<char*>(into.data()) + static_cast<std::size_t>(at) * row, rows.data(),
              static_cast<std::size_t>(rows.shape()[1]) * row);
}

struct Result {
  std::string out, lse;  // the bits

  friend bool operator==(const Result& a, const Result& b) { return a.out == b.out && a.lse == b.lse; }
};

// One sequence, and ways to compute some of its rows.
class Sequence {
 public:
  Sequence(const std::string& architecture, const AttentionOptions& options)
      : engine_(engine_for(architecture)), options_(options) {
    options_.causal = true;
    options_.fixed_split_size = kSize;
    prompt_ = run(q_, k_, v_, {});
  }

  // The query at a position, by each way.
  Result in_prompt(std::int64_t position) const { return row_of(*prompt_, position); }
  Result alone(std::int64_t position) const { return last_of(position, 1); }
  Result in_chunk(std::int64_t position, std::int64_t queries) const { return last_of(position, queries); }
  // Behind and before other sequences; with a plan or without.
  Result packed(std::int64_t position, std::int64_t before, std::int64_t queries, bool planned) const {
    const std::int64_t keys = position + 1, after = 70, total_q = before + queries + after,
                       total_kv = before + keys + 250;
    HostTensor q = HostTensor::random_normal(DType::bf16, {1, total_q, kHeads, kDim}, 7);
    HostTensor k = HostTensor::random_normal(DType::bf16, {1, total_kv, kHeadsKv, kDim}, 8), v = k;
    put(q, before, rows_of(q_, keys - queries, queries));
    put(k, before, rows_of(k_, 0, keys)), put(v, before, rows_of(v_, 0, keys));
    const auto at = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
    const HostTensor of_queries = ints({0, at(before), at(before + queries), at(total_q)});
    const HostTensor of_keys = ints({0, at(before), at(before + keys), at(total_kv)});
    AttentionOptions options;
    options.cu_seqlens_q = of_queries.view(), options.cu_seqlens_kv = of_keys.view();
    return row_of(run(q, k, v, options, planned), before + queries - 1);
  }
  // As the second of two sequences whose pages lie backwards.
  Result paged(std::int64_t position, std::int64_t page_size) const {
    const std::int64_t keys = position + 1, pages = (keys + page_size - 1) / page_size;
    HostTensor k = HostTensor::random_normal(DType::bf16, {pages + 1, page_size, kHeadsKv, kDim}, 9), v = k;
    HostTensor table(DType::i32, {2, pages});
    auto* const entries = static_cast<std::int32_t*>(table.data());
    for (std::int64_t page = 0; page < pages; ++page) {
      entries[page] = static_cast<std::int32_t>(pages),
      entries[pages + page] = static_cast<std::int32_t>(pages - 1 - page);
      const std::int64_t here = std::min(page_size, keys - page * page_size);
      for (const auto& [into, from] : {std::pair(&k, &k_), {&v, &v_}}) {
        HostTensor flat(into->dtype(), {1, (pages + 1) * page_size, kHeadsKv, kDim});
        std::memcpy(flat.data(), into->data(), flat.element_count() * 2);
        put(flat, (pages - 1 - page) * page_size, rows_of(*from, page * page_size, here));
        std::memcpy(into->data(), flat.data(), flat.element_count() * 2);
      }
    }
    HostTensor q = HostTensor::random_normal(DType::bf16, {1, 2, kHeads, kDim}, 7);
    put(q, 1, rows_of(q_, position, 1));
    const HostTensor of_queries = ints({0, 1, 2}), used = ints({5, static_cast<std::int32_t>(keys)});
    AttentionOptions options;
    options.cu_seqlens_q = of_queries.view(), options.seqused_kv = used.view(), options.page_table = table.view();
    return row_of(run(q, k, v, options), 1);
  }

 private:
  struct Computed {
    HostTensor out, lse;
  };

  Computed run(const HostTensor& q, const HostTensor& k, const HostTensor& v, AttentionOptions options,
               bool planned = false) const {
    options.causal = true, options.fixed_split_size = kSize;
    options.window = options_.window, options.chunk = options_.chunk, options.sinks = options_.sinks,
    options.softcap = options_.softcap;
    Computed made{HostTensor(DType::bf16, q.shape()), HostTensor(DType::f32, {q.shape()[0], kHeads, q.shape()[1]})};
    BatchPlan plan;
    if (planned) plan = engine_.plan(q.view(), k.view(), v.view(), options), options.plan = &plan;
    options.lse = made.lse.view();
    engine_.attention(q.view(), k.view(), v.view(), made.out.view(), options);
    return made;
  }
  Result last_of(std::int64_t position, std::int64_t queries) const {
    const std::int64_t keys = position + 1;
    return row_of(run(rows_of(q_, keys - queries, queries), rows_of(k_, 0, keys), rows_of(v_, 0, keys), {}),
                  queries - 1);
  }
  static Result row_of(const Computed& made, std::int64_t row) {
    const HostTensor out = rows_of(made.out, row, 1);
    Result result{{static_cast<const char*>(out.data()), kHeads * kDim * 2}, {}};
    const std::int64_t queries = made.lse.shape()[2];
    for (std::int64_t head = 0; head < kHeads; ++head)
      result.lse.append(static_cast<const char*>(made.lse.data()) + (head * queries + row) * 4, 4);
    return result;
  }

  Engine& engine_;
  AttentionOptions options_;
  HostTensor q_ = HostTensor::random_normal(DType::bf16, {1, kKeys, kHeads, kDim}, 1, 0.1),
             k_ = HostTensor::random_normal(DType::bf16, {1, kKeys, kHeadsKv, kDim}, 2, 0.1),
             v_ = HostTensor::random_normal(DType::bf16, {1, kKeys, kHeadsKv, kDim}, 3);
  std::optional<Computed> prompt_;  // of all rows
};

}  // namespace

TEST_CASE("with splits of a fixed size a row is the same bit by bit, whatever it is computed with") {
  const HostTensor sinks = HostTensor::random_normal(DType::f32, {kHeads}, 5);
  AttentionOptions window, narrow, chunk, sinking;
  window.window = {190, 0};
  // What is seen would fit a split, but lies in two.
  narrow.window = {99, 0}, chunk.chunk = 100;
  sinking.sinks = sinks.view(), sinking.softcap = 20;
  tests::Sampler sampler;
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    for (const AttentionOptions& options : {AttentionOptions{}, window, narrow, chunk, sinking}) {
      if (!sampler.takes_next()) continue;
      CAPTURE(architecture);
      CAPTURE(options.window.left);
      CAPTURE(options.chunk);
      CAPTURE(options.softcap);
      const Sequence sequence(architecture, options);
      for (const std::int64_t position : {3, 127, 200, 332}) {
        CAPTURE(position);
        const Result alone = sequence.alone(position);
        CHECK(sequence.in_prompt(position) == alone);
        CHECK(sequence.in_chunk(position, 3) == alone);
        CHECK(sequence.in_chunk(position, std::min<std::int64_t>(position + 1, 90)) == alone);
        CHECK(sequence.packed(position, 40, 1, false) == alone);
        CHECK(sequence.packed(position, 201, std::min<std::int64_t>(position + 1, 66), true) == alone);
        CHECK(sequence.paged(position, 16) == alone);
        CHECK(sequence.paged(position, 64) == alone);
      }
    }
  }
}

TEST_CASE("such results are right") {
  const HostTensor q = HostTensor::random_normal(DType::f16, {2, 70, 2, kDim}, 1);
  const HostTensor k = HostTensor::random_normal(DType::f16, {2, 700, 2, kDim}, 2),
                   v = HostTensor::random_normal(DType::f16, {2, 700, 2, kDim}, 3);
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    for (const std::int64_t size : {1, 64, 200, 100000}) {
      CAPTURE(architecture);
      CAPTURE(size);
      AttentionOptions options;
      options.causal = true;
      options.fixed_split_size = size;
      const DeviceTensor out = engine_for(architecture).attention(q.view(), k.view(), v.view(), options);
      const auto exact = reference::attention(q.view(), k.view(), v.view(), options);
      const auto low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), options);
      CHECK(reference::compare(HostTensor::from_device(out), exact, low).passed);
    }
  }
}

TEST_CASE("a size without sense, and variants that cannot, are refused") {
  Engine& engine = engine_for("sm_90a");
  const HostTensor x = HostTensor::random_normal(DType::bf16, {1, 9, 2, kDim}, 1);
  const auto refusal = [&](std::int64_t size, const char* variant) -> std::string {
    AttentionOptions options;
    options.fixed_split_size = size;
    if (variant) options.variant = parse_variant(variant);
    try {
      engine.attention(x.view(), x.view(), x.view(), options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(-1, nullptr) == "fixed_split_size: must be at least 1, or 0 for none, was -1");
  CHECK(refusal(64, "hopper-q64-kv64-ppoff-whole-rare-splitkv").starts_with("variant: rescale must be always with"));
  CHECK(refusal(64, "hopper-q64-kv64-ppoff-whole-always").starts_with("variant: split_kv must be splitkv with"));
  CHECK(refusal(64, "hopper-q16-kv64-qs1-whole-serial-ppoff-always-fixed-splitkv")
            .starts_with("variant: block_q must be 64 or more with fixed_split_size, was 16"));
  CHECK(refusal(64, "hopper-q64-kv64-ppoff-whole-always-splitkv") == "");
}
