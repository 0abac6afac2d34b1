extern "C" int qnn_executorch_stub_invoke();

int main() { return qnn_executorch_stub_invoke(); }
