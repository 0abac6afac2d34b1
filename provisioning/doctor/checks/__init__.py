"""Facts -> findings: pure functions, one module a family; docs/checks.md explains every id."""
