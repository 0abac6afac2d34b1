"""A report as a table, as JSON, as SARIF and as annotations of a pull request."""
