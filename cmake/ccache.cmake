# Compiles through ccache if it is installed. Paths are relative to the repository, in the objects
# and in the hashes of ccache, so that a second clone hits the cache of the first.
#
# ccache also caches precompiled headers, and hashes the file when one is used. It requires the
# sloppiness below for that: none of our files uses a time macro, and the timestamps of headers do
# not matter. In depend mode it uses the compiler's list of headers and does not preprocess.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
else()
  add_compile_options(-fpch-preprocess)
endif()
find_program(SHIPLAP_CCACHE ccache)
if(SHIPLAP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(sloppiness pch_defines,time_macros,include_file_mtime,include_file_ctime)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 CCACHE_SLOPPINESS=${sloppiness} ${SHIPLAP_CCACHE})
endif()
