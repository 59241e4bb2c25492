# Run by ctest with BUILD, SOURCE, VERSION, COMPILER and CONFIGURATION.
set(scratch ${BUILD}/install_test)
file(REMOVE_RECURSE ${scratch})

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${scratch}/prefix)
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${scratch}/build -D CMAKE_CXX_COMPILER=${COMPILER}
    -D CMAKE_BUILD_TYPE=${CONFIGURATION} -D CMAKE_PREFIX_PATH=${scratch}/prefix)
run(${CMAKE_COMMAND} --build ${scratch}/build)
run(${scratch}/build/consumer)
if(EXISTS ${BUILD}/bin/shiplap)
  run(${scratch}/prefix/bin/shiplap --version)
endif()

# Nothing that is installed may lead back to where it was built.
file(GLOB_RECURSE files ${scratch}/prefix/*.cmake ${scratch}/prefix/*.h)
foreach(file IN LISTS files)
  file(READ ${file} text)
  string(REPLACE "${scratch}" "" text "${text}")
  string(FIND "${text}" "${BUILD}" place)
  if(NOT place EQUAL -1 OR text MATCHES "nlohmann|fmt::")
    message(FATAL_ERROR "${file} mentions the build folder or a library that users need not have")
  endif()
endforeach()
