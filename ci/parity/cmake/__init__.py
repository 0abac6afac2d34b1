"""The CMake reader: runs list files (CMakeLists.txt and the files that they include) statically,
and takes every branch that CMake might take.
"""
