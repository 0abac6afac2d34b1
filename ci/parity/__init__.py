"""Check that Buck and CMake describe the same build: read both from a source tree, report drift.

Data flows one way: trees -> readers (buck, cmake) -> facts -> compare -> allow-list -> render.
"""
