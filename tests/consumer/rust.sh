#!/usr/bin/env bash
# tests/consumer/rust.sh PREFIX DIRECTORY C-COMPILER
# examples/rust, built in DIRECTORY against the package in PREFIX: its tests, among them that of struct layouts by the C
# compiler, and the program. Exit status 77: skipped.
set -euo pipefail
export CARGO_TARGET_DIR=$2 CC=$3 FLASHJIT_POLICY=off
FLASHJIT_PREFIX=$(cd "$1" && pwd)
export FLASHJIT_PREFIX
cd "$(dirname "$0")/../../examples/rust"

skip() {
  echo "skipped: $*"
  exit 77
}

command -v cargo >/dev/null || skip "no cargo"
command -v pkg-config >/dev/null || skip "no pkg-config"
wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
found=$(rustc --version | cut -d ' ' -f 2)
printf '%s\n' "$wanted" "$found" | sort -VC || skip "rustc $wanted or later is needed, this is $found"

cargo build --locked --offline
log=$CARGO_TARGET_DIR/log
if ! cargo run --quiet --locked --offline 2>"$log"; then
  cat "$log"
  if grep -q '^no_compiler: ' "$log" && [ "${FLASHJIT_REQUIRE_NVRTC:-}" != 1 ]; then skip "no NVRTC"; fi
  exit 1
fi
cargo test --locked --offline
