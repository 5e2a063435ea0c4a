#!/usr/bin/env bash
# tests/consumer/pkg_config.sh PREFIX DIRECTORY C-COMPILER
# A program in C99 that is built with what pkg-config says of the package in PREFIX, and nothing else. Exit status 77:
# skipped.
set -euo pipefail
prefix=$1 directory=$2 compiler=$3
program=$directory/attention

skip() {
  echo "skipped: $*"
  exit 77
}

command -v pkg-config >/dev/null || skip "no pkg-config"
description=$(find "$prefix" -name flashjit.pc)
export PKG_CONFIG_PATH=${description%/*}
read -ra options < <(pkg-config --cflags --libs flashjit)
echo "pkg-config: ${options[*]}"
mkdir -p "$directory"
"$compiler" -std=c99 -pedantic-errors -Wall -Wextra -Werror "$(dirname "$0")/c_program/attention.c" -o "$program" \
  "${options[@]}" "-Wl,-rpath,$(pkg-config --variable=libdir flashjit)"

status=0
"$program" || status=$?
if [ $status = 77 ] && [ "${FLASHJIT_REQUIRE_NVRTC:-}" = 1 ]; then
  echo "failed: no NVRTC"
  exit 1
fi
exit $status
