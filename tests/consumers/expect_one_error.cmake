# With `flag`, the library stops the compiler by one #error, before any other complaint, that says what it needs.
set(include ${CMAKE_CURRENT_LIST_DIR}/../../include)
execute_process(
  COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 ${flag} -fsyntax-only -I${include} ${CMAKE_CURRENT_LIST_DIR}/main.cpp
  RESULT_VARIABLE result ERROR_VARIABLE messages)
string(REGEX MATCH "error: [^\n]*" first "${messages}")
string(REGEX MATCHALL "error: (#error )?\"turnwise needs" errors "${messages}")
list(LENGTH errors count)
if(result EQUAL 0 OR NOT count EQUAL 1 OR NOT first MATCHES "turnwise needs ${expected}")
  message(FATAL_ERROR "Expected one error, \"turnwise needs ${expected}\", got:\n${messages}")
endif()
