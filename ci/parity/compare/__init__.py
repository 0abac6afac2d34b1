"""Compare: facts and a policy in, findings out; this package reads and writes no files."""
