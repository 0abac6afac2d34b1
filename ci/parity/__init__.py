"""Buck and CMake describe the same build: read both sides of a source tree and report drift.

Data flows one way: trees -> readers (buck, cmake) -> facts -> compare -> allow-list -> render.
"""
