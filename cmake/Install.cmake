# cmake --install: the library, its headers, the command, and the package that find_package(flashjit) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(TARGETS flashjit EXPORT flashjitTargets)
install(DIRECTORY include/flashjit DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET flashjit_command)
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(flashjit_command PROPERTIES INSTALL_RPATH $ORIGIN/${bin_to_lib})
  install(TARGETS flashjit_command)
endif()

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/flashjit)
install(EXPORT flashjitTargets NAMESPACE flashjit:: DESTINATION ${package_directory})
configure_package_config_file(cmake/flashjitConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/flashjitConfig.cmake
                              INSTALL_DESTINATION ${package_directory})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/flashjitConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashjitConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/flashjitConfigVersion.cmake
              cmake/FlashjitEmbedBundle.cmake DESTINATION ${package_directory})
