"""The ONNX Runtime lane: quantize, compile a context binary, run on the HTP emulator, judge."""
