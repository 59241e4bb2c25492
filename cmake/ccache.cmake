# Compiles through ccache where it is installed. Paths are made relative to the repository, in the
# objects and in what ccache hashes, so that a second clone finds what the first one compiled.
#
# ccache also stores precompiled headers, and hashes the file when one is used. It requires the
# sloppiness below for that: no file of ours uses a macro for the time, and the dates of headers do
# not matter. In depend mode it trusts the compiler's list of headers and preprocesses nothing.
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
