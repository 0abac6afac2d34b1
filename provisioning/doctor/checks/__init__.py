"""Checks turn facts into findings: pure functions, one module per family
(docs/reference/checks.md).
"""
