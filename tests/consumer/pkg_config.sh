#!/usr/bin/env bash
# tests/consumer/pkg_config.sh PREFIX DIRECTORY C-COMPILER C++-COMPILER
# Programs that are built with what pkg-config says of the packages in PREFIX, and nothing else: one in C99, and one in
# C++ over the library for several GPUs. Exit status 77: skipped.
set -euo pipefail
prefix=$1 directory=$2 c=$3 cpp=$4
programs=$(dirname "$0")

skip() {
  echo "skipped: $*"
  exit 77
}

command -v pkg-config >/dev/null || skip "no pkg-config"
description=$(find "$prefix" -name flashjit.pc)
export PKG_CONFIG_PATH=${description%/*}
mkdir -p "$directory"

# build NAME PACKAGE COMPILER OPTION...
build() {
  local options
  read -ra options < <(pkg-config --cflags --libs "$2")
  echo "pkg-config $2: ${options[*]}"
  "${@:3}" -Wall -Wextra -Werror -o "$directory/$1" "${options[@]}" "-Wl,-rpath,$(pkg-config --variable=libdir "$2")"
}

build attention flashjit "$c" -std=c99 -pedantic-errors "$programs/c_program/attention.c"
build sharding flashjit_distributed "$cpp" -std=c++17 "$programs/cpp_program/sharding.cpp"

"$directory/sharding"
status=0
"$directory/attention" || status=$?
if [ $status = 77 ] && [ "${FLASHJIT_REQUIRE_NVRTC:-}" = 1 ]; then
  echo "failed: no NVRTC"
  exit 1
fi
exit $status
