"""CMake's commands, each run as far as a static reading can go."""
