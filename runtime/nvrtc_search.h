// SPDX-License-Identifier: Apache-2.0
// Finds libnvrtc as a file and identifies its build without opening it as a library: that costs 5 to 26 ms, and a start
// from a warm cache needs only the identity.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace flashjit::runtime {

struct NvrtcSearch {
  std::string path;                      // only this file, when not empty
  std::vector<std::string> directories;  // before the usual places
};

struct NvrtcLocation {
  std::filesystem::path path;  // with links resolved: libnvrtc-builtins lies beside that file
  std::string identity;        // "nvrtc-<16 hex digits>": equal for equal builds
};

// Nothing when there is none; searched then lists the places, one a line.
std::optional<NvrtcLocation> locate_nvrtc(const NvrtcSearch& search, std::string& searched);

// From the GNU build id of an ELF file, else from its size and its ends. Empty when it is not a readable ELF file.
std::string library_identity(const std::filesystem::path& file);

}  // namespace flashjit::runtime
