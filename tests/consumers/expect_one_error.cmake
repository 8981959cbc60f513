# With `options` each of `compilers` stops at one #error, before any other complaint, that says what the library needs.
foreach(compiler IN LISTS compilers)
  execute_process(COMMAND ${compiler} -std=c++20 ${options} -c -o /dev/null -I${include} ${source}
    RESULT_VARIABLE result ERROR_VARIABLE messages)
  string(REGEX MATCH "error: [^\n]*" first "${messages}")
  string(REGEX MATCHALL "error: (#error )?\"turnwise needs" errors "${messages}")
  list(LENGTH errors count)
  if(result EQUAL 0 OR NOT count EQUAL 1 OR NOT first MATCHES "turnwise needs ${expected}")
    message(FATAL_ERROR "Expected one error of ${compiler}, \"turnwise needs ${expected}\", got:\n${messages}")
  endif()
endforeach()
