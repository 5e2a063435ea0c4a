// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <locale.h>
#include <nvrtc.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "runtime/kernels/ptxas_log.h"

namespace flashjit::runtime {

#define FLASHJIT_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)                   \
  X(nvrtcGetErrorString)            \
  X(nvrtcGetNumSupportedArchs)      \
  X(nvrtcGetSupportedArchs)         \
  X(nvrtcCreateProgram)             \
  X(nvrtcDestroyProgram)            \
  X(nvrtcCompileProgram)            \
  X(nvrtcGetCUBINSize)              \
  X(nvrtcGetCUBIN)                  \
  X(nvrtcGetPTXSize)                \
  X(nvrtcGetPTX)                    \
  X(nvrtcGetProgramLogSize)         \
  X(nvrtcGetProgramLog)

struct Nvrtc::Functions {
#define FLASHJIT_DECLARE(name) decltype(&::name) name = nullptr;
  FLASHJIT_NVRTC_FUNCTIONS(FLASHJIT_DECLARE)
#undef FLASHJIT_DECLARE
  int major = 0, minor = 0;
  std::vector<int> architectures;

  // Throws Unusable.
  static std::shared_ptr<const Functions> open(const std::filesystem::path& library);
  bool at_least(int wanted_major, int wanted_minor) const {
    return major > wanted_major || (major == wanted_major && minor >= wanted_minor);
  }
};

namespace {

constexpr int kOldestMajor = 12;
constexpr std::string_view kCubinPrefix = "sm_", kPtxPrefix = "compute_";

// Why a library does not serve.
struct Unusable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void close_library(void* library) { dlclose(library); }
using Library = std::unique_ptr<void, void (*)(void*)>;

// NVRTC opens its builtins by their bare name, and where it lies is seldom on the loader's path. When they are missing
// the first compilation says so.
void open_builtins(const std::filesystem::path& library, int major, int minor) {
  const auto builtins = library.parent_path() / fmt::format("libnvrtc-builtins.so.{}.{}", major, minor);
  std::error_code error;
  if (!std::filesystem::exists(builtins, error)) return;
  std::string problem = why_untrusted(builtins, builtins.parent_path());
  if (problem.empty()) problem = examine_library(builtins).problem;
  if (!problem.empty()) throw Unusable(fmt::format("needs {}: {}", builtins.filename().string(), problem));
  dlopen(builtins.c_str(), RTLD_NOW | RTLD_GLOBAL);
}

// NVRTC before 12.6.2 changes the locale of the thread that compiles.
class LocaleGuard {
 public:
  LocaleGuard() : saved_(uselocale(locale_t{})) {}
  ~LocaleGuard() { uselocale(saved_); }
  LocaleGuard(const LocaleGuard&) = delete;
  LocaleGuard& operator=(const LocaleGuard&) = delete;

 private:
  locale_t saved_;
};

bool is_ptx(const std::string& target) { return target.starts_with(kPtxPrefix); }

// A quotient in a user's text is exact to 2 ulp: rounded exactly it takes 15 instructions and a branch. Templates say
// what they divide by.
std::vector<std::string> options_for(const std::string& target) {
  std::vector<std::string> options = {"--gpu-architecture=" + target, "-std=c++17", "-default-device",
                                      "--prec-div=false"};
  if (is_ptx(target)) options.push_back("--generate-line-info");
  return options;
}

// "sm_90a" and "compute_90a" -> 90
int architecture_number(const std::string& target) {
  int number = 0;
  for (const char c : target) {
    if (c >= '0' && c <= '9') number = number * 10 + (c - '0');
  }
  return number;
}

}  // namespace

std::string ptx_target(const std::string& architecture) {
  return std::string(kPtxPrefix) + architecture.substr(kCubinPrefix.size());
}

std::string architecture_of(const std::string& target) {
  return is_ptx(target) ? std::string(kCubinPrefix) + target.substr(kPtxPrefix.size()) : target;
}

std::shared_ptr<const Nvrtc::Functions> Nvrtc::Functions::open(const std::filesystem::path& path) {
  Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), close_library);
  if (!library) {
    const char* reason = dlerror();
    throw Unusable(reason ? reason : "does not load");
  }
  auto functions = std::make_shared<Functions>();
