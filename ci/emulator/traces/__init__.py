"""What QNN and ExecuTorch write about a graph and its runs beside its outputs."""
