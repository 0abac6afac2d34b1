"""The Buck reader: evaluates BUCK, TARGETS and .bzl files with a real Starlark interpreter."""
