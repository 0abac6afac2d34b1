"""The CMake reader: runs list files statically, with every branch that could be taken."""
