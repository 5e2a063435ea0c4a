# cuda.h and nvrtc.h: headers only, the libraries are opened at run time. Found in a CUDA toolkit, or in NVIDIA's Python
# wheels unpacked by scripts/install-dependencies into .deps/.
set(hints ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda /usr/lib/cuda
          ${CMAKE_CURRENT_LIST_DIR}/../.deps/nvidia/cu13)
find_path(CudaHeaders_CUDA_DIR cuda.h HINTS ${hints} PATH_SUFFIXES include targets/x86_64-linux/include)
find_path(CudaHeaders_NVRTC_DIR nvrtc.h HINTS ${hints} PATH_SUFFIXES include targets/x86_64-linux/include)
if(CudaHeaders_CUDA_DIR)
  file(STRINGS ${CudaHeaders_CUDA_DIR}/cuda.h version_line REGEX "^#define CUDA_VERSION [0-9]+")
  string(REGEX MATCH "[0-9]+" version_number "${version_line}")
  math(EXPR version_major "${version_number} / 1000")
  math(EXPR version_minor "${version_number} % 1000 / 10")
  set(CudaHeaders_VERSION ${version_major}.${version_minor})
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  CudaHeaders
  REQUIRED_VARS CudaHeaders_CUDA_DIR CudaHeaders_NVRTC_DIR
  VERSION_VAR CudaHeaders_VERSION
  REASON_FAILURE_MESSAGE "scripts/install-dependencies brings them where there is no CUDA toolkit")
mark_as_advanced(CudaHeaders_CUDA_DIR CudaHeaders_NVRTC_DIR)
if(CudaHeaders_FOUND AND NOT TARGET CudaHeaders::CudaHeaders)
  add_library(CudaHeaders::CudaHeaders INTERFACE IMPORTED)
  target_include_directories(CudaHeaders::CudaHeaders SYSTEM INTERFACE ${CudaHeaders_CUDA_DIR} ${CudaHeaders_NVRTC_DIR})
endif()
