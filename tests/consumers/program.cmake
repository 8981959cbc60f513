# A program that links the library in one of the ways; its build fails if the library brings more than include paths.
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

function(consumer_program library)
  add_executable(consumer ../main.cpp)
  target_link_libraries(consumer PRIVATE ${library})
  add_custom_command(TARGET consumer POST_BUILD
    COMMAND ${CMAKE_COMMAND} -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/only_include_paths.cmake)
endfunction()
