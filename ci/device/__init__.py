"""Collect the files that a device needs, send them to it, and run programs on it."""
