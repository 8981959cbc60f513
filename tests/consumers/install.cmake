# Installs `build`, then moves what was installed to `prefix`: the package must work anywhere, so no file in it may name
# a path of this machine.
set(staging ${prefix}_staging)
file(REMOVE_RECURSE ${staging} ${prefix})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --component turnwise --prefix ${staging}
  COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${staging} ${prefix})

# X-16: the toolkit's headers need MSVC's new preprocessor.
file(READ ${prefix}/share/cmake/turnwise/turnwiseConfig.cmake text)
foreach(option IN ITEMS "COMPILE_LANG_AND_ID:CXX,MSVC>:/Zc:preprocessor>"
    "COMPILE_LANGUAGE:CUDA>,\\$<PLATFORM_ID:Windows>>:-Xcompiler=/Zc:preprocessor>")
  string(FIND "${text}" "${option}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "The exported targets lack ${option}")
  endif()
endforeach()

file(GLOB_RECURSE files ${prefix}/*)
foreach(file IN LISTS files)
  file(READ ${file} text)
  foreach(path IN ITEMS ${source} ${build} ${staging})
    string(FIND "${text}" "${path}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${file} names ${path}")
    endif()
  endforeach()
endforeach()
