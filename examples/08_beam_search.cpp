// SPDX-License-Identifier: Apache-2.0
// Beam search: of all continuations of a prompt the most probable ones are kept, and each step extends them, forks some
// and drops others. Beams share the pages that they have in common, the prompt's first of all; one that writes into a
// page which others have, too, gets a copy of it first. All steps have one plan, which each updates. Beside it the same
// without plan and pages, each beam with a cache of its own. On the GPU, or with FLASHJIT_DEVICE=emulate without one.
#include <flashjit/flashjit.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

namespace {

using namespace flashjit;

constexpr DType kDType = DType::bf16;
constexpr std::int64_t kHeadsQ = 4, kHeadsKv = 2, kHeadDim = 64, kPageSize = 16;
constexpr std::int64_t kBeams = 4, kVocabulary = 32, kPrompt = 37, kSteps = 20;
constexpr std::int64_t kOutputs = kHeadsQ * kHeadDim;  // of a token
constexpr std::int64_t kLongest = kPrompt + kSteps, kEntries = (kLongest + kPageSize - 1) / kPageSize;

HostTensor ints(const std::vector<std::int32_t>& values, const Dims& shape) {
  HostTensor tensor(DType::i32, shape);
  std::memcpy(tensor.data(), values.data(), values.size() * sizeof(std::int32_t));
  return tensor;
}

// Of tensors [., ., heads, head_dim]; rows are counted through the first two dimensions.
void copy_rows(const HostTensor& from, std::int64_t from_row, HostTensor& to, std::int64_t to_row, std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(to.shape()[2] * to.shape()[3]) * size_of(to.dtype());
  std::memcpy(static_cast<char*>(to.data()) + static_cast<std::size_t>(to_row) * bytes,
              static_cast<const char*>(from.data()) + static_cast<std::size_t>(from_row) * bytes,
              static_cast<std::size_t>(count) * bytes);
}

// In the place of a model: queries, keys and values of each token at each position, and the weights that outputs have
// for each token, all at random.
struct Model {
  HostTensor q = HostTensor::random_normal(kDType, {kVocabulary, kLongest, kHeadsQ, kHeadDim}, 1);
  HostTensor k = HostTensor::random_normal(kDType, {kVocabulary, kLongest, kHeadsKv, kHeadDim}, 2);
  HostTensor v = HostTensor::random_normal(kDType, {kVocabulary, kLongest, kHeadsKv, kHeadDim}, 3);
  std::vector<double> weights = HostTensor::random_normal(DType::f32, {kVocabulary, kOutputs}, 4).to_doubles();

  static std::int64_t row(std::int64_t token, std::int64_t position) { return token * kLongest + position; }

  // Of each token, to be the next one.
  std::vector<double> log_probabilities(const double* output) const {
    std::vector<double> scores;
    for (std::int64_t token = 0; token < kVocabulary; ++token)
      scores.push_back(std::inner_product(output, output + kOutputs, &weights[token * kOutputs], 0.0));
    double sum = 0;
    for (const double score : scores) sum += std::exp(score);
    for (double& score : scores) score -= std::log(sum);
    return scores;
  }
};

// Keys and values of all beams. They stand on the host, where this program writes them; the kernels of a server write
// them into the device's memory.
class Caches {
 public:
  Caches(const Model& model, std::int64_t blocks, std::int64_t rows_of_block)
      : k_(kDType, {blocks, rows_of_block, kHeadsKv, kHeadDim}), v_(k_), model_(model) {}
  virtual ~Caches() = default;

  const HostTensor& k() const { return k_; }
  const HostTensor& v() const { return v_; }
  // Which pages a beam has, i32 [beams, entries]; none where each has a block of rows.
  virtual std::optional<HostTensor> page_table() const { return {}; }
  // Beam i goes on from what was beam parents[i].
  virtual void fork(const std::vector<std::int64_t>& parents) = 0;

  void append(std::int64_t beam, std::int64_t token, std::int64_t position) {
    const std::int64_t row = writable_row(beam, position);
    copy_rows(model_.k, Model::row(token, position), k_, row, 1);
    copy_rows(model_.v, Model::row(token, position), v_, row, 1);
  }

 protected:
  // Of a position behind the beam's last one: no other beam has it.
  virtual std::int64_t writable_row(std::int64_t beam, std::int64_t position) = 0;
  HostTensor k_, v_;

