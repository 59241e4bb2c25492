# Optional dependencies. Each one that is enabled and found is a target shiplap_dep::<name>, and
# SHIPLAP_HAVE_<NAME> is true; a summary is printed at the end of the configuration.
option(SHIPLAP_WITH_OPENMPI "Use Open MPI if it is there" ON)
option(SHIPLAP_WITH_MPICH "Use MPICH if it is there" ON)
option(SHIPLAP_WITH_ONEDNN "Use oneDNN if it is there" ON)
option(SHIPLAP_WITH_SIMGRID "Use SimGrid if it is there" ON)
set(SHIPLAP_SANITIZER "" CACHE STRING "The sanitizer of this build")
set(SHIPLAP_DEPS_DIR ${PROJECT_SOURCE_DIR}/.deps
    CACHE PATH "Where tools/setup linked the dependencies")

# shiplap_dep::fmt always exists: the headers of fmt. Its library part is compiled into base
# (base/fmt.cc), so that an installed shiplap has no external dependency.
add_library(shiplap_dep::fmt INTERFACE IMPORTED GLOBAL)
get_target_property(_fmt_headers fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(shiplap_dep::fmt SYSTEM INTERFACE ${_fmt_headers})

# Add a dependency that is used, or one that is not, to the summary.
function(_shiplap_report_found title)
  set_property(GLOBAL APPEND PROPERTY SHIPLAP_DEPENDENCIES "${title} yes")
endfunction()

function(_shiplap_report_missing dependency title)
  if(SHIPLAP_WITH_${dependency})
    set(reason "not found: run tools/setup")
  else()
    set(reason "SHIPLAP_WITH_${dependency} is off")
  endif()
  set_property(GLOBAL APPEND PROPERTY SHIPLAP_DEPENDENCIES "${title} left out (${reason})")
endfunction()

function(shiplap_summarize_dependencies)
  get_property(dependencies GLOBAL PROPERTY SHIPLAP_DEPENDENCIES)
  list(JOIN dependencies ", " line)
  message(STATUS "optional dependencies: ${line}")
endfunction()

# FindMPI supports only one MPI per build, so this parses the output of `mpicxx -show`. The
# target <name> and the variable SHIPLAP_MPIRUN_<DEPENDENCY> are the result.
function(_shiplap_find_mpi dependency name title environment)
  set(home ${SHIPLAP_DEPS_DIR}/${environment})
  if(SHIPLAP_WITH_${dependency} AND EXISTS ${home}/bin/mpicxx AND EXISTS ${home}/bin/mpirun)
    file(REAL_PATH ${home} home)
    execute_process(COMMAND ${home}/bin/mpicxx -show OUTPUT_VARIABLE line RESULT_VARIABLE status
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${home}/bin/mpirun --version OUTPUT_VARIABLE about ERROR_QUIET)
    if(status EQUAL 0 AND about MATCHES "[0-9]+\\.[0-9]+\\.[0-9]+")
      set(version ${CMAKE_MATCH_0})
      _shiplap_mpi_target(${name} "${line}")
      set(SHIPLAP_MPIRUN_${dependency} ${home}/bin/mpirun PARENT_SCOPE)
      _shiplap_report_found("${title} ${version}")
      set(SHIPLAP_HAVE_${dependency} TRUE PARENT_SCOPE)
      return()
    endif()
  endif()
  _shiplap_report_missing(${dependency} "${title}")
  set(SHIPLAP_HAVE_${dependency} FALSE PARENT_SCOPE)
endfunction()

function(_shiplap_mpi_target name line)
  separate_arguments(words UNIX_COMMAND "${line}")
  list(POP_FRONT words)  # the compiler
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  foreach(word IN LISTS words)
    if(word MATCHES "^-I(.*)")
      target_include_directories(${name} SYSTEM INTERFACE ${CMAKE_MATCH_1})
    elseif(word MATCHES "^-L(.*)")
      target_link_directories(${name} INTERFACE ${CMAKE_MATCH_1})
      if(NOT SKBUILD)  # a wheel has another rpath: see shiplap_plugin
        target_link_options(${name} INTERFACE -Wl,-rpath,${CMAKE_MATCH_1})
      endif()
    elseif(word MATCHES "^-l")
      target_link_libraries(${name} INTERFACE ${word})
    elseif(word STREQUAL "-pthread")
      target_link_options(${name} INTERFACE -pthread)
    endif()
  endforeach()
endfunction()

function(_shiplap_find_onednn)
  if(SHIPLAP_WITH_ONEDNN)
    find_package(dnnl CONFIG QUIET PATHS ${SHIPLAP_DEPS_DIR}/main NO_DEFAULT_PATH)
    if(dnnl_FOUND)
      add_library(shiplap_dep::onednn INTERFACE IMPORTED GLOBAL)
      # The targets of a package are otherwise visible only in the directory that found it.
      set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_GLOBAL TRUE)
      target_link_libraries(shiplap_dep::onednn INTERFACE DNNL::dnnl)
      _shiplap_report_found("oneDNN ${dnnl_VERSION}")
      set(SHIPLAP_HAVE_ONEDNN TRUE PARENT_SCOPE)
      return()
    endif()
  endif()
  _shiplap_report_missing(ONEDNN oneDNN)
  set(SHIPLAP_HAVE_ONEDNN FALSE PARENT_SCOPE)
