# The parts that Shiplap can use and does not need. Each one that is wanted and found is a target
# shiplap_part::<name>, and SHIPLAP_HAVE_<NAME> is true; the end of the configuration lists them.
option(SHIPLAP_WITH_OPENMPI "Use Open MPI if it is there" ON)
option(SHIPLAP_WITH_MPICH "Use MPICH if it is there" ON)
option(SHIPLAP_WITH_ONEDNN "Use oneDNN if it is there" ON)
option(SHIPLAP_WITH_SIMGRID "Use SimGrid if it is there" ON)
set(SHIPLAP_SANITIZER "" CACHE STRING "The sanitizer of this build, for tests that must know")
set(SHIPLAP_DEPS_DIR ${PROJECT_SOURCE_DIR}/.deps CACHE PATH "Where tools/setup linked the parts")

# shiplap_part::fmt is always there: its headers. What they leave to be linked is compiled into base
# (base/fmt.cc), so that an installed shiplap needs nothing foreign.
add_library(shiplap_part::fmt INTERFACE IMPORTED GLOBAL)
get_target_property(_fmt_headers fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(shiplap_part::fmt SYSTEM INTERFACE ${_fmt_headers})

# What the summary says of a part that is used, and of one that is not.
function(_shiplap_have words)
  set_property(GLOBAL APPEND PROPERTY SHIPLAP_PARTS "${words} yes")
endfunction()

function(_shiplap_lack part title)
  if(SHIPLAP_WITH_${part})
    set(reason "not found: tools/setup brings it")
  else()
    set(reason "SHIPLAP_WITH_${part} is off")
  endif()
  set_property(GLOBAL APPEND PROPERTY SHIPLAP_PARTS "${title} left out (${reason})")
endfunction()

function(shiplap_summarize_parts)
  get_property(parts GLOBAL PROPERTY SHIPLAP_PARTS)
  list(JOIN parts ", " line)
  message(STATUS "parts: ${line}")
endfunction()

# FindMPI knows only one MPI in a build, so the answer of `mpicxx -show` is taken apart here. The
# target <name> and the variable SHIPLAP_MPIRUN_<PART> are the result.
function(_shiplap_find_mpi part name title environment)
  set(home ${SHIPLAP_DEPS_DIR}/${environment})
  if(SHIPLAP_WITH_${part} AND EXISTS ${home}/bin/mpicxx AND EXISTS ${home}/bin/mpirun)
    file(REAL_PATH ${home} home)
    execute_process(COMMAND ${home}/bin/mpicxx -show OUTPUT_VARIABLE line RESULT_VARIABLE status
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${home}/bin/mpirun --version OUTPUT_VARIABLE about ERROR_QUIET)
    if(status EQUAL 0 AND about MATCHES "[0-9]+\\.[0-9]+\\.[0-9]+")
      set(version ${CMAKE_MATCH_0})
      _shiplap_mpi_target(${name} "${line}")
      set(SHIPLAP_MPIRUN_${part} ${home}/bin/mpirun PARENT_SCOPE)
      _shiplap_have("${title} ${version}")
      set(SHIPLAP_HAVE_${part} TRUE PARENT_SCOPE)
      return()
    endif()
  endif()
  _shiplap_lack(${part} "${title}")
  set(SHIPLAP_HAVE_${part} FALSE PARENT_SCOPE)
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
      if(NOT SKBUILD)  # which looks elsewhere: see shiplap_plugin
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
      add_library(shiplap_part::onednn INTERFACE IMPORTED GLOBAL)
      # The targets of a package are otherwise known only in the directory that looked for it.
      set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_GLOBAL TRUE)
      target_link_libraries(shiplap_part::onednn INTERFACE DNNL::dnnl)
      _shiplap_have("oneDNN ${dnnl_VERSION}")
      set(SHIPLAP_HAVE_ONEDNN TRUE PARENT_SCOPE)
      return()
    endif()
  endif()
  _shiplap_lack(ONEDNN oneDNN)
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
      add_library(shiplap_part::simgrid INTERFACE IMPORTED GLOBAL)
      target_include_directories(shiplap_part::simgrid SYSTEM
                                 INTERFACE ${SHIPLAP_SMPI_INCLUDE}/smpi)
      # SMPI loads the program once per rank to give each its own globals; an inline variable of C++
      # is unique in the process unless the compiler is told otherwise.
      target_compile_options(shiplap_part::simgrid INTERFACE
                             "SHELL:-include smpi/smpi_helpers.h" -fno-gnu-unique)
      target_link_libraries(shiplap_part::simgrid INTERFACE ${SHIPLAP_SIMGRID_LIBRARY})
      _shiplap_have("SimGrid ${version}")
      set(SHIPLAP_HAVE_SIMGRID TRUE PARENT_SCOPE)
      return()
    endif()
  endif()
  _shiplap_lack(SIMGRID SimGrid)
  set(SHIPLAP_HAVE_SIMGRID FALSE PARENT_SCOPE)