 private:
  const Model& model_;
};

class OwnCaches : public Caches {
 public:
  explicit OwnCaches(const Model& model) : Caches(model, kBeams, kLongest) {}

  void fork(const std::vector<std::int64_t>& parents) override {
    const HostTensor k = k_, v = v_;
    for (std::int64_t beam = 0; beam < kBeams; ++beam) {
      copy_rows(k, parents[beam] * kLongest, k_, beam * kLongest, kLongest);
      copy_rows(v, parents[beam] * kLongest, v_, beam * kLongest, kLongest);
    }
  }

 private:
  std::int64_t writable_row(std::int64_t beam, std::int64_t position) override { return beam * kLongest + position; }
};

class SharedPages : public Caches {
 public:
  explicit SharedPages(const Model& model)
      : Caches(model, kBeams * kEntries, kPageSize), pages_(kBeams), users_(kBeams * kEntries) {}

  std::optional<HostTensor> page_table() const override {
    std::vector<std::int32_t> entries(kBeams * kEntries, -1);
    for (std::int64_t beam = 0; beam < kBeams; ++beam)
      std::copy(pages_[beam].begin(), pages_[beam].end(), entries.begin() + beam * kEntries);
    return ints(entries, {kBeams, kEntries});
  }

  // Nothing is copied.
  void fork(const std::vector<std::int64_t>& parents) override {
    std::vector<std::vector<std::int32_t>> forked;
    for (const std::int64_t parent : parents) forked.push_back(pages_[parent]);
    for (const auto& pages : forked)
      for (const std::int32_t page : pages) ++users_[page];
    for (const auto& pages : pages_)
      for (const std::int32_t page : pages) --users_[page];
    pages_ = std::move(forked);
  }

  std::int64_t used() const { return kBeams * kEntries - std::count(users_.begin(), users_.end(), 0); }
  std::int64_t copied() const { return copied_; }

 private:
  std::int32_t take() {
    const auto found = std::find(users_.begin(), users_.end(), 0);
    *found = 1;
    return static_cast<std::int32_t>(found - users_.begin());
  }

  std::int64_t writable_row(std::int64_t beam, std::int64_t position) override {
    std::vector<std::int32_t>& pages = pages_[beam];
    const std::int64_t filled = position % kPageSize;
    if (filled == 0) pages.push_back(take());
    if (users_[pages.back()] > 1) copy_last(pages, filled);
    return pages.back() * kPageSize + filled;
  }
  void copy_last(std::vector<std::int32_t>& pages, std::int64_t filled) {
    const std::int32_t shared = pages.back(), own = take();
    copy_rows(k_, shared * kPageSize, k_, own * kPageSize, filled);
    copy_rows(v_, shared * kPageSize, v_, own * kPageSize, filled);
    --users_[shared];
    pages.back() = own;
    ++copied_;
  }

  std::vector<std::vector<std::int32_t>> pages_;  // of each beam
  std::vector<int> users_;                        // how many beams have a page; 0: it is free
  std::int64_t copied_ = 0;
};

struct Beam {
  std::vector<std::int64_t> tokens;
  double score;  // log-probability of what follows the prompt
};

class Search {
 public:
  Search(Engine& engine, const Model& model, Caches& caches) : engine_(engine), model_(model), caches_(caches) {
    for (std::int64_t position = 0; position < kPrompt; ++position) prompt_.push_back(position * 11 % kVocabulary);
  }

  std::vector<Beam> run() {
    for (std::int64_t position = 0; position < kPrompt; ++position) caches_.append(0, prompt_[position], position);
    caches_.fork(std::vector<std::int64_t>(kBeams, 0));
    // They are alike, so only one may be continued.
    std::vector<Beam> beams(kBeams, {prompt_, -INFINITY});
    beams[0].score = 0;
    for (std::int64_t step = 0; step < kSteps; ++step) beams = extended(beams);
    return beams;
  }

  const std::vector<double>& outputs() const { return outputs_; }  // of all steps

 private:
  struct Continuation {
    std::int64_t parent, token;
    double score;
  };

