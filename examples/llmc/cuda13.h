// SPDX-License-Identifier: Apache-2.0
// CUDA 13 has cudaMemAdvise for a cudaMemLocation alone, and llm.c calls it with cudaCpuDeviceId: included before each
// of its files.
#if defined(__CUDACC__) && CUDART_VERSION >= 13000
inline cudaError_t cudaMemAdvise(const void* memory, size_t bytes, cudaMemoryAdvise advice, int device) {
  const cudaMemLocationType type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  return cudaMemAdvise(memory, bytes, advice, cudaMemLocation{type, device});
}
#endif
