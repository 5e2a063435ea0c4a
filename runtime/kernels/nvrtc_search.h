// SPDX-License-Identifier: Apache-2.0
// Finds libnvrtc as a file and identifies its build without opening it as a library: that costs 5 to 26 ms, and a start
// from a warm cache needs only the identity. What cannot be opened without danger is passed over.
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

// A file that was found and does not serve.
struct RefusedLibrary {
  std::filesystem::path path;
  std::string reason;
};
std::string to_string(const RefusedLibrary& refused);  // "/a/libnvrtc.so.13: is cut: ..."

struct NvrtcReport {
  std::vector<std::string> places;  // that the last search looked at
  std::vector<RefusedLibrary> refused;
};

// The first one that may be opened and is not among those refused, which grow; nothing when there is none.
std::optional<NvrtcLocation> locate_nvrtc(const NvrtcSearch& search, NvrtcReport& report);

// What a file is before it is opened as a library. The loader maps a file and reads what its headers promise: where the
// file ends before that, the process ends by SIGBUS.
struct LibraryFile {
  std::string identity;  // from its GNU build id, else from its size and its ends; empty when there is a problem
  std::string problem;   // why it must not be opened: no library, none for this machine, cut
};
LibraryFile examine_library(const std::filesystem::path& file);

// Why a file must not be opened as a library, as others could have put their code there: anybody may write to it, or to
// a directory between it and this one, or it belongs neither to root, nor to this user, nor to its directory's owner.
// Empty when it may be opened.
std::string why_untrusted(const std::filesystem::path& file, const std::filesystem::path& from);

}  // namespace flashjit::runtime
