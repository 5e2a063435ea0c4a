// SPDX-License-Identifier: Apache-2.0
// The functions that examples/llmc/flashjit_att.cpp has for llm.c, in the emulator, called as train_gpt2.cu calls them:
// once with llm.c's floatX in bf16 and once in f16. Exit status 77: there is no NVRTC.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <stdlib.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

#if defined(ENABLE_FP16)
struct __half;
using floatX = __half;
constexpr flashjit::DType kDType = flashjit::DType::f16;
#else
struct __nv_bfloat16;
using floatX = __nv_bfloat16;
constexpr flashjit::DType kDType = flashjit::DType::bf16;
#endif

// As llm.c declares them, in its llmc/cudnn_att.h.
void create_cudnn();
void destroy_cudnn();
void attention_forward_cudnn(floatX* out, float* stats, floatX* inp, int B, int T, int NH, int C, CUstream_st* stream);
void attention_backward_cudnn(floatX* dqkvr, floatX* dout, floatX* qkvr, floatX* o, float* stats, int B, int T, int NH,
                              int C, CUstream_st* stream);

namespace {

using namespace flashjit;
using Numbers = std::vector<double>;

struct Sizes {
  int B, T, NH, HS, C = NH * HS;

  std::size_t rows() const { return static_cast<std::size_t>(B) * NH * T; }
};

// Causal attention of packed q, k and v and its gradients, term by term in double precision; with low, what a plain
// computation in 16 bits would keep in between is rounded to it.
class Plain {
 public:
  Plain(const Sizes& sizes, const Numbers& qkv, const Numbers& dout, bool low)
      : sizes_(sizes), low_(low), qkv_(qkv), dout_(dout) {
    result.shape = {sizes.B, sizes.T, sizes.NH, sizes.HS};
    result.out.resize(dout.size()), result.lse.resize(sizes.rows()), dqkv.resize(qkv.size());
    for (int b = 0; b < sizes.B; ++b)
      for (int h = 0; h < sizes.NH; ++h)
        for (int t = 0; t < sizes.T; ++t) add_row(b, h, t);
    for (Numbers* kept : {&result.out, &dqkv})
      for (double& value : *kept) value = rounded(value);
  }

  reference::Result result;
  Numbers dqkv;

 private:
  enum Part { kQ, kK, kV };

  double rounded(double value) const {
    unsigned char bytes[2];
    if (!low_) return value;
    store_element(bytes, kDType, 0, value);
    return load_element(bytes, kDType, 0);
  }
  std::size_t in_qkv(int b, int t, Part part, int h) const {
    return (((static_cast<std::size_t>(b) * sizes_.T + t) * 3 + part) * sizes_.NH + h) * sizes_.HS;
  }
  std::size_t in_out(int b, int t, int h) const {
    return ((static_cast<std::size_t>(b) * sizes_.T + t) * sizes_.NH + h) * sizes_.HS;
  }
  double dot(const double* a, const double* b) const {
    double sum = 0;
    for (int i = 0; i < sizes_.HS; ++i) sum += a[i] * b[i];
    return sum;
  }
  void add(double factor, const double* from, double* to) const {
    for (int i = 0; i < sizes_.HS; ++i) to[i] += factor * from[i];
  }

  // What query t of a head gives, and what it adds to gradients of keys and values up to its own.
  void add_row(int b, int h, int t) {
    const double scale = 1 / std::sqrt(sizes_.HS);
    const double *q = &qkv_[in_qkv(b, t, kQ, h)], *dout = &dout_[in_out(b, t, h)];
    Numbers p(t + 1);
    double sum = 0;
    for (int j = 0; j <= t; ++j) sum += p[j] = std::exp(scale * dot(q, &qkv_[in_qkv(b, j, kK, h)]));
    result.lse[(static_cast<std::size_t>(b) * sizes_.NH + h) * sizes_.T + t] = std::log(sum);
    double* out = &result.out[in_out(b, t, h)];
    for (int j = 0; j <= t; ++j) add(rounded(p[j] /= sum), &qkv_[in_qkv(b, j, kV, h)], out);
    double along = 0;  // the part of the probabilities' gradient that softmax takes out
    for (int i = 0; i < sizes_.HS; ++i) along += rounded(out[i]) * dout[i];
    for (int j = 0; j <= t; ++j) {
      const double dp = dot(dout, &qkv_[in_qkv(b, j, kV, h)]), ds = rounded(p[j] * (dp - along));
      add(scale * ds, &qkv_[in_qkv(b, j, kK, h)], &dqkv[in_qkv(b, t, kQ, h)]);
      add(scale * ds, q, &dqkv[in_qkv(b, j, kK, h)]);
      add(rounded(p[j]), dout, &dqkv[in_qkv(b, j, kV, h)]);
    }
  }

  Sizes sizes_;
  bool low_;
  const Numbers &qkv_, &dout_;
};

HostTensor filled_with_nan(DType dtype, const Dims& shape) {
  HostTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.element_count(); ++i)
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
  return tensor;
}

