// SPDX-License-Identifier: Apache-2.0
// The engine of a server: continuous batching. Requests come and go at any step, which takes a token of each sequence
// that is being continued and pieces of prompts, up to a number of tokens. Keys and values are in pages of one pool:
// prompts that begin alike share them, and who finds no page left puts off the youngest sequence. A step is one CUDA
// graph, of which there are two: for single tokens, and for prompts, too. On the GPU, or with FLASHJIT_DEVICE=emulate
// without one and without graphs.
#include <cuda_runtime.h>
#include <flashjit/flashjit.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace flashjit;
using Tokens = std::vector<std::int32_t>;

constexpr DType kDType = DType::bf16;
constexpr std::int64_t kLayers = 2, kHeadsQ = 4, kHeadsKv = 2, kHeads = kHeadsQ + 2 * kHeadsKv, kHeadDim = 64,
                       kVocabulary = 32;
constexpr std::int64_t kLongest = 128, kPageSize = 16, kEntries = (kLongest + kPageSize - 1) / kPageSize, kPages = 15;
constexpr std::int64_t kSequences = 4, kTokens = 48;  // of a step, at most

void check(cudaError_t status) {
  if (status != cudaSuccess) throw Error(ErrorCode::driver, cudaGetErrorString(status));
}

// Of packed tensors [..., heads, head_dim] on the host; rows are counted through the dimensions before.
void copy_rows(const Tensor& from, std::int64_t from_row, const Tensor& to, std::int64_t to_row, std::int64_t count) {
  const std::int64_t bytes = to.strides[to.shape.size() - 3] * 2;
  std::memcpy(static_cast<char*>(to.data) + to_row * bytes, static_cast<const char*>(from.data) + from_row * bytes,
              static_cast<std::size_t>(count * bytes));
}

// Some heads of queries, keys and values that lie behind each other in a token's row, from row `begin` on.
Tensor heads(const Tensor& qkv, std::int64_t first, std::int64_t count, std::int64_t begin = 0) {
  Tensor view = qkv;
  const int rank = view.shape.size();
  view.data = static_cast<char*>(qkv.data) + (begin * kHeads + first) * kHeadDim * 2;
  view.shape[rank - 3] -= begin, view.shape[rank - 2] = count;
  return view;
}
Tensor queries(const Tensor& qkv, std::int64_t begin = 0) { return heads(qkv, 0, kHeadsQ, begin); }
Tensor keys(const Tensor& qkv) { return heads(qkv, kHeadsQ, kHeadsKv); }
Tensor values(const Tensor& qkv) { return heads(qkv, kHeadsQ + kHeadsKv, kHeadsKv); }

// In the place of a model: queries, keys and values that a layer has of each token at each position, at random.
struct Model {
  std::vector<HostTensor> qkv;  // of each layer

  Model() {
    for (std::uint64_t layer = 0; layer < kLayers; ++layer)
      qkv.push_back(HostTensor::random_normal(kDType, {kVocabulary, kLongest, kHeads, kHeadDim}, layer));
  }
  void copy_row(std::size_t layer, const Tokens& tokens, std::int64_t position, const Tensor& to,
                std::int64_t row) const {
    copy_rows(qkv[layer].view(), tokens[position] * kLongest + position, to, row, 1);
  }
};

// Which pages are in use. A full one is known by all tokens up to its end, also when nobody uses it any more, until its
// memory is needed; a server would know it by their hash.
class PagePool {
 public:
  PagePool() : users_(kPages), unused_(kPages) { std::iota(unused_.begin(), unused_.end(), 0); }

  // The one that was unused for longest; none where all are in use.
  std::optional<std::int32_t> take() {
    if (unused_.empty()) return {};
    const std::int32_t page = unused_.front();
    unused_.pop_front();
    const auto known =
        std::find_if(known_.begin(), known_.end(), [&](const auto& each) { return each.second == page; });
    if (known != known_.end()) known_.erase(known);
    users_[page] = 1;
    return page;
  }
  // With the last of these tokens, if there is one.
  std::optional<std::int32_t> share(const Tokens& tokens) {
    const auto known = known_.find(tokens);
    if (known == known_.end()) return {};
    if (users_[known->second]++ == 0) unused_.erase(std::find(unused_.begin(), unused_.end(), known->second));
    return known->second;
  }
  void publish(const Tokens& tokens, std::int32_t page) { known_.emplace(tokens, page); }
  void release(std::int32_t page) {
    if (--users_[page] == 0) unused_.push_back(page);
  }

 private:
  std::vector<int> users_;           // how many sequences have a page
  std::deque<std::int32_t> unused_;  // for longest first
  std::map<Tokens, std::int32_t> known_;
};

