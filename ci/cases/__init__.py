"""One pipeline from a case to its row in the report, for every engine and runner."""
