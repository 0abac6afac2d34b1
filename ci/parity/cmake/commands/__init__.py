"""Evaluate CMake's commands, as far as this is possible without running CMake."""
