#pragma once

extern "C" int qnn_backend_version();
extern "C" const char* qnn_backend_file();
extern "C" int qnn_graph_nodes();
