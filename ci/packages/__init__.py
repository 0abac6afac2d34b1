"""Python packages: the locks, and where this machine's pip and uv find what is in them.

Before anything is installed, ./nox and the bare systems of tests use this, so that only nox's own
packages and the standard library can be imported.
"""
