// SPDX-License-Identifier: Apache-2.0
// What the sources of kernels are put together from.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "generator/plan.h"
#include "generator/source.h"

namespace flashjit::generator {

// struct Config, by which a template knows the problem and the variant. fetches: whether the
// kernel can fetch blocks of tensors.
class ConfigText {
 public:
  // Empty: of a kernel that names the slots that it has.
  ConfigText() = default;
  explicit ConfigText(const Problem& problem, bool fetches = false);
  void use(std::string_view name, std::string_view type) { members_ += fmt::format("  using {} = {};\n", name, type); }
  template <class Value>
  void add(std::string_view type, std::string_view name, const Value& value) {
    members_ += fmt::format("  static constexpr {} {} = {};\n", type, name, value);
  }
  std::string text() const { return "struct Config {\n" + members_ + "};\n"; }

 private:
  std::string members_;
};

// That the device computes what the host planned. shape: the struct of the family's sizes.
struct PlanAssertion {
  std::string_view shape;
  int smem_bytes, threads;
  std::size_t argument_bytes;  // of the launch
};
std::string render(const PlanAssertion& assertion);

// What stands before the generated part of a source.
inline constexpr const char* kGenerated = "#line 1 \"generated\"\n";
// With its heading.
Source named_source(std::string name, std::string_view entry);
// A kernel without functions.
struct PlainText {
  std::string name;  // without the architecture
  const char *entry, *device_code;
  const char* arguments;  // its struct of abi.cuh
  std::string work;       // what is made of them and run
  int blocks_of_sm = 0;   // that are to run there at once; 0: as it comes
};
PlainKernel plain_kernel(const PlainText& text, int threads, std::size_t argument_bytes,
                         const Architecture& architecture, const Templates& templates);

// Whether a launch may begin while the one before it still runs (griddepcontrol, PTX ISA 7.8).
inline bool can_overlap_launches(const Architecture& architecture) { return architecture.major >= 9; }
// Whether a family's kernels can fetch blocks of tensors.
constexpr bool can_fetch(const Problem&, const MmaVariant&) { return false; }
// Not where warps share rows, and not beside large heads, which leave no room.
constexpr bool can_fetch(const Problem& problem, const HopperVariant& variant) {
  return variant.block_q % 64 == 0 && !is_large(problem);
}
// The template of a family's forward kernel.
const char* template_of(const Problem& problem, const MmaVariant& variant);
const char* template_of(const Problem& problem, const HopperVariant& variant);
// What comes after it: Config, and the entry of this name. variant: the spec's.
std::string render_kernel(const KernelSpec& spec, const MmaVariant& variant, std::string_view entry);
std::string render_kernel(const KernelSpec& spec, const HopperVariant& variant, std::string_view entry);

}  // namespace flashjit::generator
