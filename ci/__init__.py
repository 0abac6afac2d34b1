"""Build, lower, emulate, compare, sign, report."""
