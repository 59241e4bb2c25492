# What makes find_package(shiplap 0.1) work after shiplap is installed.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/shiplap)
configure_package_config_file(cmake/shiplapConfig.cmake.in ${PROJECT_BINARY_DIR}/shiplapConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shiplapConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shiplapConfig.cmake
              ${PROJECT_BINARY_DIR}/shiplapConfigVersion.cmake DESTINATION ${package_folder})
install(EXPORT shiplapTargets NAMESPACE shiplap:: DESTINATION ${package_folder})