struct Sequence {
  Tokens tokens;                          // with those that were generated
  std::int64_t length = 0;                // at which it ends
  std::int64_t computed = 0, shared = 0;  // tokens; of these by other sequences
  Tokens pages;
  std::vector<HostTensor> outputs{kLayers, HostTensor(kDType, {kLongest, kHeadsQ, kHeadDim})};

  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t left() const { return size() - computed; }
  Tokens until(std::int64_t position) const { return {tokens.begin(), tokens.begin() + position}; }
};
using SequencePointer = std::shared_ptr<Sequence>;
struct Work {
  SequencePointer sequence;
  std::int64_t count;  // tokens
};

// The same on the host and on the device; a graph copies from the one to the other. In the emulator it is one memory.
class Mirror {
 public:
  Mirror(DType dtype, const Dims& shape, Stream stream, int device)
      : there_(DeviceTensor::allocate(dtype, shape, stream, device)), host_(there_.view()) {
    if (device != kHostMemory) check(cudaMallocHost(&host_.data, there_.size_bytes()));
    std::memset(host_.data, 0, there_.size_bytes());
  }
  ~Mirror() {
    if (host_.data != there_.data()) cudaFreeHost(host_.data);
  }
  Mirror(const Mirror&) = delete;

  const Tensor& host() const { return host_; }
  const Tensor& there() const { return there_; }
  std::int32_t* numbers() { return static_cast<std::int32_t*>(host_.data); }
  void upload() { copy(there_.data(), host_.data); }
  void download() { copy(host_.data, there_.data()); }

 private:
  void copy(void* to, const void* from) {
    if (to != from) check(cudaMemcpyAsync(to, from, there_.size_bytes(), cudaMemcpyDefault, there_.stream()));
  }
  DeviceTensor there_;
  Tensor host_;
};

// Pages of all layers.
struct Cache {
  explicit Cache(int device) {
    const HostTensor empty(kDType, {kPages, kPageSize, kHeadsKv, kHeadDim});
    for (std::int64_t layer = 0; layer < kLayers; ++layer)
      k.push_back(empty.to_device(nullptr, device)), v.push_back(empty.to_device(nullptr, device));
  }
  std::vector<DeviceTensor> k, v;
};

// Steps of at most so many tokens, and of at most so many of one sequence: the same launches over the same memory.
class Step {
 public:
  Step(Engine& engine, const Cache& cache, std::int64_t tokens, std::int64_t longest, Stream stream, int device)
      : engine_(engine),
        cache_(cache),
        stream_(stream),
        starts_(DType::i32, {kSequences + 1}, stream, device),
        lengths_(DType::i32, {kSequences}, stream, device),
        table_(DType::i32, {kSequences, kEntries}, stream, device) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      qkv_.push_back(std::make_unique<Mirror>(kDType, Dims{tokens, kHeads, kHeadDim}, stream, device));
      out_.push_back(std::make_unique<Mirror>(kDType, Dims{tokens, kHeadsQ, kHeadDim}, stream, device));
    }
    options_.causal = true, options_.max_seqlen_q = longest, options_.stream = append_.stream = stream;
    options_.cu_seqlens_q = append_.cu_seqlens = starts_.there();
    options_.seqused_kv = append_.seqused_kv = lengths_.there();
    options_.page_table = append_.page_table = table_.there();
    plan_ = engine.plan(queries(qkv_[0]->there()), cache.k[0], cache.v[0], options_);
  }
  ~Step() {
    if (graph_) cudaGraphExecDestroy(graph_);
  }
  Step(const Step&) = delete;

  // Outputs are in those of the sequences afterwards.
  void run(const Model& model, const std::vector<Work>& batch) {
    fill(model, batch);
    if (engine_.emulates() || ++runs_ == 1) {
      enqueue();  // makes what kernels the plan did not make
    } else {
      if (!graph_) capture();
      check(cudaGraphLaunch(graph_, stream_));
    }
    if (!engine_.emulates()) check(cudaStreamSynchronize(stream_));
    std::int64_t row = 0;
    for (const auto& [sequence, count] : batch) {
      for (std::size_t i = 0; i < out_.size(); ++i)
        copy_rows(out_[i]->host(), row, sequence->outputs[i].view(), sequence->computed, count);
      row += count;
    }
  }

 private:
  void fill(const Model& model, const std::vector<Work>& batch) {
    std::int32_t *start = starts_.numbers(), *length = lengths_.numbers(), *table = table_.numbers();
    std::fill(length, length + kSequences, 0);
    std::int32_t row = 0;
    for (const auto& [sequence, count] : batch) {
      *start++ = row;
      *length++ = static_cast<std::int32_t>(sequence->computed + count);
      std::copy(sequence->pages.begin(), sequence->pages.end(), table);
      table += kEntries;
      for (std::int64_t at = sequence->computed; at < sequence->computed + count; ++at, ++row)
        for (std::size_t i = 0; i < qkv_.size(); ++i) model.copy_row(i, sequence->tokens, at, qkv_[i]->host(), row);
    }
    std::fill(start, starts_.numbers() + kSequences + 1, row);  // others have no queries
  }

  void enqueue() {
    for (Mirror* const tensor : {&starts_, &lengths_, &table_}) tensor->upload();
    engine_.update(plan_, queries(qkv_[0]->there()), cache_.k[0], cache_.v[0], options_);
    AttentionOptions planned = options_;
    planned.plan = &plan_;
    for (std::size_t i = 0; i < qkv_.size(); ++i) {
      const Tensor& qkv = qkv_[i]->there();
      qkv_[i]->upload();
      engine_.append(keys(qkv), values(qkv), cache_.k[i], cache_.v[i], append_);
      engine_.attention(queries(qkv), cache_.k[i], cache_.v[i], out_[i]->there(), planned);
      out_[i]->download();
    }
  }
  void capture() {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    enqueue();
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphInstantiate(&graph_, graph, 0));
    check(cudaGraphDestroy(graph));
  }

  Engine& engine_;
  const Cache& cache_;
  Stream stream_;
  Mirror starts_, lengths_, table_;
  std::vector<std::unique_ptr<Mirror>> qkv_, out_;  // of each layer
  AttentionOptions options_;
  AppendOptions append_;
  BatchPlan plan_;
  int runs_ = 0;
  cudaGraphExec_t graph_ = nullptr;
};

