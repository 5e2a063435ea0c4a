// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <optional>

namespace flashjit::runtime {
namespace {

constexpr int kOldestVersion = 12000;  // cuLibraryLoadData
// The loader's path, and where WSL keeps the driver without telling the loader.
constexpr const char* kLibraries[] = {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};

void* open_library(std::string& tried) {
  for (const char* path : kLibraries) {
    if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
    const char* reason = dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "\n", reason ? reason : path);
  }
  return nullptr;
}

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The name of the first function that is missing; null when all are there.
const char* fill(DriverFunctions& functions, void* library) {
  const char* missing = nullptr;
#define FLASHJIT_NAME(name) #name
#define FLASHJIT_FIND(name) \
  if (!find(library, FLASHJIT_NAME(name), functions.name) && !missing) missing = FLASHJIT_NAME(name);
#define FLASHJIT_FIND_OPTIONAL(name) find(library, FLASHJIT_NAME(name), functions.name);
  FLASHJIT_DRIVER_FUNCTIONS(FLASHJIT_FIND)
  FLASHJIT_OPTIONAL_DRIVER_FUNCTIONS(FLASHJIT_FIND_OPTIONAL)
#undef FLASHJIT_FIND_OPTIONAL
#undef FLASHJIT_FIND
#undef FLASHJIT_NAME
  if (!find(library, "cuEventElapsedTime", functions.elapsed_time) && !missing) missing = "cuEventElapsedTime";
  return missing;
}

}  // namespace

struct Driver::Opened {
  Driver driver;
  std::optional<Error> problem;
};

const Driver::Opened& Driver::open() {
  static const Opened opened = [] {
    Opened result;
    std::string tried;
    void* library = open_library(tried);
    if (!library) {
      result.problem.emplace(ErrorCode::no_driver,
                             "driver: libcuda.so.1 must be loadable, was not: " + tried.substr(0, tried.find('\n')),
                             tried);
      return result;
    }
    Driver& driver = result.driver;
    const char* missing = fill(driver, library);
    if (driver.cuDriverGetVersion) driver.cuDriverGetVersion(&driver.version_);
    if (missing || driver.version_ < kOldestVersion) {
      result.problem.emplace(
          ErrorCode::no_driver,
          fmt::format("driver: must be for CUDA {} or newer, was for {}{}{}", version_text(kOldestVersion),
                      version_text(driver.version_), missing ? ", without " : "", missing ? missing : ""));
      return result;
    }
    if (const CUresult status = driver.cuInit(0); status != CUDA_SUCCESS) {
      const ErrorCode code = status == CUDA_ERROR_NO_DEVICE ? ErrorCode::no_device : ErrorCode::no_driver;
      result.problem.emplace(code, "driver: cuInit failed: " + driver.describe(status));
    }
    return result;
  }();
  return opened;
}

const Driver& Driver::load() {
  const Opened& opened = open();
  if (opened.problem) throw *opened.problem;
  return opened.driver;
}

const Driver* Driver::try_load(std::string* why) {
  const Opened& opened = open();
  if (!opened.problem) return &opened.driver;
  if (why) *why = opened.problem->what();
  return nullptr;
}

std::string Driver::describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) name = "unknown error";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || !text) text = "no description";
  return fmt::format("{} ({}: {})", name, static_cast<int>(result), text);
}

void Driver::fail(CUresult result, const char* function) const {
  throw Error(ErrorCode::driver, fmt::format("{} failed: {}", function, describe(result)));
}

std::string Driver::installed_version() {
  const int version = open().driver.version_;
  return version > 0 ? version_text(version) : std::string();
}

std::string version_text(int cuda_version) {
  return fmt::format("{}.{}", cuda_version / 1000, cuda_version % 1000 / 10);
}

}  // namespace flashjit::runtime
