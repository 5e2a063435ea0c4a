// SPDX-License-Identifier: Apache-2.0
// Causal attention with grouped heads, into memory of the caller, with the log-sum-exp of each row, as a serving
// program would do it: prepare at the start, then calls that only launch.
#include <flashjit/flashjit.h>

#include <cstdio>

int main() {
  try {
    using namespace flashjit;
    const std::int64_t batch = 2, seqlen_q = 256, seqlen_kv = 1000, heads_q = 32, heads_kv = 8;
    Problem problem;
    problem.dtype = DType::f16;
    problem.head_dim = 128;
    problem.head_dim_v = 128;
    problem.causal = true;

    // Compiles or loads now what calls of any length will need.
    Engine engine;
    for (const KernelInfo& kernel : engine.prepare(problem)) {
      std::printf("ready: %s (%s)\n", kernel.name.c_str(), to_string(kernel.origin));
    }

    const DeviceTensor q =
        HostTensor::random_normal(problem.dtype, {batch, seqlen_q, heads_q, problem.head_dim}, 1).to_device();
    const DeviceTensor k =
        HostTensor::random_normal(problem.dtype, {batch, seqlen_kv, heads_kv, problem.head_dim}, 2).to_device();
    const DeviceTensor v =
        HostTensor::random_normal(problem.dtype, {batch, seqlen_kv, heads_kv, problem.head_dim_v}, 3).to_device();
    const DeviceTensor out = DeviceTensor::allocate(problem.dtype, {batch, seqlen_q, heads_q, problem.head_dim_v});
    const DeviceTensor lse = DeviceTensor::allocate(DType::f32, {batch, heads_q, seqlen_q});

    AttentionOptions options;
    options.causal = true;  // the last query sees all 1000 keys, the first one 745
    options.lse = lse.view();
    options.stream = nullptr;  // the default stream: everything above is ordered before the call
    engine.attention(q, k, v, out, options);

    std::printf("out[0, 0, 0, 0] = %g\n", HostTensor::from_device(out).to_doubles()[0]);
    std::printf("lse[0, 0, 0] = %g\n", HostTensor::from_device(lse).to_doubles()[0]);
    return 0;
  } catch (const flashjit::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
