"""Judges outputs against references: pure functions over arrays, no files."""
