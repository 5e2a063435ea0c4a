# cmake --install: the library, its headers, the command, and the packages that find_package(flashjit) and pkg-config
# read. Components: library, command, python (python/CMakeLists.txt).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/flashjit)

install(TARGETS flashjit flashjit_distributed EXPORT flashjitTargets COMPONENT library
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE THIRD_PARTY_LICENSES.md DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/flashjit COMPONENT library)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
install(EXPORT flashjitTargets NAMESPACE flashjit:: DESTINATION ${package_directory} COMPONENT library)

if(TARGET flashjit_command)
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_property(TARGET flashjit_command APPEND PROPERTY INSTALL_RPATH $ORIGIN/${bin_to_lib})
  set_target_properties(flashjit_command PROPERTIES EXPORT_NAME command)
  install(TARGETS flashjit_command EXPORT flashjitCommandTargets COMPONENT command)
  install(EXPORT flashjitCommandTargets NAMESPACE flashjit:: DESTINATION ${package_directory} COMPONENT command)
  if(NOT CMAKE_CROSSCOMPILING)
    set(completions ${PROJECT_BINARY_DIR}/cli/completions)
    foreach(file bash-completion/completions/flashjit zsh/site-functions/_flashjit
                 fish/vendor_completions.d/flashjit.fish)
      cmake_path(GET file PARENT_PATH directory)
      cmake_path(GET file FILENAME name)
      install(FILES ${completions}/${name} DESTINATION ${CMAKE_INSTALL_DATADIR}/${directory} COMPONENT command)
    endforeach()
  endif()
endif()

get_target_property(library_type flashjit TYPE)
set(python_directory ${CMAKE_INSTALL_LIBDIR}/python3/site-packages)  # where python/CMakeLists.txt installs
configure_package_config_file(cmake/flashjitConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/flashjitConfig.cmake
                              INSTALL_DESTINATION ${package_directory} PATH_VARS python_directory)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/flashjitConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashjitConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/flashjitConfigVersion.cmake
              cmake/FlashjitEmbedBundle.cmake DESTINATION ${package_directory} COMPONENT library)

# What a program needs besides the library: of libflashjit.so only those who ask for --static, of libflashjit.a everyone.
set(pkg_config_directory ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pkg_config_to_prefix /${pkg_config_directory} /)
string(REGEX REPLACE "/$" "" pkg_config_to_prefix ${pkg_config_to_prefix})
set(pkg_config_libraries "-lstdc++ -lm -pthread -ldl -lz")
if(library_type STREQUAL "STATIC_LIBRARY")
  set(pkg_config_public_libraries " ${pkg_config_libraries}")
endif()
foreach(package flashjit flashjit_distributed)
  configure_file(cmake/${package}.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc DESTINATION ${pkg_config_directory} COMPONENT library)
endforeach()
