#!/usr/bin/env bash
# tests/embedded_bundle.sh BUILD-DIRECTORY
# Builds examples/05_embedded_bundle, for which NVRTC is needed, and runs it as on a machine that has nothing: without an
# environment, where nothing can be written, and without opening NVRTC. Exit status 77: skipped.
set -euo pipefail
build=$1
example=$build/examples/example_05_embedded_bundle
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "failed: $*"
  exit 1
}

build_example() {
  local log=$work/build
  cmake --build "$build" --target example_05_embedded_bundle >"$log" 2>&1 && return
  cat "$log"
  if grep -q '^nvrtc: ' "$log" && [ "${FLASHJIT_REQUIRE_NVRTC:-}" != 1 ]; then
    echo "skipped: no NVRTC"
    exit 77
  fi
  fail "the example must build"
}

without_environment() {
  (cd / && env -i "$example" --emulate) || fail "the example must run without an environment"
}

# In namespaces of its own, with every mount read-only; 99: not to be had here.
# shellcheck disable=SC2016
read_only='
while read -r _ _ _ _ mount _; do mount -o remount,bind,ro "$mount" 2>/dev/null; done </proc/self/mountinfo
[ ! -w / ] && [ ! -w /tmp ] && [ ! -w "$1" ] || exit 99
cd "$1" && exec env -i "$2" --emulate'

where_nothing_can_be_written() {
  local status=99
  if unshare --user --map-root-user --mount true; then
    status=0
    unshare --user --map-root-user --mount bash -c "$read_only" bash "$work" "$example" || status=$?
  fi
  case $status in
    0) ;;
    99) echo "not checked: no mount namespace can be made here" ;;
    *) fail "the example must run where nothing can be written" ;;
  esac
}

opens_libraries_only() {
  local trace=$work/trace
  if ! strace -o "$trace" true; then
    echo "not checked: strace does not work here"
    return
  fi
  strace -f -e trace=%file -o "$trace" env -i "$example" --emulate || fail "the example must run under strace"
  grep -q "execve(\"$example\"" "$trace" || fail "the trace must show the example"
  if grep -E 'O_WRONLY|O_RDWR|O_CREAT|mkdir|rename|unlink|libnvrtc|libcuda' "$trace"; then
    fail "the example must open nothing for writing, and neither NVRTC nor the driver"
  fi
}

build_example
for check in without_environment where_nothing_can_be_written opens_libraries_only; do
  echo "== ${check//_/ }"
  $check
done
