"""Check that Buck and CMake describe the same build: read both descriptions from a source tree, and
report where they differ.

Data flows in one direction: trees -> readers (buck, cmake) -> facts -> compare -> allow-list ->
render.
"""
