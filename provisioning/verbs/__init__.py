"""One module per verb: it takes arguments and returns an outcome."""
