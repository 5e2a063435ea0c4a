# shellcheck shell=bash
# Sourced by the other scripts from the root of the repository: where tools, headers and NVRTC come from.
# FLASHJIT_TOOLKIT=wheels takes NVRTC and the CUDA headers from NVIDIA's Python wheels even where a toolkit is installed.
deps=$PWD/.deps
wheels_toolkit=$deps/nvidia/cu13
wheels_nvrtc=$wheels_toolkit/lib/libnvrtc.so.13
old_nvrtc=$deps/nvrtc-12.9/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
pip_cmake=$deps/cmake/cmake/data/bin

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# Whether this machine has a CUDA toolkit of version 12 or later, with NVRTC.
has_toolkit() {
  local root
  for root in ${CUDA_HOME:+"$CUDA_HOME"} ${CUDA_PATH:+"$CUDA_PATH"} /usr/local/cuda /usr/lib/cuda /usr; do
    if [ -f "$root/include/nvrtc.h" ] && grep -qsE '^#define CUDA_VERSION 1[2-9]' "$root/include/cuda.h" &&
      compgen -G "$root/lib*/libnvrtc.so*" "$root/lib/*/libnvrtc.so*" >/dev/null; then
      return 0
    fi
  done
  return 1
}

uses_wheels() {
  [ "${FLASHJIT_TOOLKIT:-}" = wheels ] || ! has_toolkit
}

# Sets cmake_options and, for programs that look for NVRTC, FLASHJIT_NVRTC.
use_dependencies() {
  cmake_options=()
  if [ -x "$pip_cmake/cmake" ]; then
    PATH=$pip_cmake:$PATH
  fi
  if uses_wheels; then
    cmake_options+=("-DCudaHeaders_CUDA_DIR=$wheels_toolkit/include" "-DCudaHeaders_NVRTC_DIR=$wheels_toolkit/include")
    export FLASHJIT_NVRTC=${FLASHJIT_NVRTC:-$wheels_nvrtc}
  fi
}

# build PRESET [TARGET...]: after use_dependencies.
build() {
  cmake --preset "$1" "${cmake_options[@]}" >/dev/null &&
    cmake --build --preset "$1" ${2:+--target "${@:2}"}
}
