"""Faults of the compiler: graphs made by machine, shrunk, known ones as patterns, by version."""
