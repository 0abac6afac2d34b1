"""Sessions of ONNX Runtime: made, run, and asked which node ran where."""
