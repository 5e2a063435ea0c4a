// SPDX-License-Identifier: Apache-2.0
// What a server does in a step: prompts of different lengths go through attention together, then each sequence gets one
// token after the other. Keys and values of new tokens are appended to pages of a pool, which attention reads by the
// same lengths; all layers of a step have one plan. On the GPU, or with FLASHJIT_DEVICE=emulate without one.
#include <flashjit/flashjit.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace flashjit;

constexpr DType kDType = DType::bf16;
constexpr std::int64_t kHeadsQ = 8, kHeadsKv = 2, kHeadDim = 64, kPageSize = 16, kEntries = 10, kLayers = 2;
constexpr std::int64_t kPages = 64;
const std::vector<std::int32_t> kPrompts = {37, 5, 80};  // tokens
constexpr int kSteps = 20;

HostTensor ints(const std::vector<std::int32_t>& values, const Dims& shape) {
  HostTensor tensor(DType::i32, shape);
  std::memcpy(tensor.data(), values.data(), values.size() * sizeof(std::int32_t));
  return tensor;
}

// The pages of each sequence, in no order.
std::vector<std::int32_t> make_table() {
  std::vector<std::int32_t> free(kPages);
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), std::mt19937(1));
  free.resize(kPrompts.size() * kEntries);
  return free;
}

// Of a layer, and the same on the host for the reference. Empty as yet.
struct LayerCache {
  HostTensor k, v;
  DeviceTensor k_there, v_there;

  explicit LayerCache(int device)
      : k(kDType, {kPages, kPageSize, kHeadsKv, kHeadDim}),
        v(k),
        k_there(k.to_device(nullptr, device)),
        v_there(v.to_device(nullptr, device)) {}
};

// All layers of one step: the last `queries[b]` tokens of each sequence, of which `lengths[b]` are there now.
class Step {
 public:
  Step(const std::vector<std::int32_t>& queries, const std::vector<std::int32_t>& lengths, const HostTensor& table,
       int device)
      : offsets_(make_offsets(queries)),
        lengths_(ints(lengths, {batch()})),
        total_(std::accumulate(queries.begin(), queries.end(), std::int64_t{0})),
        seed_(static_cast<std::uint64_t>(lengths[0])),
        device_(device) {
    q_ = HostTensor::random_normal(kDType, {total_, kHeadsQ, kHeadDim}, seed_);
    on_host_.causal = true;
    on_host_.cu_seqlens_q = offsets_.view(), on_host_.seqused_kv = lengths_.view();
    on_host_.page_table = table.view();
  }

  // The largest distance from the reference, in multiples of what 16 bits allow; at most 1 is right.
  double run(Engine& engine, std::vector<LayerCache>& layers, const DeviceTensor& table) const {
    const DeviceTensor q = q_.to_device(nullptr, device_), offsets = offsets_.to_device(nullptr, device_),
                       lengths = lengths_.to_device(nullptr, device_);
    AttentionOptions options = on_host_;
    options.cu_seqlens_q = offsets.view(), options.seqused_kv = lengths.view(), options.page_table = table.view();
    const BatchPlan plan = engine.plan(q, layers[0].k_there, layers[0].v_there, options);
    options.plan = &plan;
    double worst = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      append(engine, layers[i], 1000 * (i + 1) + seed_, options);
      const DeviceTensor out = engine.attention(q, layers[i].k_there, layers[i].v_there, options);
      worst = std::max(worst, distance(out, layers[i]));
    }
    return worst;
  }

 private:
  static std::int64_t batch() { return static_cast<std::int64_t>(kPrompts.size()); }
  static HostTensor make_offsets(const std::vector<std::int32_t>& queries) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int32_t count : queries) offsets.push_back(offsets.back() + count);
    return ints(offsets, {batch() + 1});
  }
  // Keys and values of the new tokens, which a model would compute, into the pages that attention finds them in.
  void append(Engine& engine, LayerCache& layer, std::uint64_t seed, const AttentionOptions& options) const {
    const Dims shape{total_, kHeadsKv, kHeadDim};
    const HostTensor k = HostTensor::random_normal(kDType, shape, seed),
                     v = HostTensor::random_normal(kDType, shape, seed + 500);
    engine.append(k.to_device(nullptr, device_), v.to_device(nullptr, device_), layer.k_there, layer.v_there,
                  places(options));
    reference::append(k.view(), v.view(), layer.k.view(), layer.v.view(), places(on_host_));
  }
  static AppendOptions places(const AttentionOptions& options) {
    AppendOptions appended;
    appended.cu_seqlens = options.cu_seqlens_q, appended.seqused_kv = options.seqused_kv;
    appended.page_table = options.page_table;
    return appended;
  }
  double distance(const DeviceTensor& out, const LayerCache& layer) const {
    const reference::Result exact = reference::attention(q_.view(), layer.k.view(), layer.v.view(), on_host_);
    const reference::Result low =
        reference::attention_in_low_precision(q_.view(), layer.k.view(), layer.v.view(), on_host_);
    HostTensor got(kDType, exact.shape);
    out.copy_to_host(got.data());
    const reference::Comparison comparison = reference::compare(got, exact, low);
    return comparison.max_error / comparison.bound;
  }

  HostTensor offsets_, lengths_, q_;
  std::int64_t total_;  // new tokens
  std::uint64_t seed_;
  int device_;
  AttentionOptions on_host_;
};

}  // namespace

int main() try {
  Engine engine;
  const int device = engine.emulates() ? kHostMemory : -1;
  std::vector<LayerCache> layers;
  for (int layer = 0; layer < kLayers; ++layer) layers.emplace_back(device);
  const HostTensor table = ints(make_table(), {static_cast<std::int64_t>(kPrompts.size()), kEntries});
  const DeviceTensor table_there = table.to_device(nullptr, device);

  // The prompts: queries and keys are as many.
  double worst = Step(kPrompts, kPrompts, table, device).run(engine, layers, table_there);
  std::printf("prompts of 37, 5 and 80 tokens: %.2f of what 16 bits allow\n", worst);

  // Token by token. The first of these makes a kernel for short queries; after it nothing is made.
  std::vector<std::int32_t> lengths = kPrompts;
  std::uint64_t compiles = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (std::int32_t& length : lengths) ++length;
    const std::vector<std::int32_t> one_each(lengths.size(), 1);
    worst = std::max(worst, Step(one_each, lengths, table, device).run(engine, layers, table_there));
    if (step == 0) compiles = engine.counters().compiles;
  }
  std::printf("%d more tokens each: %.2f, with %d kernels compiled after the first\n", kSteps, worst,
              static_cast<int>(engine.counters().compiles - compiles));
  std::printf("%s\n", worst <= 1 ? "right" : "WRONG");
  return worst <= 1 ? 0 : 1;
} catch (const flashjit::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
