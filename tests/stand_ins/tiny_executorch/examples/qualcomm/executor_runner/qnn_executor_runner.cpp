#include <executorch/backends/qualcomm/runtime/Backend.h>

// Its exit code is the answer, so that it needs no C library's header.
int main() { return qnn_backend_version(); }
