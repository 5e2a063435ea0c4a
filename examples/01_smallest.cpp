// SPDX-License-Identifier: Apache-2.0
// The smallest program: random q, k and v on the GPU, one call, one value of the result.
#include <flashjit/flashjit.h>

#include <cstdio>

int main() {
  try {
    using namespace flashjit;
    const Dims shape{2, 1024, 8, 128};  // batch, seqlen, heads, head_dim
    const DeviceTensor q = HostTensor::random_normal(DType::bf16, shape, 1).to_device();
    const DeviceTensor k = HostTensor::random_normal(DType::bf16, shape, 2).to_device();
    const DeviceTensor v = HostTensor::random_normal(DType::bf16, shape, 3).to_device();

    // The first call compiles a kernel for head_dim 128 in bf16, or takes it from the cache.
    const DeviceTensor out = attention(q, k, v);

    std::printf("out[0, 0, 0, 0] = %g\n", HostTensor::from_device(out).to_doubles()[0]);
    return 0;
  } catch (const flashjit::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
