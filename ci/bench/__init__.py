"""Benchmarks: one module a part, measured in one run beside a peer; results are ratios."""
