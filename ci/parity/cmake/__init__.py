"""The CMake reader: list files run statically, with every branch that could be taken."""
