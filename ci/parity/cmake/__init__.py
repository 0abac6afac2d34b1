"""The CMake reader: runs list files (CMakeLists.txt and included files) statically, taking every
branch that CMake might take.
"""
