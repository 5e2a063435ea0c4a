// SPDX-License-Identifier: Apache-2.0
#include "flashjit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/version.h"
#include "flashjit_from_c.h"
#include "runtime/api/c_arguments.h"
#include "runtime/api/c_errors.h"
#include "runtime/api/c_struct.h"
#include "runtime/call/dropout.h"
#include "runtime/support/parallel.h"

namespace {

using namespace flashjit::runtime;
using flashjit::Engine;

void attention(Engine& engine, const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* out,
               const flashjit_attention_options* options) {
  const MemoryKind kind = memory_of(engine);
  // One after the other, so that of several errors the first is told.
  const flashjit::Tensor q_view = to_keys("q", q, kind), k_view = to_keys("k", k, kind), v_view = to_keys("v", v, kind),
                         out_view = to_rows("out", out, kind);
  engine.attention(q_view, k_view, v_view, out_view, to_attention_options(options, kind));
}

void attention_backward(Engine& engine, const DLTensor* dout, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                        const DLTensor* out, const DLTensor* lse, const DLTensor* dlse, const flashjit_gradients* into,
                        const flashjit_attention_options* options) {
  const MemoryKind kind = memory_of(engine);
  // One after the other, as above.
  const flashjit::Tensor of_out = to_rows("dout", dout, kind), q_view = to_rows("q", q, kind),
                         k_view = to_keys("k", k, kind), v_view = to_keys("v", v, kind),
                         out_view = to_rows("out", out, kind), lse_view = to_tensor("lse", lse, kind, "f32");
  flashjit::BackwardOptions backward;
  if (dlse) backward.dlse = to_tensor("dlse", dlse, kind, "f32");
  const flashjit::from_c::GivenGradients gradients = flashjit::from_c::gradients_of(into, engine);
  backward.deterministic = gradients.deterministic;
  flashjit_attention_options given = FLASHJIT_ATTENTION_OPTIONS_INIT;
  if (options) given = read_struct(*options);
  if (given.variant) backward.variant = flashjit::parse_backward_variant(require_short("variant", given.variant));
  given.struct_size = sizeof given, given.variant = nullptr;  // which is not one of forward's
  engine.attention_backward(of_out, q_view, k_view, v_view, out_view, lse_view, gradients.into,
                            to_attention_options(&given, kind), backward);
}

// What a plan is made for: its members are read one after the other, too.
struct PlannedCall {
  MemoryKind kind;
  flashjit::Tensor q, k, v;
  flashjit::AttentionOptions options;

  PlannedCall(const Engine& engine, const DLTensor* of_q, const DLTensor* of_k, const DLTensor* of_v,
              const flashjit_attention_options* given)
      : kind(memory_of(engine)),
        q(to_rows("q", of_q, kind)),
        k(to_keys("k", of_k, kind)),
        v(to_keys("v", of_v, kind)),
        options(to_attention_options(given, kind)) {}
};

flashjit::BatchPlan make_plan(Engine& engine, const PlannedCall& call, const DLTensor* memory) {
  if (!memory) return engine.plan(call.q, call.k, call.v, call.options);
  const flashjit::Tensor view = to_tensor("memory", memory, call.kind, "i32");
  return engine.plan(call.q, call.k, call.v, view, call.options);
}

flashjit_plan_info info_of(const flashjit_plan& plan) {
  flashjit_plan_info info = FLASHJIT_PLAN_INFO_INIT;
  info.problem = plan.problem.c_str();
  info.variant = plan.variant.c_str();
  info.words = plan.plan.memory().shape[0];
  return info;
}

void block_mask(Engine& engine, const flashjit_attention_options* options, const flashjit_mask_shape* shape,
                const DLTensor* into) {
  const flashjit::CallShape sizes = to_shape(require("shape", shape));
  const MemoryKind kind = memory_of(engine);
  const flashjit::Tensor mask = to_tensor("into", into, kind, "i32");
  engine.block_mask(to_attention_options(options, kind), sizes, mask);
}

void merge(Engine& engine, const flashjit_partial* parts, std::size_t count, const DLTensor* out, const DLTensor* lse,
           void* stream) {
  const MemoryKind kind = memory_of(engine);
  const auto view = [kind](const std::string& name, const DLTensor* tensor, const char* dtypes) {
    return to_tensor(name.c_str(), tensor, kind, dtypes);
  };
  constexpr const char* kPartDTypes = "f16, bf16 or f32";
  if (count > 0) require("parts", parts);
  std::vector<flashjit::Partial> given;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("parts[{}]", i);
    given.push_back({view(name + ".out", parts[i].out, kPartDTypes), view(name + ".lse", parts[i].lse, "f32")});
  }
  flashjit::MergeOptions options;
  if (lse) options.lse = view("lse", lse, "f32");
  options.stream = static_cast<flashjit::Stream>(stream);
  engine.merge(given, view("out", out, kPartDTypes), options);
}

