"""Judges outputs against references. All functions here are pure and work on arrays."""
