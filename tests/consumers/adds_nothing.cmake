# As a part of another project the library is its two targets and no more.
get_property(targets DIRECTORY ${turnwise_SOURCE_DIR} PROPERTY BUILDSYSTEM_TARGETS)
get_property(tests DIRECTORY ${turnwise_SOURCE_DIR} PROPERTY TESTS)
get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(NOT "${targets};${tests};${languages}" STREQUAL "turnwise;turnwise_cuda;;CXX"
   OR TURNWISE_INSTALL OR CPACK_PACKAGE_NAME)
  message(FATAL_ERROR "A subproject must add nothing but its library, got: ${targets};${tests};${languages}")
endif()
