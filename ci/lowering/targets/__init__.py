"""What a program is lowered for: a backend of QNN on a SoC."""
