"""The LiteRT lane: .tflite models, compiled by LiteRT's plugin for Qualcomm and run on QNN's HTP
emulator."""
