// SPDX-License-Identifier: Apache-2.0
// Device code from files, for developing it.
#pragma once

#include <string>

#include "generator/source.h"

namespace flashjit::runtime {

// Every *.cuh below the directory, by its path from there. Throws Error(io).
generator::Templates read_templates(const std::string& directory);

}  // namespace flashjit::runtime
