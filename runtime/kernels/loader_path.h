// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

namespace flashjit::runtime {

// Where the dynamic loader would look for a library that this code opens by its bare name, and where ldconfig found
// any. Asking the loader itself would open the file, whatever is in it.
std::vector<std::filesystem::path> loader_directories();

}  // namespace flashjit::runtime
