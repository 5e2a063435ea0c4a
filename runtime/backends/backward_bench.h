// SPDX-License-Identifier: Apache-2.0
// The tuner's bench for gradients, on whatever device a backend has.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backends/backend.h"
#include "runtime/call/backward.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/tuning/gradient_check.h"
#include "runtime/tuning/tuner.h"

namespace flashjit::runtime {

// Memory that the launches of a call share, for as long as they are enqueued; the call knows it from now on.
std::vector<DeviceTensor> allocate_scratch(BackwardCall& call, Stream stream, int device);

// Where calls run.
struct BackwardBenchPlace {
  Backend& backend;
  PlainKernels& plain_kernels;
  KernelStore& store;
  const Architecture& architecture;
  std::string target;  // of the compiler
  Stream stream = nullptr;
  int device = 0;
  // Microseconds of so many repeats of these launches. The call has its memory.
  using Time = std::function<std::vector<double>(BackwardCall& call, int repeats)>;
  Time time;
  std::function<double()> seconds;
};

// Of one problem and shape. Gradients by the first variant that is checked, which is the default, are compared with the
// reference's, where a few times what rounding does is allowed, as few numbers of a sum may be unlucky; those by others
// with the first one's, where twice that is. The call that is timed is compared with the first variant's, too. What it
// is given must outlive it.
class BackwardBench : public TuningBenchOf<BackwardVariant> {
 public:
  // jobs: kernels that are compiled at once. The problem is its own class, sizes are at least 1. Throws Error.
  BackwardBench(BackwardBenchPlace place, const BackwardProblem& problem, const CallShape& shape,
                const std::vector<CallShape>& check_shapes, int jobs);
  ~BackwardBench() override;
  BackwardBench(const BackwardBench&) = delete;
  BackwardBench& operator=(const BackwardBench&) = delete;

  std::vector<Compiled> compile(const std::vector<BackwardVariant>& variants, const std::function<bool()>& stop,
                                const std::function<void(int)>& done) override;
  std::string check(const BackwardVariant& variant) override;
  std::vector<double> time(const BackwardVariant& variant, int launches) override;
  double seconds() override { return place_.seconds(); }

 private:
  class Call;
  Compiled compile_one(const BackwardVariant& variant) const;
  std::string check_small(std::size_t index, const BackwardVariant& variant, bool is_first);
  std::string check_timed(const BackwardVariant& variant, bool is_first);

  const BackwardBenchPlace place_;
  const BackwardProblem problem_;
  const int jobs_;
  std::unique_ptr<Call> timed_;
  std::vector<std::unique_ptr<Call>> small_;
  std::vector<ExpectedGradients> expected_;          // of small_
  std::vector<std::vector<HostTensor>> of_default_;  // of small_, then of timed_: made by the first variant
};

}  // namespace flashjit::runtime