void append(Engine& engine, const DLTensor* k, const DLTensor* v, const DLTensor* k_cache, const DLTensor* v_cache,
            const flashjit_append_options* options) {
  const MemoryKind kind = memory_of(engine);
  engine.append(to_rows("k", k, kind), to_rows("v", v, kind), to_keys("k_cache", k_cache, kind),
                to_keys("v_cache", v_cache, kind), to_append_options(options, kind));
}

void quantize(Engine& engine, const DLTensor* x, const DLTensor* out, const DLTensor* scale,
              const flashjit_quantize_options* options) {
  const MemoryKind kind = memory_of(engine);
  engine.quantize(to_rows("x", x, kind), to_8_bits("out", out, kind, format_of_bytes(options)),
                  to_tensor("scale", scale, kind, "f32"), to_quantize_options(options, kind));
}

void dropout_mask(const flashjit::Dropout& dropout, const flashjit::CallShape& shape, std::uint8_t* kept) {
  flashjit::kept_share(dropout.probability);  // refuses one that is none
  const auto rows = static_cast<std::size_t>(shape.batch * shape.num_heads_q * shape.seqlen_q);
  const auto keys = static_cast<std::size_t>(shape.seqlen_kv);
  if (rows * keys > 0) require("kept", kept);
  parallel_for(rows, [&](std::size_t i) {
    const auto row = static_cast<std::int64_t>(i), row_of_heads = row / shape.seqlen_q;
    const DropoutRow of_row(dropout, shape.num_heads_q, row_of_heads / shape.num_heads_q,
                            row_of_heads % shape.num_heads_q, row % shape.seqlen_q);
    for (std::size_t key = 0; key < keys; ++key)
      kept[i * keys + key] = of_row.keeps(static_cast<std::int64_t>(key)) ? 1 : 0;
  });
}

flashjit_counters to_c(const flashjit::Counters& counted) {
  flashjit_counters counters = FLASHJIT_COUNTERS_INIT;
  counters.memory_hits = counted.memory_hits;
  counters.disk_hits = counted.user_hits + counted.system_hits + counted.bundle_hits + counted.embedded_hits;
  counters.misses = counted.misses;
  counters.compiles = counted.compiles;
  counters.tunings = counted.tunings;
  counters.timed_launches = counted.timed_launches;
  counters.records_used = counted.records_used;
  return counters;
}

}  // namespace

