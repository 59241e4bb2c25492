# Compiles through ccache where it is installed. Paths are made relative to the repository, in the
# objects and in what ccache hashes, so that a second clone finds what the first one compiled.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
find_program(SHIPLAP_CCACHE ccache)
if(SHIPLAP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 ${SHIPLAP_CCACHE})
endif()