class Server {
 public:
  Server(Engine& engine, const Model& model, Stream stream, int device)
      : model_(model),
        cache_(device),
        tokens_(engine, cache_, kSequences, 1, stream, device),
        prompts_(engine, cache_, kTokens, kTokens, stream, device) {}

  void submit(Tokens prompt, std::size_t generated) {
    const auto length = static_cast<std::int64_t>(prompt.size() + generated),
               most = std::min(kLongest, kPages * kPageSize);
    if (prompt.empty() || generated == 0 || length > most)
      throw Error(ErrorCode::invalid_argument,
                  "prompt: must have at least 1 token and with as many generated at most " + std::to_string(most) +
                      ", had " + std::to_string(prompt.size()) + " and " + std::to_string(generated));
    waiting_.push_back(std::make_shared<Sequence>());
    waiting_.back()->length = length;
    waiting_.back()->tokens = std::move(prompt);
  }
  bool is_idle() const { return waiting_.empty() && running_.empty(); }
  int put_off() const { return put_off_; }

  // The sequences that ended with it.
  std::vector<SequencePointer> step() {
    const std::vector<Work> batch = schedule();
    const bool is_long = std::any_of(batch.begin(), batch.end(), [](const Work& work) { return work.count > 1; });
    (is_long ? prompts_ : tokens_).run(model_, batch);
    for (const auto& [sequence, count] : batch) advance(*sequence, count);
    const auto is_ended = [](const SequencePointer& each) { return each->size() == each->length; };
    const auto first = std::stable_partition(running_.begin(), running_.end(), std::not_fn(is_ended));
    const std::vector<SequencePointer> ended(first, running_.end());
    running_.erase(first, running_.end());
    for (const SequencePointer& sequence : ended) release(*sequence);
    return ended;
  }

 private:
  // The oldest first, then who waits, unless somebody was put off: he would take the pages back.
  std::vector<Work> schedule() {
    std::vector<Work> batch;
    std::int64_t free = kTokens;
    const int before = put_off_;
    for (std::size_t i = 0; free > 0 && (i < running_.size() || (put_off_ == before && admit())); ++i) {
      const Work work{running_[i], std::min(free, running_[i]->left())};
      if (!reserve(*work.sequence, work.sequence->computed + work.count)) break;
      batch.push_back(work);
      free -= work.count;
    }
    return batch;
  }
  bool admit() {
    if (waiting_.empty() || running_.size() == kSequences) return false;
    running_.push_back(waiting_.front());
    waiting_.pop_front();
    Sequence& sequence = *running_.back();
    while (sequence.left() > kPageSize) {  // the last token is computed, for what comes after it
      const auto page = pool_.share(sequence.until(sequence.computed + kPageSize));
      if (!page) break;
      sequence.pages.push_back(*page), sequence.computed += kPageSize;
    }
    sequence.shared = sequence.computed;
    return true;
  }
  // Pages for so many tokens, if need be of the youngest sequence; false where it is that one.
  bool reserve(Sequence& sequence, std::int64_t tokens) {
    while (static_cast<std::int64_t>(sequence.pages.size()) * kPageSize < tokens) {
      if (const auto page = pool_.take()) {
        sequence.pages.push_back(*page);
        continue;
      }
      const SequencePointer youngest = running_.back();
      running_.pop_back();
      waiting_.push_front(youngest);
      release(*youngest);
      ++put_off_;
      if (youngest.get() == &sequence) return false;
    }
    return true;
  }
  // The last pages first: without those before them they are of no use to anybody.
  void release(Sequence& sequence) {
    for (; !sequence.pages.empty(); sequence.pages.pop_back()) pool_.release(sequence.pages.back());
    sequence.computed = 0;
  }

