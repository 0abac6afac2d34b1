"""The ExecuTorch engine: quantizes, lowers, and runs programs for QNN."""
