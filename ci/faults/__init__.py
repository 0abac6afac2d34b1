"""Faults of QNN's compiler: generated graphs, shrunk ones, known ones as patterns, by version."""
