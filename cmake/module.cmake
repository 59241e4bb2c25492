# The functions that every CMakeLists.txt of the project uses to declare its targets.
#
# DEPENDS lists the dependencies of public headers, PRIVATE_DEPENDS those of sources only. A plain
# word is one of our modules (base is shiplap::base); a name with :: is an external target. Users of
# an installed shiplap must not need external targets, so one may appear only in PRIVATE_DEPENDS,
# and only if it is header-only or a separate shared object.

# shiplap_module(<name> [INTERNAL] [HEADERS ...] [SOURCES ...] [SOURCES_ALONE ...] [TESTS ...]
#                [DEPENDS ...] [PRIVATE_DEPENDS ...])
#
# One module of the library: a target shiplap::<name> with its public headers, and one test program,
# <name>_tests, of all files in TESTS. ctest lists its cases as <name>/<stem of the file>/<case>. An
# INTERNAL module is not installed. With SHIPLAP_UNITY, SOURCES are compiled in batches of eight;
# SOURCES_ALONE are not, so only they can have source file properties.
function(shiplap_module name)
  set(lists HEADERS SOURCES SOURCES_ALONE TESTS DEPENDS PRIVATE_DEPENDS)
  cmake_parse_arguments(M "INTERNAL" "" "${lists}" ${ARGN})
  _shiplap_check_arguments(shiplap_module ${name} "${M_UNPARSED_ARGUMENTS}")
  set(target shiplap_${name})
  _shiplap_targets(depends ${M_DEPENDS})
  if(M_SOURCES)
    set(scope PUBLIC)
    _shiplap_batches(sources ${M_SOURCES})
    add_library(${target} STATIC ${sources} ${M_SOURCES_ALONE})
    _shiplap_compile(${target})
    _shiplap_link_privately(${target} ${M_PRIVATE_DEPENDS})
    if(SHIPLAP_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # With more inlining, GCC 12 has false warnings about members of std::variant.
      target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
    endif()
  else()
    set(scope INTERFACE)
    add_library(${target} INTERFACE)
  endif()
  add_library(shiplap::${name} ALIAS ${target})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/src
                 FILES ${M_HEADERS})
  target_link_libraries(${target} ${scope} ${depends})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  if(NOT M_INTERNAL)
    install(TARGETS ${target} EXPORT shiplapTargets FILE_SET HEADERS)
  endif()
  if(M_TESTS)
    _shiplap_gtest(${name}_tests PREFIX ${name} SOURCES ${M_TESTS}
                   DEPENDS ${name} ${M_PRIVATE_DEPENDS})
  endif()
endfunction()

# shiplap_program(<name> SOURCES ... [PRIVATE_DEPENDS ...])
#
# An installed program, in build/<preset>/bin. The fuzz build leaves it out.
function(shiplap_program name)
  cmake_parse_arguments(P "" "" "SOURCES;PRIVATE_DEPENDS" ${ARGN})
  _shiplap_check_arguments(shiplap_program ${name} "${P_UNPARSED_ARGUMENTS}")
  if(SHIPLAP_FUZZ)
    return()
  endif()
  add_executable(${name} ${P_SOURCES})
  _shiplap_compile(${name})
  _shiplap_link_privately(${name} ${P_PRIVATE_DEPENDS})
  install(TARGETS ${name} COMPONENT runtime)
endfunction()

# shiplap_tests(<folder> SOURCES ... [DEPENDS ...] [TIMEOUT seconds] [SAMPLES name=value ...])
#
# The test program of a folder of tests/, for integration tests of several modules: tests_<folder>,
# with the cases tests/<folder>/<stem of the file>/<case> in ctest. SAMPLES are environment
# variables that shorten randomized tests; with SHIPLAP_SAMPLES=OFF they are not set.
function(shiplap_tests folder)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;DEPENDS;SAMPLES" ${ARGN})
  _shiplap_check_arguments(shiplap_tests ${folder} "${T_UNPARSED_ARGUMENTS}")
  _shiplap_gtest(tests_${folder} PREFIX tests/${folder} SOURCES ${T_SOURCES} DEPENDS ${T_DEPENDS}
                 TIMEOUT ${T_TIMEOUT} SAMPLES ${T_SAMPLES})