  void advance(Sequence& sequence, std::int64_t count) {
    std::int64_t page = sequence.computed / kPageSize;
    sequence.computed += count;
    for (; page < sequence.computed / kPageSize; ++page)
      pool_.publish(sequence.until((page + 1) * kPageSize), sequence.pages[page]);
    if (sequence.left() > 0) return;
    const HostTensor& output = sequence.outputs.back();
    std::vector<double> scores;  // of all tokens to be the next one
    for (std::int64_t token = 0; token < kVocabulary; ++token)
      scores.push_back(load_element(output.data(), kDType, (sequence.computed - 1) * kHeadsQ * kHeadDim + token));
    sequence.tokens.push_back(
        static_cast<std::int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin()));
  }

  const Model& model_;
  const Cache cache_;
  Step tokens_, prompts_;
  PagePool pool_;
  std::deque<SequencePointer> waiting_;
  std::vector<SequencePointer> running_;  // the oldest first
  int put_off_ = 0;
};

// How far the outputs of what was computed for a sequence are from attention over all its tokens at once, in multiples
// of what 16 bits allow; at most 1 is right.
double distance(const Model& model, const Sequence& sequence) {
  const std::int64_t length = sequence.size() - 1, rows = length - sequence.shared;
  AttentionOptions options;
  options.causal = true;
  double worst = 0;
  for (std::size_t i = 0; i < sequence.outputs.size(); ++i) {
    HostTensor qkv(kDType, {1, length, kHeads, kHeadDim}), got(kDType, {1, rows, kHeadsQ, kHeadDim});
    for (std::int64_t at = 0; at < length; ++at) model.copy_row(i, sequence.tokens, at, qkv.view(), at);
    copy_rows(sequence.outputs[i].view(), sequence.shared, got.view(), 0, rows);
    const Tensor q = queries(qkv.view(), sequence.shared), k = keys(qkv.view()), v = values(qkv.view());
    const reference::Comparison comparison = reference::compare(
        got, reference::attention(q, k, v, options), reference::attention_in_low_precision(q, k, v, options));
    worst = std::max(worst, comparison.max_error / comparison.bound);
  }
  return worst;
}

}  // namespace

int main() try {
  Engine engine;
  const Model model;
  Stream stream = nullptr;
  if (const SystemInfo system = engine.system(); system.devices.empty())
    throw Error(ErrorCode::no_device, system.driver_problem.empty() ? "there is no GPU" : system.driver_problem);
  if (!engine.emulates()) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Server server(engine, model, stream, engine.emulates() ? kHostMemory : -1);

  // Questions of different lengths behind the same 32 tokens, one every other step.
  constexpr int kRequests = 8;
  int submitted = 0, steps = 0;
  std::int64_t tokens = 0, shared = 0;
  double worst = 0;
  for (; submitted < kRequests || !server.is_idle(); ++steps) {
    if (submitted < kRequests && steps % 2 == 0) {
      Tokens prompt(40 + 9 * submitted % 37);
      for (int i = 0; i < static_cast<int>(prompt.size()); ++i)
        prompt[i] = (i * 11 + (i < 32 ? 0 : submitted)) % static_cast<int>(kVocabulary);
      server.submit(std::move(prompt), 20 + 5 * (submitted++ % 4));
    }
    for (const SequencePointer& sequence : server.step()) {
      worst = std::max(worst, distance(model, *sequence));
      tokens += sequence->size();
      shared += sequence->shared;
    }
  }
  std::printf(
      "%d requests, %d tokens, in %d steps; %d of these tokens were found in pages, %d times a sequence was put off\n",
      kRequests, static_cast<int>(tokens), steps, static_cast<int>(shared), server.put_off());
  std::printf("outputs: %.2f of what 16 bits allow: %s\n", worst, worst <= 1 ? "right" : "WRONG");
  const bool was_crowded = shared > 0 && server.put_off() > 0;
  if (!was_crowded) std::printf("WRONG: requests were to share pages, and to be more than the pool has room for\n");
  return worst <= 1 && was_crowded ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
