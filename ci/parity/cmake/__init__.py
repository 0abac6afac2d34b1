"""The CMake reader: the file API's reply of a configured build, or a static reading."""
