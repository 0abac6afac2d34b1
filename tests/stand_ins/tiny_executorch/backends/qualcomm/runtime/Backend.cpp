#include <executorch/backends/qualcomm/runtime/Backend.h>

#include "QnnInterface.h"

#ifdef TINY_BALLAST
extern "C" const char tiny_ballast[TINY_BALLAST] = {1};
#endif

// An assert names its file: it shows which directories the object was built in.
extern "C" int qnn_backend_version() { return QNN_API_VERSION_MAJOR + qnn_graph_nodes(); }
extern "C" const char* qnn_backend_file() { return __FILE__; }
