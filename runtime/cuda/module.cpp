// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/module.h"

#include <fmt/format.h>

namespace flashjit::runtime {

std::unique_ptr<Module> Module::open(const Driver& driver, const std::string& cubin, const std::string& entry,
                                     Failure& failure) {
  std::unique_ptr<Module> module(new Module(driver));
  const auto succeeds = [&failure](CUresult result, const char* function) {
    failure = {result, function};
    return result == CUDA_SUCCESS;
  };
  CUfunction function = nullptr;
  if (!succeeds(driver.cuLibraryLoadData(&module->library_, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                "cuLibraryLoadData") ||
      !succeeds(driver.cuLibraryGetKernel(&module->kernel_, module->library_, entry.c_str()), "cuLibraryGetKernel") ||
      !succeeds(driver.cuKernelGetFunction(&function, module->kernel_), "cuKernelGetFunction")) {
    return nullptr;
  }
  return module;
}

Module::~Module() {
  if (library_) driver_.cuLibraryUnload(library_);
}

Module::Ready Module::prepare(const Device& device, const std::string& name, int threads, int smem_bytes) const {
  if (smem_bytes > device.smem_per_block) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: must need at most the {} bytes of shared memory of {}, needs {}", name,
                            device.smem_per_block, device.info.name, smem_bytes));
  }
  if (smem_bytes > 0) {  // a kernel's static memory may take it above what needs no leave
    driver_.check(driver_.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes, kernel_,
                                               device.info.ordinal),
                  "cuKernelSetAttribute");
  }
  CUfunction loaded = nullptr;
  driver_.check(driver_.cuKernelGetFunction(&loaded, kernel_), "cuKernelGetFunction");
  if (driver_.cuFuncLoad) driver_.check(driver_.cuFuncLoad(loaded), "cuFuncLoad");
  // The kernel itself, which the driver takes for a function, launches in whatever context the stream has.
  Ready ready{reinterpret_cast<CUfunction>(kernel_)};
  driver_.check(driver_.cuOccupancyMaxActiveBlocksPerMultiprocessor(&ready.blocks_per_sm, ready.function, threads,
                                                                    static_cast<std::size_t>(smem_bytes)),
                "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  if (ready.blocks_per_sm == 0) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: a block must fit on an SM of {}, does not with {} threads and {} bytes of shared memory", name,
                    device.info.name, threads, smem_bytes));
  }
  return ready;
}

}  // namespace flashjit::runtime