#define FLASHJIT_FIND(name)                                                                   \
  functions->name = reinterpret_cast<decltype(functions->name)>(dlsym(library.get(), #name)); \
  if (!functions->name) throw Unusable("lacks " #name);
  FLASHJIT_NVRTC_FUNCTIONS(FLASHJIT_FIND)
#undef FLASHJIT_FIND
  functions->nvrtcVersion(&functions->major, &functions->minor);
  if (functions->major < kOldestMajor) {
    throw Unusable(
        fmt::format("is version {}.{} and must be {}.0 or newer", functions->major, functions->minor, kOldestMajor));
  }
  int count = 0;
  functions->nvrtcGetNumSupportedArchs(&count);
  functions->architectures.resize(static_cast<std::size_t>(count));
  functions->nvrtcGetSupportedArchs(functions->architectures.data());
  open_builtins(path, functions->major, functions->minor);
  library.release();  // stays open until the process ends
  return functions;
}

class Nvrtc::Program {
 public:
  Program(const Functions& nvrtc, const std::string& source, const std::string& name) : nvrtc_(nvrtc) {
    check(nvrtc_.nvrtcCreateProgram(&program_, source.c_str(), name.c_str(), 0, nullptr, nullptr),
          "nvrtcCreateProgram");
  }
  ~Program() { nvrtc_.nvrtcDestroyProgram(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() const {
    std::size_t size = 0;
    if (nvrtc_.nvrtcGetProgramLogSize(program_, &size) != NVRTC_SUCCESS || size <= 1) return {};
    std::string text(size, '\0');
    if (nvrtc_.nvrtcGetProgramLog(program_, text.data()) != NVRTC_SUCCESS) return {};
    text.resize(text.find('\0'));
    return text;
  }

  // A failed ptxas run can report success and size 0: the caller checks for empty.
  std::string cubin() const {
    std::size_t size = 0;
    check(nvrtc_.nvrtcGetCUBINSize(program_, &size), "nvrtcGetCUBINSize");
    std::string bytes(size, '\0');
    if (size > 0) check(nvrtc_.nvrtcGetCUBIN(program_, bytes.data()), "nvrtcGetCUBIN");
    return bytes;
  }

  std::string ptx() const {
    std::size_t size = 0;
    check(nvrtc_.nvrtcGetPTXSize(program_, &size), "nvrtcGetPTXSize");
    std::string text(size, '\0');
    if (size > 0) check(nvrtc_.nvrtcGetPTX(program_, text.data()), "nvrtcGetPTX");
    return text.substr(0, text.find('\0'));  // the size counts the zero at the end
  }

 private:
  void check(nvrtcResult result, const char* function) const {
    if (result == NVRTC_SUCCESS) return;
    throw Error(ErrorCode::compile_failed, fmt::format("{} failed: {}", function, nvrtc_.nvrtcGetErrorString(result)));
  }

  const Functions& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

// Access to what several threads share. What was refused meanwhile goes to the log afterwards, when the lock is free:
// the callback may ask the engine.
class Nvrtc::Access {
 public:
  explicit Access(Nvrtc& nvrtc) : nvrtc_(nvrtc), lock_(nvrtc.mutex_) {}
  ~Access() {
    const auto& refused = nvrtc_.report_.refused;
    const std::vector<RefusedLibrary> untold(refused.begin() + static_cast<std::ptrdiff_t>(nvrtc_.told_),
                                             refused.end());
    nvrtc_.told_ = refused.size();
    lock_.unlock();
    for (const RefusedLibrary& library : untold) nvrtc_.log_(LogLevel::warning, "NVRTC: {}", to_string(library));
  }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  Nvrtc& nvrtc_;
  std::unique_lock<std::mutex> lock_;
};

const std::optional<NvrtcLocation>& Nvrtc::locate() {
  if (!std::exchange(located_, true)) location_ = locate_nvrtc(search_, report_);
  return location_;
}

std::string Nvrtc::identity() {
  const Access access(*this);
  return locate() ? location_->identity : std::string();
}

std::string Nvrtc::path() {
  const Access access(*this);
  return locate() ? location_->path.string() : std::string();
}

std::vector<std::string> Nvrtc::refused() {
  const Access access(*this);
  locate();
  std::vector<std::string> lines;
  for (const RefusedLibrary& library : report_.refused) lines.push_back(to_string(library));
  return lines;
}

std::string Nvrtc::version() {
  const Functions& nvrtc = load();
  return fmt::format("{}.{}", nvrtc.major, nvrtc.minor);
}

std::string Nvrtc::options_for_key(const std::string& target) {
  return fmt::format("{}", fmt::join(options_for(target), " "));
}

const Nvrtc::Functions& Nvrtc::load() {
  const Access access(*this);
  while (!functions_) {
    if (!locate()) throw missing();
    try {
      functions_ = Functions::open(location_->path);
    } catch (const Unusable& unusable) {
      report_.refused.push_back({location_->path, unusable.what()});
      located_ = false;
    }
  }
  return *functions_;
}

Error Nvrtc::missing() const {
  std::vector<std::string> refused;
  for (const RefusedLibrary& library : report_.refused) refused.push_back(to_string(library));
  if (!search_.path.empty()) {
    const std::string why = report_.refused.empty() ? "is not there" : report_.refused.back().reason;
    return Error(ErrorCode::no_compiler, fmt::format("nvrtc: {} must be a usable libnvrtc: {}", search_.path, why),
                 search_.path);
  }
  const std::string also = refused.empty() ? "" : fmt::format("; found and refused: {}", fmt::join(refused, "; "));
  std::vector<std::string> log = report_.places;
  log.insert(log.end(), refused.begin(), refused.end());
  return Error(ErrorCode::no_compiler,
               fmt::format("nvrtc: libnvrtc must be installed or named, none that serves was in any of: {}{}",
                           fmt::join(report_.places, ", "), also),
               fmt::format("{}", fmt::join(log, "\n")));
}

CompiledImage Nvrtc::compile(const std::string& source, const std::string& name, const std::string& target) {
  const Functions& nvrtc = load();
  const auto& known = nvrtc.architectures;
  if (std::find(known.begin(), known.end(), architecture_number(target)) == known.end()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("architecture: must be one that NVRTC {}.{} at {} knows ({}), was {}", nvrtc.major,
                            nvrtc.minor, path(), fmt::join(known, ", "), target));
  }
  std::vector<std::string> options = options_for(target);
  if (!is_ptx(target)) options.push_back("--ptxas-options=-v");
  // Without it NVRTC 12.9 and later answers from the driver's compute cache, and writes there; older ones refuse it.
  if (nvrtc.at_least(12, 9)) options.push_back("--no-cache");

  const LocaleGuard locale;
  const auto start = std::chrono::steady_clock::now();
  Program program(nvrtc, source, name);
  const nvrtcResult result = program.compile(options);
  CompiledImage compiled;
  compiled.log = program.log();
  if (result == NVRTC_SUCCESS) compiled.bytes = is_ptx(target) ? program.ptx() : program.cubin();
  compiled.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (compiled.bytes.empty()) {
    const char* reason = result == NVRTC_SUCCESS ? "it gave nothing" : nvrtc.nvrtcGetErrorString(result);
    throw Error(
        ErrorCode::compile_failed,
        fmt::format("{}: NVRTC {}.{} must compile it for {}, but: {}", name, nvrtc.major, nvrtc.minor, target, reason),
        compiled.log);
  }
  const PtxasUsage usage = parse_ptxas_log(compiled.log);
  compiled.registers = usage.registers;
  compiled.spill_bytes = usage.spill_bytes;
  compiled.stack_bytes = usage.stack_bytes;
  return compiled;
}

}  // namespace flashjit::runtime
