// SPDX-License-Identifier: Apache-2.0
// flashjit info: what is on this machine.
#include <flashjit/cache.h>
#include <fmt/format.h>

#include "cli/cache/report.h"
#include "cli/io/command.h"
#include "cli/io/device.h"
#include "cli/io/size.h"
#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;
constexpr double kMebibyte = 1024.0 * 1024.0;

struct Options {
  bool json = false;
};

Json describe_device(const DeviceInfo& device) {
  return {{"ordinal", device.ordinal},
          {"name", device.name},
          {"architecture", device.architecture.empty() ? Json() : Json(device.architecture)},
          {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
          {"sm_count", device.sm_count},
          {"memory_bytes", device.memory_bytes},
          {"l2_bytes", device.l2_bytes}};
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json describe_cache(const SystemInfo& system, const Counters& totals) {
  Json layers = Json::array();
  for (const CacheLayerInfo& layer : system.cache) layers.push_back(describe(layer));
  return {{"layers", layers}, {"max_bytes", system.cache_max_bytes}, {"totals", describe(totals)}};
}

Json describe_system(const SystemInfo& system, const Counters& totals) {
  Json json = {{"version", system.version},
               {"driver", {{"version", or_null(system.driver_version)}, {"problem", or_null(system.driver_problem)}}},
               {"nvrtc",
                {{"version", or_null(system.nvrtc_version)},
                 {"path", or_null(system.nvrtc_path)},
                 {"problem", or_null(system.nvrtc_problem)},
                 {"refused", system.nvrtc_refused}}},
               {"cache", describe_cache(system, totals)},
               {"policy", to_string(system.policy)},
               {"tuning", to_string(system.tuning)},
               {"devices", Json::array()},
               {"architectures", Json::array()}};
  for (const DeviceInfo& device : system.devices) json["devices"].push_back(describe_device(device));
  for (const Architecture& architecture : architectures()) json["architectures"].push_back(architecture.name);
  return json;
}

std::string device_line(const DeviceInfo& device) {
  if (is_emulated(device)) return device.name + ", in host memory";
  return fmt::format("{}: {}, {}, {} SMs, {:.0f} GiB, {:.0f} MiB of L2", device.ordinal, device.name,
                     device.architecture.empty() ? "no kernels for it here" : device.architecture, device.sm_count,
                     static_cast<double>(device.memory_bytes) / kGibibyte,
                     static_cast<double>(device.l2_bytes) / kMebibyte);
}

void print_line(const char* label, const std::string& text) { print_out("{:<14}{}\n", label, text); }

std::string driver_line(const SystemInfo& system) {
  if (system.driver_version.empty()) return "none: " + system.driver_problem;
  const std::string version = "CUDA " + system.driver_version;
  return system.driver_problem.empty() ? version : version + ", " + system.driver_problem;
}

std::string layer_line(const CacheLayerInfo& layer, std::uint64_t max_bytes) {
  const std::string name = to_string(layer.layer);
  if (!layer.problem.empty()) return fmt::format("{}, not used: {}", name, layer.problem);
  const std::string content = fmt::format("{}: {}, {}", name, layer.location, entries_text(layer.entries, layer.bytes));
  return layer.layer == CacheLayer::user ? fmt::format("{} of at most {}", content, size_text(max_bytes)) : content;
}

void print_cache(const SystemInfo& system, const Counters& totals) {
  if (system.cache.empty()) print_line("cache", "in memory only");
  for (const CacheLayerInfo& layer : system.cache) print_line("cache", layer_line(layer, system.cache_max_bytes));
  print_line("cache so far", counters_text(totals));
}

void print(const SystemInfo& system, const Counters& totals) {
  print_line("flashjit", system.version);
  print_line("driver", driver_line(system));
  print_line("NVRTC", system.nvrtc_version.empty() ? "none: " + system.nvrtc_problem
                                                   : fmt::format("{} ({})", system.nvrtc_version, system.nvrtc_path));
  for (const std::string& refused : system.nvrtc_refused) print_line("NVRTC", "refused: " + refused);
  print_cache(system, totals);
  print_line("policy", to_string(system.policy));
  print_line("tuning", to_string(system.tuning));
  if (system.devices.empty()) print_line("devices", "none");
  for (const DeviceInfo& device : system.devices) print_line("device", device_line(device));
  std::string names;
  for (const Architecture& architecture : architectures()) names += std::string(" ") + architecture.name;
  print_line("architectures", names.substr(1));
}

int run(const Options& options, const Session& session) {
  const EngineOptions engine_options = session.engine_options();
  const SystemInfo system = Engine(engine_options).system();
  const Counters totals = Cache(engine_options).totals();
  if (options.json) {
    print_out("{}\n", to_text(describe_system(system, totals)));
  } else {
    print(system, totals);
  }
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* info =
      add_subcommand(app, command, "info", "Show versions, GPUs, driver, NVRTC, cache and architectures",
                     "Works with any of them missing and says why it is missing.\n\nExamples:\n  flashjit info\n  "
                     "flashjit info --json");
  add_flag(info, "--json", options->json, "Print one JSON object");
  run_when_chosen(info, command, options, run);
}

}  // namespace flashjit::cli