endfunction()

# shiplap_test_program(<target> SOURCES ... [DEPENDS ...])
#
# A program that tests start, for example on ranks.
function(shiplap_test_program target)
  cmake_parse_arguments(T "" "" "SOURCES;DEPENDS" ${ARGN})
  _shiplap_check_arguments(shiplap_test_program ${target} "${T_UNPARSED_ARGUMENTS}")
  add_executable(${target} ${T_SOURCES})
  _shiplap_compile(${target})
  _shiplap_link_privately(${target} ${T_DEPENDS})
endfunction()

# shiplap_disabled_test(<name>)
#
# A test that cannot run because a dependency is missing: ctest lists it as disabled.
function(shiplap_disabled_test name)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E false)
  set_tests_properties(${name} PROPERTIES DISABLED TRUE)
endfunction()

# shiplap_bench(<name> SOURCES ... [DEPENDS ...])
#
# A benchmark, bench_<name> in build/<preset>/bin, linked with Google Benchmark.
function(shiplap_bench name)
  cmake_parse_arguments(B "" "" "SOURCES;DEPENDS" ${ARGN})
  _shiplap_check_arguments(shiplap_bench ${name} "${B_UNPARSED_ARGUMENTS}")
  add_executable(bench_${name} ${B_SOURCES})
  _shiplap_compile(bench_${name})
  _shiplap_link_privately(bench_${name} ${B_DEPENDS} benchmark::benchmark)
endfunction()

# shiplap_fuzz(<name> SOURCES ... [DEPENDS ...])
#
# A fuzz target: SOURCES define LLVMFuzzerTestOneInput. The fuzz build makes fuzz_<name> with
# libFuzzer; its corpus is fuzz/corpus/<name>. The other builds make a program that runs each file
# of the corpus once: fuzz/<name> in ctest.
function(shiplap_fuzz name)
  cmake_parse_arguments(F "" "" "SOURCES;DEPENDS" ${ARGN})
  _shiplap_check_arguments(shiplap_fuzz ${name} "${F_UNPARSED_ARGUMENTS}")
  set(target fuzz_${name})
  add_executable(${target} ${F_SOURCES})
  _shiplap_compile(${target})
  _shiplap_link_privately(${target} ${F_DEPENDS})
  if(SHIPLAP_FUZZ)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    set_property(GLOBAL APPEND PROPERTY SHIPLAP_FUZZ_TARGETS ${name})
  else()
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/fuzz/replay_main.cc)
    add_test(NAME fuzz/${name} COMMAND ${target} fuzz/corpus/${name}
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(fuzz/${name} PROPERTIES TIMEOUT 300)
  endif()
endfunction()

# With SHIPLAP_UNITY, generates files that include eight sources each; otherwise returns the
# sources. Names in anonymous namespaces must therefore be unique in a module, not only in a file.
# CMake's UNITY_BUILD includes sources by absolute paths, which would be ccache misses in another
# clone or build folder.
function(_shiplap_batches result)
  if(NOT SHIPLAP_UNITY)
    set(${result} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src
             OUTPUT_VARIABLE folder)
  set(sources ${ARGN})
  set(batches "")
  while(sources)
    list(SUBLIST sources 0 8 batch)
    list(REMOVE_ITEM sources ${batch})
    list(TRANSFORM batch REPLACE "(.+)" "#include \"${folder}/\\1\"\n")
    list(JOIN batch "" includes)
    list(LENGTH batches number)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/batch_${number}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${includes}" @ONLY)
    list(APPEND batches ${file})
  endwhile()
  set(${result} ${batches} PARENT_SCOPE)
endfunction()

# Writes the names of the fuzz targets to a file for the script that runs them.
function(shiplap_list_fuzz_targets)
  get_property(names GLOBAL PROPERTY SHIPLAP_FUZZ_TARGETS)
  list(JOIN names "\n" lines)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/fuzz_targets.txt CONTENT "${lines}\n" @ONLY)
