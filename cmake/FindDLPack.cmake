# DLPack's header, <dlpack/dlpack.h>, alone: not every package of it has one for CMake.
find_path(DLPack_INCLUDE_DIR dlpack/dlpack.h)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DLPack REQUIRED_VARS DLPack_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "scripts/install-dependencies brings it")
mark_as_advanced(DLPack_INCLUDE_DIR)
