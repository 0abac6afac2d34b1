"""One graph for both lanes: what it consists of, and its readers, one for exported torch programs
and one for ONNX files."""