extern "C" {

const char* flashjit_version(void) { return flashjit::version(); }

flashjit_status flashjit_engine_create(const flashjit_engine_options* options, flashjit_engine** engine) {
  return guarded([&] {
    require("engine", engine) = nullptr;
    *engine = new flashjit_engine{Engine(to_engine_options(options))};
  });
}

void flashjit_engine_destroy(flashjit_engine* engine) { delete engine; }

flashjit_status flashjit_get_counters(flashjit_engine* engine, flashjit_counters* counters) {
  return guarded([&] { write_struct(to_c(engine_of(engine).counters()), require("counters", counters)); });
}

flashjit_status flashjit_attention(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                   const DLTensor* out, const flashjit_attention_options* options) {
  return guarded([&] { attention(engine_of(engine), q, k, v, out, options); });
}

flashjit_status flashjit_attention_backward(flashjit_engine* engine, const DLTensor* dout, const DLTensor* q,
                                            const DLTensor* k, const DLTensor* v, const DLTensor* out,
                                            const DLTensor* lse, const DLTensor* dlse, const flashjit_gradients* into,
                                            const flashjit_attention_options* options) {
  return guarded([&] { attention_backward(engine_of(engine), dout, q, k, v, out, lse, dlse, into, options); });
}

flashjit_status flashjit_plan_words(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                    const flashjit_attention_options* options, int64_t* words) {
  return guarded([&] {
    int64_t& result = require("words", words);
    Engine& made_by = engine_of(engine);
    const PlannedCall call(made_by, q, k, v, options);
    result = made_by.plan_dims(call.q, call.k, call.v, call.options)[0];
  });
}

flashjit_status flashjit_plan_create(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                     const flashjit_attention_options* options, const DLTensor* memory,
                                     flashjit_plan** plan) {
  return guarded([&] {
    require("plan", plan) = nullptr;
    Engine& made_by = engine_of(engine);
    *plan = new flashjit_plan(make_plan(made_by, PlannedCall(made_by, q, k, v, options), memory));
  });
}

flashjit_status flashjit_plan_update(flashjit_engine* engine, flashjit_plan* plan, const DLTensor* q, const DLTensor* k,
                                     const DLTensor* v, const flashjit_attention_options* options) {
  return guarded([&] {
    flashjit::BatchPlan& made = require("plan", plan).plan;
    Engine& made_by = engine_of(engine);
    const PlannedCall call(made_by, q, k, v, options);
    made_by.update(made, call.q, call.k, call.v, call.options);
  });
}

void flashjit_plan_destroy(flashjit_plan* plan) { delete plan; }

flashjit_status flashjit_get_plan_info(const flashjit_plan* plan, flashjit_plan_info* info) {
  return guarded([&] { write_struct(info_of(require("plan", plan)), require("info", info)); });
}

flashjit_status flashjit_block_mask_dims(const flashjit_mask_shape* shape, int64_t dims[FLASHJIT_BLOCK_MASK_RANK]) {
  return guarded([&] {
    const flashjit::Dims sizes = flashjit::block_mask_dims(to_shape(require("shape", shape)));
    std::copy(sizes.begin(), sizes.end(), &require("dims", dims));
  });
}

flashjit_status flashjit_block_mask(flashjit_engine* engine, const flashjit_attention_options* options,
                                    const flashjit_mask_shape* shape, const DLTensor* into) {
  return guarded([&] { block_mask(engine_of(engine), options, shape, into); });
}

flashjit_status flashjit_merge(flashjit_engine* engine, const flashjit_partial* parts, size_t part_count,
                               const DLTensor* out, const DLTensor* lse, void* stream) {
  return guarded([&] { merge(engine_of(engine), parts, part_count, out, lse, stream); });
}

flashjit_status flashjit_append(flashjit_engine* engine, const DLTensor* k, const DLTensor* v, const DLTensor* k_cache,
                                const DLTensor* v_cache, const flashjit_append_options* options) {
  return guarded([&] { append(engine_of(engine), k, v, k_cache, v_cache, options); });
}

flashjit_status flashjit_quantize(flashjit_engine* engine, const DLTensor* x, const DLTensor* out,
                                  const DLTensor* scale, const flashjit_quantize_options* options) {
  return guarded([&] { quantize(engine_of(engine), x, out, scale, options); });
}

flashjit_status flashjit_dropout_mask(double probability, uint64_t seed, uint64_t offset,
                                      const flashjit_mask_shape* shape, uint8_t* kept) {
  return guarded([&] { dropout_mask({probability, seed, offset}, to_shape(require("shape", shape)), kept); });
}

flashjit_status flashjit_prepare(flashjit_engine* engine, const flashjit_problem* problem, int32_t device) {
  return guarded([&] { engine_of(engine).prepare(to_problem(problem), device); });
}

flashjit_status flashjit_prepare_backward(flashjit_engine* engine, const flashjit_problem* problem,
                                          const flashjit_gradient_kinds* kinds, int32_t device) {
  return guarded([&] { engine_of(engine).prepare_backward(to_backward_problem(problem, kinds), device); });
}

flashjit_status flashjit_measure_mma_ceiling(flashjit_engine* engine, double* tflops) {
  return guarded([&] {
    double& result = require("tflops", tflops);
    result = engine_of(engine).measure_mma_ceiling();
  });
}

}  // extern "C"
