"""The ONNX Runtime engine: quantizes, compiles a context binary, and runs it on the HTP
emulator."""
