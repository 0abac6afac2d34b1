"""Check that Buck and CMake describe the same build: read both from a source tree, and report
drift.

Data flows in one direction: trees -> readers (buck, cmake) -> facts -> compare -> allow-list ->
render.
"""
