"""CMake's commands, each evaluated as far as a static reading can."""
