// SPDX-License-Identifier: Apache-2.0
// Files that the build has deflated: cmake/EmbedTemplates.cmake.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace flashjit::generator {

struct DeflatedFile {
  std::string_view path;
  std::size_t bytes;  // of its text
};

// The texts by their paths. They stand in one stream (RFC 1951), in the order of the files; what follows them is not
// read. Throws Error(io) when the stream is damaged or too short, and std::bad_alloc.
std::map<std::string, std::string, std::less<>> inflate(std::span<const DeflatedFile> files,
                                                        std::span<const unsigned char> deflated);

}  // namespace flashjit::generator
