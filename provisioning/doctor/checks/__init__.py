"""Facts -> findings: pure functions, one module per family (docs/reference/checks.md)."""