  // Of the last token of each beam.
  std::vector<double> attend(const std::vector<Beam>& beams) {
    const int device = engine_.emulates() ? kHostMemory : -1;
    const auto position = static_cast<std::int64_t>(beams[0].tokens.size()) - 1;
    HostTensor queries(kDType, {kBeams, 1, kHeadsQ, kHeadDim});
    for (std::int64_t beam = 0; beam < kBeams; ++beam)
      copy_rows(model_.q, Model::row(beams[beam].tokens.back(), position), queries, beam, 1);
    const std::vector<std::int32_t> lengths(kBeams, static_cast<std::int32_t>(position + 1));
    const DeviceTensor used = ints(lengths, {kBeams}).to_device(nullptr, device),
                       q = queries.to_device(nullptr, device), k = caches_.k().to_device(nullptr, device),
                       v = caches_.v().to_device(nullptr, device);
    AttentionOptions options;
    options.seqused_kv = used.view();
    DeviceTensor table;
    if (const std::optional<HostTensor> pages = caches_.page_table()) {
      table = pages->to_device(nullptr, device);
      options.page_table = table.view();
      options.plan = planned(q, k, v, options);
    }
    return HostTensor::from_device(engine_.attention(q, k, v, options)).to_doubles();
  }

  // The list of tiles for lengths of this step; sizes are the same in all.
  const BatchPlan* planned(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
    if (plan_)
      engine_.update(*plan_, q, k, v, options);
    else
      plan_ = engine_.plan(q, k, v, options);
    return &*plan_;
  }

  std::vector<Beam> extended(const std::vector<Beam>& beams) {
    const std::vector<double> output = attend(beams);
    outputs_.insert(outputs_.end(), output.begin(), output.end());
    std::vector<Continuation> all;
    for (std::int64_t beam = 0; beam < kBeams; ++beam) {
      const std::vector<double> scores = model_.log_probabilities(&output[beam * kOutputs]);
      for (std::int64_t token = 0; token < kVocabulary; ++token)
        all.push_back({beam, token, beams[beam].score + scores[token]});
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Continuation& a, const Continuation& b) { return a.score > b.score; });
    all.resize(kBeams);

    std::vector<std::int64_t> parents;
    for (const Continuation& each : all) parents.push_back(each.parent);
    caches_.fork(parents);
    std::vector<Beam> next;
    for (std::int64_t beam = 0; beam < kBeams; ++beam) {
      next.push_back({beams[parents[beam]].tokens, all[beam].score});
      const auto position = static_cast<std::int64_t>(next.back().tokens.size());
      next.back().tokens.push_back(all[beam].token);
      caches_.append(beam, all[beam].token, position);
    }
    return next;
  }

  Engine& engine_;
  const Model& model_;
  Caches& caches_;
  std::vector<std::int64_t> prompt_;
  std::optional<BatchPlan> plan_;
  std::vector<double> outputs_;
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::isnan(a[i]) ? 1e9 : std::abs(a[i] - b[i]));
  return largest;
}

bool same_tokens(const std::vector<Beam>& a, const std::vector<Beam>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Beam& one, const Beam& other) { return one.tokens == other.tokens; });
}

}  // namespace

int main() try {
  Engine engine;
  const Model model;
  SharedPages pages(model);
  OwnCaches caches(model);
  Search in_pages(engine, model, pages), in_caches(engine, model, caches);
  const std::vector<Beam> beams = in_pages.run(), expected = in_caches.run();

  std::printf("%d beams, a prompt of %d tokens and %d more\n", static_cast<int>(kBeams), static_cast<int>(kPrompt),
              static_cast<int>(kSteps));
  std::printf("pages at the end: %d, without sharing %d; %d were copied to be written\n",
              static_cast<int>(pages.used()), static_cast<int>(kBeams * kEntries), static_cast<int>(pages.copied()));
  std::printf("the best beam:");
  for (std::int64_t position = kPrompt; position < kLongest; ++position)
    std::printf(" %d", static_cast<int>(beams[0].tokens[position]));
  std::printf(", log-probability %.3f\n", beams[0].score);

  const double difference = largest_difference(in_pages.outputs(), in_caches.outputs());
  constexpr double kMost = 0.01;  // of roundings to 16 bits
  const bool is_right = same_tokens(beams, expected) && difference < kMost;
  std::printf("with a cache for each beam: %s, outputs differ by %.4f: %s\n",
              same_tokens(beams, expected) ? "the same beams" : "other beams", difference,
              is_right ? "right" : "WRONG");
  return is_right ? 0 : 1;
} catch (const flashjit::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
