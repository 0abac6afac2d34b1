"""The ExecuTorch engine: quantizes models, lowers them to QNN programs, and runs the programs."""
