"""The Buck reader: BUCK, TARGETS and .bzl files evaluated with a real Starlark."""
