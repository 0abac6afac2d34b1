# Replaces Abseil and the tokenizers if only qnn_executor_runner is built: ExecuTorch's
# examples/qualcomm requires them for its other runners. Linking one of those fails.
set(absl_FOUND TRUE)
foreach(name tokenizers::tokenizers re2::re2)
  if(NOT TARGET ${name})
    add_library(${name} INTERFACE IMPORTED)
    set_target_properties(${name} PROPERTIES INTERFACE_LINK_LIBRARIES build_it_with_llama)
  endif()
endforeach()
