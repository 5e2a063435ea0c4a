#!/usr/bin/env bash
# tests/consumer/without_cuda.sh PREFIX DIRECTORY CMAKE CMAKE-ARGUMENT...
# Configures, builds and runs a user's project, with the package that is installed in PREFIX, as where there is no CUDA
# toolkit: without an environment, and with nothing of CUDA in any command or among the headers that are read.
set -euo pipefail
prefix=$1 directory=$2 cmake=$3
shift 3
source=$(cd "$(dirname "$0")" && pwd)
log=$directory/log
bare=(env -i PATH=/usr/bin:/bin LC_ALL=C)

fail() {
  cat "$log"
  echo "failed: $*"
  exit 1
}

# -H makes the compiler tell the headers.
build_consumer() {
  "${bare[@]}" "$cmake" -S "$source/find_package" -B "$directory/build" "-DCMAKE_PREFIX_PATH=$prefix" \
    -DFLASHJIT_COMPONENTS=command -DCMAKE_C_FLAGS=-H -DCMAKE_CXX_FLAGS=-H "$@" &&
    "${bare[@]}" "$cmake" --build "$directory/build" --verbose
}

rm -rf "$directory"
mkdir -p "$directory"
build_consumer "$@" >"$log" 2>&1 || fail "the project must build"
for part in flashjit/engine.h dlpack/dlpack.h libflashjit.so; do
  grep -q "$part" "$log" || fail "the log must show $part"
done
# Not in the names of folders that the user has chosen.
if sed "s|$prefix||g; s|$directory||g; s|$source||g" "$log" | grep -iE 'cuda|nvrtc|nvidia'; then
  fail "a project must build without CUDA"
fi
"${bare[@]}" "$directory/build/consumer"