endfunction()

# shiplap_mpi_transport(<library> SOURCES ...)
#
# The transport over one MPI library: a shared object that is loaded when a launcher of that library
# has started the program. Programs for SMPI cannot load anything, so for them it is a list of
# sources that shiplap_smpi_program links in.
function(shiplap_mpi_transport library)
  cmake_parse_arguments(T "" "" "SOURCES" ${ARGN})
  if(library STREQUAL "smpi")
    list(TRANSFORM T_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    set_property(GLOBAL PROPERTY SHIPLAP_SMPI_TRANSPORT ${T_SOURCES})
    return()
  endif()
  string(TOUPPER ${library} part)
  if(NOT SHIPLAP_HAVE_${part})
    return()
  endif()
  shiplap_plugin(${library} SOURCES ${T_SOURCES}
                 DEPENDS base comm shiplap_part::${library} shiplap_part::fmt)
endfunction()

# shiplap_plugin(<name> SOURCES ... DEPENDS ...)
#
# shiplap_<name>.so, a shared object that is loaded at run time (base/plugin.h), so that only it
# needs the foreign library in DEPENDS.
function(shiplap_plugin name)
  cmake_parse_arguments(P "" "" "SOURCES;DEPENDS" ${ARGN})
  set(target shiplap_${name})
  add_library(${target} MODULE ${P_SOURCES})
  set_target_properties(${target} PROPERTIES PREFIX ""
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  _shiplap_compile(${target})
  _shiplap_link_privately(${target} ${P_DEPENDS})
  if(SKBUILD)
    # In a wheel the plugin lies in <environment>/lib/pythonX.Y/site-packages/shiplap/lib/shiplap,
    # and libraries that pip installed lie in <environment>/lib. Others the system finds.
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "\$ORIGIN/../../../../..")
  endif()
  # Its copy of our modules is its own.
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/shiplap COMPONENT runtime)
  set_property(GLOBAL APPEND PROPERTY SHIPLAP_PLUGINS ${target})
endfunction()

# shiplap_smpi_program(<target> [TRANSPORT] SOURCES ... [DEPENDS ...])
#
# An MPI program for smpirun, which loads it as a shared object. With TRANSPORT it has ours.
function(shiplap_smpi_program target)
  cmake_parse_arguments(S "TRANSPORT" "" "SOURCES;DEPENDS" ${ARGN})
  if(S_TRANSPORT)
    get_property(transport GLOBAL PROPERTY SHIPLAP_SMPI_TRANSPORT)
    list(APPEND S_SOURCES ${transport})
    list(APPEND S_DEPENDS base comm shiplap_part::fmt)
  endif()
  add_library(${target} MODULE ${S_SOURCES})
  _shiplap_link_privately(${target} ${S_DEPENDS})
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ""
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  target_link_libraries(${target} PRIVATE shiplap_part::simgrid)
  # SMPI copies the file once per rank and holds the copies until the end: without what debuggers
  # want, 256 ranks need 1 GB of disk instead of 6.
  target_link_options(${target} PRIVATE -s -Wl,--gc-sections -Wl,--exclude-libs,ALL)
endfunction()

# shiplap_rank_test(<name> <PART> TIMEOUT seconds COMMAND script arguments ...)
#
# A test that starts ranks as processes. What is not there on this machine is listed as disabled.
function(shiplap_rank_test name part)
  cmake_parse_arguments(T "" "TIMEOUT" "COMMAND" ${ARGN})
  if(NOT SHIPLAP_HAVE_${part})
    shiplap_disabled_test(${name})
    return()
  endif()
  add_test(NAME ${name} COMMAND ${SHIPLAP_PYTHON} ${T_COMMAND}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Four ranks on two cores that wait by asking are not to wait for other tests too.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} PROCESSORS 2)
  if(SHIPLAP_SANITIZER STREQUAL "address")
    # The libraries leak a little when they end, more if a call was left unfinished on purpose.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
  endif()
endfunction()

_shiplap_find_mpi(OPENMPI shiplap_part::openmpi "Open MPI" main)
_shiplap_find_mpi(MPICH shiplap_part::mpich MPICH mpich)
_shiplap_find_onednn()
_shiplap_find_simgrid()
