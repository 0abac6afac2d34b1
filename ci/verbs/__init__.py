"""The command-line verbs, one module per verb. Each parses its arguments and returns an outcome."""