endfunction()

function(_shiplap_find_simgrid)
  if(SHIPLAP_WITH_SIMGRID)
    find_program(SHIPLAP_SMPICXX smpicxx)
    find_program(SHIPLAP_SMPIRUN smpirun)
    find_path(SHIPLAP_SMPI_INCLUDE smpi/smpi_helpers.h)
    find_library(SHIPLAP_SIMGRID_LIBRARY simgrid)
    mark_as_advanced(SHIPLAP_SMPICXX SHIPLAP_SMPIRUN SHIPLAP_SMPI_INCLUDE SHIPLAP_SIMGRID_LIBRARY)
    if(SHIPLAP_SMPICXX AND SHIPLAP_SMPIRUN AND SHIPLAP_SMPI_INCLUDE AND SHIPLAP_SIMGRID_LIBRARY)
      execute_process(COMMAND ${SHIPLAP_SMPICXX} --version OUTPUT_VARIABLE about)
      string(REGEX MATCH "[0-9]+\\.[0-9]+" version "${about}")
      add_library(shiplap_dep::simgrid INTERFACE IMPORTED GLOBAL)
      target_include_directories(shiplap_dep::simgrid SYSTEM
                                 INTERFACE ${SHIPLAP_SMPI_INCLUDE}/smpi)
      # SMPI loads the program once per rank to give each rank its own globals; without
      # -fno-gnu-unique an inline variable of C++ would be shared by the whole process.
      target_compile_options(shiplap_dep::simgrid INTERFACE
                             "SHELL:-include smpi/smpi_helpers.h" -fno-gnu-unique)
      target_link_libraries(shiplap_dep::simgrid INTERFACE ${SHIPLAP_SIMGRID_LIBRARY})
      _shiplap_report_found("SimGrid ${version}")
      set(SHIPLAP_HAVE_SIMGRID TRUE PARENT_SCOPE)
      return()
    endif()
  endif()
  _shiplap_report_missing(SIMGRID SimGrid)
  set(SHIPLAP_HAVE_SIMGRID FALSE PARENT_SCOPE)
endfunction()

