# flashjit_embed_bundle(<target> <bundle> [NAME <name>])
# Links a bundle of kernels (docs/cache.md) into the target. Its sources can then use it:
#   #include <flashjit_bundles/<name>.h>
#   options.embedded_bundles = {flashjit_bundles::<name>()};
# <bundle> is a file, or what a custom command of this directory makes; a changed one is linked in anew. A relative path
# is looked for as add_executable() does, in the source directory and then in the binary directory. <name> defaults to
# the file's name without its extension.
function(flashjit_embed_bundle target bundle)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" NAME "")
  if(NOT TARGET ${target})
    message(FATAL_ERROR "flashjit_embed_bundle: the first argument must be a target, was ${target}")
  endif()
  if(DEFINED arg_UNPARSED_ARGUMENTS OR DEFINED arg_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "flashjit_embed_bundle: must be given <target> <bundle> [NAME <name>], was given ${ARGV}")
  endif()
  set(name ${arg_NAME})
  if(NOT DEFINED arg_NAME)
    cmake_path(GET bundle STEM name)
    string(MAKE_C_IDENTIFIER "${name}" name)
  endif()
  if(NOT name MATCHES "^[A-Za-z_][A-Za-z0-9_]*$")
    message(FATAL_ERROR "flashjit_embed_bundle: NAME must be a C++ identifier, was ${name}")
  endif()
  set(file "${bundle}")
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
  if(NOT EXISTS "${file}")
    set(file "${bundle}")
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} NORMALIZE)
  endif()
  if(IS_DIRECTORY "${file}")
    message(FATAL_ERROR "flashjit_embed_bundle: the bundle must be a file, was the directory ${file}")
  endif()
  _flashjit_write_embedded_bundle(${target} ${name} "${file}")
endfunction()

function(_flashjit_write_embedded_bundle target name file)
  string(REGEX REPLACE "([\\\"])" "\\\\\\1" escaped "${file}")
  set(include_directory ${CMAKE_CURRENT_BINARY_DIR}/flashjit_embedded/${target})
  set(header ${include_directory}/flashjit_bundles/${name}.h)
  set(source ${include_directory}/flashjit_bundles/${name}.cpp)
  file(CONFIGURE OUTPUT ${header} @ONLY CONTENT [=[
// Made by flashjit_embed_bundle().
#pragma once

#include <string_view>

namespace flashjit_bundles {

// Hidden, so that a program and its plug-ins may each have a bundle of this name.
[[gnu::visibility("hidden")]] std::string_view @name@() noexcept;

}  // namespace flashjit_bundles
]=])
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [=[
// Made by flashjit_embed_bundle().
#include "flashjit_bundles/@name@.h"

#include <cstddef>

asm(R"path(
.pushsection .rodata.flashjit_bundle_@name@, "a", %progbits
.balign 16
.globl flashjit_bundle_@name@
.hidden flashjit_bundle_@name@
.type flashjit_bundle_@name@, %object
flashjit_bundle_@name@:
.incbin "@escaped@"
.globl flashjit_bundle_@name@_end
.hidden flashjit_bundle_@name@_end
flashjit_bundle_@name@_end:
.size flashjit_bundle_@name@, . - flashjit_bundle_@name@
.popsection
)path");

extern "C" {
[[gnu::visibility("hidden")]] extern const char flashjit_bundle_@name@[];
[[gnu::visibility("hidden")]] extern const char flashjit_bundle_@name@_end[];
}

namespace flashjit_bundles {

std::string_view @name@() noexcept {
  const char* const begin = flashjit_bundle_@name@;
  const char* const end = flashjit_bundle_@name@_end;
  return {begin, static_cast<std::size_t>(end - begin)};
}

}  // namespace flashjit_bundles
]=])
  # The compiler does not report what .incbin reads.
  set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES OBJECT_DEPENDS "${file}")
  target_sources(${target} PRIVATE ${source} "${file}")
  target_include_directories(${target} PRIVATE ${include_directory})
  target_compile_features(${target} PRIVATE cxx_std_17)
endfunction()
