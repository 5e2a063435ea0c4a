// SPDX-License-Identifier: Apache-2.0
// Faults that tests on a GPU plant in the device code. A test without one sees to it that their text still stands.
#pragma once

#include <stdexcept>
#include <string>

#include "generator/templates.h"

namespace flashjit::tests {

struct PlantedFault {
  const char* file;
  const char* original;  // stands in it once
  const char* replacement;
};

inline constexpr PlantedFault kDoesNotCompile = {"attention/softmax.cuh", "float scale_log2;", "flaot scale_log2;"};
inline constexpr PlantedFault kWrongScale = {"attention/softmax.cuh", ": scale_log2(scale_log2_) {",
                                             ": scale_log2(scale_log2_ * 1.05f) {"};
inline constexpr PlantedFault kDirtyTileCounter = {"hopper/loader.cuh",
                                                   "    if (drawn == tiles.count() - 1) *counter = 0;\n", ""};
inline constexpr PlantedFault kPlantedFaults[] = {kDoesNotCompile, kWrongScale, kDirtyTileCounter};

inline generator::Templates templates_with(const PlantedFault& fault) {
  generator::Templates::Files files = generator::embedded_templates().files();
  std::string& text = files.at(fault.file);
  const std::string original = fault.original;
  const std::size_t at = text.find(original);
  if (at == std::string::npos || text.find(original, at + 1) != std::string::npos)
    throw std::runtime_error(std::string(fault.file) + " must have this text once: " + original);
  text.replace(at, original.size(), fault.replacement);
  return generator::Templates(std::move(files));
}

}  // namespace flashjit::tests
