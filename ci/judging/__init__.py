"""Judges outputs against references, with pure functions over arrays."""