endfunction()

# A GoogleTest program. Each of its cases is a test of ctest: tools/list-cases lists them after the
# program is linked. Tests run in the root of the repository, so that they can use relative paths,
# and get the path of the command line tool in the environment variable SHIPLAP_PROGRAM.
function(_shiplap_gtest target)
  if(NOT SHIPLAP_TESTS)
    return()
  endif()
  cmake_parse_arguments(T "" "PREFIX;TIMEOUT" "SOURCES;DEPENDS;SAMPLES" ${ARGN})
  if(NOT SHIPLAP_SAMPLES)
    set(T_SAMPLES "")
  endif()
  add_executable(${target} ${T_SOURCES})
  _shiplap_compile(${target} TEST)
  _shiplap_test_options(${target})
  _shiplap_link_privately(${target} ${T_DEPENDS})
  target_link_libraries(${target} PRIVATE GTest::gmock GTest::gtest_main)
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  set(cases ${CMAKE_CURRENT_BINARY_DIR}/${target}_cases.cmake)
  add_custom_command(
    TARGET ${target} POST_BUILD
    COMMAND ${SHIPLAP_PYTHON} ${PROJECT_SOURCE_DIR}/tools/list-cases $<TARGET_FILE:${target}>
            --ctest ${cases} --prefix ${T_PREFIX} --timeout ${T_TIMEOUT}
            --filter "$<TARGET_PROPERTY:${target},SHIPLAP_CASES>"
            --working-directory ${PROJECT_SOURCE_DIR}
            --environment SHIPLAP_PROGRAM=${PROJECT_BINARY_DIR}/bin/shiplap ${T_SAMPLES}
    VERBATIM)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake CONTENT "\
if(EXISTS ${cases})
  include(${cases})
else()
  add_test(${T_PREFIX}/any_test/not_built ${target})
endif()
" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES
               ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake)
endfunction()

# With sanitizers, optimizing the tests takes longer than it saves, and UBSan doubles the time to
# compile them, so only `.ci/run --long` uses it in tests.
function(_shiplap_test_options target)
  if(SHIPLAP_SANITIZER)
    target_compile_options(${target} PRIVATE -O0)
  endif()
  if(SHIPLAP_SANITIZER STREQUAL "address" AND NOT SHIPLAP_UBSAN_TESTS)
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
endfunction()

# _shiplap_compile(<target> [TEST])
#
# Compile options of all our targets: warnings, and the precompiled headers in
# cmake/precompiled.cmake.
function(_shiplap_compile target)
  _shiplap_warnings(${target})
  shiplap_precompile(${target} ${ARGN})
endfunction()

function(_shiplap_warnings target)
  # A field that a designated initializer omits has its default value, which is intended.
  # Indices are signed: clang warns about that with -Wconversion, gcc does not.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow
                         -Wpedantic
                         -Wno-missing-field-initializers
                         $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
                         $<$<BOOL:${SHIPLAP_WERROR}>:-Werror>)
endfunction()

# Links modules and external targets. The latter are used only in this build and are not exported
# with an installed shiplap.
function(_shiplap_link_privately target)
  foreach(dependency IN LISTS ARGN)
    if(dependency MATCHES "::")
      target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${dependency}>)
    else()
      target_link_libraries(${target} PRIVATE shiplap::${dependency})
    endif()
  endforeach()
endfunction()

function(_shiplap_targets result)
  set(names ${ARGN})
  foreach(name IN LISTS names)
    if(name MATCHES "::")
      message(FATAL_ERROR "${name} is not a module: list it in PRIVATE_DEPENDS")
    endif()
  endforeach()
  list(TRANSFORM names PREPEND shiplap::)
  set(${result} ${names} PARENT_SCOPE)
endfunction()

function(_shiplap_check_arguments function name arguments)
  if(arguments)
    message(FATAL_ERROR "${function}(${name}): unknown arguments: ${arguments}")
  endif()
endfunction()