# shiplap_mpi_transport(<library> SOURCES ...)
#
# The transport for one MPI library: a shared object that is loaded if a launcher of that library
# started the program. Programs for SMPI cannot load shared objects, so for them it is a list of
# sources that shiplap_smpi_program links in.
function(shiplap_mpi_transport library)
  cmake_parse_arguments(T "" "" "SOURCES" ${ARGN})
  if(library STREQUAL "smpi")
    list(TRANSFORM T_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    set_property(GLOBAL PROPERTY SHIPLAP_SMPI_TRANSPORT ${T_SOURCES})
    return()
  endif()
  string(TOUPPER ${library} dependency)
  if(NOT SHIPLAP_HAVE_${dependency})
    return()
  endif()
  shiplap_plugin(${library} SOURCES ${T_SOURCES}
                 DEPENDS base comm shiplap_dep::${library} shiplap_dep::fmt)
endfunction()

# shiplap_plugin(<name> SOURCES ... DEPENDS ...)
#
# shiplap_<name>.so, a shared object that is loaded at run time (base/plugin.h), so that only it
# depends on the external library in DEPENDS.
function(shiplap_plugin name)
  cmake_parse_arguments(P "" "" "SOURCES;DEPENDS" ${ARGN})
  set(target shiplap_${name})
  add_library(${target} MODULE ${P_SOURCES})
  set_target_properties(${target} PROPERTIES PREFIX ""
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  _shiplap_compile(${target})
  _shiplap_link_privately(${target} ${P_DEPENDS})
  if(SKBUILD)
    # In a wheel the plugin is in <environment>/lib/pythonX.Y/site-packages/shiplap/lib/shiplap, and
    # libraries installed by pip are in <environment>/lib. The system finds others.
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "\$ORIGIN/../../../../..")
  endif()
  # Hides its copy of our modules.
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/shiplap COMPONENT runtime)
  set_property(GLOBAL APPEND PROPERTY SHIPLAP_PLUGINS ${target})
endfunction()

# shiplap_smpi_program(<target> [TRANSPORT] SOURCES ... [DEPENDS ...])
#
# An MPI program for smpirun, which loads it as a shared object. TRANSPORT links our transport in.
function(shiplap_smpi_program target)
  cmake_parse_arguments(S "TRANSPORT" "" "SOURCES;DEPENDS" ${ARGN})
  if(S_TRANSPORT)
    get_property(transport GLOBAL PROPERTY SHIPLAP_SMPI_TRANSPORT)
    list(APPEND S_SOURCES ${transport})
    list(APPEND S_DEPENDS base comm shiplap_dep::fmt)
  endif()
  add_library(${target} MODULE ${S_SOURCES})
  _shiplap_link_privately(${target} ${S_DEPENDS})
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ""
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  target_link_libraries(${target} PRIVATE shiplap_dep::simgrid)
  # SMPI copies the file once per rank and keeps the copies until the end: without debug
  # information, 256 ranks need 1 GB of disk instead of 6.
  target_link_options(${target} PRIVATE -s -Wl,--gc-sections -Wl,--exclude-libs,ALL)
endfunction()

# shiplap_rank_test(<name> <DEPENDENCY> TIMEOUT seconds COMMAND script arguments ...)
#
# A test that starts ranks as processes. It is listed as disabled if the dependency is missing.
function(shiplap_rank_test name dependency)
  cmake_parse_arguments(T "" "TIMEOUT" "COMMAND" ${ARGN})
  if(NOT SHIPLAP_HAVE_${dependency})
    shiplap_disabled_test(${name})
    return()
  endif()
  add_test(NAME ${name} COMMAND ${SHIPLAP_PYTHON} ${T_COMMAND}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Ranks that busy-wait, four on two cores, should not compete with other tests.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} PROCESSORS 2)
  if(SHIPLAP_SANITIZER STREQUAL "address")
    # The libraries leak a little at exit, and more if a test leaves a call unfinished.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
  endif()
endfunction()

_shiplap_find_mpi(OPENMPI shiplap_dep::openmpi "Open MPI" main)
_shiplap_find_mpi(MPICH shiplap_dep::mpich MPICH mpich)
_shiplap_find_onednn()
_shiplap_find_simgrid()
