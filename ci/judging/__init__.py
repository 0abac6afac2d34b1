"""Judges outputs against references, and footprints against budgets. All functions here are
pure."""
