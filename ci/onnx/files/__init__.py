"""ONNX files read without the onnx package: what they hold, and what is wrong with them."""
