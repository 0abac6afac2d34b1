extern "C" int qnn_executorch_stub_invoke() { return 0; }
