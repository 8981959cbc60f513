# Every method's header has a row in a table of README.md, and every header named in a row exists.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)

file(STRINGS ${root}/README.md rows REGEX "^\\|")
string(REGEX MATCHALL "turnwise/[a-z0-9_]+/[a-z0-9_]+\\.hpp" named "${rows}")
file(GLOB headers RELATIVE ${root}/include ${root}/include/turnwise/*/*.hpp)

set(missing ${headers})
list(FILTER missing EXCLUDE REGEX "^turnwise/(core|detail)/")
list(REMOVE_ITEM missing ${named})
set(unknown ${named})
list(REMOVE_ITEM unknown ${headers})
foreach(header IN LISTS missing)
  message(SEND_ERROR "README.md has no row for ${header}")
endforeach()
foreach(header IN LISTS unknown)
  message(SEND_ERROR "README.md has a row for ${header}, which does not exist")
endforeach()
