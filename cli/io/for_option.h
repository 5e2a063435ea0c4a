// SPDX-License-Identifier: Apache-2.0
// Errors of the library name its fields; on the command line the option is what the user knows.
#pragma once

#include <flashjit/error.h>

#include <string>
#include <string_view>

namespace flashjit::cli {

// What function() gives. An Error that it throws begins with the option instead of the field of the same name; but a
// file that cannot be read is not the option's fault.
template <typename Function>
auto for_option(const char* option, Function function) {
  try {
    return function();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::io) throw;
    std::string message = error.what();
    const std::string field = std::string(option).substr(std::string_view("--").size()) + ": ";
    if (message.rfind(field, 0) == 0) message.erase(0, field.size());
    throw Error(error.code(), std::string(option) + ": " + message, error.log(), error.source_path());
  }
}

}  // namespace flashjit::cli