floatX* elements(HostTensor& tensor) { return static_cast<floatX*>(tensor.data()); }

struct Layer {
  explicit Layer(const Sizes& s)
      : sizes(s),
        qkv(HostTensor::random_normal(kDType, {s.B, s.T, 3, s.NH, s.HS}, 1)),
        dout(HostTensor::random_normal(kDType, {s.B, s.T, s.NH, s.HS}, 2)),
        out(filled_with_nan(kDType, dout.shape())),
        dqkv(filled_with_nan(kDType, qkv.shape())),
        stats(filled_with_nan(DType::f32, {s.B, s.NH, s.T})) {}

  void forward(bool with_stats = true) {
    attention_forward_cudnn(elements(out), with_stats ? static_cast<float*>(stats.data()) : nullptr, elements(qkv),
                            sizes.B, sizes.T, sizes.NH, sizes.C, nullptr);
  }
  void backward() {
    attention_backward_cudnn(elements(dqkv), elements(dout), elements(qkv), elements(out),
                             static_cast<float*>(stats.data()), sizes.B, sizes.T, sizes.NH, sizes.C, nullptr);
  }
  Plain plain(bool low) const { return {sizes, qkv_numbers, dout_numbers, low}; }

  Sizes sizes;
  HostTensor qkv, dout, out, dqkv, stats;
  Numbers qkv_numbers = qkv.to_doubles(), dout_numbers = dout.to_doubles();
};

void check(const std::string& what, const reference::Comparison& comparison) {
  CAPTURE(what);
  CAPTURE(comparison.max_error);
  CAPTURE(comparison.bound);
  CHECK(comparison.passed);
}

// What a process that does this writes to stderr before exit(EXIT_FAILURE); empty when it comes to its end.
std::string what_ends(const std::function<void()>& work) {
  const tests::TemporaryDirectory directory;
  const std::string path = directory / "stderr";
  tests::Child child([&] {
    REQUIRE(std::freopen(path.c_str(), "w", stderr) != nullptr);
    return work(), true;
  });
  const bool came_to_its_end = child.succeeded();
  std::ostringstream told;
  told << std::ifstream(path).rdbuf();
  return came_to_its_end ? "" : told.str();
}

}  // namespace

// First, as a process with threads should not fork.
TEST_CASE("an error ends the program and tells the function, the argument and what it was") {
  const auto call = [](const Sizes& sizes, int C, bool forward) {
    Layer layer(sizes);
    layer.sizes.C = C;
    forward ? layer.forward() : layer.backward();
  };
  CHECK(what_ends([&] { call({1, 16, 2, 64}, 128, true); }) == "");
  CHECK(what_ends([&] {
          call({1, 16, 2, 12}, 24, true);
        }) == "attention_forward_cudnn by flashjit: q: head_dim must be a multiple of 8 from 8 to 576, was 12\n");
  CHECK(what_ends([&] {
          call({1, 16, 1, 520}, 520, false);
        }) == "attention_backward_cudnn by flashjit: v: head_dim must be a multiple of 8 from 8 to 512, was 520\n");
  CHECK(what_ends([&] {
          call({1, 16, 2, 64}, 129, true);
        }) == "attention_forward_cudnn by flashjit: C: must be a multiple of NH, 2, was 129\n");
}

TEST_CASE("forward and backward of packed q, k and v are causal attention and its gradients") {
  create_cudnn();
  for (const Sizes& sizes : {Sizes{2, 100, 3, 64}, {1, 130, 2, 128}, {1, 70, 2, 80}, {2, 5, 1, 64}}) {
    CAPTURE(sizes.T);
    Layer layer(sizes);
    layer.forward();
    layer.backward();
    const Plain exact = layer.plain(false), low = layer.plain(true);
    check("out", reference::compare(layer.out, exact.result, low.result));
    check("stats", reference::compare_lse(layer.stats, exact.result, low.result));
    check("dqkv", reference::compare(layer.dqkv, exact.dqkv, low.dqkv));
  }
  destroy_cudnn();
}

TEST_CASE("without stats the output is the same") {
  Layer with({1, 64, 2, 64}), without({1, 64, 2, 64});
  with.forward();
  without.forward(false);
  CHECK(with.out.to_doubles() == without.out.to_doubles());
}

// All of this with the default engine, which reads the environment when it is first used.
int main(int argc, char** argv) {
  setenv("FLASHJIT_DEVICE", "emulate", 1);
  setenv("FLASHJIT_CACHE_DIR", FLASHJIT_KEPT_KERNELS, 1);
  setenv("FLASHJIT_CACHE_SIZE", "8G", 1);
  const SystemInfo system = Engine().system();
  if (system.nvrtc_version.empty()) {
    const char* required = getenv("FLASHJIT_REQUIRE_NVRTC");
    const bool failed = required != nullptr && std::string(required) == "1";
    std::printf("%s: no NVRTC (%s)\n", failed ? "failed" : "skipped", system.nvrtc_problem.c_str());
    return failed ? EXIT_FAILURE : 77;
  }
  return doctest::Context(argc, argv).run();
}
