# CMake ignores CFLAGS if a toolchain file presets CMAKE_C_FLAGS, as the NDK's does.
if(NOT CMAKE_C_FLAGS MATCHES "-ffile-prefix-map=")
  separate_arguments(flags_of_build UNIX_COMMAND "$ENV{CFLAGS}")
  add_compile_options(${flags_of_build})
endif()
# Setting CMAKE_SHARED_LINKER_FLAGS would replace the flags of the toolchain file and the caller.
if(QNN_CI_PAGE_BYTES)
  add_link_options("LINKER:-z,max-page-size=${QNN_CI_PAGE_BYTES}")
endif()
