#include <executorch/backends/qualcomm/runtime/Backend.h>

extern "C" int qnn_executorch_skel_invoke() { return qnn_backend_version(); }
