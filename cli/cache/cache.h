// SPDX-License-Identifier: Apache-2.0
// The subcommands of flashjit cache.
#pragma once

#include "cli/io/command.h"

namespace flashjit::cli {

void add_cache_path(CLI::App& cache, Command& command);
void add_cache_ls(CLI::App& cache, Command& command);
void add_cache_inspect(CLI::App& cache, Command& command);
void add_cache_verify(CLI::App& cache, Command& command);
void add_cache_gc(CLI::App& cache, Command& command);
void add_cache_clear(CLI::App& cache, Command& command);
void add_cache_export(CLI::App& cache, Command& command);
void add_cache_import(CLI::App& cache, Command& command);

}  // namespace flashjit::cli
